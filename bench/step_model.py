"""The step model against a real engine: vLLM's CPU build with SmolLM2.

    python3 -m bench.step_model [--build-dir build] [--kvdepot build/release/bin/kvdepot] [--recordings 3]

Records passes of two sets of workloads, fits the step model to one, and predicts the passes of the other, which have
other lengths and batch sizes and which the fit has not seen. Prints the error per pass, by what the passes held, and of
the whole, end to end. Each recording is one engine, to which the bursts of both sets come in a random order; run it
alone, on a machine that does nothing else.

Between two passes an engine returns tokens and asks for more. That time is taken from the fitted half as well, as one
constant a pass, and is named apart from the passes' own error.

Writes build/bench/step-model/result.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path

from bench import harness
from bench.engine_process import EngineSpec, model_of

# Prompts : outputs : requests at once x times. Prompts and batch sizes of the two sets are disjoint; those that are
# predicted lie between those that are fitted to, so that nothing is judged beyond what was measured.
FITTED = ("16-299:8-40:1x6", "600-899:8-48:4x3", "16-299:16-64:8x3", "16-299:16-64:16x2", "1200-1499:8-48:2x4",
          "2000-6000:4-16:1x4", "3000-5000:40-80:2x2")
PREDICTED = ("300-599:24-80:6x3", "900-1199:20-60:3x3", "300-599:16-60:12x2", "1500-1999:8-24:3x2")


def record(spec: EngineSpec, seed: int, fitted: Path, predicted: Path) -> list[float]:
    """Seconds that all bursts of each half took."""
    environment = spec.environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    command = [str(spec.python), "-m", "bench.record_passes", str(spec.model), spec.dtype, str(seed),
               "--half", str(fitted), *FITTED, "--half", str(predicted), *PREDICTED]
    done = subprocess.run(command, env=environment, cwd=harness.ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return [float(seconds) for seconds in done.stdout.strip().splitlines()[-1].split()]


def seconds_of(path: Path) -> list[float]:
    with open(path, encoding="utf-8", newline="") as file:
        return [float(row["seconds"]) for row in csv.DictReader(file)]


def between_passes_s(wall: float, seconds: list[float]) -> float:
    """Time that is in no pass, for each of them."""
    return (wall - sum(seconds)) / len(seconds)


def one_recording(spec: EngineSpec, kvdepot: str, folder: Path, number: int) -> dict:
    fitted, predicted = folder / f"fitted-{number}.csv", folder / f"predicted-{number}.csv"
    fitted_wall, wall = record(spec, number, fitted, predicted)
    gap = between_passes_s(fitted_wall, seconds_of(fitted))
    fit = json.loads(subprocess.run([kvdepot, "sim", "calibrate", str(fitted), "--test", str(predicted), "--json"],
                                    check=True, capture_output=True, text=True).stdout)
    whole = fit["left_out_predicted_s"] + gap * fit["passes_left_out"]
    return fit | {"wall_s": wall, "between_passes_s": gap, "predicted_wall_s": whole}


def lines(result: dict) -> str:
    out = []
    for name, what in (("left_out", "all"), ("left_out_prefill", "prefill only"), ("left_out_decode", "decode only"),
                       ("left_out_mixed", "both")):
        if f"{name}_median_error" not in result:
            continue
        count = result["passes_left_out"] if name == "left_out" else result[f"{name}_passes"]
        measured, predicted = result[f"{name}_measured_s"], result[f"{name}_predicted_s"]
        median, p95 = result[f"{name}_median_error"], result[f"{name}_p95_error"]
        out.append(f"  {what:<13} {count:>5} passes: error per pass median {100 * median:.1f} %, 95th percentile "
                   f"{100 * p95:.1f} %; together {predicted:.2f} s predicted, {measured:.2f} s measured "
                   f"({100 * (predicted / measured - 1):+.1f} %)")
    wall, whole = result["wall_s"], result["predicted_wall_s"]
    out.append(f"  end to end {wall:.2f} s; predicted {whole:.2f} s ({100 * (whole / wall - 1):+.1f} %), of which "
               f"{1e3 * result['between_passes_s']:.2f} ms a pass between passes; without them "
               f"{100 * (result['left_out_predicted_s'] / wall - 1):+.1f} %")
    return "\n".join(out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", default=str(harness.ROOT / "build"))
    parser.add_argument("--kvdepot", default=str(harness.ROOT / "build/release/bin/kvdepot"))
    parser.add_argument("--recordings", type=int, default=3)
    args = parser.parse_args()
    build = Path(args.build_dir).resolve()
    engine = model_of(build)
    spec = EngineSpec(name="step-model", python=Path(engine["python"]), model=Path(engine["model"]),
                      dtype=engine["dtype"], log_dir=build / "bench")
    folder = build / "bench" / "step-model"
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for number in range(1, args.recordings + 1):
        results.append(one_recording(spec, args.kvdepot, folder, number))
        print(f"recording {number}:\n{lines(results[-1])}", flush=True)
        # Whole under its name after each recording, so that one that is interrupted keeps the others.
        part = folder / "result.json.part"
        part.write_text(json.dumps({"dtype": spec.dtype, "fitted": FITTED, "predicted": PREDICTED,
                                    "recordings": results}, indent=1) + "\n", encoding="utf-8")
        part.replace(folder / "result.json")
    errors = [abs(r["predicted_wall_s"] / r["wall_s"] - 1) for r in results]
    print(f"end-to-end error, median of {len(errors)} recordings: {100 * statistics.median(errors):.1f} % (goal 10 %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
