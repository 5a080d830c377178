"""A depot and its client in this process: the same surface as kvdepot.Client, with faults on demand.

Bytes really move, between the memory behind registered addresses and a dictionary. Operations end at submission
(stores: when their last layer is handed over), or, while `depot.held` is true, when the test calls `client.deliver()`.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from typing import Any

from kvdepot._kvdepot import KvdepotError


KEYS_MAX = 4096             # of one operation, as the client has it


def error(code: str) -> KvdepotError:
    made = KvdepotError(code)
    made.code = code
    return made


@dataclass
class FakeDepot:
    """What is stored, and what is wrong with it."""

    records: dict[tuple[bytes, int, bytes], list[bytes]] = field(default_factory=dict)
    flash: set[bytes] = field(default_factory=set)      # keys that lie on flash
    damaged: set[bytes] = field(default_factory=set)    # keys whose bytes fail verification
    lost: set[bytes] = field(default_factory=set)       # keys that a match still finds but a get does not
    down: bool = False                                  # submissions fail at once
    held: bool = False                                  # operations end only by deliver()
    full: bool = False                                  # stores are refused
    takes: int = 1 << 30                                # blocks of a store that there is room for
    load_s: float = 0.0                                 # what a load takes, as its completion says; 0: it does not


@dataclass
class Completion:
    op: int
    layer: int = -1
    code: str = "ok"
    keys: int = 0
    failed_keys: int = 0
    failed_from: int | None = None      # None: no key failed
    prefix_blocks: int = 0
    flash_blocks: int = 0
    lease: int = 0
    seconds: float = 0.0                # 0: not told

    @property
    def failed(self) -> bytes:
        first = self.first_failed()
        return bytes(sum((8 * byte + bit >= first) << bit for bit in range(8)) for byte in range(-(-self.keys // 8)))

    @property
    def ok(self) -> bool:
        return self.code == "ok"

    def first_failed(self) -> int:
        if not self.ok:
            return 0
        return self.keys if self.failed_from is None else self.failed_from


@dataclass
class _Op:
    kind: str
    args: dict[str, Any]
    layers_in: set[int] = field(default_factory=set)
    layers_done: dict[int, Completion] = field(default_factory=dict)
    result: Completion | None = None


class FakeClient:
    def __init__(self, depot: FakeDepot) -> None:
        self.depot = depot
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.ops: dict[int, _Op] = {}
        self.calls: list[str] = []
        self.leases: set[int] = set()
        self.namespaces: list[tuple[bytes, dict[str, Any]]] = []
        self.open_namespaces: set[int] = set()
        self.namespaces_max = 1024
        self.ops_max = 256                  # operations in flight or not released, as the client has it
        self._regions: list[tuple[int, int]] = []
        self._queue: list[Completion] = []
        self._next = 1
        self.waited_ms = 0                  # for a connection that did not come
        self.knows = {"corrupt_slabs": 0, "bytes_loaded": 0, "bytes_stored": 0, "breaker_open": False,
                       "connected": True}

    # ---- set-up --------------------------------------------------------------------------------------------------

    def register_address(self, address: int, nbytes: int, owner: object) -> int:
        self._regions.append((address, nbytes))
        return len(self._regions) - 1

    def open_namespace(self, tenant: str, fingerprint: bytes, groups: list[dict[str, Any]]) -> int:
        if len(self.open_namespaces) == self.namespaces_max:
            raise error("no_space")
        self.namespaces.append((tenant.encode() + b"/" + fingerprint, groups[0]))
        self.open_namespaces.add(len(self.namespaces))
        return len(self.namespaces)

    def close_namespace(self, ns: int) -> None:
        if ns not in self.open_namespaces:
            raise error("not_found")
        self.open_namespaces.remove(ns)

    # ---- submissions ---------------------------------------------------------------------------------------------

    def _submit(self, kind: str, **args: Any) -> int:
        self.calls.append(kind)
        if self.depot.down or self.knows["breaker_open"] or not self.knows["connected"]:
            raise error("unavailable")
        if len(self.ops) >= self.ops_max:
            raise error("busy")
        op = self._next
        self._next += 1
        self.ops[op] = _Op(kind, args)
        if not self.depot.held:
            self._run(op)
        return op

    def match(self, ns: int, keys: bytes, key_bytes: int, *, shards: Any = (0,), groups: Any = (0,), lease_ms: int = 0,
              promote: bool = True, total_ms: int = 0, progress_ms: int = 100) -> int:
        if len(keys) > KEYS_MAX * key_bytes:
            raise error("invalid")
        return self._submit("match", ns=ns, keys=_split(keys, key_bytes), shards=shards, lease_ms=lease_ms,
                            total_ms=total_ms, progress_ms=progress_ms)

    def multiget(self, ns: int, keys: bytes, key_bytes: int, region: int, layer_offsets: Any, block_offsets: Any, *,
                 shard: int = 0, stop_at_first_failure: bool = True, total_ms: int = 0, progress_ms: int = 100) -> int:
        return self._submit("multiget", ns=ns, keys=_split(keys, key_bytes), region=region, layers=layer_offsets,
                            blocks=block_offsets, shard=shard, total_ms=total_ms)

    def multiput(self, ns: int, keys: bytes, key_bytes: int, region: int, layer_offsets: Any, block_offsets: Any, *,
                 shard: int = 0, ack: str = "pooled", whole: bool = True, total_ms: int = 0,
                 progress_ms: int = 0) -> int:
        assert not whole
        return self._submit("multiput", ns=ns, keys=_split(keys, key_bytes), region=region, layers=layer_offsets,
                            blocks=block_offsets, shard=shard)

    def put_layer(self, op: int, layer: int) -> None:
        self.ops[op].layers_in.add(layer)
        if not self.depot.held:
            self._run(op)

    # ---- running -------------------------------------------------------------------------------------------------

    def deliver(self, kinds: tuple[str, ...] = ("match", "multiget", "multiput"), layers: int | None = None) -> None:
        """Lets operations of these kinds go on: gets by `layers` more layers, the others to their end."""
        for op in list(self.ops):
            if self.ops[op].kind in kinds:
                self._run(op, layers)

    def _run(self, number: int, layers: int | None = None) -> None:
        op = self.ops[number]
        if op.result is None:
            {"match": self._match, "multiget": self._get, "multiput": self._put}[op.kind](number, op, layers)

    def _fingerprint(self, op: _Op) -> bytes:
        return self.namespaces[op.args["ns"] - 1][0]

    def _match(self, number: int, op: _Op, _layers: int | None) -> None:
        found = flash = 0
        for key in op.args["keys"]:
            held = all((self._fingerprint(op), shard, key) in self.depot.records for shard in op.args["shards"])
            if not held and key not in self.depot.lost:
                break
            found += 1
            flash += key in self.depot.flash
        lease = number if op.args["lease_ms"] and found else 0
        self.leases.update({lease} - {0})
        self._end(number, Completion(number, keys=len(op.args["keys"]), prefix_blocks=found, flash_blocks=flash,
                                     lease=lease))

    def _get(self, number: int, op: _Op, layers: int | None) -> None:
        args, size = op.args, self.namespaces[op.args["ns"] - 1][1]["slab_bytes"]
        base = self._regions[args["region"]][0]
        keys = args["keys"]
        bad = next((i for i, key in enumerate(keys)
                    if (self._fingerprint(op), args["shard"], key) not in self.depot.records
                    or key in self.depot.damaged), len(keys))
        if bad < len(keys) and keys[bad] in self.depot.damaged:
            self.knows["corrupt_slabs"] += 1
        failed = {"failed_keys": len(keys) - bad, "failed_from": bad if bad < len(keys) else None}
        first = len(op.layers_done)
        last = len(args["layers"]) if layers is None else min(first + layers, len(args["layers"]))
        for layer in range(first, last):
            for i in range(bad):
                slab = self.depot.records[self._fingerprint(op), args["shard"], keys[i]][layer]
                ctypes.memmove(base + args["layers"][layer] + args["blocks"][i], slab, size)
                self.knows["bytes_loaded"] += size
            op.layers_done[layer] = Completion(number, layer, keys=len(keys), **failed)
            self._queue.append(op.layers_done[layer])
        if last == len(args["layers"]):
            self._end(number, Completion(number, keys=len(keys), seconds=self.depot.load_s, **failed))

    def _put(self, number: int, op: _Op, _layers: int | None) -> None:
        args, size = op.args, self.namespaces[op.args["ns"] - 1][1]["slab_bytes"]
        if len(op.layers_in) < len(args["layers"]):
            return
        base = self._regions[args["region"]][0]
        if self.depot.full:
            self._end(number, Completion(number, keys=len(args["keys"]), failed_keys=len(args["keys"]), failed_from=0))
            return
        taken = args["keys"][:self.depot.takes]
        for i, key in enumerate(taken):
            slabs = [ctypes.string_at(base + offset + args["blocks"][i], size) for offset in args["layers"]]
            self.depot.records[self._fingerprint(op), args["shard"], key] = slabs
            self.knows["bytes_stored"] += size * len(slabs)
        refused = len(args["keys"]) - len(taken)
        self._end(number, Completion(number, keys=len(args["keys"]), failed_keys=refused,
                                     failed_from=len(taken) if refused else None))

    def fail(self, code: str, kinds: tuple[str, ...]) -> None:
        """Ends what is in flight with a code, as a deadline or a lost connection does."""
        for number, op in list(self.ops.items()):
            if op.kind in kinds and op.result is None:
                self._end(number, Completion(number, code=code, keys=len(op.args["keys"])))

    def _end(self, number: int, completion: Completion) -> None:
        self.ops[number].result = completion
        self._queue.append(completion)
        os.eventfd_write(self.event_fd, 1)

    # ---- collecting ----------------------------------------------------------------------------------------------

    def poll(self, maximum: int = 64) -> list[Completion]:
        taken, self._queue = self._queue[:maximum], self._queue[maximum:]
        if not self._queue:
            try:
                os.read(self.event_fd, 8)
            except BlockingIOError:
                pass
        return taken

    def wait(self, op: int, layer: int = -1, timeout_ms: int = 1000) -> Completion | None:
        state = self.ops.get(op)
        if state is None:
            raise error("not_found")
        if layer >= 0 and layer in state.layers_done:
            return state.layers_done[layer]
        return state.result

    def cancel(self, op: int) -> None:
        self.calls.append("cancel")
        if self.ops[op].result is None:
            self._end(op, Completion(op, code="cancelled"))

    def release(self, op: int) -> None:
        del self.ops[op]

    def unpin(self, lease: int) -> None:
        self.leases.discard(lease)

    def open_breaker(self) -> None:
        self.knows["breaker_open"] = True

    def reconnect(self, timeout_ms: int) -> None:
        self.calls.append("reconnect")
        self.waited_ms += timeout_ms if self.depot.down else 0
        if self.depot.down:
            raise error("unavailable")
        self.knows["connected"] = True

    def stats(self) -> dict[str, int]:
        return dict(self.knows)

    def close(self) -> None:
        os.close(self.event_fd)


def _split(keys: bytes, size: int) -> list[bytes]:
    return [keys[i:i + size] for i in range(0, len(keys), size)]
