"""How a load is tried and when it is given up: from what it saves, who waits for it, how such loads ended before."""

from __future__ import annotations

from typing import Any

from kvdepot.vllm.config import Settings

# A load that was given up at its deadline would have taken longer than that; by how much nobody knows. One such load
# may be an accident (the first of an engine, a thread without a core), two in a row are how the depot is.
CUT_OFF_FACTOR = 1.25
CUT_OFFS_MIN = 2

# A load inside a pass that others share was predicted to take no longer than the pass computes. When it turns out
# slower, they wait for it: at most so many times as long as the pass was to take, but no less than the time without
# progress after which a depot counts as gone, which one that stands still costs them in any case.
SHARED_PASS_FACTOR = 2.0


class LoadDeadlines:
    """The scheduler half's; one thread. Loads mostly from flash and mostly from the pool are judged apart."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # flash -> loads in a row that were cut off, seconds that a byte takes at least
        self._cut_off: dict[bool, tuple[int, float]] = {}

    def decide(self, answer: Any, nbytes: int, *, flash: bool, shared: bool) -> tuple[str, float]:
        """How to load `nbytes` after the choice's answer ("layerwise", "async" or "none"), and its deadline in seconds.
        `shared`: other requests may be in the pass that a layer-wise load is part of."""
        deadline_s = self._settings.deadline_share * answer.saved_s
        if self._settings.load != "auto":
            return self._settings.load, deadline_s
        cut_offs, byte_s = self._cut_off.get(flash, (0, 0.0))
        load_s = max(answer.load_s, byte_s * nbytes if cut_offs >= CUT_OFFS_MIN else 0.0)
        if load_s > deadline_s:
            return "none", deadline_s       # it would be given up there, after all that waiting
        if answer.mode == "layerwise" and shared:
            shared_s = max(SHARED_PASS_FACTOR * answer.pass_s, self._settings.progress_ms / 1e3)
            if load_s > shared_s:
                return "async", deadline_s
            return "layerwise", min(deadline_s, shared_s)
        return answer.mode, deadline_s

    def kept(self, *, flash: bool) -> None:
        """A load has ended in time."""
        self._cut_off.pop(flash, None)

    def cut_off(self, nbytes: int, seconds: float, *, flash: bool) -> None:
        """A load of `nbytes` was given up at its deadline, after `seconds`."""
        cut_offs, byte_s = self._cut_off.get(flash, (0, 0.0))
        self._cut_off[flash] = cut_offs + 1, max(CUT_OFF_FACTOR * seconds / nbytes, byte_s)
