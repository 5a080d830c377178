"""Gets and puts against Redis and memcached, with the same number of connections and requests at once.

`redis` is Redis by hiredis; `redis_in_place` is the same server with a client of ours that receives each value where it
belongs. All clients verify each value with xxh3. A put of ours stores new keys into a pool that is full; one of theirs
replaces the value of a key.

Beside puts there is, without a goal, a plain loop of send and recv whose client hashes and whose server verifies each
slab, as a depot's do and the peers' do not. It tells what verification costs who does nothing clever, and is no upper
limit: it hashes a request before it sends the first byte of it.
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


def over_loop(size: Size) -> str:
    return f"tcp_put_{size.name}_over_verifying_loop"


def loop_over(size: Size, peer: str) -> str:
    return f"verifying_loop_put_{size.name}_over_{peer}"


def loop_cpu(size: Size, peer: str) -> str:
    return f"verifying_loop_put_{size.name}_server_cpu_over_{peer}"


def names_against(verb: str, size: Size, peer: str) -> list[str]:
    names = [over(verb, size, peer), server_cpu(verb, size, peer)]
    return names + [loop_over(size, peer), loop_cpu(size, peer)] if verb == "put" else names


def names_of(verb: str, size: Size) -> list[str]:
    names = [name for peer in PEERS for name in names_against(verb, size, peer)]
    return [over_loop(size), *names] if verb == "put" else names


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
        names = names_against(verb, size, peer)
        try:
            if bench.wants(*names):
                sides[peer] = lab.side(side)
        except Unavailable as why:
            for name in filter(bench.wants, names):
                bench.skip(name, str(why), peer)
    return sides


def against_peers(lab: NetLab, bench: Bench, verb: str, size: Size) -> None:
    sides = {"ours": lab.side("ours"), **available(lab, bench, verb, size)}
    names_of_loop = [over_loop(size), *(name(size, peer) for peer in PEERS for name in (loop_over, loop_cpu))]
    if verb == "put" and bench.wants(*names_of_loop):
        sides["loop"] = lab.side("raw")
    # Of one request under way two were worse for everybody; a pipeline of a batch is the same for all.
    words = (verb, size.batch, size.depth, lab.run_s)
    for side in sides.values():
        side.prepare(size)
    arms = {name: Cpu(side, *words) for name, side in sides.items()}
    figures = alternate(arms, bench.rounds(12, 2), warmup=1, progress=bench.progress)
    ours, loop = arms.pop("ours"), arms.pop("loop", None)
    command = f"{' '.join(map(str, words))}, kvd_net_driver depot; the peer's client: the same"
    what = {"connections": 1, "batch": size.batch, "depth": size.depth, "tier": "DRAM, acknowledged when it is there",
            "cpu_s_per_gb": {"client": ours.client, "server": ours.server}, "command": command}
    if loop:
        bench.ratio(over_loop(size), ours=figures["ours"], theirs=figures["loop"], unit="GB/s", form="ours/theirs",
                    better="higher", goal=None, peer=sides["loop"].title, **what,
                    peer_cpu_s_per_gb={"client": loop.client, "server": loop.server})
    for peer, arm in arms.items():
        cpu = {"peer_cpu_s_per_gb": {"client": arm.client, "server": arm.server}}
        if loop:
            loop_against(bench, size, peer, sides[peer].title, figures, loop, arm)
        bench.ratio(over(verb, size, peer), ours=figures["ours"], theirs=figures[peer], unit="GB/s",
                    form="ours/theirs", better="higher", goal=1.0, peer=sides[peer].title, **what, **cpu)
        rounds = slice(-len(figures["ours"]), None)
        bench.ratio(server_cpu(verb, size, peer), ours=ours.server[rounds], theirs=arm.server[rounds], unit="s/GB",
                    form="ours/theirs", better="lower", goal=GOAL_CPU, peer=sides[peer].title, **what, **cpu,
                    all_cpu_over_peer=round(statistics.median(
                        (c + s) / (pc + ps) for c, s, pc, ps in zip(ours.client[rounds], ours.server[rounds],
                                                                    arm.client[rounds], arm.server[rounds])), 3))


def loop_against(bench: Bench, size: Size, peer: str, title: str, figures: dict, loop: Cpu, arm: Cpu) -> None:
    """The loop that verifies as ours, the peer as theirs."""
    what = {"connections": 1, "batch": size.batch, "depth": size.depth, "tier": "DRAM, verified by the loop only",
            "command": f"kvd_net_driver raw, {peer}'s client: put {size.batch} {size.depth}"}
    bench.ratio(loop_over(size, peer), ours=figures["loop"], theirs=figures[peer], unit="GB/s", form="ours/theirs",
                better="higher", goal=None, peer=title, **what)
    rounds = slice(-len(figures["loop"]), None)
    bench.ratio(loop_cpu(size, peer), ours=loop.server[rounds], theirs=arm.server[rounds], unit="s/GB",
                form="ours/theirs", better="lower", goal=None, peer=title, **what)
