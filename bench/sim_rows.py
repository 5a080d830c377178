"""Figures of the simulator: speed, identity of skipped passes, the llm-d run, and shared depot against private caches.

    python3 -m bench.sim_rows --kvdepot build/release/bin/kvdepot --trace conversation_trace.jsonl [--rows NAME ...]

Rows: speed, events, scaling, llmd, depot. Prints Markdown tables; every run's own checks must hold, or it stops.
"""

from __future__ import annotations

import argparse
import csv
import filecmp
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOONCAKE = ROOT / "examples/sim/mooncake.toml"
SHARED_PREFIX = ROOT / "examples/sim/shared_prefix.toml"
STAGES = [(15, 50), (3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21), (40, 38), (43, 36),
          (46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25)]
# What llm-d published: output tokens/s and TTFT mean (means over the stages), TTFT mean of the stage of 3 requests/s.
PUBLISHED = {"random": (4429, 45.281, 0.622), "load": (4266, 46.987, 0.944)}
T_95 = {9: 2.262}  # Student's t, two-sided 95 %, by degrees of freedom


class Simulator:
    def __init__(self, program: str, trace: str) -> None:
        self.program = program
        self.trace = trace

    def run(self, config: Path, settings: dict[str, object], *flags: str) -> dict:
        """The summary of one run; raises when the run's own checks failed."""
        command = [self.program, "sim", "run", str(config), "--json", *flags]
        if config == MOONCAKE:
            settings = {"workload.trace": self.trace} | settings
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)


