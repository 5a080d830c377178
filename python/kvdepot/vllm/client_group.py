"""Several clients of one depot that are used as one: a client moves bytes on one thread, several do on as many.

Owned by the worker half's process and used by the thread that runs the model; wait() and stats() by others, too. It has
those calls of kvdepot.Client that the worker half makes. What differs:

- The keys of a load or store are shared out in stretches of their order, so that neighbours on flash stay neighbours,
  to as many clients as get SHARE_BYTES_MIN each; the clients with the fewest shares in flight get them. A client has at
  most one share of an operation, so its own bound of operations holds for the group.
- A layer is there when it is there at all clients that have a share.
- A load is a prefix. Where a share fails, those behind it are cancelled; the completion's first_failed() says how much
  of the whole is in place, also when its code is not `ok`, as the shares before may be.
- A client that has no connection, or whose breaker is open, gets no share; `unavailable` is when none takes one. What
  opens one client's breaker opens all.
- poll() takes all that has ended; layers are told by wait() only.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from kvdepot._kvdepot import KvdepotError
from kvdepot.vllm.transfers import failed_keys

# Of one client, before another one gets a share: 2 ms of copying and verifying at the 4 to 5 GB/s of one client
# (docs/results/gpu.md), which another submission and another wait are small beside. Not measured by itself.
SHARE_BYTES_MIN = 8 << 20
POLLED = 64                 # completions taken by one call


@dataclass(slots=True)
class Joined:
    """The completion of an operation, or of one of its layers: what of a kvdepot.Completion is looked at."""

    op: int
    layer: int
    keys: int
    code: str = "ok"
    good: int = 0               # usable prefix, in keys
    failed_keys: int = 0
    failed: bytes = b""         # bitmap as kvdepot.Completion has it
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return self.code == "ok"

    def first_failed(self) -> int:
        return self.good


@dataclass(slots=True, eq=False)
class _Share:
    """A stretch of an operation's keys, at one client."""

    client: int
    op: int                     # that client's operation
    first: int
    count: int
    done: Any = None            # its last completion
    failure: Any = None         # the last one that told of a failure


@dataclass(slots=True, eq=False)
class _Op:
    number: int
    is_load: bool
    keys: int
    shares: list[_Share]
    needed: int                 # shares that count: those behind one that has failed do not
    told: bool = False          # by poll()


