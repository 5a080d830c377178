"""The reuse sweep: time to first token over the share of the prompt that the depot holds.

One engine, one document of N tokens plus the question's 8. For reuse a, its first a x N tokens are asked for, followed
by text nobody has seen. Each point is measured once (that of the claim of overlap up to TRIES times) with the depot's
read bandwidth shaped to e = 3 (loading a token takes a third of the time that computing it takes) and once unshaped,
beside its parts, each measured alone:

    compute   the same request with the reused part in the engine's own prefix cache
    load      all of the document, nothing but the question to compute: the time in which its layers arrived
    store     of the request that computes everything: the time during which a layer was on its way to the depot

At reuse 0 nothing is loaded, so both arms share that point. N is chosen so that the sweep fits its share of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from . import curves, document, timeline
from .engine import Answer
from .lab import SWEEPER, Lab

REUSE = (0.5, 0.75, 1.0)
REUSE_QUICK = (0.75, 1.0)
E_SHAPED = 3.0
BLOCKS = (52, 32, 24, 16)       # candidates for N, divisible by four
BUDGET_S = 45.0
COST_IN_COLDS = 4.5             # the whole sweep, in times of its cold request
BELOW_SUM_MAX = 0.9             # of the sum of the parts at 75 % and e = 3: the claim that load and compute overlap
TRIES = 3                       # of that point: one request is one sample, and the machine may do something else
OVERLAP_MIN = 0.5               # of the shorter of the two
SEED = 500


@dataclass
class Sweep:
    """What the steps hand to each other."""

    lab: Lab
    encode: document.Encode
    engine: str = SWEEPER
    blocks: int = BLOCKS[-1]
    document: list[int] = field(default_factory=list)
    question: list[int] = field(default_factory=list)
    cold: Answer | None = None
    store_full_s: float = 0.0
    own: dict[float, Answer] = field(default_factory=dict)
    suffixes: int = 0
    asked: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.question = document.question(self.encode, document.QUESTIONS[0][0])

    @property
    def reuse(self) -> Sequence[float]:
        return REUSE_QUICK if self.lab.settings.quick else REUSE

    def choose_length(self, cold_s: float | None) -> None:
        """`cold_s` is what DOCUMENT_BLOCKS blocks took. Without it the shortest is taken."""
        self.blocks = length_for(cold_s, self.lab.settings.quick) if cold_s else BLOCKS[-1]
        self.document = document.document(self.encode, SEED, self.blocks)

    def prompt(self, reuse: float) -> list[int]:
        """The first part of the document, then new text, then the question."""
        kept = self.kept(reuse)
        rest = len(self.document) - kept
        self.suffixes += 1
        new = document.text_of_tokens(self.encode, SEED + self.suffixes, rest) if rest else []
        return self.document[:kept] + new + self.question

    def kept(self, reuse: float) -> int:
        return round(reuse * self.blocks) * document.BLOCK_TOKENS

    def ask(self, prompt: Sequence[int]) -> Answer:
        answer = self.lab.ask(self.engine, prompt, 1)
        self.asked.append(answer.at)
        return answer

    def events(self, answer: Answer) -> list[timeline.Event]:
        """Until the next request, since what a request computed may still be stored after its first token."""
        after = min((at for at in self.asked if at > answer.at), default=float("inf"))
        return timeline.read(self.lab.timeline_path(self.engine), answer.at, after)


def cold_share(blocks: int) -> float:
    """Of the main document's cold time: half of it grows with the length, half with its square (7.2 s at 7,000 tokens
    and 1.05 s at 2,048 on AVX-512; 36 s and 6.4 s without)."""
    x = blocks / document.DOCUMENT_BLOCKS
    return 0.5 * x + 0.5 * x * x


def length_for(cold_s: float, quick: bool) -> int:
    """The longest candidate whose sweep fits the budget, or the shortest."""
    budget_s = BUDGET_S / 2 if quick else BUDGET_S
    return next((b for b in BLOCKS if COST_IN_COLDS * cold_s * cold_share(b) <= budget_s), BLOCKS[-1])


def compute_all(sweep: Sweep, cold_s: float | None) -> None:
    """Reuse 0: nothing is in the depot yet."""
    sweep.choose_length(cold_s)
    before = sweep.lab.depot.stats()
    sweep.lab.progress.detail(f"{len(sweep.document):,} tokens")
    sweep.cold = sweep.ask(sweep.prompt(1.0))
    stats = sweep.lab.depot.wait_until("lacks blocks of the sweep's document",
                                       lambda s: s["puts"] - before["puts"] >= sweep.blocks, 30.0)
    sweep.store_full_s = timeline.busy_s(sweep.events(sweep.cold), "store")
    sweep.lab.result.data["sweep"] = {
        "tokens": len(sweep.document), "kv_bytes_per_token": (stats["bytes_put"] - before["bytes_put"])
        / len(sweep.document), "cold_s": sweep.cold.first_s, "store_full_s": sweep.store_full_s, "arms": []}


def compute_rest(sweep: Sweep) -> None:
    """Compute alone: what is reused lies in the engine's own prefix cache."""
    for reuse in sweep.reuse:
        sweep.lab.progress.detail(f"reuse {reuse:.0%}")
        sweep.own[reuse] = sweep.ask(sweep.prompt(reuse))


