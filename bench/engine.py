"""The engine suite: real vLLM engines and a real model on one depot, and the peers that run without a GPU.

    make bench-engine                     all rows (about three hours on two cores without AVX-512)
    make bench-engine ARGS=--quick        fewer rounds and points (a quarter of an hour; what does not fit is skipped)
    make bench-engine ARGS="--only 'lmcache_*'"

Needs the engine environment (made on the first run) and the release build. docs/benchmarks.md explains each row.
"""

from __future__ import annotations

import sys

from bench import harness
from bench.engine_lab import Lab
from bench.engine_rows import batch, main_job, overhead, peers, same_host, sweep, tokens

QUICK_LIMIT_S = 15 * 60.0
# Rows that use the engines of the main job.
SHARED = (*main_job.NAMES, *same_host.NAMES, *overhead.NAMES, *overhead.SHM_NAMES, tokens.NAME, tokens.DIGESTS,
          batch.MAKESPAN)


def run(bench: harness.Bench) -> None:
    with Lab(bench) as lab:
        if bench.wants(*SHARED):
            with bench.part(*SHARED), lab.scope():
                on_shared_engines(lab, bench)
        with bench.part(*peers.all_names()), lab.scope():
            peers.run(lab, bench)
        with bench.part(batch.ITL_MEDIAN, batch.ITL_P99), lab.scope():
            batch.while_loading(lab, bench)
        with bench.part(*sweep.names()), lab.scope():
            sweep.run(lab, bench)


def on_shared_engines(lab: Lab, bench: harness.Bench) -> None:
    job = main_job.MainJob(lab)
    with bench.part(*main_job.NAMES), lab.scope():
        main_job.run(job, bench)
    with bench.part(*same_host.NAMES), lab.scope():
        same_host.run(lab, bench, job.depot, job.writer, job.plain)
    with bench.part(*overhead.NAMES), lab.scope():
        overhead.run(lab, bench, job.depot, job.writer, job.plain)
    with bench.part(*overhead.SHM_NAMES), lab.scope():
        overhead.run_shm(lab, bench, job.depot, job.plain)
    with bench.part(tokens.NAME, tokens.DIGESTS), lab.scope():
        tokens.run(lab, bench, job.depot, job.plain)
    with bench.part(batch.MAKESPAN), lab.scope():
        batch.burst(lab, bench, job.depot, job.writer)


if __name__ == "__main__":
    sys.exit(harness.main("engine", run, __doc__, quick_limit_s=QUICK_LIMIT_S))
