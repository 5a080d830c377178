"""Cold reads: against fio on the same file, and against RocksDB with the same records."""

from __future__ import annotations

from bench.harness import Bench, alternate
from bench.store_lab import DEPTH, MIB, PEER_KEYS, PEER_THREADS, SIZES, Size, StoreLab

ADJACENT = "read_adjacent_over_fio_seq"
SELF = "fio_read_1MiB_over_itself"


def over_fio(size: Size) -> str:
    return f"read_{size.name}_over_fio"


def over_blobdb(size: Size) -> str:
    return f"read_{size.name}_over_blobdb"


NAMES = (*map(over_fio, SIZES), ADJACENT, SELF, *map(over_blobdb, SIZES))


class Cpu:
    """An arm that also keeps the processor seconds per GB of its runs."""

    def __init__(self, measure) -> None:
        self.measure = measure
        self.seconds_per_gb: list[float] = []

    def __call__(self, index: int) -> float:
        run = self.measure(index)
        self.seconds_per_gb.append(round(run.cpu_seconds / run.bytes * 1e9, 4))
        return run.gb_per_s


def run(lab: StoreLab, bench: Bench) -> None:
    for size in SIZES:
        if bench.wants(over_fio(size)) or (size.bytes == MIB and bench.wants(SELF)):
            with bench.part(over_fio(size), SELF):
                random_reads(lab, bench, size)
        if size.layers == 1 and bench.wants(ADJACENT):
            with bench.part(ADJACENT):
                neighbours(lab, bench, size)
        if bench.wants(over_blobdb(size)):
            with bench.part(over_blobdb(size)):
                blobdb(lab, bench, size)


def random_reads(lab: StoreLab, bench: Bench, size: Size) -> None:
    peer = lab.fio_version()
    file = lab.filled(size).folder / "flash.kvd"
    ours = Cpu(lambda index: lab.get(size, seed=index + 1))
    theirs = Cpu(lambda _: lab.fio_read(file, size.bytes, "randread"))
    arms = {"store": ours, "fio": theirs}
    if size.bytes == MIB:
        arms["fio again"] = lambda _: lab.fio_read(file, size.bytes, "randread").gb_per_s
    figures = alternate(arms, bench.rounds(10, 3), warmup=1, progress=bench.progress)
    bench.ratio(over_fio(size), ours=figures["store"], theirs=figures["fio"], unit="GB/s", form="ours/theirs",
                better="higher", goal=0.95, peer=peer, depth=DEPTH, request_keys=size.keys, requests=2,
                cpu_s_per_gb=ours.seconds_per_gb, fio_cpu_s_per_gb=theirs.seconds_per_gb, tier="flash, verified",
                command=f"kvd_store_driver get --layers {size.layers} --slab {size.slab}; fio --rw=randread "
                        f"--bs={size.bytes} --iodepth={DEPTH} --direct=1 on the same file")
    if "fio again" in figures:
        bench.ratio(SELF, ours=figures["fio again"], theirs=figures["fio"], unit="GB/s", form="ours/theirs",
                    better="higher", goal=None, peer=peer, command="fio against fio: what the drive's own noise makes")


def neighbours(lab: StoreLab, bench: Bench, size: Size) -> None:
    peer = lab.fio_version()
    file = lab.filled(size).folder / "flash.kvd"
    ours = Cpu(lambda index: lab.get(size, seed=index + 1, in_order=True))
    figures = alternate({"store": ours, "fio": lambda _: lab.fio_read(file, MIB, "read").gb_per_s},
                        bench.rounds(10, 3), warmup=1, progress=bench.progress)
    bench.ratio(ADJACENT, ours=figures["store"], theirs=figures["fio"], unit="GB/s", form="ours/theirs",
                better="higher", goal=0.9, peer=peer, cpu_s_per_gb=ours.seconds_per_gb, tier="flash, verified",
                command=f"kvd_store_driver adjacent --layers {size.layers} --slab {size.slab}; fio --rw=read "
                        f"--bs={MIB} --iodepth={DEPTH} --direct=1 on the same file")


def blobdb(lab: StoreLab, bench: Bench, size: Size) -> None:
    peer = lab.blobdb_version()
    records = lab.blobdb_fill(size)
    ours = Cpu(lambda index: lab.get(size, seed=index + 1))
    theirs = Cpu(lambda index: lab.blobdb_run("get", size, records=records, bytes=lab.run_bytes, seed=index + 1,
                                              keys=PEER_KEYS, threads=PEER_THREADS))
    figures = alternate({"store": ours, "blobdb": theirs}, bench.rounds(5, 2), warmup=1, progress=bench.progress)
    lab.blobdb_drop(size)
    bench.ratio(over_blobdb(size), ours=figures["store"], theirs=figures["blobdb"], unit="GB/s", form="ours/theirs",
                better="higher", goal=1.0, peer=peer, cpu_s_per_gb=ours.seconds_per_gb,
                blobdb_cpu_s_per_gb=theirs.seconds_per_gb, tier="flash, direct reads, verified on both sides",
                command=f"kvd_blobdb_driver get --size {size.bytes} --keys {PEER_KEYS} --threads {PEER_THREADS}")
