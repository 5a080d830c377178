"""The step model against a real engine: vLLM's CPU build with SmolLM2.

    python3 -m bench.step_model [--build-dir build] [--kvdepot build/release/bin/kvdepot]

Records passes of one set of workloads, fits the step model to them, and predicts the passes of workloads with other
lengths and batch sizes, which the fit has not seen. Prints the error per pass and of the whole.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from bench import harness
from bench.engine_process import EngineSpec, model_of

FITTED = ("32-600:8-40:1x6", "64-1500:8-48:2x4", "32-900:8-48:4x3", "16-500:16-64:8x3", "1000-2000:4-16:1x3")
PREDICTED = ("700-1200:20-60:3x3", "100-800:24-80:6x3", "32-300:16-60:12x2", "2100-2800:8-24:2x2")


def record(spec: EngineSpec, seed: int, out: Path, workloads: tuple[str, ...]) -> float:
    """Seconds that all bursts took."""
    environment = spec.environment() | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    command = [str(spec.python), "-m", "bench.record_passes", str(spec.model), spec.dtype, str(seed), str(out),
               *workloads]
    done = subprocess.run(command, env=environment, cwd=harness.ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", default=str(harness.ROOT / "build"))
    parser.add_argument("--kvdepot", default=str(harness.ROOT / "build/release/bin/kvdepot"))
    args = parser.parse_args()
    build = Path(args.build_dir).resolve()
    engine = model_of(build)
    spec = EngineSpec(name="step-model", python=Path(engine["python"]), model=Path(engine["model"]),
                      dtype=engine["dtype"], log_dir=build / "bench")
    folder = build / "bench" / "step-model"
    folder.mkdir(parents=True, exist_ok=True)
    fitted, predicted = folder / "fitted.csv", folder / "predicted.csv"
    record(spec, 1, fitted, FITTED)
    wall = record(spec, 2, predicted, PREDICTED)
    fit = json.loads(subprocess.run([args.kvdepot, "sim", "calibrate", str(fitted), "--test", str(predicted), "--json"],
                                    check=True, capture_output=True, text=True).stdout)
    print(json.dumps(fit, indent=1))
    passes = fit["left_out_predicted_s"] / fit["left_out_measured_s"] - 1
    print(f"{fit['passes_left_out']} passes: error per pass median {100 * fit['left_out_median_error']:.1f} %, "
          f"95th percentile {100 * fit['left_out_p95_error']:.1f} %")
    print(f"all passes: {fit['left_out_predicted_s']:.2f} s predicted, {fit['left_out_measured_s']:.2f} s measured "
          f"({100 * passes:+.1f} %); end to end {wall:.2f} s ({100 * (fit['left_out_predicted_s'] / wall - 1):+.1f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
