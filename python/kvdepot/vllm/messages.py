"""What the two halves of the connector say to each other with every step of the engine. Plain data, pickled by vLLM.

The scheduler half (in the engine core) decides; the worker half (beside the model) moves bytes. `StepPlan` goes down
with a step's scheduler output, `WorkerReport` comes back with its result, `WorkerIdentity` comes up once at start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# Takes blocks out of vLLM's prefix cache. vLLM counts how many of a request's blocks have entered it, so those of
# running requests do not enter again when they are computed anew.
Evict = Callable[[set[int]], None]


@dataclass(slots=True)
class Load:
    """Blocks of one request to be read from the depot into the engine's memory."""

    request_id: str
    keys: bytes                 # block hashes, back to back
    block_ids: list[int]
    layerwise: bool             # layer by layer inside this step's pass; otherwise the request waits for the whole
    tail_computed: bool         # this step's pass writes into the last of the blocks (its last token is computed)
    flash_blocks: int           # how many of the blocks were on flash when the depot was asked
    total_ms: int               # deadline of the whole
    progress_ms: int            # deadline without a byte


@dataclass(slots=True)
class Store:
    """Blocks of one request that this step's pass completes, to be written to the depot behind it."""

    request_id: str
    first_block: int            # index of the first in the request; -1: those of an earlier store that failed
    keys: bytes
    block_ids: list[int]
    guards: list[str]           # requests whose blocks this very pass loads and these are computed from: worthless if
                                # one of those loads fails

    def hashes(self) -> list[bytes]:
        size = len(self.keys) // len(self.block_ids)
        return [self.keys[i:i + size] for i in range(0, len(self.keys), size)]


@dataclass(slots=True)
class StepPlan:
    """What the worker does in one step."""

    epoch: bytes = b""
    loads: list[Load] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    cancel_loads: list[str] = field(default_factory=list)   # aborted while loading: cancel, report as received
    void_loads: list[str] = field(default_factory=list)     # must not be used any more: cancel, report as failed
    drop_stores: list[str] = field(default_factory=list)    # preempted: their blocks are about to be overwritten
    hold: list[str] = field(default_factory=list)           # finished, blocks held: report when their stores have ended
    linger: bool = False                                    # no pass in this step and nobody else waits for the engine

    @property
    def empty(self) -> bool:
        return not (self.loads or self.stores or self.cancel_loads or self.void_loads or self.drop_stores
                    or self.hold)


@dataclass(slots=True)
class LoadReport:
    """How one load ended."""

    request_id: str
    blocks: int
    good_blocks: int            # a prefix of them is in place
    flash_blocks: int
    seconds: float              # from submission to the last byte
    layerwise: bool
    code: str                   # "ok", or why blocks are missing


@dataclass(slots=True)
class WorkerReport:
    """What ended since the last report. Reports of several workers of one engine are joined by `aggregate`."""

    loads: list[LoadReport] = field(default_factory=list)
    stores_ended: dict[str, int] = field(default_factory=dict)     # request -> operations that ended, well or not
    stores_failed: dict[str, int] = field(default_factory=dict)    # request -> first block that must be stored again
    keys_failed: list[bytes] = field(default_factory=list)         # of stores that failed: their block hashes
    store_failures: dict[str, int] = field(default_factory=dict)   # code -> operations
    weights_changed: bool = False
    depot_away: bool = False            # a load failed and this worker's client does not ask any more

    @property
    def empty(self) -> bool:
        return not (self.loads or self.stores_ended or self.stores_failed or self.store_failures
                    or self.weights_changed or self.depot_away)

    def aggregate(self, other: WorkerReport) -> WorkerReport:
        """Joins the reports of two workers about the same step: the worse counts."""
        loads = {load.request_id: load for load in self.loads}
        for load in other.loads:
            mine = loads.setdefault(load.request_id, load)
            if mine is not load:
                mine.seconds = max(mine.seconds, load.seconds)
                if load.good_blocks < mine.good_blocks:
                    mine.good_blocks, mine.code = load.good_blocks, load.code
        ended, failures = dict(self.stores_ended), dict(self.store_failures)
        failed = dict(self.stores_failed)
        for request_id, count in other.stores_ended.items():
            ended[request_id] = ended.get(request_id, 0) + count
        for code, count in other.store_failures.items():
            failures[code] = failures.get(code, 0) + count
        for request_id, block in other.stores_failed.items():
            failed[request_id] = min(failed.get(request_id, block), block)
        return WorkerReport(list(loads.values()), ended, failed, self.keys_failed + other.keys_failed, failures,
                            self.weights_changed or other.weights_changed, self.depot_away or other.depot_away)


@dataclass(slots=True)
class WorkerIdentity:
    """What a worker knows when its KV memory is there and the scheduler half needs: sent once at start."""

    shard: int
    fingerprint: bytes          # of everything that the bytes of a block depend on
    layers: int
    slab_bytes: int             # one layer of one block
    block_tokens: int
    order: str                  # name of the layout inside a slab
    pass_prior: tuple[float, float, float]   # believed cost of a pass: fixed, a token, a pair (seconds)
    spare_core: bool            # a core is free while the model computes

    @property
    def block_bytes(self) -> int:
        return self.layers * self.slab_bytes

    def group(self) -> dict[str, object]:
        """The schema of this shard's records, as the client's `open_namespace` takes it."""
        return {"group": 0, "layers": self.layers, "slab_bytes": self.slab_bytes, "parts": 2,
                "block_tokens": self.block_tokens, "order": self.order, "rule": "all", "hit_blocks": 0}
