"""Gets from the pool: copied and verified in one pass against a plain copy; and borrowed, without any."""

from __future__ import annotations

from bench.harness import Bench, alternate
from bench.store_lab import MIB, SIZES, Size, StoreLab

POOLED_BYTES = 128 * MIB    # more than any cache, less than the pool
PASSES = 8


def over_memcpy(size: Size) -> str:
    return f"pool_get_{size.name}_over_memcpy"


BORROWED = "pool_get_borrowed_ns"
NAMES = (*map(over_memcpy, SIZES), BORROWED)


def run(lab: StoreLab, bench: Bench) -> None:
    for size in SIZES:
        names = [over_memcpy(size), *([BORROWED] if size.bytes == MIB else [])]
        if bench.wants(*names):
            with bench.part(*names):
                against_memcpy(lab, bench, size)


def against_memcpy(lab: StoreLab, bench: Bench, size: Size) -> None:
    folder = lab.filled(size).folder
    count = POOLED_BYTES // size.bytes
    measure = lambda what: lab.store_run(what, folder, size, count=count, rounds=PASSES)  # noqa: E731
    arms = {"copy": lambda _: measure("copy").gb_per_s, "memcpy": lambda _: measure("memcpy").gb_per_s}
    figures = alternate(arms, bench.rounds(8, 3), warmup=1, progress=bench.progress)
    command = f"kvd_store_driver copy|memcpy --layers {size.layers} --slab {size.slab} --count {count}"
    bench.ratio(over_memcpy(size), ours=figures["copy"], theirs=figures["memcpy"], unit="GB/s", form="ours/theirs",
                better="higher", goal=0.75 if size.bytes == MIB else None, peer="memcpy", command=command,
                tier="pool, verified", copies_per_byte=1)
    if size.bytes == MIB:
        runs = [measure("borrow") for _ in range(bench.rounds(5, 2))]
        ns = sorted(run.seconds / (count * PASSES) * 1e9 for run in runs)
        bench.value(BORROWED, ns[len(ns) // 2], "ns", better="lower", goal=None, ours=ns, copies_per_byte=0,
                    command=command.replace("copy|memcpy", "borrow"))
