"""What the machine offers: cores for the clients' threads, and a first guess at what a pass of the model costs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

ATTENTION_SHARE = 0.3       # attention reaches about this share of the speed of a matrix product
PASS_OVERHEAD_S = 0.004     # Python, sampling and messages of a step of vLLM: 4 ms on CPU
MEMORY_BYTES_S = 1e10       # weights are read once a pass: about the memory bandwidth of two cores

# Four clients load three to four times as fast as one, eight another half as fast again, and each takes a core while it
# does (docs/results/gpu.md). So four, where that is a quarter of the cores.
CLIENTS_DEFAULT_MAX = 4
CORES_OF_A_CLIENT = 4


def clients_for(cores: int, workers: int, computing: int) -> int:
    """How many clients a worker has by itself, on a machine (or a part of one) with `cores` and `workers` that share
    them, of each of which `computing` threads run the model: those are left their cores."""
    of_worker = cores // workers
    return max(min(CLIENTS_DEFAULT_MAX, of_worker // CORES_OF_A_CLIENT, of_worker - computing), 1)


def all_cores() -> set[int]:
    """The cores that this engine may use. vLLM's CPU workers bind themselves, and every thread that they start, to
    single cores; the parent process still has the whole set."""
    cores = set(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        cores |= os.sched_getaffinity(os.getppid())
    return cores


def process_began(pid: int | None = None) -> float:
    """When this process, or that one, was started, in seconds since 1970."""
    with open(f"/proc/{pid or 'self'}/stat", "rb") as stat:
        ticks = int(stat.read().rpartition(b")")[2].split()[19])     # field 22, since the machine was started
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def engine_mark() -> bytes:
    """The same bytes in all worker processes that one engine has started, and in no other engine."""
    parent = os.getppid()
    with open(f"/proc/{parent}/stat", "rb") as stat:
        ticks = stat.read().rpartition(b")")[2].split()[19]
    with open("/proc/sys/kernel/random/boot_id", "rb") as boot:
        return boot.read().strip() + b" %d " % parent + ticks


@contextlib.contextmanager
def on_all_cores() -> Iterator[None]:
    """Threads started inside may run on any core of the engine, where that may be set; the calling thread stays where
    it was."""
    before = os.sched_getaffinity(0)
    try:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, all_cores())
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)


def pass_prior(multiply_adds: float, pair_multiply_adds: float, weight_bytes: float,
               product: Callable[[], float]) -> tuple[float, float, float]:
    """(fixed, token, pair) seconds of a pass. `product()` runs a matrix product and returns its multiply-adds."""
    product()                                    # threads and buffers of the first call
    began, done = time.perf_counter(), 0.0
    while time.perf_counter() - began < 0.02:
        done += product()
    speed = done / (time.perf_counter() - began)
    return (PASS_OVERHEAD_S + weight_bytes / MEMORY_BYTES_S, multiply_adds / speed,
            pair_multiply_adds / (speed * ATTENTION_SHARE))
