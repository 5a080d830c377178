"""The main job: a document stored by one engine, asked about in another, before and after a crash of the depot.

Per round, with fresh content: the writer reads document and question; the plain engine answers another question cold
and, asked again, from its own prefix cache; the reader (another process) answers it from the depot; the depot is
killed, once nothing waits to be written, and restarted; a third engine answers from flash. Beside it a whole prompt of
4,096 tokens asked again. Figures are times to first token.
"""

from __future__ import annotations

import statistics

from bench.engine_lab import DOCUMENT, QUESTION, Lab, expect_cached, expect_cold, ours
from bench.engine_process import Engine
from bench.harness import Bench

PROMPT = DOCUMENT + QUESTION
WHOLE = 4096
PRIMER = 512
NAMES = ("cold_over_depot_6920", "cold_over_depot_after_kill_6920", "depot_over_prefix_cache_6920",
         "same_prompt_4096_s")
PREFIX_CACHE = "vLLM's own prefix cache"


class MainJob:
    """Four engines and a depot over all rounds; `figures` collects one value an arm and round."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.depot = lab.depot("main")
        self.writer, self.reader, self.plain = lab.engines(
            lab.spec("writer", ours(self.depot)), lab.spec("reader", ours(self.depot)), lab.spec("plain"))
        self.third: Engine | None = None
        self.figures: dict[str, list[float]] = {name: [] for name in (
            "cold", "cold_storing", "own", "depot", "killed", "own_whole", "depot_whole")}
        self.same_tokens = 0

    def measure(self, rounds: int) -> None:
        (self.third,) = self.lab.engines(self.lab.spec("third", ours(self.depot)))
        self.warm_up()
        for index in range(rounds):
            self.round(index)

    def warm_up(self) -> None:
        """Connections, code and memory of all arms; the primer stays in the depot for reconnects."""
        self.primer = self.lab.prompt("main primer", PRIMER)
        for engine in (self.writer, self.plain):
            engine.ask(self.primer)
        self.lab.settle(self.depot)
        for engine in (self.reader, self.third):
            expect_cached(engine.ask(self.primer), PRIMER - 128, "primer in a second engine")

    def round(self, index: int) -> None:
        document = self.lab.prompt(f"main {index}", DOCUMENT)
        first, second = (self.lab.question(f"main {index} {which}") for which in "ab")
        whole = self.lab.prompt(f"whole {index}", WHOLE)
        note = self.lab.bench.progress.tick
        note(f"main job, round {index + 1}: cold, storing")
        storing = expect_cold(self.writer.ask(document + first), "the writer's document")
        expect_cold(self.writer.ask(whole), "the writer's prompt")
        self.lab.settle(self.depot)
        note(f"main job, round {index + 1}: cold, without connector")
        cold = expect_cold(self.plain.ask(document + second), "the plain engine's document")
        self.lab.settle()
        own = expect_cached(self.plain.ask(document + second), DOCUMENT, "own prefix cache")
        self.lab.settle()
        depot = expect_cached(self.reader.ask(document + second), DOCUMENT, "depot")
        self.same_tokens += own.tokens == depot.tokens
        own_whole, depot_whole = self._whole(whole)
        note(f"main job, round {index + 1}: after SIGKILL of the depot")
        killed = self._after_kill(document + second)
        for name, value in (("cold", cold.first_s), ("cold_storing", storing.first_s), ("own", own.first_s),
                            ("depot", depot.first_s), ("killed", killed), ("own_whole", own_whole),
                            ("depot_whole", depot_whole)):
            self.figures[name].append(value)

    def _whole(self, whole: list[int]) -> tuple[float, float]:
        expect_cold(self.plain.ask(whole), "the plain engine's prompt")
        self.lab.settle()
        own = expect_cached(self.plain.ask(whole), WHOLE - 128, "own prefix cache, whole prompt")
        self.lab.settle()
        depot = expect_cached(self.reader.ask(whole), WHOLE - 1, "depot, whole prompt")
        return own.first_s, depot.first_s

    def _after_kill(self, prompt: list[int]) -> float:
        self.depot.wait_written()
        self.depot.crash_and_restart()
        self.lab.reconnect(self.third, self.primer)
        self.lab.settle()
        return expect_cached(self.third.ask(prompt), DOCUMENT, "depot after the crash").first_s

    def report(self, bench: Bench) -> None:
        f, command = self.figures, self.depot.command
        note = {"engine": self.writer.facts, "tier": "pool (DRAM), pooled", "same_tokens": self.same_tokens}
        bench.ratio(NAMES[0], ours=f["depot"], theirs=f["cold"], unit="s", form="theirs/ours", better="higher",
                    goal=50, peer="cold, no connector", command=command, **note)
        bench.ratio(NAMES[1], ours=f["killed"], theirs=f["cold"], unit="s", form="theirs/ours", better="higher",
                    goal=40, peer="cold, no connector", command=command, **(note | {"tier": "flash, direct I/O"}))
        bench.ratio(NAMES[2], ours=f["depot"], theirs=f["own"], unit="s", form="ours/theirs", better="lower",
                    goal=2.2, peer=PREFIX_CACHE, command=command, **note)
        bench.value(NAMES[3], statistics.median(f["depot_whole"]), "s", better="lower",
                    goal=statistics.median(f["own_whole"]), ours=f["depot_whole"], theirs=f["own_whole"],
                    peer=PREFIX_CACHE, command=command, **note)


def run(job: MainJob, bench: Bench) -> None:
    if bench.wants(*NAMES):
        job.measure(bench.rounds(quick=1))
        job.report(bench)