class ClientGroup:
    """At least one client; the first one is the owner of an embedded depot."""

    def __init__(self, clients: Sequence[Any], block_bytes: int, share_bytes_min: int = SHARE_BYTES_MIN) -> None:
        self._clients = list(clients)
        self._block_bytes = block_bytes
        self._share_bytes_min = share_bytes_min
        self._in_flight = [0] * len(self._clients)      # shares of each that have not ended
        self._refused: set[int] = set()                 # clients that took nothing when they were asked last
        self._ops: dict[int, _Op] = {}
        self._places: dict[tuple[int, int], tuple[_Op, int]] = {}   # (client, its operation) -> which share it is
        self._regions: list[list[int]] = []             # number here -> number at each client
        self._namespaces: dict[int, list[int]] = {}
        self._next_namespace = 1
        self._next_op = 1
        self._epoll: Any = None

    # ---- set-up --------------------------------------------------------------------------------------------------

    def register_address(self, address: int, nbytes: int, owner: object) -> int:
        self._regions.append([client.register_address(address, nbytes, owner) for client in self._clients])
        return len(self._regions) - 1

    def open_namespace(self, tenant: str, fingerprint: bytes, groups: list[dict[str, Any]]) -> int:
        """At all clients or at none."""
        opened: list[int] = []
        try:
            for client in self._clients:
                opened.append(client.open_namespace(tenant, fingerprint, groups))
        except KvdepotError:
            self._close_namespaces(opened)
            raise
        number, self._next_namespace = self._next_namespace, self._next_namespace + 1
        self._namespaces[number] = opened
        return number

    def close_namespace(self, ns: int) -> None:
        if ns not in self._namespaces:
            raise _error("not_found", "no such namespace")
        self._close_namespaces(self._namespaces.pop(ns))

    def _close_namespaces(self, numbers: list[int]) -> None:
        for client, number in zip(self._clients, numbers, strict=False):
            client.close_namespace(number)

    # ---- submissions ---------------------------------------------------------------------------------------------

    def multiget(self, ns: int, keys: bytes, key_bytes: int, region: int, layer_offsets: Any, block_offsets: Any,
                 **options: Any) -> int:
        """A load of a prefix; options of kvdepot.Client.multiget, of which stop_at_first_failure is always true."""
        def submit(i: int, first: int, count: int) -> int:
            return self._clients[i].multiget(
                self._namespaces[ns][i], keys[first * key_bytes:(first + count) * key_bytes], key_bytes,
                self._regions[region][i], layer_offsets, block_offsets[first:first + count], **options)
        return self._submit(submit, len(block_offsets), is_load=True)

    def multiput(self, ns: int, keys: bytes, key_bytes: int, region: int, layer_offsets: Any, block_offsets: Any,
                 **options: Any) -> int:
        def submit(i: int, first: int, count: int) -> int:
            return self._clients[i].multiput(
                self._namespaces[ns][i], keys[first * key_bytes:(first + count) * key_bytes], key_bytes,
                self._regions[region][i], layer_offsets, block_offsets[first:first + count], **options)
        return self._submit(submit, len(block_offsets), is_load=False)

    def put_layer(self, number: int, layer: int) -> None:
        for share in self._found(number).shares:
            if share.done is None:
                self._clients[share.client].put_layer(share.op, layer)

    def _submit(self, submit: Callable[[int, int, int], int], keys: int, *, is_load: bool) -> int:
        # Who refused last time is asked first, so that no share has to be taken back from the others.
        ready = sorted(range(len(self._clients)), key=lambda i: (i not in self._refused, self._in_flight[i]))
        while True:
            shares: list[_Share] = []
            wanted = stretches(keys, min(len(ready), max(keys * self._block_bytes // self._share_bytes_min, 1)))
            for i, (first, count) in zip(ready, wanted, strict=False):
                try:
                    shares.append(_Share(i, submit(i, first, count), first, count))
                except KvdepotError as error:
                    for share in shares:
                        self._clients[share.client].release(share.op)
                    if error.code == "unavailable":
                        self._refused.add(i)
                        ready.remove(i)
                    if error.code != "unavailable" or not ready:
                        raise
                    break
            else:
                return self._begin(shares, keys, is_load)

    def _begin(self, shares: list[_Share], keys: int, is_load: bool) -> int:
        number, self._next_op = self._next_op, self._next_op + 1
        op = self._ops[number] = _Op(number, is_load, keys, shares, len(shares))
        for place, share in enumerate(shares):
            self._refused.discard(share.client)
            self._in_flight[share.client] += 1
            self._places[share.client, share.op] = op, place
        return number

    # ---- collecting ----------------------------------------------------------------------------------------------

    @property
    def event_fd(self) -> int:
        """Readable while poll() may have something."""
        if self._epoll is None:
            self._epoll = select.epoll()
            for client in self._clients:
                self._epoll.register(client.event_fd, select.EPOLLIN)
        return self._epoll.fileno()

    def poll(self, _maximum: int = POLLED) -> list[Joined]:
        """Operations that have ended since it was asked last. Never waits."""
        ended: list[Joined] = []
        for i, client in enumerate(self._clients):
            while completions := client.poll(POLLED):
                for completion in completions:
                    place = self._places.get((i, completion.op)) if completion.layer < 0 else None
                    if place is not None:
                        ended += self._share_ended(*place, completion)
        return ended

    def _share_ended(self, op: _Op, place: int, completion: Any) -> list[Joined]:
        share = op.shares[place]
        if share.done is None:
            share.done = completion
            self._in_flight[share.client] -= 1
        if _fails(op, completion):
            self._cut(op, place, completion)
        done = [one.done for one in op.shares[:op.needed]]
        whole = None not in done or (not op.is_load and not completion.ok)
        if op.told or not whole:
            return []
        op.told = True
        return [_join(op, -1, zip(op.shares, done, strict=False))]

    def wait(self, number: int, layer: int = -1, timeout_ms: int = 1000) -> Joined | None:
        op = self._found(number)
        until = time.monotonic() + timeout_ms / 1e3
        done = []
        for place, share in enumerate(op.shares):
            left_ms = max(int((until - time.monotonic()) * 1e3), 0)
            completion = self._clients[share.client].wait(share.op, layer=layer, timeout_ms=left_ms)
            if completion is None:
                return None
            if share.failure is not None and not _fails(op, completion):
                completion = share.failure      # known since: what is behind it was cancelled
            done.append((share, completion))
            if _fails(op, completion):
                self._cut(op, place, completion)
                break
        return _join(op, layer, done)

    def _cut(self, op: _Op, place: int, completion: Any) -> None:
        """A share has failed: in a load, nothing behind it can be used."""
        op.shares[place].failure = completion
        self._judge(op.shares[place].client, completion)
        if not op.is_load or place + 1 >= op.needed:
            return
        behind, op.needed = op.shares[place + 1:op.needed], place + 1
        for share in behind:
            if share.done is None:
                self._clients[share.client].cancel(share.op)

    def _judge(self, failed: int, completion: Any) -> None:
        """What one client has found out at the price of a deadline, no other one finds out again."""
        if completion.code not in ("timeout", "unavailable") or not self._clients[failed].stats()["breaker_open"]:
            return
        for i, client in enumerate(self._clients):
            if i != failed:
                client.open_breaker()

    # ---- the end of operations -----------------------------------------------------------------------------------

    def cancel(self, number: int) -> None:
        """When it returns, no byte of the operation can land, and none is read."""
        for share in self._found(number).shares:
            if share.done is None:
                self._clients[share.client].cancel(share.op)

    def release(self, number: int) -> None:
        """Cancels what still runs."""
        op = self._ops.pop(number, None)
        for share in op.shares if op is not None else ():
            self._clients[share.client].release(share.op)
            del self._places[share.client, share.op]
            if share.done is None:
                self._in_flight[share.client] -= 1

    def _found(self, number: int) -> _Op:
        op = self._ops.get(number)
        if op is None:
            raise _error("not_found", "no such operation")
        return op

    # ---- all clients ---------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Sums; `connected`: one of them is; `breaker_open`: one of theirs is."""
        joined, *others = (client.stats() for client in self._clients)
        for stats in others:
            for name, value in stats.items():
                if isinstance(value, (bool, str)):
                    joined[name] = joined[name] or value
                else:
                    joined[name] += value
        return joined

    def open_breaker(self) -> None:
        for client in self._clients:
            client.open_breaker()

    def reconnect(self, timeout_ms: int) -> None:
        """`timeout_ms` for all of them together; raises when none has a connection then."""
        until = time.monotonic() + timeout_ms / 1e3
        connected, refusal = False, None
        for client in self._clients:
            try:
                client.reconnect(max(int((until - time.monotonic()) * 1e3), 0))
                connected = True
            except KvdepotError as error:
                refusal = error
        if not connected and refusal is not None:
            raise refusal

    def take_warnings(self) -> list[str]:
        return self._clients[0].take_warnings()

    def close(self) -> None:
        """All of them, whatever happens; the owner of an embedded depot as the last."""
        with ExitStack() as ends:
            for client in self._clients:
                ends.callback(client.close)
            if self._epoll is not None:
                ends.callback(self._epoll.close)


def stretches(keys: int, shares: int) -> list[tuple[int, int]]:
    """(first, count) of each share; their sizes differ by one at most, and none is empty."""
    bounds = [i * keys // shares for i in range(shares + 1)]
    return [(first, end - first) for first, end in zip(bounds, bounds[1:], strict=False) if end > first]


def _fails(op: _Op, completion: Any) -> bool:
    return not completion.ok or (op.is_load and completion.failed_keys > 0)


def _join(op: _Op, layer: int, done: Iterable[tuple[_Share, Any]]) -> Joined:
    """`done`: shares in their order with what is known of each, None = not ended. Of a load, up to one that failed."""
    joined, bad = Joined(op.number, layer, op.keys, good=op.keys), set()
    for share, completion in done:
        if completion is None:
            continue
        joined.seconds = max(joined.seconds, completion.seconds)
        if joined.ok:
            joined.code = completion.code
        if op.is_load and _fails(op, completion):
            bad = range(share.first + completion.first_failed(), op.keys)
            break
        bad.update(share.first + i for i in failed_keys(completion))
    if bad:
        joined.good, joined.failed_keys = min(bad), len(bad)
        joined.failed = bytes(sum((8 * byte + bit in bad) << bit for bit in range(8))
                              for byte in range(-(-op.keys // 8)))
    return joined


def _error(code: str, text: str) -> KvdepotError:
    error = KvdepotError(text)
    error.code = code
    return error
