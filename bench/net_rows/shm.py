"""A client on the depot's host that reads the depot's memory: gets that are copied and verified, against memcpy; views
that are verified where they lie, against xxh3; and the round trip through rings in memory."""

from __future__ import annotations

import statistics

from bench.depot import BYTES_LENT
from bench.harness import Bench, BenchError, alternate
from bench.net_lab import MIB, SIZES, Cpu, NetLab, Size

GOALS = {"1MiB": 0.75}
BORROW_GOALS = {"1MiB": 1.1}
TRIP = "shm_get_ns"
TRIP_IDLE = "shm_get_idle_ns"
TRIP_GOAL = 2000.0


def over_memcpy(size: Size) -> str:
    return f"shm_get_{size.name}_over_memcpy"


def over_xxh3(size: Size) -> str:
    return f"shm_borrow_{size.name}_over_xxh3"


NAMES = (*map(over_memcpy, SIZES), *map(over_xxh3, SIZES), TRIP, TRIP_IDLE)


def run(lab: NetLab, bench: Bench) -> None:
    if bench.wants(TRIP, TRIP_IDLE) and bench.has_time(5, TRIP, TRIP_IDLE):
        with bench.part(TRIP, TRIP_IDLE):
            round_trips(lab, bench)
    for size in SIZES:
        for name, measure in ((over_memcpy(size), against_memcpy), (over_xxh3(size), against_xxh3)):
            if bench.wants(name) and bench.has_time(5, name):
                with bench.part(name):
                    measure(lab, bench, size)


def round_trips(lab: NetLab, bench: Bench) -> None:
    """A GET of 4 KiB, answered by a view: one behind the other, and 2 ms apart, so that both sides sleep."""
    trips = [lab.ring_trips() for _ in range(bench.rounds(10, 3))]
    for name, busy, goal in ((TRIP, "get", TRIP_GOAL), (TRIP_IDLE, "get_idle", None)):
        medians = [trip[f"{busy}_p50_ns"] for trip in trips]
        bench.value(name, statistics.median(medians), "ns", better="lower", goal=goal, ours=medians,
                    p99_ns=[trip[f"{busy}_p99_ns"] for trip in trips],
                    ping_p50_ns=[trip[f"{busy.replace('get', 'ping')}_p50_ns"] for trip in trips],
                    command="kvd_ring_driver unix://... --trips 20000 --idle-trips 200: median of each round's medians")


def against_memcpy(lab: NetLab, bench: Bench, size: Size) -> None:
    figures, arms, words = measured(lab, bench, size, "shm", "memcpy")
    bench.ratio(over_memcpy(size), ours=figures["shm"], theirs=figures["memcpy"], unit="GB/s", form="ours/theirs",
                better="higher", goal=GOALS.get(size.name), peer="memcpy", tier="pool, copied and verified",
                **costs(arms["shm"], arms["memcpy"], size),
                command=f"kvd_net_driver depot-shm: {words}; kvd_net_driver memcpy: the same")


def against_xxh3(lab: NetLab, bench: Bench, size: Size) -> None:
    """Time over time: the rates the other way round."""
    figures, arms, words = measured(lab, bench, size, "borrow", "xxh3")
    bench.ratio(over_xxh3(size), ours=figures["borrow"], theirs=figures["xxh3"], unit="GB/s", form="theirs/ours",
                better="lower", goal=BORROW_GOALS.get(size.name), peer="xxh3 of as many bytes of its own",
                tier="pool, verified where it lies", **costs(arms["borrow"], arms["xxh3"], size),
                command=f"kvd_net_driver borrow: {words}; kvd_net_driver xxh3: the same")


def measured(lab: NetLab, bench: Bench, size: Size, ours: str, theirs: str):
    sides = {name: lab.side(name) for name in (ours, theirs)}
    for side in sides.values():
        side.prepare(size)
    words = ("get", size.batch, size.depth, lab.run_s)
    arms = {name: Cpu(side, *words) for name, side in sides.items()}
    before = lab.depot().metric(BYTES_LENT)
    figures = alternate(arms, bench.rounds(12, 3), warmup=1, progress=bench.progress)
    if lab.depot().metric(BYTES_LENT) - before < size.count * size.bytes:
        raise BenchError("the bytes did not come through shared memory")
    return figures, arms, " ".join(map(str, words))


def costs(ours: Cpu, theirs: Cpu, size: Size) -> dict:
    """Processor time says more than the rates where others want the cores, too."""
    return {"cpu_s_per_gb": {"client": ours.client, "server": ours.server},
            "peer_cpu_s_per_gb": {"client": theirs.client},
            "working_set_mib": size.count * size.bytes // MIB}
