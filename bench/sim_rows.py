"""Figures of the simulator: speed, identity of skipped passes, the llm-d run, and shared depot against private caches.

    python3 -m bench.sim_rows [--kvdepot build/release/bin/kvdepot] [--trace FILE] [--rows NAME ...] [--figures DIR]

Rows: speed, events, scaling, llmd, depot, capacity. Prints Markdown tables; every run's own checks must hold, or it
stops. Without --trace the Mooncake trace of data/mooncake is unpacked. `depot` and `capacity` draw their SVGs into
--figures.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import harness, svg_chart

ROOT = harness.ROOT
MOONCAKE = ROOT / "examples/sim/mooncake.toml"
SHARED_PREFIX = ROOT / "examples/sim/shared_prefix.toml"
TRACE_REQUESTS = 12031
POLICIES = ("least-request", "prefix-affinity")     # of mooncake_8x
STAGES = [(15, 50), (3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21), (40, 38), (43, 36),
          (46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25)]
# What llm-d published: output tokens/s and TTFT mean (means over the stages), TTFT mean of the stage of 3 requests/s.
PUBLISHED = {"random": (4429, 45.281, 0.622), "load": (4266, 46.987, 0.944)}
# What inference-perf has in flight by default, 100 a worker process and a process a CPU, on two, four and eight CPUs.
IN_FLIGHT = (200, 400, 800)
STAGE_GAP_S = 2000      # idle time between stages: longer than any of them takes to end
T_95 = {9: 2.262}       # Student's t, two-sided 95 %, by degrees of freedom
SEEDS = range(1, 11)
SLA_TTFT_S, SLA_TPOT_S = 5, 0.05
WARMUP_S = 600          # of the trace
GPUS = 16               # eight instances with two each
SPEED_MOST = 4.0        # times the trace's own load: no arm holds its SLA there
SPEED_STEPS = 9         # halvings: within 1 % of the trace's load


class Simulator:
    def __init__(self, program: str, trace: str) -> None:
        self.program = program
        self.trace = trace

    def run(self, config: Path, settings: Mapping[str, object], *flags: str) -> dict:
        """The summary of one run; raises when the run's own checks failed. `process_s`: from its start to its end."""
        command = [self.program, "sim", "run", str(config), "--json", *flags]
        if config == MOONCAKE:
            settings = {"workload.trace": self.trace} | dict(settings)
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        begun = time.monotonic()
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        took = time.monotonic() - begun
        if done.returncode != 0:
            why = done.stderr.strip() or done.stdout[-400:]
            raise harness.BenchError(f"{' '.join(command)} ended with {done.returncode}: {why}")
        return json.loads(done.stdout) | {"process_s": took}


def unpack_trace(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.decompress((ROOT / "data/mooncake/conversation_trace.jsonl.xz").read_bytes()))
    return str(path)


