"""The reuse sweep: does loading overlap with computing?

A share of a prompt of 6,912 tokens is in the depot, the rest is new; the depot's bandwidth is shaped so that one token
takes e times longer to compute than to load. If load, compute and store overlap, time to first token follows the
longest of the three and not their sum. Each is measured alone, beside each sample of each point:

    compute   the plain engine with the same share in its own prefix cache: it loads and stores nothing
    load      a client without engine gets that many blocks from the same depot
    store     a client without engine puts as many blocks as are new

Where nothing is stored nothing is loaded, and shaping changes nothing: that share is measured once for all balances.
The prompt is computed in one pass (batch of 8,192 tokens), and the connector may wait for a load four times as long as
recomputing would take, because here loads are slow on purpose. Where loading all is as slow as computing all (e = 1)
the connector may predict that computing ends sooner; then that is its time to first token, and the sample says so.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from bench.bare_client import BareClient
from bench.engine_lab import BLOCK, DOCUMENT, GIB, Lab, ask_depot, expect_cached, ours
from bench.harness import Bench

SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
SHARES_QUICK = (0.0, 0.5, 0.75, 1.0)
BLOCKS = DOCUMENT // BLOCK
BALANCES = (1, 3, 9)            # e = compute / load per token
BALANCES_QUICK = (3,)
BATCH = {"max_num_batched_tokens": 8192}
PATIENCE = 4.0                  # deadline of a load in recompute times
GOAL_MAX, GOAL_SUM = 1.15, 0.65
UNSHAPED = "pipeline_over_max_unshaped"


@dataclass
class Sample:
    """One share of the sweep in one round, in seconds."""

    total: float
    load: float
    compute: float
    store: float
    left_alone: bool = False    # predicted to be computed sooner than loaded, and computed

    @property
    def over_max(self) -> float:
        return self.total / max(self.load, self.compute, self.store)

    @property
    def over_sum(self) -> float:
        return self.total / (self.load + self.compute + self.store)


@dataclass
class Point:
    """One share of the sweep in all rounds; ratios are medians of the rounds' ratios."""

    blocks: int
    samples: list[Sample]

    @property
    def over_max(self) -> float:
        return statistics.median(sample.over_max for sample in self.samples)

    @property
    def over_sum(self) -> float:
        return statistics.median(sample.over_sum for sample in self.samples)

    def shown(self) -> dict:
        return {"blocks": self.blocks, "over_max": self.over_max, "over_sum": self.over_sum,
                "samples": [vars(sample) for sample in self.samples]}


def names() -> list[str]:
    return [UNSHAPED, *(f"pipeline_over_{what}_e{e}" for e in BALANCES for what in ("max", "sum"))]


def run(lab: Lab, bench: Bench) -> None:
    wanted = [e for e in BALANCES if bench.wants(f"pipeline_over_max_e{e}", f"pipeline_over_sum_e{e}")]
    balances = [e for e in wanted if e in BALANCES_QUICK or not bench.quick]
    for name in (f"pipeline_over_{what}_e{e}" for e in wanted if e not in balances for what in ("max", "sum")):
        bench.skip(name, "not measured with --quick")
    if (balances or bench.wants(UNSHAPED)) and bench.has_time(300.0, *names()):
        Sweep(lab, bench).measure(balances)


