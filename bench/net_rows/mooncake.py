"""Gets against Mooncake Store over TCP, in batches of 1, 8 and 32, one batch at a time: the worst of the batches."""

from __future__ import annotations

import statistics

from bench import stats
from bench.harness import Bench, alternate
from bench.net_lab import SIZES, Cpu, NetLab, Size

BATCHES = (1, 8, 32)
GOALS = {"64KiB": 2.0}


def over(size: Size) -> str:
    return f"tcp_get_{size.name}_over_mooncake"


NAMES = tuple(map(over, SIZES))


def run(lab: NetLab, bench: Bench) -> None:
    for size in SIZES:
        if bench.wants(over(size)) and bench.has_time(12, over(size)):
            with bench.part(over(size), peer="Mooncake Store"):
                against_mooncake(lab, bench, size)


def against_mooncake(lab: NetLab, bench: Bench, size: Size) -> None:
    theirs, ours = lab.side("mooncake"), lab.side("ours")
    for side in (theirs, ours):
        side.prepare(size)
    points = {}
    for batch in BATCHES:
        batch = min(batch, size.count // 2)
        words = ("get", batch, 1, lab.run_s)
        arms = {"ours": Cpu(ours, *words), "mooncake": Cpu(theirs, *words)}
        figures = alternate(arms, bench.rounds(7, 2), warmup=1, progress=bench.progress)
        points[batch] = (figures, arms)
    ratio = {batch: statistics.median(stats.pair_ratios(figures["ours"], figures["mooncake"]))
             for batch, (figures, _) in points.items()}
    worst = min(ratio, key=ratio.get)
    figures, arms = points[worst]
    bench.ratio(over(size), ours=figures["ours"], theirs=figures["mooncake"], unit="GB/s", form="ours/theirs",
                better="higher", goal=GOALS.get(size.name, 1.0), peer=theirs.title, worst_batch=worst,
                by_batch={str(batch): round(value, 3) for batch, value in ratio.items()},
                gb_per_s_by_batch={str(batch): {name: round(statistics.median(rates), 3)
                                                for name, rates in figures.items()}
                                   for batch, (figures, _) in points.items()},
                cpu_s_per_gb={"client": arms["ours"].client, "server": arms["ours"].server},
                peer_cpu_s_per_gb={"client": arms["mooncake"].client, "server": arms["mooncake"].server},
                tier="DRAM; ours verified as it comes, theirs compared afterwards",
                command=f"get of 1, 8, 32 records of {size.name} a request, one request at a time")
