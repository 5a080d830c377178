"""Stores of very many records: memory of the index, a match of a prefix in it, recovery of 4 TB."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path

from bench.harness import Bench
from bench.store_lab import GIB, MIB, Size, StoreLab

BYTES = "index_bytes_per_record"
MATCH = "match_prefix_512_us"
MATCH_PLAIN = "match_prefix_512_plain_pages_us"
RECOVERY = "recovery_4TB_s"
FIRST_HIT = "recovery_4TB_first_hit_s"
RECOVERY_ENDED = "recovery_4TB_behind_an_orderly_end_s"
FIRST_HIT_ENDED = "recovery_4TB_behind_an_orderly_end_first_hit_s"
ALL_HEADERS = "recovery_4TB_all_headers_s"
FIRST_HIT_ALL_HEADERS = "recovery_4TB_all_headers_first_hit_s"
RECOVERIES = (RECOVERY, FIRST_HIT, RECOVERY_ENDED, FIRST_HIT_ENDED, ALL_HEADERS, FIRST_HIT_ALL_HEADERS)
NAMES = (BYTES, MATCH, MATCH_PLAIN, *RECOVERIES)

PAGE = Size("4KiB", 1, 4096)        # the smallest record, so that 50 million take 2.4 GB of footers
RECORDS = 50_000_000
ONE_SEGMENT = 60_000                # records that one segment of 256 MiB holds
ONE_MIB = Size("1MiB", 16)
FOUR_TB = 4 * 10**12
REAL_SEGMENTS = 16
POOL_BYTES = 8 * GIB


def run(lab: StoreLab, bench: Bench) -> None:
    if bench.wants(BYTES, MATCH, MATCH_PLAIN):
        with bench.part(BYTES, MATCH, MATCH_PLAIN):
            many_records(lab, bench)
    if bench.wants(*RECOVERIES):
        with bench.part(*RECOVERIES):
            recovery(lab, bench)


class Sparse:
    """A store larger than the drive, which goes at the end."""

    def __init__(self, lab: StoreLab, bench: Bench, name: str, size: Size, **options: int) -> None:
        self.lab, self.size = lab, size
        self.folder: Path = bench.work / name
        bench.progress.note(f"making a sparse store: {name}")
        self.records = self.run("sparse", **options)["records"]

    def run(self, what: str, *flags: str, **options: int) -> dict:
        return self.lab.large_run(what, self.folder, self.size, *flags, **options)

    def __enter__(self) -> "Sparse":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def many_records(lab: StoreLab, bench: Bench) -> None:
    records = RECORDS // 10 if bench.quick else RECORDS

    def match(store: Sparse, seed: int, *flags: str) -> dict:
        return store.run("match", *flags, records=store.records, index_records=store.records, pool=64 * MIB, seed=seed)

    with (Sparse(lab, bench, "many-records", PAGE, flash=0, count=records) as many,
          Sparse(lab, bench, "one-segment", PAGE, flash=0, count=ONE_SEGMENT) as one):
        rounds = range(1, bench.rounds(5, 2) + 1)
        huge = [match(many, seed) for seed in rounds]
        plain = [match(many, seed, "--plain-pages") for seed in rounds]
        small = [match(one, seed) for seed in rounds]
    command = f"kvd_store_driver match --records {records} --slab 4096"
    peaks = [(run["peak_kib"] - base["peak_kib"]) * 1024 / records for run, base in zip(huge, small)]
    bench.value(BYTES, statistics.median(peaks), "bytes", better="lower", goal=18, ours=peaks, records=records,
                command=command + "; peak of the process less that of one with one segment")
    for name, runs, goal in ((MATCH, huge, 25), (MATCH_PLAIN, plain, None)):
        us = [run["match_us"] for run in runs]
        bench.value(name, statistics.median(us), "us", better="lower", goal=goal, ours=us, records=records,
                    p99_us=[run["match_p99_us"] for run in runs], command=command)


def recovery(lab: StoreLab, bench: Bench) -> None:
    with Sparse(lab, bench, "four-tb", ONE_MIB, flash=FOUR_TB, real_segments=REAL_SEGMENTS) as store:
        recover = lambda *flags: store.run("recover", *flags, records=store.records, pool=POOL_BYTES)  # noqa: E731
        first = recover()       # reads all headers and leaves a table of uses, as does each behind it
        killed = [recover() for _ in range(bench.rounds(5, 2))]
        recover("--drain")
        ended = [recover("--drain") for _ in range(bench.rounds(5, 2))]
    command = f"kvd_store_driver recover --records {store.records} --pool {POOL_BYTES}"
    for name, key in ((ALL_HEADERS, "served_s"), (FIRST_HIT_ALL_HEADERS, "first_hit_s")):
        bench.value(name, first[key], "s", better="lower", goal=None, records=store.records,
                    command=command + "; of a store without a table of uses")
    for name, runs, flag, key, goal in ((RECOVERY, killed, "", "served_s", 5),
                                        (FIRST_HIT, killed, "", "first_hit_s", 0.5),
                                        (RECOVERY_ENDED, ended, " --drain", "served_s", 5),
                                        (FIRST_HIT_ENDED, ended, " --drain", "first_hit_s", 0.5)):
        # The slowest run: later ones find the footers in the cache of a virtual drive's host (docs/results/store.md).
        seconds = [run[key] for run in runs]
        bench.value(name, max(seconds), "s", better="lower", goal=goal, ours=seconds,
                    records=store.records, command=command + flag)
