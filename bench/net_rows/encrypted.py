"""Gets through TLS against what the link and one core's cipher allow one after the other."""

from __future__ import annotations

from bench.harness import Bench, alternate
from bench.net_lab import SIZES, Cpu, Iperf, NetLab

NAME = "tls_get_1MiB_over_limit"
GOAL = 0.8
SIZE = next(size for size in SIZES if size.name == "1MiB")


def run(lab: NetLab, bench: Bench) -> None:
    if bench.wants(NAME) and bench.has_time(12, NAME):
        with bench.part(NAME):
            against_limit(lab, bench)


def against_limit(lab: NetLab, bench: Bench) -> None:
    """The limit of a pair: 1 / (1 / iperf3 + 1 / openssl speed), both in the same minute as ours."""
    peer = lab.iperf_version()
    words = ("get", SIZE.batch, SIZE.depth, lab.run_s)
    side = lab.side("tls")
    side.prepare(SIZE)
    ours, iperf = Cpu(side, *words), Iperf(lab)
    figures = alternate({"ours": ours, "iperf3": iperf, "cipher": lambda _: lab.openssl_speed()}, bench.close_rounds(),
                        warmup=1, progress=bench.progress)
    limit = [1 / (1 / link + 1 / cipher) for link, cipher in zip(figures["iperf3"], figures["cipher"], strict=True)]
    bench.ratio(NAME, ours=figures["ours"], theirs=limit, unit="GB/s", form="ours/theirs", better="higher", goal=GOAL,
                peer=f"{peer} and openssl speed -evp aes-128-gcm -bytes 16384, one after the other",
                connections=1, batch=SIZE.batch, depth=SIZE.depth, tier="pool, verified by the client",
                iperf3_gb_per_s=[round(x, 3) for x in figures["iperf3"]],
                cipher_gb_per_s=[round(x, 3) for x in figures["cipher"]],
                cpu_s_per_gb={"client": ours.client, "server": ours.server},
                command="kvd_net_driver depot tls://...: " + " ".join(map(str, words)))
