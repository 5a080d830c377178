"""The net suite: a depot over loopback TCP against iperf3, a loop of send and recv, Redis, memcached and Mooncake.

    make bench-net                      all rows, into build/bench/net.json
    make bench-net ARGS=--quick         fewer rounds, two minutes
    make bench-net ARGS="--only 'tcp_get_*_over_iperf3'"

Everything is in DRAM. Peers are left out where they are not installed (tools/setup.sh --bench). docs/benchmarks.md
explains each row.
"""

from __future__ import annotations

import sys

from bench import harness
from bench.net_lab import NetLab
from bench.net_rows import connections, encrypted, limits, lookups, mooncake, peers, shm, tenants

QUICK_LIMIT_S = 115.0


def run(bench: harness.Bench) -> None:
    lab = NetLab(bench)
    try:
        limits.run(lab, bench)
        encrypted.run(lab, bench)
        lookups.run(lab, bench)
        shm.run(lab, bench)
        mooncake.run(lab, bench)
        peers.run(lab, bench)
        connections.run(bench)
        tenants.run(bench)
    finally:
        lab.close()


if __name__ == "__main__":
    sys.exit(harness.main("net", run, __doc__, quick_limit_s=QUICK_LIMIT_S))