def shaped_bytes_s(sweep: Sweep) -> float:
    """The bandwidth at which loading a token takes 1/e of the time it took to compute it."""
    data = sweep.lab.result.data["sweep"]
    return E_SHAPED * data["kv_bytes_per_token"] * data["tokens"] / data["cold_s"]


def restart_shaped(sweep: Sweep, bytes_s: float | None) -> None:
    """A drained stop and a start with another bandwidth; the engine keeps running."""
    depot = sweep.lab.depot
    depot.stop()
    depot.start(shape_bytes_s=bytes_s)
    sweep.lab.wake_up(sweep.engine, sweep.encode)


def measure_arm(sweep: Sweep, name: str, bandwidth: float | None) -> None:
    """All points of one bandwidth. Without hits there is nothing to compare, and the arm is left out."""
    lab, loads, hits = sweep.lab, {}, []
    for reuse in sweep.reuse:
        loads[reuse], hit = _load(sweep, reuse)
        hits.append(hit)
    if not lab.result.check(f"sweep {name}: the depot gave what it held", all(hits),
                            f"{sum(hits)} of {len(hits)} requests"):
        return
    load_full_s = timeline.busy_s(sweep.events(loads[1.0]), "load")
    if not load_full_s:     # without a timeline: what the hit took beyond the same hit in the engine's own cache
        load_full_s = max(1e-6, loads[1.0].first_s - sweep.own[1.0].first_s)
    data = lab.result.data["sweep"]
    compute = curves.fit_compute([(0.0, sweep.cold.first_s)] + [(a, own.first_s) for a, own in sweep.own.items()])
    curve = curves.model(load_full_s, sweep.store_full_s, compute)
    points = [_point(sweep, 0.0, sweep.cold, sweep.cold.first_s, load_full_s)]
    points += [_point(sweep, a, loads[a], sweep.own[a].first_s, load_full_s) for a in sweep.reuse]
    data["arms"].append({"name": name, "bandwidth": bandwidth, "e": sweep.cold.first_s / load_full_s,
                         "load_full_s": load_full_s, "crossover": curves.crossover(curve), "points": points,
                         "model": curve})
    if name != "unshaped":
        _judge_overlap(sweep, loads, points, bandwidth)


def _load(sweep: Sweep, reuse: float) -> tuple[Answer, bool]:
    """Also whether all that is reused came from the depot."""
    lab, kept = sweep.lab, sweep.kept(reuse)
    lab.progress.detail(f"reuse {reuse:.0%}")
    lab.engines[sweep.engine].reset()
    before = lab.depot.stats()["keys_got"]
    answer = sweep.ask(sweep.prompt(reuse))
    sent = lab.depot.stats()["keys_got"] - before
    return answer, answer.cached == kept and sent == kept / document.BLOCK_TOKENS


def _point(sweep: Sweep, reuse: float, answer: Answer, compute_s: float, load_full_s: float) -> dict:
    return {"reuse": reuse, "cached_tokens": answer.cached, "ttft_s": answer.first_s, "load_s": reuse * load_full_s,
            "store_s": (1 - reuse) * sweep.store_full_s, "compute_s": compute_s}


def _judge_overlap(sweep: Sweep, loads: dict[float, Answer], points: Sequence[dict], bandwidth: float) -> None:
    """Near the crossover load and compute take about equally long: there overlapping them shows most. The fastest of
    up to TRIES requests."""
    result, reuse = sweep.lab.result, 0.75
    point = next(p for p in points if p["reuse"] == reuse)
    point["tries"] = 1
    while point["tries"] < TRIES and point["ttft_s"] > BELOW_SUM_MAX * curves.one_by_one_s(point):
        again, _ = _load(sweep, reuse)
        point["tries"] += 1
        if again.first_s < point["ttft_s"]:
            loads[reuse], point["ttft_s"] = again, again.first_s
    share = point["ttft_s"] / curves.one_by_one_s(point)
    result.check("load, store and compute overlap: less than their sum at 75 % and e = 3", share <= BELOW_SUM_MAX,
                 f"{share:.2f} of the sum, {point['ttft_s'] / curves.overlapped_s(point):.2f} of the longest; "
                 f"requests: {point['tries']}")
    answer = loads[reuse]
    seen = timeline.summary(sweep.events(answer))
    result.data["timeline"] = {"reuse": reuse, "e": E_SHAPED, "bandwidth": bandwidth,
                               "tokens": len(sweep.document) + len(sweep.question),
                               "first_token_s": answer.first_s, **seen}
    shorter = min(seen["load_s"], seen["compute_s"])
    result.check("the timeline shows layers loading while others are computed",
                 shorter > 0 and seen["overlap_s"] >= OVERLAP_MIN * shorter,
                 f"{seen['overlap_s']:.2f} s of {shorter:.2f} s")
