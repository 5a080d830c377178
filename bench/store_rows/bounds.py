"""What a store takes beyond what it was configured to take, while everything is asked of it at full speed."""

from __future__ import annotations

from bench.harness import Bench, BenchError
from bench.store_lab import StoreLab

MEMORY = "memory_over_configured_MiB"
DISK = "disk_over_configured_bytes"
ALLOCATIONS = "allocations_after_start"
NAMES = (MEMORY, DISK, ALLOCATIONS)

SECONDS, SECONDS_QUICK = 60, 10     # ten minutes and an hour are the same program with --seconds: `make soak`


def run(lab: StoreLab, bench: Bench) -> None:
    if not bench.wants(*NAMES):
        return
    with bench.part(*NAMES):
        seconds = SECONDS_QUICK if bench.quick else SECONDS
        found = lab.bounds_run(seconds)
        if found["wrong"] or found["failed"]:
            raise BenchError(f"kvd_store_bounds: {found['wrong']} wrong gets, {found['failed']} failed puts")
        command = f"kvd_store_bounds --seconds {seconds}"
        beside = {key: found[key] for key in ("seconds", "puts", "gets", "pool_hits", "flash_hits", "segments_evicted")}
        for name, unit, goal in ((MEMORY, "MiB", 256), (DISK, "bytes", 0), (ALLOCATIONS, "calls", 0)):
            bench.value(name, found[name], unit, better="lower", goal=goal, ours=[found[name]], command=command,
                        **beside)
