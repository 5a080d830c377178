"""Which steps a run takes, in which order, and how long each should take. The order is the demo's story."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import document, lab, machine, story, sweep
from .progress import Step

PARTS = {
    "reuse": "engine A computes a document, engine B gets it from the depot",
    "crash": "the depot is killed with SIGKILL and restarted; engine C asks (includes reuse)",
    "sweep": "time to first token over the reused share, with the read bandwidth shaped and not",
    "report": "report.html, terminal picture and table from the last result.json, without running anything",
}
# Seconds of the cold document, measured: two cores with AVX-512 in bfloat16, two cores without in float32.
COLD_S = {"bfloat16": 8.0, "float32": 34.0}
COLD_CORES = 2
ENGINE_START_S = 38.0       # alone, on two cores
ENGINE_MORE_S = 12.0        # for each further one that starts beside it


@dataclass
class Action:
    """A step and what it does."""

    step: Step
    run: Callable[[], None]


def guess_cold_s() -> float:
    return COLD_S[machine.engine_dtype()] * COLD_CORES / max(1, machine.facts()["cores"])


def actions(the_lab: lab.Lab, encode: document.Encode) -> list[Action]:
    """All steps of the parts that were asked for."""
    parts, cold_s = the_lab.settings.parts, guess_cold_s()
    tale, swept = story.Story(the_lab, encode), sweep.Sweep(the_lab, encode)
    reuse, third = "reuse" in parts or "crash" in parts, "crash" in parts or "sweep" in parts
    readers = ["A", "B"] if reuse else []
    # With little memory the third engine starts when the first two are gone.
    at_once = third and machine.memory_available_bytes() > (len(readers) + 1) * lab.ENGINE_BYTES
    first = readers + [lab.SWEEPER] * at_once
    plan = [_action("depot", "start the depot", 1, lambda: story.start_depot(the_lab))]
    if first:
        plan += [_start("engines", the_lab, first)]
    if reuse:
        plan += _reuse(the_lab, tale, cold_s)
        plan += [_action("stop_readers", "stop engines A and B", 4, lambda: the_lab.stop_engines(*readers))]
    if third and not at_once:
        plan += [_start("engine_c", the_lab, [lab.SWEEPER])]
    if "crash" in parts:
        plan += [_action("after_kill", "SIGKILL the depot, restart it, engine C asks; from flash", 10,
                         lambda: story.ask_after_kill(tale))]
    if "sweep" in parts:
        plan += _sweep(the_lab, swept, cold_s)
    plan += [_action("end", "end all processes", 4, lambda: finish(the_lab, tale))]
    return plan


def _start(name: str, the_lab: lab.Lab, engines: list[str]) -> Action:
    label = f"start engine{'s' * (len(engines) > 1)} {', '.join(engines)}"
    expect_s = ENGINE_START_S + ENGINE_MORE_S * (len(engines) - 1)
    return _action(name, label, expect_s, lambda: the_lab.start_engines(*engines))


def finish(the_lab: lab.Lab, tale: story.Story) -> None:
    story.keep_answers(tale)
    lab.end(the_lab)
    story.judge_depot(the_lab)


def _reuse(the_lab: lab.Lab, tale: story.Story, cold_s: float) -> list[Action]:
    return [
        _action("cold", f"engine A reads {len(tale.document):,} tokens and answers", cold_s + 1,
                lambda: _after_cold(the_lab, tale)),
        _action("prefix_cache", "engine A answers more from its own prefix cache", 5,
                lambda: story.ask_own_cache(tale)),
        _action("from_depot", "engine B answers; the document comes from the depot", 6, lambda: story.ask_depot(tale)),
    ]


def _after_cold(the_lab: lab.Lab, tale: story.Story) -> None:
    """Reads cold, then corrects what the sweep should take by how fast this machine turned out to be."""
    story.read_cold(tale)
    _expect_sweep(the_lab, the_lab.result.median_s("cold"))


SWEEP_SHARES = {"sweep_cold": 1.0, "sweep_compute": 1.1, "sweep_unshaped": 1.1, "sweep_e3": 1.3}


def _expect_sweep(the_lab: lab.Lab, cold_s: float) -> None:
    chosen = sweep.length_for(cold_s, the_lab.settings.quick)
    for name, share in SWEEP_SHARES.items():
        the_lab.progress.expect(name, 1 + share * cold_s * sweep.cold_share(chosen))


def _sweep(the_lab: lab.Lab, swept: sweep.Sweep, guess_s: float) -> list[Action]:
    def known() -> float | None:
        return the_lab.result.median_s("cold")

    def shaped() -> None:
        bandwidth = sweep.shaped_bytes_s(swept)
        sweep.restart_shaped(swept, bandwidth)
        sweep.measure_arm(swept, "e3", bandwidth)

    one_s = guess_s * sweep.cold_share(sweep.length_for(guess_s, the_lab.settings.quick))
    return [
        _action("sweep_cold", "sweep: reuse 0", 1 + one_s, lambda: sweep.compute_all(swept, known())),
        _action("sweep_compute", "sweep: compute alone", 1 + 1.1 * one_s, lambda: sweep.compute_rest(swept)),
        _action("sweep_unshaped", "sweep: from the depot, unshaped", 1 + 1.1 * one_s,
                lambda: sweep.measure_arm(swept, "unshaped", None)),
        _action("sweep_e3", "sweep: from the depot, shaped to e = 3", 4 + 1.3 * one_s, shaped),
    ]


def _action(name: str, label: str, expect_s: float, run: Callable[[], None]) -> Action:
    return Action(Step(name, label, expect_s), run)