def weak_fleet(instances: int, requests: int, load: float = 1.0) -> dict[str, object]:
    """Copies of the trace for so many requests; load 1 is what an instance has where eight serve one copy."""
    copies = -(-requests // 12031)
    return {"fleet.instances": instances, "workload.copies": copies, "workload.requests_max": requests,
            "workload.speed": load * instances / (8 * copies)}


def speed(sim: Simulator) -> None:
    print("| row | policy | whole process s | every pass s | passes | executed | records |\n"
          "|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for block in (512, 16):
            for policy in ("least-request", "prefix-affinity"):
                settings = {"engine.block_tokens": block, "fleet.policy": policy}
                runs = [sim.run(MOONCAKE, settings) for _ in range(5)]
                all_passes = [sim.run(MOONCAKE, settings, "--no-skip") for _ in range(5)]
                names = [str(Path(folder) / name) for name in ("skip.csv", "step.csv")]
                sim.run(MOONCAKE, settings, "--requests", names[0])
                sim.run(MOONCAKE, settings, "--no-skip", "--requests", names[1])
                same = "identical" if filecmp.cmp(*names, shallow=False) else "DIFFERENT"
                print(f"| mooncake_8x_{block}_s | {policy} | {min(r['wall_s'] for r in runs):.3f} | "
                      f"{min(r['wall_s'] for r in all_passes):.3f} | {runs[0]['passes']} | "
                      f"{runs[0]['passes_executed']} | {same} |")


def events(sim: Simulator) -> None:
    run = sim.run(MOONCAKE, {"fleet.instances": 1000, "workload.copies": 84, "workload.requests_max": 1_000_000},
                  "--no-skip")
    print(f"1,000 instances, {run['requests']} requests: {run['passes_executed']} passes executed in "
          f"{run['simulate_s']:.1f} s = {run['events_per_s'] / 1e6:.2f} million a second; "
          f"peak {run['peak_mib']:.0f} MiB")


def scaling(sim: Simulator) -> None:
    print("| instances | requests | passes | ns a pass | peak MiB |\n|---|---|---|---|---|")
    for instances, requests in ((1, 2000), (64, 128_000), (1024, 2_048_000), (4096, 8_192_000), (64, 100_000),
                                (64, 10_000_000)):
        run = sim.run(MOONCAKE, weak_fleet(instances, requests), "--no-skip")
        print(f"| {instances} | {run['requests']} | {run['passes']} | {1e9 * run['simulate_s'] / run['passes']:.0f} | "
              f"{run['peak_mib']:.0f} |")


def llmd(sim: Simulator) -> None:
    """Stages one after the other, each after the end of the one before, as inference-perf runs them.

    Decoding and waiting (until the first token): mean requests a replica while stages run.
    """
    gap = 2000
    print("| output tokens | policy | output tok/s | published | error | TTFT mean s | published | "
          "TTFT at 3/s, s | published | error | ITL mean ms | decoding | waiting |\n" + "|---" * 13 + "|")
    for tokens in (1000, 430):
        for policy, (rate, ttft, ttft_low) in PUBLISHED.items():
            per_stage = [[] for _ in STAGES]
            with tempfile.TemporaryDirectory() as folder:
                name = str(Path(folder) / "requests.csv")
                sim.run(SHARED_PREFIX, {"fleet.policy": policy, "workload.output_tokens": tokens,
                                        "workload.gap_s": gap}, "--requests", name)
                starts, now = [], 0
                for _, seconds in STAGES:
                    starts.append(now)
                    now += seconds + gap
                with open(name, encoding="utf-8") as file:
                    for row in csv.DictReader(file):
                        at = float(row["arrival_s"])
                        per_stage[max(i for i, start in enumerate(starts) if start <= at)].append(
                            (at, float(row["first_token_s"]), float(row["finish_s"])))
            rates, ttfts, itls, spans = [], [], [], []
            for stage in per_stage[1:]:
                seconds = max(r[2] for r in stage) - min(r[0] for r in stage)
                rates.append(len(stage) * tokens / seconds)
                ttfts.append(statistics.mean(r[1] - r[0] for r in stage))
                itls.append(statistics.mean((r[2] - r[1]) / (tokens - 1) for r in stage))
                spans.append(8 * seconds)
            counted = [r for stage in per_stage[1:] for r in stage]
            got = statistics.mean(rates)
            print(f"| {tokens} | {policy} | {got:.0f} | {rate} | {100 * (got / rate - 1):+.0f} % | "
                  f"{statistics.mean(ttfts):.1f} | {ttft:.1f} | {ttfts[0]:.3f} | {ttft_low} | "
                  f"{100 * (ttfts[0] / ttft_low - 1):+.0f} % | {1e3 * statistics.mean(itls):.1f} | "
                  f"{sum(r[2] - r[1] for r in counted) / sum(spans):.1f} | "
                  f"{sum(r[1] - r[0] for r in counted) / sum(spans):.1f} |")


def depot(sim: Simulator) -> None:
    """Private caches with three policies against one depot with routing by load only; ten seeds, paired."""
    arms: list[tuple[str, dict]] = []
    for kv, name in ((307328, "0.31M"), (2_050_000, "2.05M")):
        for policy in ("random", "least-request", "prefix-affinity"):
            arms.append((f"private {name}, {policy}", {"engine.kv_tokens": kv, "fleet.policy": policy}))
    for gb in (1, 5, 10, 25, 50):
        arms.append((f"depot {gb} GB/s, least-request", {"depot.bandwidth": f"{gb}GB/s",
                                                         "depot.write_bandwidth": "unbounded"}))
    seeds = range(1, 11)
    for load in (0.5, 1, 1.5, 2):
        print(f"\nLoad x {load}\n\n| arm | TTFT p90 s | TPOT p90 ms | goodput /s | over private 0.31M affinity "
              "(95 %) | own hits % | depot % | unstable |\n|---|---|---|---|---|---|---|---|")
        results = {name: [sim.run(MOONCAKE, {"workload.speed": load, "fleet.seed": seed,
                                             "fleet.warmup_s": 600 / load} | settings) for seed in seeds]
                   for name, settings in arms}
        base = [r["goodput_per_s"] for r in results["private 0.31M, prefix-affinity"]]
        for name, runs in results.items():
            gains = [r["goodput_per_s"] - b for r, b in zip(runs, base)]
            half = T_95[len(gains) - 1] * statistics.stdev(gains) / len(gains) ** 0.5

            def mean(key: str, inner: str | None = None, runs: list[dict] = runs) -> float:
                return statistics.mean(r[key][inner] if inner else r[key] for r in runs)

            print(f"| {name} | {mean('ttft_s', 'p90'):.2f} | {1e3 * mean('tpot_s', 'p90'):.1f} | "
                  f"{mean('goodput_per_s'):.3f} | {statistics.mean(gains):+.3f} ± {half:.3f} | "
                  f"{100 * mean('hit_share'):.1f} | {100 * mean('loaded_share'):.1f} | "
                  f"{sum(r['unstable'] for r in runs)} of {len(runs)} |")


ROWS = {"speed": speed, "events": events, "scaling": scaling, "llmd": llmd, "depot": depot}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvdepot", default=str(ROOT / "build/release/bin/kvdepot"))
    parser.add_argument("--trace", required=True, help="Mooncake's conversation_trace.jsonl")
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    args = parser.parse_args()
    for row in args.rows:
        print(f"\n## {row}\n")
        ROWS[row](Simulator(args.kvdepot, args.trace))
    return 0


if __name__ == "__main__":
    sys.exit(main())
