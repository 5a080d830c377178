"""Asking the depot which blocks of a request it holds, without ever holding up the scheduler.

A lookup is submitted when a request arrives and answered by the time it is scheduled, usually. One that is not is
waited for a few hundred microseconds, in all lookups of a step together; after that the request is passed over and
asked for again in the next step, until the lookup's own deadline has passed.

A request with more blocks than one operation may name is asked about in several, all at once; what they find counts up
to the first gap.

A request that is cheap to compute gives up sooner than a depot can be judged. Its lookup then goes on in the client,
which opens its breaker only when nothing has moved for the progress limit. Of the others the client ends those of a
depot that hangs, by that limit: it knows when it was the machine that stood still, with the depot on it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvdepot._kvdepot import KvdepotError
from kvdepot.vllm.transfers import parts

WAIT_MAX = 10       # progress limits that a lookup may take: its place is wanted, and a lease would not last for ever
JUDGED_AFTER = 2    # progress limits that the client gets to judge a depot by


@dataclass(slots=True)
class Lookup:
    """One question. It covers blocks [first, first + asked) of a request."""

    open: dict[int, int]        # operations in flight that somebody waits for -> which of the parts it asks about
    sizes: list[int]            # blocks of each part
    first: int
    expires: float              # the answer is given up then
    answered: float = 0.0       # when the last part's came; 0 = not yet
    found: int = 0              # blocks the depot holds from `first` on, without a gap
    on_flash: int = 0           # of these
    leases: list[int] = field(default_factory=list)     # pin them in the depot's memory
    code: str = "ok"
    answers: dict[int, Any] = field(default_factory=dict)   # part -> completion, until all have come

    @property
    def op(self) -> int:
        """One of the operations in flight, 0 when the lookup has ended."""
        return next(iter(self.open), 0)

    @property
    def asked(self) -> int:
        return sum(self.sizes)

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
        self.full = False                      # the last submit() found too many lookups under way
        self._places = 0                       # then: how many
        self._answers = 0                      # lookups that were answered, since last taken
        self._failures: dict[str, int] = {}    # code -> lookups, since last taken

    def start_step(self) -> None:
        """Gives the next step its time to wait."""
        self._wait_left = self._wait_s

    def submit(self, keys: Sequence[bytes], first: int, total_s: float) -> Lookup | None:
        """Asks for `keys`, which begin at block `first`. None when nothing was sent: the depot can't be asked, or, with
        `full`, not now. Each lookup ends by its deadline, so that there is a place soon."""
        self._collect()     # many may have come since anybody looked: each answered lookup is a free place
        if self.full and len(self._open) >= self._places:
            return None
        self.full = False
        wait_ms = max(1, min(int(total_s * 1e3), WAIT_MAX * self._progress_ms))
        total_ms = max(wait_ms, JUDGED_AFTER * self._progress_ms)
        # The client ends a lookup of a depot that hangs; ten more milliseconds cover a thread that gets no core.
        lookup = Lookup({}, [], first, self._clock() + wait_ms / 1e3 + 0.01)
        for start, count in parts(len(keys)):
            try:
                op = self._client.match(self.namespace, b"".join(keys[start:start + count]), len(keys[0]),
                                        shards=self._shards, groups=(0,), lease_ms=self._lease_ms, promote=True,
                                        total_ms=total_ms, progress_ms=self._progress_ms)
            except KvdepotError as error:
                self.full = error.code == "busy"    # the client's own limit: no fault of the depot
                if self.full:
                    self._places = len(self._open)
                else:
                    self._count(error.code)
                break
            lookup.open[op] = len(lookup.sizes)
            lookup.sizes.append(count)
            self._open[op] = lookup
        return lookup if lookup.sizes else None

    def poll(self, lookup: Lookup) -> bool:
        """True when the lookup has ended; its fields then say how. Waits as long as this step still may."""
        self._collect()
        while lookup.open and self._wait_left > 0:
            began = self._clock()
            self._sleep(self._wait_left)
            self._wait_left -= self._clock() - began
            self._collect()
        if lookup.open and self._clock() >= lookup.expires:
            self._end(lookup, "timeout")
        return not lookup.open

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
                if completion.op not in lookup.open:
                    self._unpin(completion.lease)      # too late for its request
                    continue
                lookup.answers[lookup.open.pop(completion.op)] = completion
                if not lookup.open:
                    self._add_up(lookup)

    def _add_up(self, lookup: Lookup) -> None:
        """All parts are answered: counts blocks up to the first gap and lets go of what lies behind it."""
        code, whole = "ok", True
        for part, size in enumerate(lookup.sizes):
            answer = lookup.answers[part]
            if not whole:
                self._unpin(answer.lease)
                continue
            whole = answer.ok and answer.prefix_blocks == size
            if not answer.ok:
                code = answer.code
                continue
            lookup.found += answer.prefix_blocks
            lookup.on_flash += answer.flash_blocks
            if answer.lease:
                lookup.leases.append(answer.lease)
        lookup.answers.clear()
        self._end(lookup, code)

    def _end(self, lookup: Lookup, code: str) -> None:
        """Late answers of what is still open are let go when they come."""
        lookup.open.clear()
        self._let_go(lookup)
        lookup.answered = self._clock()
        lookup.code = code
        if code == "ok":
            self._answers += 1
        else:
            self._count(code)

    def _let_go(self, lookup: Lookup) -> None:
        """Of parts that have been answered while others were not."""
        for answer in lookup.answers.values():
            self._unpin(answer.lease)
        lookup.answers.clear()

    def _forget(self, op: int) -> None:
        self._open.pop(op, None)
        self._client.cancel(op)
        self._client.release(op)

    def drop(self, lookup: Lookup | None) -> None:
        """Gives up a lookup and what it pinned. Every lookup ends here, or its leases run out by themselves."""
        if lookup is None:
            return
        if lookup.open:
            self._collect()     # an answer that has come and was not looked at holds pins, too
        for op in lookup.open:
            self._forget(op)
        lookup.open.clear()
        self._let_go(lookup)
        for lease in lookup.leases:
            self._unpin(lease)
        lookup.leases.clear()

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
