"""Records the passes of a real engine (vLLM's CPU build) as a CSV that `kvdepot sim calibrate` takes.

Runs in the engine environment; its parent is bench/step_model.py, which sets what vLLM takes from the environment: the
engine core must live in this process.

    python -m bench.record_passes MODEL DTYPE SEED --half A.csv 32-600:8-40:4x3 ... --half B.csv 700-900:8-40:3x3 ...

A workload, shortest-longest prompt : shortest-longest output : BATCHxTIMES, sends TIMES bursts of BATCH requests of
uniform lengths, one burst after the other. The bursts of all halves come in one random order, so that a machine whose
speed changes changes it for all. A pass is a step of the engine core: schedule, execute, sample, update. The last line
on stdout is the wall-clock time of each half's bursts.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import sys
import time

COLUMNS = ("seconds", "prefill_tokens", "pairs", "decodes", "context_tokens")
WORKLOAD = re.compile(r"(\d+)-(\d+):(\d+)-(\d+):(\d+)x(\d+)$")


def shape(output) -> tuple[int, int, int, int]:
    """(prefill tokens, pairs, decodes, context tokens) of what the scheduler put into a pass."""
    computed = {request.req_id: request.num_computed_tokens for request in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed |= dict(zip(cached.req_ids, cached.num_computed_tokens))
    prefill = pairs = decodes = context = 0
    for request, tokens in output.num_scheduled_tokens.items():
        if tokens == 1 and computed[request] > 0:
            decodes += 1
            context += computed[request]
        else:
            prefill += tokens
            pairs += tokens * computed[request] + tokens * (tokens + 1) // 2
    return prefill, pairs, decodes, context


class Recorder:
    """Wraps the engine core's step and its scheduler's schedule."""

    def __init__(self) -> None:
        from vllm.v1.engine.core import EngineCore

        self.rows: list[tuple] = []
        self.scheduled = None
        plain_step = EngineCore.step

        def step(core):
            if self.scheduled is None:
                self._watch(core.scheduler)
            began = time.perf_counter()
            result = plain_step(core)
            seconds = time.perf_counter() - began
            if self.scheduled and self.scheduled.num_scheduled_tokens:
                self.rows.append((seconds, *shape(self.scheduled)))
            return result

        EngineCore.step = step

    def _watch(self, scheduler) -> None:
        plain_schedule = scheduler.schedule

        def schedule(*args, **kwargs):
            self.scheduled = plain_schedule(*args, **kwargs)
            return self.scheduled

        scheduler.schedule = schedule


def bursts_of(half: int, workloads: list[str]) -> list[tuple]:
    """(half, requests, shortest and longest prompt, shortest and longest output) of each burst."""
    bursts = []
    for text in workloads:
        match = WORKLOAD.match(text)
        if match is None:
            raise SystemExit(f"{text}: 32-1500:8-64:4x3 is the form")
        low, high, short, long, count, times = map(int, match.groups())
        bursts += [(half, count, (low, high), (short, long))] * times
    return bursts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("dtype")
    parser.add_argument("seed", type=int)
    parser.add_argument("--half", nargs="+", action="append", required=True, metavar=("OUT.csv", "WORKLOAD"))
    args = parser.parse_args()
    bursts = [burst for half, (_, *workloads) in enumerate(args.half) for burst in bursts_of(half, workloads)]
    recorder = Recorder()
    from vllm import LLM, SamplingParams

    llm = LLM(model=args.model, dtype=args.dtype, max_model_len=8192, enforce_eager=True, enable_prefix_caching=False,
              async_scheduling=False, seed=0)
    rng = random.Random(args.seed)

    def run(count: int, prompts: tuple[int, int], outputs: tuple[int, int]) -> float:
        requests = [{"prompt_token_ids": [rng.randrange(1000, 40000) for _ in range(rng.randint(*prompts))]}
                    for _ in range(count)]
        sampling = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=rng.randint(*outputs)) for _ in requests]
        began = time.perf_counter()
        llm.generate(requests, sampling, use_tqdm=False)
        return time.perf_counter() - began

    run(2, (300, 300), (4, 4))  # warm up
    rows: list[list[tuple]] = [[] for _ in args.half]
    wall = [0.0] * len(args.half)
    rng.shuffle(bursts)
    for half, *burst in bursts:
        recorder.rows.clear()
        wall[half] += run(*burst)
        rows[half] += recorder.rows
    for (out, *_), passes in zip(args.half, rows):
        with open(out, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(passes)
    print(*wall)
    return 0


if __name__ == "__main__":
    sys.exit(main())
