"""Gets over one TCP connection against what loopback gives: iperf3, and a loop of send and recv with cold buffers."""

from __future__ import annotations

from bench.harness import Bench, alternate
from bench.net_lab import SIZES, Cpu, Iperf, NetLab, Size

GOAL_IPERF = {"64KiB": 0.85, "256KiB": 0.95, "1MiB": 0.95, "4MiB": 0.95}
GOAL_RAW = 0.85


def over_iperf(size: Size) -> str:
    return f"tcp_get_{size.name}_over_iperf3"


def over_reno(size: Size) -> str:
    return f"{over_iperf(size)}_reno"


def over_raw(size: Size) -> str:
    return f"tcp_get_{size.name}_over_rawloop"


NAMES = (*map(over_iperf, SIZES), *map(over_reno, SIZES), *map(over_raw, SIZES))


def run(lab: NetLab, bench: Bench) -> None:
    for size in SIZES:
        if bench.wants(over_iperf(size), over_reno(size), over_raw(size)):
            with bench.part(over_iperf(size), over_reno(size), over_raw(size)):
                against_limits(lab, bench, size)


def against_limits(lab: NetLab, bench: Bench, size: Size) -> None:
    peer = lab.iperf_version()
    words = ("get", size.batch, size.depth, lab.run_s)
    sides = {name: lab.side(name) for name in ("ours", "raw")}
    for side in sides.values():
        side.prepare(size)
    ours, raw, iperf = Cpu(sides["ours"], *words), Cpu(sides["raw"], *words), Iperf(lab)
    reno = Iperf(lab, "reno")     # as the depot's own connections: where the system paces loopback, this is its limit
    figures = alternate({"ours": ours, "rawloop": raw, "iperf3": iperf, "reno": reno}, bench.close_rounds(), warmup=1,
                        progress=bench.progress)
    what = {"connections": 1, "batch": size.batch, "depth": size.depth, "tier": "pool, verified by the client",
            "cpu_s_per_gb": {"client": ours.client, "server": ours.server}}
    command = "kvd_net_driver depot: " + " ".join(map(str, words))
    bench.ratio(over_iperf(size), ours=figures["ours"], theirs=figures["iperf3"], unit="GB/s", form="ours/theirs",
                better="higher", goal=GOAL_IPERF[size.name], peer=peer, **what,
                peer_cpu_s_per_gb={"client": iperf.client, "server": iperf.server},
                command=f"{command}; iperf3 -c 127.0.0.1 -R -l 1M -t 1")
    bench.ratio(over_reno(size), ours=figures["ours"], theirs=figures["reno"], unit="GB/s", form="ours/theirs",
                better="higher", goal=GOAL_IPERF[size.name], peer=f"{peer} -C reno", **what,
                peer_cpu_s_per_gb={"client": reno.client, "server": reno.server},
                command=f"{command}; iperf3 -c 127.0.0.1 -R -l 1M -t 1 -C reno")
    bench.ratio(over_raw(size), ours=figures["ours"], theirs=figures["rawloop"], unit="GB/s", form="ours/theirs",
                better="higher", goal=GOAL_RAW if size.depth > 1 else None, peer=sides["raw"].title, **what,
                peer_cpu_s_per_gb={"client": raw.client, "server": raw.server},
                command=f"{command}; kvd_net_driver raw: the same")
