"""What the store suite runs: an embedded store, fio and RocksDB on the same file system, as arms that give a rate.

Each arm is a process of its own that opens, measures, prints JSON and ends; a store that has just been opened has an
empty pool, and both other sides read by direct I/O, so every read comes from the drive. All files lie below bench.work
and go with it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import Bench, BenchError, Unavailable

KIB, MIB, GIB = 2**10, 2**20, 2**30
HEAD_BYTES = 4 * MIB            # of flash.kvd, before its first segment
DEPTH = 32                      # operations that a store keeps in flight
POOL_BYTES = 512 * MIB
REQUEST_BYTES = 32 * MIB        # of one multiget
PEER_THREADS = 16               # RocksDB reads a value in the thread that asks
PEER_KEYS = 16                  # of one MultiGet
RUN_SECONDS_MAX = 120


@dataclass(frozen=True)
class Size:
    """A record size: slabs of 64 KiB, as many as it takes, or a real geometry."""

    name: str
    layers: int
    slab: int = 64 * KIB

    @property
    def bytes(self) -> int:
        return self.layers * self.slab

    @property
    def keys(self) -> int:
        return max(DEPTH, REQUEST_BYTES // self.bytes)


SIZES = (Size("64KiB", 1), Size("256KiB", 4), Size("1MiB", 16), Size("4MiB", 64))
SMOLLM = Size("SmolLM2-135M", 30, 96 * KIB)     # a block of 128 tokens


@dataclass
class Run:
    """What one run printed."""

    bytes: int
    seconds: float
    cpu_seconds: float = 0.0
    first_layer_seconds: float = 0.0
    device_bytes: int = 0
    segments_evicted: int = 0

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e9


@dataclass
class Filled:
    """A store with the records 0 .. records - 1, of which the first `whole` have not been given up."""

    folder: Path
    size: Size
    records: int
    runs: list[Run] = field(default_factory=list)


class StoreLab:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.flash_bytes = (1 if bench.quick else 4) * GIB
        self.run_bytes = (256 if bench.quick else 1024) * MIB
        self.driver = bench.build / "release" / "bin" / "kvd_store_driver"
        self.blobdb = bench.build / "release" / "bin" / "kvd_blobdb_driver"
        if not self.driver.exists():
            raise BenchError(f"{self.driver} is not there: make build PRESET=release TARGETS=kvd_store_bench")
        self.fio = shutil.which("fio")
        self._stores: dict[str, Filled] = {}

    # -- ours -----------------------------------------------------------------------------------------------------

    def store_run(self, what: str, folder: Path, size: Size, **options: int) -> Run:
        command = [self.driver, what, "--dir", folder, "--pool", POOL_BYTES, "--flash", self.flash_bytes,
                   "--layers", size.layers, "--slab", size.slab]
        for name, value in options.items():
            command += [f"--{name}", value]
        return Run(**self._json(command))

    def large_run(self, what: str, folder: Path, size: Size, *flags: str, **options: int) -> dict:
        """On a store larger than the drive; what the run printed."""
        command = [self.driver, what, "--dir", folder, "--layers", size.layers, "--slab", size.slab, *flags]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", value]
        return self._json(command)

    def bounds_run(self, seconds: int) -> dict:
        """Everything at once for that long, and what the store took meanwhile."""
        program = self.bench.build / "release" / "bin" / "kvd_store_bounds"
        if not program.exists():
            raise BenchError(f"{program} is not there: make build PRESET=release TARGETS=kvd_store_bench")
        folder = self.bench.work / "bounds"
        try:
            return self._json([program, "--seconds", seconds, "--dir", folder], seconds + RUN_SECONDS_MAX)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def filled(self, size: Size) -> Filled:
        """A store with as many records as stay without eviction. Made on the first call."""
        if size.name not in self._stores:
            folder = self.bench.work / f"store-{size.name}"
            self.bench.progress.note(f"filling a store of {self.flash_bytes // GIB} GiB with records of {size.name}")
            room = self._json([self.driver, "room", "--dir", folder, "--pool", POOL_BYTES, "--flash", self.flash_bytes,
                               "--layers", size.layers, "--slab", size.slab])["records"]
            self.store_run("put", folder, size, first=0, count=room)
            self._stores[size.name] = Filled(folder, size, room)
        return self._stores[size.name]

    def drop(self, size: Size) -> None:
        store = self._stores.pop(size.name, None)
        if store:
            shutil.rmtree(store.folder, ignore_errors=True)

    def get(self, size: Size, seed: int, in_order: bool = False) -> Run:
        store = self.filled(size)
        return self.store_run("adjacent" if in_order else "get", store.folder, size, records=store.records,
                              bytes=self.run_bytes, keys=size.keys, seed=seed)

    def put_full(self, size: Size) -> Run:
        """Puts into a store that is full: segments are given up meanwhile."""
        store = self.filled(size)
        count = self.run_bytes // size.bytes
        if not store.runs:
            # Until the first segments go; what recovery and the first eviction cost belongs to no row.
            more = (self.flash_bytes - store.records * size.bytes) // size.bytes + count
            self.store_run("put", store.folder, size, first=store.records, count=more)
            store.records += more
        run = self.store_run("put", store.folder, size, first=store.records, count=count)
        if run.segments_evicted == 0:
            raise BenchError(f"puts of {size.name}: nothing was given up, so the store was not full")
        store.records += count
        store.runs.append(run)
        return run

    # -- limits and peers -----------------------------------------------------------------------------------------

    def fio_version(self) -> str:
        if not self.fio:
            raise Unavailable("fio is not installed: tools/setup.sh --bench")
        return subprocess.run([self.fio, "--version"], capture_output=True, text=True, check=True).stdout.strip()

    def fio_read(self, file: Path, block: int, how: str) -> Run:
        """`how`: randread or read, of that file's bytes after its head."""
        size = (file.stat().st_size - HEAD_BYTES) // block * block
        return self._fio(how, ["--readonly", f"--filename={file}", f"--rw={how}", f"--bs={block}",
                               f"--offset={HEAD_BYTES}", f"--size={size}", f"--io_size={self.run_bytes}"])

    def fio_write(self) -> Run:
        """1 MiB sequentially, over a file that has been written before, as a full store's segments have."""
        file = self.bench.work / "fio.bin"
        fresh = not file.exists()
        command = [f"--filename={file}", "--rw=write", f"--bs={MIB}", f"--size={self.run_bytes}", "--overwrite=1"]
        if fresh:
            self._fio("write", command)
        return self._fio("write", command)

    def blobdb_version(self) -> str:
        if not self.blobdb.exists():
            raise Unavailable("librocksdb-dev is not installed: tools/setup.sh --bench")
        version = subprocess.run(["pkg-config", "--modversion", "rocksdb"], capture_output=True, text=True).stdout
        return f"RocksDB {version.strip()} BlobDB"

    def blobdb_run(self, what: str, size: Size, **options: int) -> Run:
        folder = self.bench.work / f"blobdb-{size.name}"
        command = [self.blobdb, what, "--dir", folder, "--size", size.bytes]
        for name, value in options.items():
            command += [f"--{name}", value]
        return Run(**self._json(command))

    def blobdb_fill(self, size: Size) -> int:
        records = self.filled(size).records
        self.blobdb_run("put", size, first=0, count=records)
        return records

    def blobdb_drop(self, size: Size) -> None:
        shutil.rmtree(self.bench.work / f"blobdb-{size.name}", ignore_errors=True)

    # -- processes ------------------------------------------------------------------------------------------------

    def _fio(self, kind: str, options: list[str]) -> Run:
        self.fio_version()
        command = [self.fio, "--name=limit", "--output-format=json", "--direct=1", "--ioengine=io_uring",
                   f"--iodepth={DEPTH}", "--registerfiles=1", "--fixedbufs=1", "--randrepeat=0", "--numjobs=1",
                   "--thread", *options]
        return parse_fio(self._output(command), "write" if kind == "write" else "read")

    def _json(self, command: list, seconds_max: int = RUN_SECONDS_MAX) -> dict:
        return json.loads(self._output(command, seconds_max))

    def _output(self, command: list, seconds_max: int = RUN_SECONDS_MAX) -> str:
        words = [str(word) for word in command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds_max)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            raise BenchError(f"{Path(words[0]).name} {words[1]}: {lines[-1][:200]}")
        return done.stdout


def parse_fio(text: str, direction: str) -> Run:
    """fio's JSON; what it writes before the first brace (warnings) is skipped."""
    job = json.loads(text[text.index("{"):])["jobs"][0]
    if job.get("error"):
        raise BenchError(f"fio: error {job['error']}")
    part = job[direction]
    seconds = part["runtime"] / 1e3
    if part["io_bytes"] == 0 or seconds == 0:
        raise BenchError("fio transferred nothing")
    cpu = seconds * (job["usr_cpu"] + job["sys_cpu"]) / 100
    return Run(bytes=part["io_bytes"], seconds=seconds, cpu_seconds=cpu)
