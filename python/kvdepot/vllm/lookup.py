"""Asking the depot which blocks of a request it holds, without ever holding up the scheduler.

A lookup is submitted when a request arrives and answered by the time it is scheduled, usually. One that is not is
waited for a few hundred microseconds, in all lookups of a step together; after that the request is passed over and
asked for again in the next step, until the lookup's own deadline has passed.

A request that is cheap to compute gives up sooner than a depot can be judged. Its lookup then goes on in the client,
which opens its breaker only when nothing has moved for the progress limit.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvdepot._kvdepot import KvdepotError


@dataclass(slots=True)
class Lookup:
    """One question. It covers blocks [first, first + asked) of a request."""

    op: int                     # 0: nothing is in flight any more, or nobody waits for it
    first: int
    asked: int
    expires: float              # the answer is given up then
    answered: float = 0.0       # when it came; 0 = not yet
    found: int = 0              # blocks the depot holds from `first` on, without a gap
    on_flash: int = 0           # of these
    lease: int = 0              # pins them in the depot's memory; 0 = none
    code: str = "ok"

    @property
    def end(self) -> int:
        return self.first + self.found


class LookupDesk:
    """Submits and collects lookups of one namespace. Used by the scheduler's thread only."""

    def __init__(self, client: Any, shards: Sequence[int], *, lease_ms: int, progress_ms: int, wait_us: int,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._shards = tuple(shards)
        self._lease_ms = lease_ms
        self._progress_ms = progress_ms
        self._wait_s = wait_us / 1e6
        self._wait_left = self._wait_s
        self._clock = clock
        self._open: dict[int, Lookup] = {}
        self.namespace = 0
        self._answers = 0                      # lookups that were answered, since last taken
        self._failures: dict[str, int] = {}    # code -> lookups, since last taken

    def start_step(self) -> None:
        """Gives the next step its time to wait."""
        self._wait_left = self._wait_s

    def submit(self, keys: Sequence[bytes], first: int, total_s: float) -> Lookup | None:
        """Asks for `keys`, which begin at block `first`. None when the depot can't be asked: nothing was sent."""
        wait_ms = max(1, min(int(total_s * 1e3), self._progress_ms))
        try:
            op = self._client.match(self.namespace, b"".join(keys), len(keys[0]), shards=self._shards, groups=(0,),
                                    lease_ms=self._lease_ms, promote=True, total_ms=2 * self._progress_ms,
                                    progress_ms=self._progress_ms)
        except KvdepotError as error:
            self._count(error.code)
            return None
        # The client ends a lookup of a depot that hangs; ten more milliseconds cover a thread that gets no core.
        lookup = Lookup(op, first, len(keys), self._clock() + wait_ms / 1e3 + 0.01)
        self._open[op] = lookup
        return lookup

    def poll(self, lookup: Lookup) -> bool:
        """True when the lookup has ended; its fields then say how. Waits as long as this step still may."""
        self._collect()
        while lookup.op and self._wait_left > 0:
            began = self._clock()
            self._sleep(self._wait_left)
            self._wait_left -= self._clock() - began
            self._collect()
        if lookup.op and self._clock() >= lookup.expires:
            self._end(lookup, "timeout")
        return lookup.op == 0

    def _sleep(self, seconds: float) -> None:
        """Until a completion is there, at most `seconds`. Only select() counts in less than milliseconds."""
        fd = self._client.event_fd
        if fd < 1024:
            select.select([fd], [], [], seconds)
        else:
            time.sleep(min(seconds, 50e-6))

    def _collect(self) -> None:
        while self._open and (completions := self._client.poll(64)):
            for completion in completions:
                lookup = self._open.pop(completion.op, None)
                if lookup is None:
                    continue
                self._client.release(completion.op)
                if lookup.op == 0:
                    self._unpin(completion.lease)      # too late for its request
                    continue
                if completion.ok:
                    lookup.found, lookup.on_flash = completion.prefix_blocks, completion.flash_blocks
                    lookup.lease = completion.lease
                self._end(lookup, completion.code)

    def _end(self, lookup: Lookup, code: str) -> None:
        lookup.op = 0
        lookup.answered = self._clock()
        lookup.code = code
        if code == "ok":
            self._answers += 1
        else:
            self._count(code)

    def _forget(self, lookup: Lookup) -> None:
        self._open.pop(lookup.op, None)
        self._client.cancel(lookup.op)
        self._client.release(lookup.op)

    def drop(self, lookup: Lookup | None) -> None:
        """Gives up a lookup and what it pinned. Every lookup ends here, or its lease runs out by itself."""
        if lookup is None:
            return
        if lookup.op:
            self._forget(lookup)
            lookup.op = 0
        self._unpin(lookup.lease)
        lookup.lease = 0

    def _unpin(self, lease: int) -> None:
        if not lease:
            return
        try:
            self._client.unpin(lease)
        except KvdepotError:
            pass  # the connection is gone, and the lease with it

    def take_answers(self) -> int:
        answers, self._answers = self._answers, 0
        return answers

    def take_failures(self) -> dict[str, int]:
        if not self._failures:
            return self._failures
        failures, self._failures = self._failures, {}
        return failures

    def _count(self, code: str) -> None:
        self._failures[code] = self._failures.get(code, 0) + 1
