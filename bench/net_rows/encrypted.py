"""Gets through TLS against what the link and one core's cipher allow one after the other, and against a bare loop of
the same library."""

from __future__ import annotations

from bench.harness import Bench, alternate
from bench.net_lab import SIZES, Cpu, Iperf, NetLab

LIMIT = "tls_get_1MiB_over_limit"
LOOP = "tls_get_1MiB_over_openssl_loop"
NAMES = (LIMIT, LOOP)
SIZE = next(size for size in SIZES if size.name == "1MiB")


def run(lab: NetLab, bench: Bench) -> None:
    if bench.wants(*NAMES) and bench.has_time(12, *NAMES):
        with bench.part(*NAMES):
            measure(lab, bench)


def measure(lab: NetLab, bench: Bench) -> None:
    """The limit of a pair: 1 / (1 / iperf3 + 1 / openssl speed), both in the same minute as ours."""
    words = ("get", SIZE.batch, SIZE.depth, lab.run_s)
    sides = {"ours": lab.side("tls"), "loop": lab.side("tls_loop")}
    for side in sides.values():
        side.prepare(SIZE)
    arms = {name: Cpu(side, *words) for name, side in sides.items()}
    if bench.wants(LIMIT):
        peer = lab.iperf_version()
        arms |= {"iperf3": Iperf(lab), "cipher": lambda _: lab.openssl_speed()}
    figures = alternate(arms, bench.close_rounds(), warmup=1, progress=bench.progress)
    ours, loop = arms["ours"], arms["loop"]
    what = {"unit": "GB/s", "form": "ours/theirs", "better": "higher", "connections": 1, "batch": SIZE.batch,
            "depth": SIZE.depth, "tier": "pool, verified by the client",
            "cpu_s_per_gb": {"client": ours.client, "server": ours.server},
            "command": "kvd_net_driver depot tls://...: " + " ".join(map(str, words))}
    if bench.wants(LIMIT):
        limit = [1 / (1 / link + 1 / cipher) for link, cipher in zip(figures["iperf3"], figures["cipher"], strict=True)]
        bench.ratio(LIMIT, ours=figures["ours"], theirs=limit, goal=0.8,
                    peer=f"{peer} and openssl speed -evp aes-128-gcm -bytes 16384, one after the other",
                    iperf3_gb_per_s=[round(x, 3) for x in figures["iperf3"]],
                    cipher_gb_per_s=[round(x, 3) for x in figures["cipher"]], **what)
    bench.ratio(LOOP, ours=figures["ours"], theirs=figures["loop"], goal=0.95, peer=sides["loop"].title,
                peer_cpu_s_per_gb={"client": loop.client, "server": loop.server}, **what)