class Sweep:
    """Two engines and a depot that each balance begins empty; `document` is stored once in it; tails are new each time
    and stored too, 7 GB in bfloat16, twice that in float32."""

    def __init__(self, lab: Lab, bench: Bench) -> None:
        self.lab, self.bench = lab, bench
        self.shares = SHARES_QUICK if bench.quick else SHARES
        # Document and what the clients without engine store must stay in the pool: one tier in all parts.
        self.depot = lab.depot("sweep", pool_bytes=2 * GIB, flash_bytes=16 * GIB)
        self.plain, self.reader = lab.engines(
            lab.spec("sweep-plain", cache_gib=2, engine=BATCH),
            lab.spec("sweep-reader", ours(self.depot, deadline_share=PATIENCE), engine=BATCH))
        self.document = lab.prompt("sweep", DOCUMENT)
        self.primer = lab.prompt("sweep primer", 4 * BLOCK)
        self.tails = 0
        self.bare_keys = 0
        self.nothing_stored: Point | None = None
        self.may_compute = False        # loading all is as slow as computing all

    def measure(self, balances: list[int]) -> None:
        for engine in (self.plain, self.reader):
            engine.ask(self.primer)
            engine.ask(self.document)
        self.lab.settle(self.depot)
        if self.bench.wants(UNSHAPED):
            points = self._points()
            worst = max(points, key=lambda point: point.over_max)
            self.bench.value(UNSHAPED, worst.over_max, "ratio", better="lower", goal=GOAL_MAX,
                             command=self.depot.command, curve=[point.shown() for point in points],
                             worst_blocks=worst.blocks)
        per_token = statistics.median(sample.compute for sample in self._point(0.0).samples) / DOCUMENT
        for e in balances:
            self.may_compute = e == 1
            self.depot.restart([f"--shape-read={int(e * self.lab.model.kv_bytes_per_token / per_token)}"], emptied=True)
            self.lab.reconnect(self.depot, self.reader, self.primer, 120.0)
            self.reader.ask(self.document)
            self.lab.settle(self.depot)
            self._report(e, self._points())

    def _report(self, e: int, points: list[Point]) -> None:
        curve = [point.shown() for point in points]
        worst = max(points, key=lambda point: point.over_max)
        self.bench.value(f"pipeline_over_max_e{e}", worst.over_max, "ratio", better="lower", goal=GOAL_MAX,
                         command=self.depot.command, curve=curve, worst_blocks=worst.blocks,
                         left_alone=sum(sample.left_alone for point in points for sample in point.samples))
        balanced = min(points, key=lambda point: abs(point.blocks - BLOCKS * e / (1 + e)))
        self.bench.value(f"pipeline_over_sum_e{e}", balanced.over_sum, "ratio", better="lower",
                         goal=GOAL_SUM if e in (1, 3) else None, command=self.depot.command, blocks=balanced.blocks)

    def _points(self) -> list[Point]:
        return [self._point(share) for share in self.shares]

    def _point(self, share: float) -> Point:
        if not share and self.nothing_stored:
            return self.nothing_stored
        self.bench.progress.tick(f"sweep: {share:.0%} of the prompt is stored")
        point = Point(blocks_of(share), [self._sample(share) for _ in range(self.bench.rounds(quick=1))])
        if not share:
            self.nothing_stored = point
        return point

    def _sample(self, share: float) -> Sample:
        blocks = blocks_of(share)
        load, store = self._alone(blocks)
        compute = self._compute(share)
        total, left_alone = self._total(blocks)
        return Sample(total, load, compute, store, left_alone)

    def _alone(self, blocks: int) -> tuple[float, float]:
        """Seconds to load the stored blocks and to store the new ones, both without an engine."""
        model = self.lab.model
        with BareClient(self.depot, model.layers, model.kv_bytes_per_token * BLOCK // model.layers, BLOCK,
                        BLOCKS) as bare:
            first, self.bare_keys = self.bare_keys, self.bare_keys + 2 * BLOCKS
            store = bare.put(BLOCKS - blocks, first) if blocks < BLOCKS else 0.0
            if not blocks:
                return 0.0, store
            bare.put(blocks, first + BLOCKS)
            self.lab.settle(self.depot)
            return bare.get(blocks, first + BLOCKS), store

    def _compute(self, share: float) -> float:
        """Time to first token with the share in the engine's own prefix cache; one token where nothing is left."""
        blocks = blocks_of(share)
        self.plain.ask(self.document)       # all of it was used a moment ago: a full cache gives up old tails
        self.lab.settle()
        answer = self.plain.ask(self.document[:blocks * BLOCK] + self._tail(max(1, DOCUMENT - blocks * BLOCK)))
        return expect_cached(answer, blocks * BLOCK, f"own prefix cache, share {share}").first_s

    def _total(self, blocks: int) -> tuple[float, bool]:
        """Time to first token, and whether the connector chose to compute what it had found."""
        self.reader.reset_prefix_cache()
        self.lab.settle(self.depot)
        prompt = self.document[:blocks * BLOCK] + self._tail(DOCUMENT - blocks * BLOCK)
        answer = ask_depot(self.depot, self.reader, prompt, max(0, blocks * BLOCK - 1), f"{blocks} stored blocks",
                           may_compute=self.may_compute)
        return answer.first_s, bool(blocks) and answer.cached == 0

    def _tail(self, tokens: int) -> list[int]:
        """New content."""
        self.tails += 1
        return self.lab.prompt(f"sweep tail {self.tails}", tokens)


def blocks_of(share: float) -> int:
    """Whole blocks of the document that are stored, rounded half up."""
    return int(share * BLOCKS + 0.5)
