"""Gets of a client on the depot's host that reads the depot's memory: copied and verified, against memcpy."""

from __future__ import annotations

from bench.depot import BYTES_LENT
from bench.harness import Bench, BenchError, alternate
from bench.net_lab import MIB, SIZES, Cpu, NetLab, Size

GOALS = {"1MiB": 0.75}


def over_memcpy(size: Size) -> str:
    return f"shm_get_{size.name}_over_memcpy"


NAMES = tuple(map(over_memcpy, SIZES))


def run(lab: NetLab, bench: Bench) -> None:
    for size in SIZES:
        if bench.wants(over_memcpy(size)) and bench.has_time(5, over_memcpy(size)):
            with bench.part(over_memcpy(size)):
                against_memcpy(lab, bench, size)


def against_memcpy(lab: NetLab, bench: Bench, size: Size) -> None:
    sides = {"shm": lab.side("shm"), "memcpy": lab.side("memcpy")}
    for side in sides.values():
        side.prepare(size)
    words = ("get", size.batch, size.depth, lab.run_s)
    arms = {name: Cpu(side, *words) for name, side in sides.items()}
    before = lab.depot().metric(BYTES_LENT)
    figures = alternate(arms, bench.rounds(12, 3), warmup=1, progress=bench.progress)
    if lab.depot().metric(BYTES_LENT) - before < size.count * size.bytes:
        raise BenchError("the bytes did not come through shared memory")
    ours = arms["shm"]
    bench.ratio(over_memcpy(size), ours=figures["shm"], theirs=figures["memcpy"], unit="GB/s", form="ours/theirs",
                better="higher", goal=GOALS.get(size.name), peer="memcpy", tier="pool, copied and verified",
                cpu_s_per_gb={"client": ours.client, "server": ours.server},
                working_set_mib=size.count * size.bytes // MIB,
                command=f"kvd_net_driver depot-shm: {' '.join(map(str, words))}; kvd_net_driver memcpy: the same")
