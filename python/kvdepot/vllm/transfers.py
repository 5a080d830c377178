"""Loads and stores that are in flight: what the worker half must know of each until it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvdepot.vllm.messages import Load, LoadReport, Store

KEYS_MAX = 4096             # of one operation of the client; longer loads and stores are several operations


@dataclass(slots=True)
class LoadOp:
    """One load: its operations and what is known of its blocks."""

    load: Load
    began: float
    expires: float
    ops: dict[int, int] = field(default_factory=dict)    # operation -> index of its first block in the load
    open: set[int] = field(default_factory=set)          # operations that have not ended
    good: int = -1                                       # blocks in place, as far as known; -1 = no failure so far
    code: str = "ok"
    ended: float = 0.0                                   # when it was taken note of, after a pass perhaps
    took: float = 0.0                                    # from submission to the last byte, as the client saw it

    @property
    def seconds(self) -> float:
        return self.took or self.ended - self.began

    @property
    def blocks(self) -> int:
        return len(self.load.block_ids)

    @property
    def good_blocks(self) -> int:
        return self.blocks if self.good < 0 else self.good

    def fail(self, first_bad: int, code: str) -> None:
        """Blocks from `first_bad` on are not in place."""
        if first_bad < self.good_blocks:
            self.good, self.code = first_bad, code

    def bad_block_ids(self) -> list[int]:
        return self.load.block_ids[self.good_blocks:]

    def report(self) -> LoadReport:
        return LoadReport(self.load.request_id, self.blocks, self.good_blocks, self.load.flash_blocks,
                          self.seconds, self.load.layerwise, self.code)


@dataclass(slots=True)
class StoreOp:
    """One store: its operations, and how many of its layers the depot may read already."""

    store: Store
    ops: list[int]
    open: set[int]
    released: int = 0           # layers handed over
    expires: float = float("inf")   # set when the last layer is handed over
    refused: list[int] = field(default_factory=list)    # of its blocks, those that the depot did not take
    code: str = "ok"


def failed_keys(completion: Any) -> list[int]:
    """Which keys of an operation that went through failed."""
    bits = completion.failed
    return [i for i in range(completion.keys) if bits[i // 8] >> i % 8 & 1] if completion.failed_keys else []


def parts(count: int) -> list[tuple[int, int]]:
    """(first, count) of the operations that `count` blocks need."""
    return [(first, min(KEYS_MAX, count - first)) for first in range(0, count, KEYS_MAX)]
