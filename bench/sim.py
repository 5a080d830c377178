"""The sim suite: the study predicted anew, errors on points left out, and how fast fleets are simulated.

    make bench-sim                      all rows, into build/bench/sim.json, and build/bench/study.json
    make bench-sim ARGS=--quick         fewer repetitions, and a smaller fleet for weak scaling
    make bench-sim ARGS="--only 'mooncake_*'"

Needs the release build, nothing else. Times are of whole processes on one core, with reading the trace; every run's own
checks (tokens and blocks conserved, Little's law) must hold. docs/sim.md explains what is simulated.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench import harness
from bench.sim_rows import (MOONCAKE, POLICIES, Simulator, hour_fleet, mooncake_8x, ns_a_pass, same_output,
                            unpack_trace)

STUDY = "study"
MEDIAN_ERROR = "given_tables_median_error"
HIGH_ERROR = "given_tables_p95_error"
SPEED = {512: ("mooncake_8x_512_s", 0.2), 16: ("mooncake_8x_16_s", 0.8)}
SAME = "skipped_passes_identical"
EVENTS = "events_per_s"
MEMORY = "events_peak_gib"
SCALING = "weak_scaling_4096"
LENGTH = "long_run_64"


def typed(fleet: dict[str, object]) -> str:
    settings = " ".join(f"--set {key}={value}" for key, value in fleet.items())
    return f"kvdepot sim run examples/sim/mooncake.toml --no-skip {settings}"


def output_of(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise harness.BenchError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def study(bench: harness.Bench, program: str) -> None:
    out = bench.build / "bench" / "study.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [program, "sim", "study", "--data", str(harness.ROOT / "data/ipdps25"), "--out", str(out)]
    output_of(command)
    bench.progress.note(f"wrote {out.relative_to(bench.build.parent)}")


def left_out(bench: harness.Bench, program: str) -> None:
    command = [program, "sim", "calibrate", "--data", str(harness.ROOT / "data/ipdps25"), "--json"]
    points = json.loads(output_of(command))["left_out"]
    errors = sorted(abs(p["predicted_s"] / p["measured_s"] - 1) for p in points if not p["end_of_series"])
    ends = [abs(p["predicted_s"] / p["measured_s"] - 1) for p in points if p["end_of_series"]]
    what = "kvdepot sim calibrate --json"
    bench.value(MEDIAN_ERROR, statistics.median(errors), "ratio", better="lower", goal=0.05, command=what,
                points=len(errors), ends_of_series_median=statistics.median(ends))
    bench.value(HIGH_ERROR, errors[round(0.95 * (len(errors) - 1))], "ratio", better="lower", goal=0.15, command=what)


def speed(bench: harness.Bench, sim: Simulator, block: int) -> None:
    """The slower of both policies, median of the rounds."""
    name, goal = SPEED[block]
    arms = {policy: lambda _, policy=policy: sim.run(MOONCAKE, mooncake_8x(block, policy))["process_s"]
            for policy in POLICIES}
    times = harness.alternate(arms, bench.rounds(15, 5))
    slow = max(POLICIES, key=lambda policy: statistics.median(times[policy]))
    bench.value(name, statistics.median(times[slow]), "s", better="lower", goal=goal, ours=times[slow],
                command=f"kvdepot sim run examples/sim/mooncake.toml --set engine.block_tokens={block} "
                        f"--set fleet.policy={slow}",
                **{policy: statistics.median(times[policy]) for policy in POLICIES})


def identity(bench: harness.Bench, sim: Simulator) -> None:
    differ, skipped, stepped = zip(*[same_output(sim, mooncake_8x(block, policy), bench.work)
                                     for block in SPEED for policy in POLICIES])
    bench.value(SAME, float(not any(differ)), "", better="higher", goal=1,
                command="kvdepot sim run ... --json --no-skip --requests FILE --series FILE",
                differ=sorted(set(sum(differ, []))), skipping_s=[run["simulate_s"] for run in skipped],
                every_pass_s=[run["simulate_s"] for run in stepped])


def events(bench: harness.Bench, sim: Simulator) -> None:
    requests = 200_000 if bench.quick else 1_000_000
    fleet = hour_fleet(1000, requests)
    run = sim.run(MOONCAKE, fleet, "--no-skip")
    command = typed(fleet)
    bench.value(EVENTS, run["events_per_s"], "1/s", better="higher", goal=5e6, command=command,
                passes_executed=run["passes_executed"], requests=run["requests"])
    bench.value(MEMORY, run["peak_mib"] / 1024, "GiB", better="lower", goal=4, command=command,
                mib_per_instance=run["peak_mib"] / 1000)


def scaling(bench: harness.Bench, sim: Simulator) -> None:
    """Time per pass with 2,000 requests an instance, over that of one instance. --quick stops at 1,024 instances."""
    per_pass = {}
    for instances in (1, 1024 if bench.quick else 4096):
        fleet = hour_fleet(instances, instances * 2000)
        runs = [sim.run(MOONCAKE, fleet, "--no-skip") for _ in range(5 if instances == 1 else 1)]
        per_pass[instances] = statistics.median(map(ns_a_pass, runs))
    most = max(per_pass)
    name = SCALING if most == 4096 else f"weak_scaling_{most}"
    bench.value(name, per_pass[most] / per_pass[1], "ratio", better="lower", goal=4,
                command=typed(hour_fleet(most, most * 2000)), ns_a_pass={str(k): v for k, v in per_pass.items()})


def long_run(bench: harness.Bench, sim: Simulator) -> None:
    """Time per pass of 64 instances with 10 million requests, over that with 100 thousand: eight copies of the hour
    side by side, once and 104 times one after the other, so that both have its load and its bursts.
    --quick stops at 1 million."""
    few, many = 100_000, 1_000_000 if bench.quick else 10_000_000
    per_pass, preempted = {}, {}
    for requests in (few, many):
        runs = [sim.run(MOONCAKE, hour_fleet(64, requests), "--no-skip") for _ in range(5 if requests == few else 1)]
        per_pass[requests] = statistics.median(map(ns_a_pass, runs))
        preempted[requests] = runs[0]["preemptions"] / runs[0]["passes"]
    name = LENGTH if many == 10_000_000 else f"{LENGTH}_1m"
    bench.value(name, per_pass[many] / per_pass[few], "ratio", better="lower", goal=1.3,
                command=typed(hour_fleet(64, many)), preemptions_a_pass={str(k): v for k, v in preempted.items()},
                ns_a_pass={str(k): v for k, v in per_pass.items()})


def run(bench: harness.Bench) -> None:
    program = str(bench.build / "release" / "bin" / "kvdepot")
    if not Path(program).exists():
        raise harness.BenchError(f"{program} is not there: make build PRESET=release")
    sim = Simulator(program, unpack_trace(bench.work / "conversation_trace.jsonl"))
    parts: list[tuple[Callable[[], None], tuple[str, ...]]] = [
        (lambda: study(bench, program), (STUDY,)),
        (lambda: left_out(bench, program), (MEDIAN_ERROR, HIGH_ERROR)),
        *[(lambda block=block: speed(bench, sim, block), (name,)) for block, (name, _) in SPEED.items()],
        (lambda: identity(bench, sim), (SAME,)),
        (lambda: events(bench, sim), (EVENTS, MEMORY)),
        (lambda: scaling(bench, sim), (SCALING,)),
        (lambda: long_run(bench, sim), (LENGTH,)),
    ]
    for measure, names in parts:
        if bench.wants(*names):
            with bench.part(*names):
                measure()


if __name__ == "__main__":
    sys.exit(harness.main("sim", run, __doc__))
