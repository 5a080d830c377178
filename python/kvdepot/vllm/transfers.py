"""Loads and stores that are in flight: what the worker half must know of each until it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvdepot._kvdepot import KvdepotError
from kvdepot.vllm.messages import Load, LoadReport, Store

KEYS_MAX = 4096             # of one operation of the client; longer loads and stores are several operations

# A client has 256 operations at most, and a depot takes no more of one. Each kind has its share, so that stores, which
# nobody waits for, leave room to loads. What is beyond it waits in the worker half for those before it to end.
STORE_OPS_MAX = 128
ASYNC_OPS_MAX = 96
LAYERWISE_MAX = 32          # loads of one step inside its pass, which cannot wait; further ones run before their pass
STORES_WAITING_MAX = 1024   # stores beyond that are made later, with the request's next blocks


@dataclass(slots=True, eq=False)
class LoadOp:
    """One load: its operations and what is known of its blocks."""

    load: Load
    began: float                # when it was sent; before that, when its turn began to be waited for
    expires: float
    waited_ms: int = 0          # of its deadline, before it was sent
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


@dataclass(slots=True, eq=False)
class StoreOp:
    """One store: its operations, and how many of its layers the depot may read already."""

    store: Store
    ops: list[int] = field(default_factory=list)        # none while it waits for its turn
    open: set[int] = field(default_factory=set)
    final: int = 0              # layers that may be read from now on
    released: int = 0           # of these, handed over
    expires: float = float("inf")   # set when the last layer is final
    refused: list[int] = field(default_factory=list)    # of its blocks, those that the depot did not take
    ended: bool = False


def failed_keys(completion: Any) -> list[int]:
    """Which keys of an operation that went through failed."""
    bits = completion.failed
    return [i for i in range(completion.keys) if bits[i // 8] >> i % 8 & 1] if completion.failed_keys else []


def parts(count: int) -> list[tuple[int, int]]:
    """(first, count) of the operations that `count` blocks need."""
    return [(first, min(KEYS_MAX, count - first)) for first in range(0, count, KEYS_MAX)]


def room(used: int, blocks: int, limit: int) -> bool:
    """Whether a transfer of `blocks` may begin beside `used` operations of its kind."""
    return used + len(parts(blocks)) <= limit


def own_code(error: KvdepotError) -> str:
    """Why an operation could not be submitted. `busy` is then the client's own bound: no fault of the depot."""
    return "cancelled" if error.code == "busy" else error.code
