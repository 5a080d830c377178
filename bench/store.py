"""The store suite: an embedded store against its drive (fio), against RocksDB with BlobDB, and against memcpy.

    make bench-store                      all rows, into build/bench/store.json (about 25 minutes)
    make bench-store ARGS=--quick         fewer rounds on less data
    make bench-store ARGS="--only 'read_*_over_fio'"

Needs the release build and about 16 GB below build/. fio and RocksDB are left out where they are not installed
(tools/setup.sh --bench). docs/benchmarks.md explains each row.
"""

from __future__ import annotations

import sys

from bench import harness
from bench.store_lab import StoreLab
from bench.store_rows import bounds, large, layers, pool, reads, writes


def run(bench: harness.Bench) -> None:
    lab = StoreLab(bench)
    bounds.run(lab, bench)
    large.run(lab, bench)
    layers.run(lab, bench)
    reads.run(lab, bench)
    pool.run(lab, bench)
    writes.run(lab, bench)


if __name__ == "__main__":
    sys.exit(harness.main("store", run, __doc__))
