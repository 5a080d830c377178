"""What the scheduler half knows of each request and of the step under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvdepot.vllm.lookup import Lookup


@dataclass(slots=True)
class LoadPlan:
    """What get_num_new_matched_tokens promised for one request."""

    first: int
    blocks: int
    tokens: int
    layerwise: bool
    flash: int
    total_ms: int
    probe: bool = False     # predicted to pass its deadline, tried all the same


@dataclass(slots=True)
class Tracked:
    """One unfinished request."""

    request: Any
    preemptions: int = 0
    lookup: Lookup | None = None
    full_since: float = 0.0            # first refused a place among the lookups then, when it was to be scheduled
    plan: LoadPlan | None = None       # promised, not yet allocated
    loading: LoadPlan | None = None    # with the worker
    next_store: int = -1               # first block that has not been handed to the worker for storing; -1 = not known
    stores_sent: int = 0
    stores_ended: int = 0
    mended: bool = False               # its prefix in vLLM's own cache was searched for blocks that are not stored
    declined: bool = False             # its hit was predicted not to be worth loading
    no_load: bool = False
    no_store: bool = False

    def restart(self) -> None:
        """After a preemption: the request has no blocks any more."""
        self.plan = self.loading = None
        self.next_store = -1
        self.mended = False


@dataclass(slots=True)
class Step:
    """A step that the worker runs right now."""

    began: float = 0.0
    tokens: int = 0
    pairs: int = 0
    layerwise: dict[str, LoadPlan] = field(default_factory=dict)      # loads inside the pass
    tables: dict[str, list[int]] = field(default_factory=dict)        # then: block ids of all requests of the pass
