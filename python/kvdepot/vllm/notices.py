"""Log lines about the depot, at most one warning in a period: an engine without its depot stays readable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

log = logging.getLogger("vllm.kvdepot")   # below vLLM's logger, so that its format and level apply

_REASONS = {
    "unavailable": "it cannot be reached, or has not read yet what it holds",
    "timeout": "it did not answer in time",
    "busy": "it is overloaded, or has room for part of a store only",
    "no_space": "it is full",
    "corrupt": "damaged blocks were found and refused",
    "invalid": "it refuses requests of this engine (another model under the same fingerprint?)",
    "io": "its storage fails",
    "stale": "it was restarted",
}


class Notices:
    """Counts failures and tells about them once in a period, and when they are over."""

    def __init__(self, depot: str, every_s: float, clock: Callable[[], float] = time.monotonic,
                 why: Callable[[], str] = lambda: "") -> None:
        """`why`: what the client knows about the last failure; asked when there is something to tell."""
        self._depot = depot
        self._every_s = every_s
        self._clock = clock
        self._why = why
        self._next = float("-inf")
        self._counts: dict[str, int] = {}
        self._told = False      # a warning has been given since it last worked
        self._said: set[str] = set()

    def failures(self, what: str, counts: Mapping[str, int]) -> None:
        """`counts` operations of kind `what` (loads, stores, lookups) failed, by code."""
        if not counts:
            return
        for code, count in counts.items():
            key = f"{what}: {_REASONS.get(code, code)}"
            self._counts[key] = self._counts.get(key, 0) + count
        if self._clock() >= self._next:
            self._next = self._clock() + self._every_s
            text = "; ".join(f"{count} {key}" for key, count in self._counts.items())
            why = self._why()
            text += f"; last: {why}" if why else ""
            self._counts.clear()
            self._told = True
            log.warning("kvdepot: depot %s fails (%s). Requests are computed instead; at most one warning in %g s.",
                        self._depot, text, self._every_s)

    def success(self) -> None:
        """The depot has just done what it should. Failures that nobody was told of yet are part of the next warning."""
        if self._told:
            self._told = False
            log.info("kvdepot: depot %s works again", self._depot)

    def once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("kvdepot: %s", text)
