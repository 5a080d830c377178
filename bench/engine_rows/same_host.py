"""The main job for an engine on the depot's own host, as it is without further settings: it is told of the depot's port
and reads the depot's memory.

Per round, with fresh content: the writer reads document and question; the plain engine answers another question cold
and, asked again, from its own prefix cache; the reader answers it from the depot. Figures are times to first token.
"""

from __future__ import annotations

from bench.depot import BYTES_LENT, Depot
from bench.engine_lab import DOCUMENT, Lab, ask_depot, expect_cached, expect_cold, expect_lent, expect_same, ours
from bench.engine_process import Answer, Engine
from bench.engine_rows.main_job import PREFIX_CACHE, PRIMER
from bench.harness import Bench

NAMES = ("cold_over_depot_6920_shm", "depot_over_prefix_cache_6920_shm")


def run(lab: Lab, bench: Bench, depot: Depot, writer: Engine, plain: Engine) -> None:
    """`writer` stores into the depot, `plain` has no connector."""
    if not bench.wants(*NAMES):
        return
    (reader,) = lab.engines(lab.spec("same-host", ours(depot)))
    primer = lab.prompt("same host primer", PRIMER)
    for engine in (writer, plain):
        engine.ask(primer)
    lab.settle(depot)
    ask_depot(depot, reader, primer, PRIMER - 128, "primer in a second engine")
    figures: dict[str, list[float]] = {name: [] for name in ("cold", "own", "depot")}
    for index in range(bench.rounds(quick=1)):
        bench.progress.tick(f"same host, round {index + 1}")
        document = lab.prompt(f"same host {index}", DOCUMENT)
        first, second = (lab.question(f"same host {index} {which}") for which in "ab")
        expect_cold(writer.ask(document + first), "the writer's document")
        lab.settle(depot)
        figures["cold"].append(expect_cold(plain.ask(document + second), "the plain engine's document").first_s)
        lab.settle()
        own = expect_cached(plain.ask(document + second), DOCUMENT, "own prefix cache")
        figures["own"].append(own.first_s)
        lab.settle()
        answer = _from_memory(lab, depot, reader, document + second)
        figures["depot"].append(expect_same(answer, own, "depot, same host").first_s)
    note = {"engine": reader.facts, "tier": "pool (DRAM), read through shared memory"}
    bench.ratio(NAMES[0], ours=figures["depot"], theirs=figures["cold"], unit="s", form="theirs/ours",
                better="higher", goal=50, peer="cold, no connector", command=depot.command, **note)
    bench.ratio(NAMES[1], ours=figures["depot"], theirs=figures["own"], unit="s", form="ours/theirs", better="lower",
                goal=1.6, peer=PREFIX_CACHE, command=depot.command, **note)


def _from_memory(lab: Lab, depot: Depot, reader: Engine, prompt: list[int]) -> Answer:
    """The reader's answer; an error unless the document came through shared memory."""
    before = depot.metric(BYTES_LENT)
    answer = ask_depot(depot, reader, prompt, DOCUMENT, "depot, same host")
    expect_lent(lab, depot, before, DOCUMENT)
    return answer
