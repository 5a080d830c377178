"""The main job: a document stored by one engine, asked about in another, before and after a crash of the depot.

Per round, with fresh content: the writer reads document and question; the plain engine answers another question cold
and, asked again, from its own prefix cache; the reader (another process) answers it from the depot; the depot is
killed, once nothing waits to be written, and restarted; a third engine answers from flash. Beside it a whole prompt of
4,096 tokens asked again, and a short document during which the depot is killed: what of it survives. Figures are times
to first token; they count only where that token is the one that the own prefix cache gives.
"""

from __future__ import annotations

import random
import statistics
import threading

from bench.depot import BYTES_LENT, FLASH_READ
from bench.engine_lab import (
    DOCUMENT, QUESTION, REPEATS_MAX, Lab, ask_depot, expect_cached, expect_cold, expect_lent, expect_same,
    ours_over_tcp)
from bench.engine_process import Answer, Engine
from bench.harness import Bench, BenchError

PROMPT = DOCUMENT + QUESTION
WHOLE = 4096
SHORT = 1024            # the document during which the depot is killed
ANSWER = 8
PRIMER = 512
NAMES = ("cold_over_depot_6920", "cold_over_depot_after_kill_6920", "depot_over_prefix_cache_6920",
         "same_prompt_4096_s", "survived_random_kill_share", "wrong_after_random_kill")
PREFIX_CACHE = "vLLM's own prefix cache"


