"""How a load is tried and when it is given up: from what it saves, who waits for it, how such loads ended before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvdepot.vllm.config import Settings

# A load that was given up at its deadline would have taken longer than that; by how much nobody knows. One such load
# may be an accident (the first of an engine, a thread without a core), two in a row are how the depot is.
CUT_OFF_FACTOR = 1.25
CUT_OFFS_MIN = 2

# A load inside a pass that others share was predicted to take no longer than the pass computes. When it turns out
# slower, they wait for it: at most so many times as long as the pass was to take. A depot that stands still is to be
# found out by the time without progress, so that the bound is always longer than that.
SHARED_PASS_FACTOR = 2.0
SHARED_PROGRESS_FACTOR = 1.5
# Loads that held up others like that run before their pass; one in so many is tried inside it again.
RETRY_EVERY = 16


@dataclass(slots=True)
class _CutOffs:
    """Loads of one kind that were cut off, in a row."""

    count: int = 0
    byte_s: float = 0.0     # seconds that a byte takes at least
    avoided: int = 0        # loads that ran before their pass for that

    def seconds(self, nbytes: int) -> float:
        return self.byte_s * nbytes if self.count >= CUT_OFFS_MIN else 0.0


class LoadDeadlines:
    """The scheduler half's; one thread. Judged apart: loads mostly from flash and from the pool, inside a pass and
    before it. Beside a pass a load is slower, and one that ran alone says nothing about that."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cut_offs: dict[tuple[bool, bool], _CutOffs] = {}      # (flash, layerwise)

    def decide(self, answer: Any, nbytes: int, *, flash: bool, shared: bool, full: bool = False) -> tuple[str, float]:
        """How to load `nbytes` after the choice's answer ("layerwise", "async" or "none"), and its deadline in seconds.
        `shared`: other requests may be in the pass that a layer-wise load is part of. `full`: it has as many such
        loads as it may."""
        deadline_s = self._settings.deadline_share * answer.saved_s
        if self._settings.load != "auto":
            return self._settings.load, deadline_s
        mode, limit_s = answer.mode, deadline_s
        if mode == "layerwise" and full:
            mode = "async"
        if mode == "layerwise" and shared:
            shared_s = max(SHARED_PASS_FACTOR * answer.pass_s,
                           SHARED_PROGRESS_FACTOR * self._settings.progress_ms / 1e3)
            limit_s = min(deadline_s, shared_s)
            if self._avoids(nbytes, flash, limit_s):
                mode, limit_s = "async", deadline_s
        cut_offs = self._cut_offs.get((flash, mode == "layerwise"), _CutOffs())
        load_s = answer.load_s if shared and mode == "layerwise" else max(answer.load_s, cut_offs.seconds(nbytes))
        # Beyond its deadline it would be given up, after all that waiting.
        return ("none", deadline_s) if load_s > deadline_s else (mode, limit_s)

    def _avoids(self, nbytes: int, flash: bool, limit_s: float) -> bool:
        """Whether loads inside a pass were cut off so that this one would be, too."""
        cut_offs = self._cut_offs.get((flash, True))
        if cut_offs is None or cut_offs.seconds(nbytes) <= limit_s:
            return False
        cut_offs.avoided += 1
        return cut_offs.avoided % RETRY_EVERY != 0

    def kept(self, *, flash: bool, layerwise: bool) -> None:
        """A load has ended in time."""
        self._cut_offs.pop((flash, layerwise), None)

    def cut_off(self, nbytes: int, seconds: float, *, flash: bool, layerwise: bool) -> None:
        """A load of `nbytes` was given up at its deadline, after `seconds`, and not for want of any bytes."""
        cut_offs = self._cut_offs.setdefault((flash, layerwise), _CutOffs())
        cut_offs.count += 1
        cut_offs.byte_s = max(CUT_OFF_FACTOR * seconds / nbytes, cut_offs.byte_s)
