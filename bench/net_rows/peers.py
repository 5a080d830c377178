"""Gets and puts against Redis and memcached, with the same number of connections and requests at once.

`redis` is Redis by hiredis; `redis_in_place` is the same server with a client of ours that receives each value where it
belongs. All clients verify each value with xxh3. A put of ours stores new keys into a pool that is full; one of theirs
replaces the value of a key.
"""

from __future__ import annotations

import statistics

from bench.harness import Bench, Unavailable, alternate
from bench.net_lab import SIZES, Cpu, NetLab, Side, Size

PEERS = {"redis": "hiredis", "redis_in_place": "redis", "memcached": "memcached"}   # in names: the side
VERBS = ("get", "put")
GOAL_CPU = 1.0


def over(verb: str, size: Size, peer: str) -> str:
    return f"tcp_{verb}_{size.name}_over_{peer}"


def server_cpu(verb: str, size: Size, peer: str) -> str:
    return f"tcp_{verb}_{size.name}_server_cpu_over_{peer}"


def names_of(verb: str, size: Size) -> list[str]:
    return [name(verb, size, peer) for peer in PEERS for name in (over, server_cpu)]


NAMES = tuple(name for verb in VERBS for size in SIZES for name in names_of(verb, size))


def run(lab: NetLab, bench: Bench) -> None:
    for size in SIZES:
        for verb in VERBS:
            names = names_of(verb, size)
            if bench.wants(*names) and bench.has_time(12, *names):
                with bench.part(*names):
                    against_peers(lab, bench, verb, size)


def available(lab: NetLab, bench: Bench, verb: str, size: Size) -> dict[str, Side]:
    """The peers that can be had, those that can't are skipped."""
    sides = {}
    for peer, side in PEERS.items():
        names = (over(verb, size, peer), server_cpu(verb, size, peer))
        try:
            if bench.wants(*names):
                sides[peer] = lab.side(side)
        except Unavailable as why:
            for name in filter(bench.wants, names):
                bench.skip(name, str(why), peer)
    return sides


def against_peers(lab: NetLab, bench: Bench, verb: str, size: Size) -> None:
    sides = {"ours": lab.side("ours"), **available(lab, bench, verb, size)}
    # Of one request under way two were worse for everybody; a pipeline of a batch is the same for all.
    words = (verb, size.batch, size.depth, lab.run_s)
    for side in sides.values():
        side.prepare(size)
    arms = {name: Cpu(side, *words) for name, side in sides.items()}
    figures = alternate(arms, bench.rounds(12, 2), warmup=1, progress=bench.progress)
    ours = arms.pop("ours")
    command = f"{' '.join(map(str, words))}, kvd_net_driver depot; the peer's client: the same"
    what = {"connections": 1, "batch": size.batch, "depth": size.depth, "tier": "DRAM, acknowledged when it is there",
            "cpu_s_per_gb": {"client": ours.client, "server": ours.server}, "command": command}
    for peer, arm in arms.items():
        cpu = {"peer_cpu_s_per_gb": {"client": arm.client, "server": arm.server}}
        bench.ratio(over(verb, size, peer), ours=figures["ours"], theirs=figures[peer], unit="GB/s",
                    form="ours/theirs", better="higher", goal=1.0, peer=sides[peer].title, **what, **cpu)
        rounds = slice(-len(figures["ours"]), None)
        bench.ratio(server_cpu(verb, size, peer), ours=ours.server[rounds], theirs=arm.server[rounds], unit="s/GB",
                    form="ours/theirs", better="lower", goal=GOAL_CPU, peer=sides[peer].title, **what, **cpu,
                    all_cpu_over_peer=round(statistics.median(
                        (c + s) / (pc + ps) for c, s, pc, ps in zip(ours.client[rounds], ours.server[rounds],
                                                                    arm.client[rounds], arm.server[rounds])), 3))
