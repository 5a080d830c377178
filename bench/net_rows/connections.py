"""Ten thousand idle connections: what each costs, and what they cost those that work.

    python -m bench.net_rows.connections [--quick]        needs the release build with kvd_connection_driver
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager

from bench import harness
from bench.depot import Depot, binary
from bench.harness import Bench, BenchError, alternate

MIB = 2**20
IDLE, BUSY = 10_000, 200
RATE = 2_000            # gets of 64 KiB a second, of all busy connections: a tenth of what one core sends
P99, BYTES = "connections_10k_get_p99_ratio", "idle_connection_bytes"
NAMES = (P99, BYTES)
CONNECT_SECONDS_MAX = 120


def own_bytes(pid: int) -> int:
    """A process's memory without files and without shared memory, which the depot's pool is."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


@contextmanager
def driver(bench: Bench, depot: Depot, idle: int):
    """The client process, connected; `go()` makes it work and gives what it printed."""
    program = bench.build / "release" / "bin" / "kvd_connection_driver"
    if not program.exists():
        raise BenchError(f"{program} is not there: make build PRESET=release TARGETS=kvd_connection_driver")
    command = [program, depot.address, "--idle", idle, "--busy", BUSY, "--rate", RATE, "--seconds",
               bench.number(6, 2)]
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)

    def line() -> dict:
        text = process.stdout.readline()
        if not text:
            raise BenchError("kvd_connection_driver ended early: what it said is above")
        return json.loads(text)

    def go() -> dict:
        process.stdin.write("\n")
        process.stdin.flush()
        return line()

    try:
        if line()["connected"] != BUSY + idle:
            raise BenchError("kvd_connection_driver has fewer connections than asked for")
        yield go
        process.stdin.close()
        process.wait(CONNECT_SECONDS_MAX)
    finally:
        process.kill()
        process.wait(CONNECT_SECONDS_MAX)


def run(bench: Bench) -> None:
    if not (bench.wants(*NAMES) and bench.has_time(40, *NAMES)):
        return
    with bench.part(*NAMES):
        depot = Depot(binary(bench.build), bench.work / "connections", 256 * MIB, 0,
                      [f"--connections-max={IDLE + BUSY + 100}"])
        try:
            measure(bench, depot)
        finally:
            depot.stop()


def measure(bench: Bench, depot: Depot) -> None:
    costs: list[float] = []
    base: list[int] = []

    def arm(idle: int) -> float:
        with driver(bench, depot, idle) as go:
            if not idle:
                base[:] = [own_bytes(depot.pid)]
            elif base:
                costs.append(max(0, own_bytes(depot.pid) - base[0]) / idle)
            return go()["p99_us"]

    figures = alternate({"alone": lambda _: arm(0), "idle": lambda _: arm(IDLE)}, bench.rounds(5, 2),
                        progress=bench.progress)
    command = f"kvd_connection_driver --idle {IDLE}|0 --busy {BUSY} --rate {RATE}"
    bench.ratio(P99, ours=figures["idle"], theirs=figures["alone"], unit="us", form="ours/theirs", better="lower",
                goal=1.5, peer="no idle connections", command=command)
    # The allocator keeps what the first round took, so only that one tells.
    bench.value(BYTES, costs[0], "B", better="lower", goal=32 * 1024, ours=costs[:1], command=command)


if __name__ == "__main__":
    sys.exit(harness.main("connections", run, __doc__))