class MainJob:
    """Four engines and a depot over all rounds; `figures` collects one value an arm and round."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.depot = lab.depot("main")
        self.writer, self.reader, self.plain = lab.engines(
            lab.spec("writer", ours_over_tcp(self.depot)), lab.spec("reader", ours_over_tcp(self.depot)),
            lab.spec("plain"))
        self.third: Engine | None = None
        self.figures: dict[str, list[float]] = {name: [] for name in (
            "cold", "cold_storing", "own", "depot", "killed", "own_whole", "depot_whole")}
        self.survived: list[float] = []
        self.survivors_wrong = 0

    def measure(self, rounds: int) -> None:
        (self.third,) = self.lab.engines(self.lab.spec("third", ours_over_tcp(self.depot)))
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
            ask_depot(self.depot, engine, self.primer, PRIMER - 128, "primer in a second engine")

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
        lent = self.depot.metric(BYTES_LENT)
        depot = ask_depot(self.depot, self.reader, document + second, DOCUMENT, "depot")
        expect_lent(self.lab, self.depot, lent, 0)
        expect_same(depot, own, "depot")
        own_whole, depot_whole = self._whole(whole)
        note(f"main job, round {index + 1}: after SIGKILL of the depot")
        killed = expect_same(self._after_kill(document + second), own, "depot after the crash")
        note(f"main job, round {index + 1}: SIGKILL at a random moment")
        self._killed_at_random(index)
        for name, value in (("cold", cold.first_s), ("cold_storing", storing.first_s), ("own", own.first_s),
                            ("depot", depot.first_s), ("killed", killed.first_s), ("own_whole", own_whole),
                            ("depot_whole", depot_whole)):
            self.figures[name].append(value)

    def _whole(self, whole: list[int]) -> tuple[float, float]:
        expect_cold(self.plain.ask(whole), "the plain engine's prompt")
        self.lab.settle()
        own = expect_cached(self.plain.ask(whole), WHOLE - 128, "own prefix cache, whole prompt")
        self.lab.settle()
        depot = ask_depot(self.depot, self.reader, whole, WHOLE - 1, "depot, whole prompt")
        return own.first_s, depot.first_s

    def _after_kill(self, prompt: list[int]) -> Answer:
        """The answer to a document that comes from flash. One that was asked again may come from the pool,
        into which its first, failed answer put it: then the depot is killed again."""
        whole = DOCUMENT * self.lab.model.kv_bytes_per_token
        for _ in range(1 + REPEATS_MAX):
            self.depot.wait_written()
            self.depot.crash_and_restart()
            self.lab.reconnect(self.depot, self.third, self.primer)
            self.lab.settle()
            before, repeated = self.depot.metric(FLASH_READ), self.depot.repeated
            answer = ask_depot(self.depot, self.third, prompt, DOCUMENT, "depot after the crash")
            read = self.depot.metric(FLASH_READ) - before
            if read >= whole:
                return answer
            if self.depot.repeated == repeated:
                break
        raise BenchError(f"after the crash: {read:,.0f} bytes were read from flash, not {whole:,.0f}")

    def _killed_at_random(self, index: int) -> None:
        """SIGKILL at a random moment while a document is computed and stored: what survives, and is it right?"""
        prompt = self.lab.prompt(f"random kill {index}", SHORT) + self.lab.question(f"random kill {index}")
        self.plain.reset_prefix_cache()
        cold = expect_cold(self.plain.ask(prompt, ANSWER), "the plain engine's short document")
        moment = random.Random(f"random kill {index}").uniform(0.2, 1.2) * cold.first_s
        timer = threading.Timer(moment, self.depot.kill)
        timer.start()
        self.writer.ask(prompt, ANSWER)
        timer.join()
        self.depot.start()
        for engine in (self.writer, self.third):
            self.lab.reconnect(self.depot, engine, self.primer)
        answer = self.third.ask(prompt, ANSWER)
        self.survived.append(answer.cached / SHORT)
        right = cold if not answer.cached else own_answer(self.plain, prompt, answer.cached, ANSWER)
        self.survivors_wrong += answer.tokens != right.tokens
        if self.depot.corrupt():
            raise BenchError(f"after the kill at {moment:.2f} s the depot found {self.depot.corrupt():.0f} bad records")

    def report(self, bench: Bench) -> None:
        f, command = self.figures, self.depot.command
        note = {"engine": self.writer.facts, "tier": "pool (DRAM), pooled"}
        bench.ratio(NAMES[0], ours=f["depot"], theirs=f["cold"], unit="s", form="theirs/ours", better="higher",
                    goal=50, peer="cold, no connector", command=command, **note)
        bench.ratio(NAMES[1], ours=f["killed"], theirs=f["cold"], unit="s", form="theirs/ours", better="higher",
                    goal=40, peer="cold, no connector", command=command, **(note | {"tier": "flash, direct I/O"}))
        bench.ratio(NAMES[2], ours=f["depot"], theirs=f["own"], unit="s", form="ours/theirs", better="lower",
                    goal=2.2, peer=PREFIX_CACHE, command=command, **note)
        bench.value(NAMES[4], statistics.median(self.survived), "of the document", better="higher", goal=None,
                    command=command, each=self.survived)
        bench.value(NAMES[5], self.survivors_wrong, "answers", better="lower", goal=0, command=command,
                    peer=f"{PREFIX_CACHE}, same number of cached tokens", rounds=len(self.survived))
        bench.value(NAMES[3], statistics.median(f["depot_whole"]), "s", better="lower",
                    goal=statistics.median(f["own_whole"]), ours=f["depot_whole"], theirs=f["own_whole"],
                    peer=PREFIX_CACHE, command=command, **note)


def own_answer(engine: Engine, prompt: list[int], cached: int, max_tokens: int) -> Answer:
    """What an engine says whose own prefix cache holds so many tokens of the prompt, no more and no less."""
    engine.reset_prefix_cache()
    engine.ask(prompt[:cached])
    answer = engine.ask(prompt, max_tokens)
    if answer.cached != cached:
        raise BenchError(f"own prefix cache: {answer.cached} tokens, {cached} expected")
    return answer


def run(job: MainJob, bench: Bench) -> None:
    if bench.wants(*NAMES):
        job.measure(bench.rounds(quick=1))
        job.report(bench)