def hour_fleet(instances: int, requests: int) -> dict[str, object]:
    """So many requests at the load of the hour on eight instances: a copy for every eight of them, side by side, and
    the hour again and again. Each copy of each hour has prefixes of its own."""
    copies = max(1, instances // 8)
    return {"fleet.instances": instances, "workload.copies": copies,
            "workload.repeats": -(-requests // (copies * TRACE_REQUESTS)), "workload.requests_max": requests,
            "workload.speed": instances / (8 * copies)}


def mooncake_8x(block: int, policy: str) -> dict[str, object]:
    """The hour on eight instances."""
    return {"engine.block_tokens": block, "fleet.policy": policy}


# What of a summary tells how it was computed: the machine's times, and how many passes were executed to get there.
OF_THE_MACHINE = ("wall_s", "simulate_s", "events_per_s", "peak_mib", "process_s", "passes_executed")


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """What two summaries say differently of the fleet."""
    keys = (one.keys() | other.keys()) - set(OF_THE_MACHINE)
    return sorted(key for key in keys if one.get(key) != other.get(key))


def same_output(sim: Simulator, settings: Mapping[str, object], folder: Path) -> tuple[list[str], dict, dict]:
    """What differs when passes are skipped, of every request's record, of the series over time and of the summary; the
    runs that skip and that do not."""
    runs, files = [], []
    for name, flags in (("skip", ()), ("step", ("--no-skip",))):
        paths = [folder / f"{name}.{what}.csv" for what in ("requests", "series")]
        runs.append(sim.run(MOONCAKE, settings, "--requests", str(paths[0]), "--series", str(paths[1]), *flags))
        files.append([path.read_bytes() for path in paths])
    differ = [what for what, skip, step in zip(("--requests", "--series"), *files) if skip != step]
    return differ + differences(*runs), *runs


def ns_a_pass(run: dict) -> float:
    return 1e9 * run["simulate_s"] / run["passes"]


def speed(sim: Simulator, figures: Path | None) -> None:
    print("| row | policy | whole process s | every pass s | passes | executed | records |\n"
          "|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for block in (512, 16):
            for policy in POLICIES:
                settings = mooncake_8x(block, policy)
                runs = [sim.run(MOONCAKE, settings) for _ in range(5)]
                all_passes = [sim.run(MOONCAKE, settings, "--no-skip") for _ in range(5)]
                same = ", ".join(same_output(sim, settings, Path(folder))[0]) or "identical"
                print(f"| mooncake_8x_{block}_s | {policy} | {statistics.median(r['process_s'] for r in runs):.3f} | "
                      f"{statistics.median(r['process_s'] for r in all_passes):.3f} | {runs[0]['passes']} | "
                      f"{runs[0]['passes_executed']} | {same} |")


def events(sim: Simulator, figures: Path | None) -> None:
    run = sim.run(MOONCAKE, hour_fleet(1000, 1_000_000), "--no-skip")
    print(f"1,000 instances, {run['requests']} requests: {run['passes_executed']} passes executed in "
          f"{run['simulate_s']:.1f} s = {run['events_per_s'] / 1e6:.2f} million a second; "
          f"peak {run['peak_mib']:.0f} MiB")


def scaling(sim: Simulator, figures: Path | None) -> None:
    print("| instances | requests | passes | ns a pass | preemptions in 10,000 passes | peak MiB |\n" +
          "|---" * 6 + "|")
    for instances, requests, rounds in ((1, 2000, 5), (64, 128_000, 5), (1024, 2_048_000, 1), (4096, 8_192_000, 1),
                                        (64, 100_000, 5), (64, 10_000_000, 1)):
        runs = [sim.run(MOONCAKE, hour_fleet(instances, requests), "--no-skip") for _ in range(rounds)]
        run = runs[0]
        print(f"| {instances} | {run['requests']} | {run['passes']} | {statistics.median(map(ns_a_pass, runs)):.0f} | "
              f"{1e4 * run['preemptions'] / run['passes']:.2f} | {run['peak_mib']:.0f} |")


def llmd_stages(sim: Simulator, settings: Mapping[str, object]) -> list[list[dict]]:
    """The requests of each stage but the warm-up. Each stage runs after the end of the one before, as inference-perf
    runs them."""
    starts, now = [], 0
    for _, seconds in STAGES:
        starts.append(now)
        now += seconds + STAGE_GAP_S
    per_stage: list[list[dict]] = [[] for _ in STAGES]
    with tempfile.TemporaryDirectory() as folder:
        name = str(Path(folder) / "requests.csv")
        sim.run(SHARED_PREFIX, {"workload.gap_s": STAGE_GAP_S} | dict(settings), "--requests", name)
        with open(name, encoding="utf-8") as file:
            for row in csv.DictReader(file):
                times = {key: float(row[f"{key}_s"]) for key in ("scheduled", "arrival", "first_token", "finish")}
                per_stage[max(i for i, start in enumerate(starts) if start <= times["scheduled"])].append(times)
    for stage, start in zip(per_stage, starts):
        if max(r["finish"] for r in stage) > start + STAGE_GAP_S:
            raise SystemExit(f"a stage runs into the next one: {STAGE_GAP_S} s between them are too few")
    return per_stage[1:]


def mean_over(stages: Iterable[list[dict]], figure: Callable[[dict], float]) -> float:
    return statistics.mean(statistics.mean(map(figure, stage)) for stage in stages)


def in_parallel(jobs: Iterable[Callable[[], object]]) -> list:
    """Results in order; as many at once as there are cores. Nothing here is timed."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of its 95 % interval."""
    return statistics.mean(values), T_95[len(values) - 1] * statistics.stdev(values) / len(values) ** 0.5


def llmd_figures(sim: Simulator, policy: str, tokens: int, most: int, age: int, seed: int) -> dict[str, float]:
    """One run of the published stages."""
    stages = llmd_stages(sim, {"fleet.policy": policy, "fleet.seed": seed, "workload.output_tokens": tokens,
                               "workload.in_flight_max": most, "fleet.metrics_age_ms": age})
    seconds = [max(r["finish"] for r in stage) - min(r["arrival"] for r in stage) for stage in stages]
    replica_s = 8 * sum(seconds)
    return {
        "rate": statistics.mean(len(stage) * tokens / s for stage, s in zip(stages, seconds)),
        "low": statistics.mean(r["first_token"] - r["arrival"] for r in stages[0]),
        "ttft": mean_over(stages, lambda r: r["first_token"] - r["arrival"]),
        "scheduled": mean_over(stages, lambda r: r["first_token"] - r["scheduled"]),
        "itl_ms": 1e3 * mean_over(stages, lambda r: (r["finish"] - r["first_token"]) / (tokens - 1)),
        "decoding": sum(r["finish"] - r["first_token"] for stage in stages for r in stage) / replica_s,
        "waiting": sum(r["first_token"] - r["arrival"] for stage in stages for r in stage) / replica_s,
    }


def llmd(sim: Simulator, figures: Path | None) -> None:
    """Means of the seeds with 95 % intervals. Decoding and waiting (until the first token): mean requests a replica
    while stages run. TTFT is from the moment at which the load generator sends, as inference-perf counts; from the
    schedule it is in a column of its own."""
    print("| output tokens | policy | in flight at most | metrics ms | output tok/s | published | error | "
          "TTFT mean s | published | from schedule s | TTFT at 3/s, s | published | error | ITL mean ms | decoding | "
          "waiting |\n" +
          "|---" * 16 + "|")
    arms = [(1000, policy, most, 0) for most in (0, *IN_FLIGHT) for policy in PUBLISHED]
    arms += [(1000, "load", most, 50) for most in (0, *IN_FLIGHT)] + [(430, policy, 0, 0) for policy in PUBLISHED]
    for tokens, policy, most, age in arms:
        published, ttft, ttft_low = PUBLISHED[policy]
        runs = in_parallel([lambda seed=seed: llmd_figures(sim, policy, tokens, most, age, seed) for seed in SEEDS])
        got = {name: interval([run[name] for run in runs]) for name in runs[0]}
        (rate, rate_half), (low, low_half) = got["rate"], got["low"]
        print(f"| {tokens} | {policy} | {most or 'no limit'} | {age} | {rate:.0f} ± {rate_half:.0f} | {published} | "
              f"{100 * (rate / published - 1):+.0f} % | {got['ttft'][0]:.1f} ± {got['ttft'][1]:.1f} | {ttft:.1f} | "
              f"{got['scheduled'][0]:.1f} | {low:.3f} ± {low_half:.3f} | {ttft_low} | "
              f"{100 * (low / ttft_low - 1):+.0f} % | {got['itl_ms'][0]:.1f} | {got['decoding'][0]:.1f} | "
              f"{got['waiting'][0]:.1f} |", flush=True)


BASE = "private 0.31M, prefix-affinity"


def depot_arms() -> dict[str, dict[str, object]]:
    """Private caches with three policies against one depot with two policies that know nothing of caches."""
    arms: dict[str, dict[str, object]] = {}
    for kv, name in ((307328, "0.31M"), (2_050_000, "2.05M")):
        for policy in ("random", "least-request", "prefix-affinity"):
            arms[f"private {name}, {policy}"] = {"engine.kv_tokens": kv, "fleet.policy": policy}
    for policy in ("least-request", "load"):
        for gb in (1, 5, 10, 25, 50):
            arms[f"depot {gb} GB/s, {policy}"] = {"depot.bandwidth": f"{gb}GB/s", "fleet.policy": policy,
                                                  "depot.write_bandwidth": "unbounded"}
    return arms


def at_load(load: float, seed: int) -> dict[str, object]:
    return {"workload.speed": load, "fleet.seed": seed, "fleet.warmup_s": WARMUP_S / load}


def time_cells(runs: list[dict]) -> str:
    """TTFT and TPOT, 90th percentiles; of an arm whose queues grow in any seed there are none."""
    unstable = sum(r["unstable"] for r in runs)
    if unstable:
        return f"unstable in {unstable} of {len(runs)} | "
    return " | ".join([f"{statistics.mean(r['ttft_s']['p90'] for r in runs):.2f}",
                       f"{1e3 * statistics.mean(r['tpot_s']['p90'] for r in runs):.1f}"])


def depot(sim: Simulator, figures: Path | None) -> None:
    arms = depot_arms()
    loads = (0.5, 1, 1.5, 2)
    goodput: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    waits: dict[str, list[tuple[float, float]]] = {}
    for load in loads:
        print(f"\nLoad x {load}\n\n| arm | TTFT p90 s | TPOT p90 ms | goodput /s | over {BASE} (95 %) | own hits % | "
              "depot % |\n|---|---|---|---|---|---|---|", flush=True)
        done = in_parallel([lambda settings=settings, seed=seed: sim.run(MOONCAKE, at_load(load, seed) | settings)
                            for settings in arms.values() for seed in SEEDS])
        results = {name: done[i * len(SEEDS):(i + 1) * len(SEEDS)] for i, name in enumerate(arms)}
        for name, runs in results.items():
            gain, half = interval([r["goodput_per_s"] - b["goodput_per_s"] for r, b in zip(runs, results[BASE])])
            good = statistics.mean(r["goodput_per_s"] for r in runs)
            goodput[name].append((load, good))
            if name.startswith("depot") and not any(r["unstable"] for r in runs):
                gb, policy = name.removeprefix("depot ").split(" GB/s, ")
                waits.setdefault(f"{policy}, load x {load:g}", []).append(
                    (float(gb), statistics.mean(r["ttft_s"]["p90"] for r in runs)))
            print(f"| {name} | {time_cells(runs)} | {good:.3f} | {gain:+.3f} ± {half:.3f} | "
                  f"{100 * statistics.mean(r['hit_share'] for r in runs):.1f} | "
                  f"{100 * statistics.mean(r['loaded_share'] for r in runs):.1f} |")
    if figures:
        shown = [name for name in arms if name.startswith("private") or name.endswith("least-request")]
        (figures / "shared-depot-goodput.svg").write_text(svg_chart.lines(
            f"Goodput within TTFT {SLA_TTFT_S} s and TPOT {1e3 * SLA_TPOT_S:.0f} ms",
            "load, times the trace's", "requests/s of eight instances",
            {name: goodput[name] for name in shown if "25 GB/s" not in name and "50 GB/s" not in name}))
        (figures / "shared-depot-ttft.svg").write_text(svg_chart.lines(
            "Time to first token, 90th percentile; arms with queues that grow are left out",
            "bandwidth of each instance's link to the depot, GB/s", "s", waits, ("SLA", SLA_TTFT_S)))


def holds(run: dict) -> bool:
    return (not run["unstable"] and run["ttft_s"]["p90"] <= SLA_TTFT_S and
            run["tpot_s"] is not None and run["tpot_s"]["p90"] <= SLA_TPOT_S)


def largest(held: Callable[[float], bool], most: float = SPEED_MOST, steps: int = SPEED_STEPS) -> float:
    """The largest value up to `most` at which something is held, by halving; what is held is taken to be held below."""
    low, high = 0.0, most
    for _ in range(steps):
        middle = (low + high) / 2
        if held(middle):
            low = middle
        else:
            high = middle
    return low


def trace_rate(path: str) -> float:
    """Requests a second of the trace."""
    with open(path, encoding="utf-8") as file:
        times = [json.loads(line)["timestamp"] for line in file if line.strip()]
    return len(times) / ((times[-1] - times[0]) * 1e-3)


def capacity(sim: Simulator, figures: Path | None) -> None:
    """The largest load at which both 90th percentiles are within the SLA and no queue grows, of each arm and seed."""
    arms = depot_arms()
    a_gpu = trace_rate(sim.trace) / GPUS

    def find(settings: dict[str, object], seed: int) -> float:
        return largest(lambda load: holds(sim.run(MOONCAKE, at_load(load, seed) | settings)))

    done = in_parallel([lambda settings=settings, seed=seed: find(settings, seed)
                        for settings in arms.values() for seed in SEEDS])
    found = {name: done[i * len(SEEDS):(i + 1) * len(SEEDS)] for i, name in enumerate(arms)}
    print(f"| arm | largest load, times the trace's | requests/s a GPU | over {BASE} (95 %) |\n|---|---|---|---|")
    rows = []
    for name, values in found.items():
        mean, half = interval(values)
        gain, gain_half = interval([a_gpu * (v - b) for v, b in zip(values, found[BASE])])
        rows.append((name, a_gpu * mean, a_gpu * half))
        print(f"| {name} | {mean:.3f} ± {half:.3f} | {a_gpu * mean:.4f} ± {a_gpu * half:.4f} | "
              f"{gain:+.4f} ± {gain_half:.4f} |")
    if figures:
        (figures / "shared-depot-capacity.svg").write_text(svg_chart.bars(
            f"Requests/s a GPU with TTFT p90 within {SLA_TTFT_S} s and TPOT p90 within {1e3 * SLA_TPOT_S:.0f} ms",
            "requests/s a GPU", rows))


ROWS = {"speed": speed, "events": events, "scaling": scaling, "llmd": llmd, "depot": depot, "capacity": capacity}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvdepot", default=str(ROOT / "build/release/bin/kvdepot"))
    parser.add_argument("--trace", help="Mooncake's conversation_trace.jsonl [unpacked from data/mooncake]")
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--figures", type=Path, metavar="DIR", help="write the SVGs there")
    args = parser.parse_args()
    if args.figures:
        args.figures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        trace = args.trace or unpack_trace(Path(folder) / "conversation_trace.jsonl")
        for row in args.rows:
            print(f"\n## {row}\n", flush=True)
            ROWS[row](Simulator(args.kvdepot, trace), args.figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
