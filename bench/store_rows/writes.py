"""Puts into a full store, acknowledged `written`: against fio and RocksDB; and what is written per byte put."""

from __future__ import annotations

from bench.harness import Bench, alternate
from bench.store_lab import DEPTH, MIB, SIZES, Size, StoreLab
from bench.store_rows.reads import Cpu

AMPLIFICATION = "write_amplification"
AMPLIFICATION_SMALL = "write_amplification_64KiB"


def over_fio(size: Size) -> str:
    return f"write_{size.name}_over_fio"


def over_blobdb(size: Size) -> str:
    return f"write_{size.name}_over_blobdb"


NAMES = (*map(over_fio, SIZES), *map(over_blobdb, SIZES), AMPLIFICATION, AMPLIFICATION_SMALL)


def amplification_of(size: Size) -> str | None:
    return {MIB: AMPLIFICATION, SIZES[0].bytes: AMPLIFICATION_SMALL}.get(size.bytes)


def run(lab: StoreLab, bench: Bench) -> None:
    for size in SIZES:
        amplified = amplification_of(size)
        names = [over_fio(size), *([amplified] if amplified else [])]
        if bench.wants(*names):
            with bench.part(*names):
                against_fio(lab, bench, size)
        if bench.wants(over_blobdb(size)):
            with bench.part(over_blobdb(size)):
                against_blobdb(lab, bench, size)
        lab.drop(size)


def against_fio(lab: StoreLab, bench: Bench, size: Size) -> None:
    peer = lab.fio_version()
    ours = Cpu(lambda _: lab.put_full(size))
    figures = alternate({"store": ours, "fio": lambda _: lab.fio_write().gb_per_s}, bench.rounds(8, 2), warmup=1,
                        progress=bench.progress)
    runs = lab.filled(size).runs
    command = (f"kvd_store_driver put --layers {size.layers} --slab {size.slab} into a full store; fio --rw=write "
               f"--bs={MIB} --iodepth={DEPTH} --direct=1")
    bench.ratio(over_fio(size), ours=figures["store"], theirs=figures["fio"], unit="GB/s", form="ours/theirs",
                better="higher", goal=0.95, peer=peer, cpu_s_per_gb=ours.seconds_per_gb, acknowledged="written",
                segments_evicted=sum(run.segments_evicted for run in runs), command=command)
    if name := amplification_of(size):
        written, put = sum(run.device_bytes for run in runs), sum(run.bytes for run in runs)
        bench.value(name, written / put, "bytes/byte", better="lower", goal=1.01 if size.bytes == MIB else 1.07,
                    command=command + "; write_bytes of /proc/self/io over bytes put", bytes_put=put,
                    bytes_written=written)


def against_blobdb(lab: StoreLab, bench: Bench, size: Size) -> None:
    peer = lab.blobdb_version()
    records = lab.blobdb_fill(size)
    count = lab.run_bytes // size.bytes

    def theirs(index: int) -> float:
        # Over keys that are there: old values become garbage, as a full store's do.
        first = index * count % max(1, records - count)
        return lab.blobdb_run("put", size, first=first, count=count).gb_per_s

    figures = alternate({"store": lambda _: lab.put_full(size).gb_per_s, "blobdb": theirs}, bench.rounds(5, 2),
                        warmup=1, progress=bench.progress)
    lab.blobdb_drop(size)
    bench.ratio(over_blobdb(size), ours=figures["store"], theirs=figures["blobdb"], unit="GB/s", form="ours/theirs",
                better="higher", goal=1.0, peer=peer, acknowledged="written: log in the page cache, not synced",
                command=f"kvd_blobdb_driver put --size {size.bytes} --count {count}, with a flush at the end")
