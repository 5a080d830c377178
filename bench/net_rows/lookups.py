"""Lookups: alone over TCP and over the unix socket, and beside other connections that pull large records."""

from __future__ import annotations

import math
import re
import statistics

from bench.harness import Bench, BenchError, alternate
from bench.net_client import NetClient
from bench.net_lab import GIB, KIB, MIB, NetLab, Size

RTT = "match_prefix_512_rtt_us"
SHM = "match_prefix_512_shm_us"
PACED = "match_prefix_512_beside_paced_pulls_p99_us"
FULL = "match_prefix_512_beside_full_pulls_p99_us"
RESIDENCE = "match_residence_at_full_rate_p99_us"
NAMES = (RTT, SHM, PACED, FULL, RESIDENCE)

KEYS = 512
SMALL = 4 * KIB                 # the smallest place that a record takes
RECORDS = 2_000_000             # in memory on a machine of 24 GiB
RECORDS_QUICK = 200_000
RECORDS_AT_ONCE = 16_384        # of a client's memory
PULL = Size("4MiB", 4 * MIB, 1, 8)
PACE = 0.7                      # of the rate that the pulls reach alone
BESIDE_S = 5.0


def run(lab: NetLab, bench: Bench) -> None:
    if bench.wants(RTT, SHM):
        with bench.part(RTT, SHM):
            alone(lab, bench)
    names = (PACED, FULL, RESIDENCE)
    if bench.wants(*names):
        with bench.part(*names):
            beside_pulls(lab, bench)


def alone(lab: NetLab, bench: Bench) -> None:
    """All keys are there, among many records: in an index as a full depot has it."""
    records = bench.number(RECORDS, RECORDS_QUICK)
    pool = (records + 4 * RECORDS_AT_ONCE) * SMALL * 5 // 4 // GIB * GIB + GIB
    depot = lab.depot(pool)
    bench.progress.note(f"storing {records:,} records of 4 KiB")
    clients = {RTT: lab.client("match", "depot", depot.address),
               SHM: lab.client("match-unix", "depot-shm", lab.unix_address(pool))}
    try:
        stored = 0
        while stored < records:
            for client in clients.values():
                client.records(SMALL, RECORDS_AT_ONCE)
                client.run("put", 2048, 4, 0)
                stored += RECORDS_AT_ONCE
        rounds = bench.rounds(10, 3)
        arms = {name: lambda _, client=client: client.run("match", KEYS, 0.3).p50_us
                for name, client in clients.items()}
        figures = alternate(arms, rounds, warmup=1, progress=bench.progress)
        in_index = int(depot.metric("kvdepot_store_pool_records"))
        for name, goal, how in ((RTT, 60.0, "loopback TCP"), (SHM, 30.0, "rings in memory")):
            bench.value(name, statistics.median(figures[name]), "us", better="lower", goal=goal, ours=figures[name],
                        records=in_index, transport=how, command=f"match {KEYS} 0.3: median of each round's medians")
    finally:
        for client in clients.values():
            client.close()
        lab.drop_depot(pool)


def beside_pulls(lab: NetLab, bench: Bench) -> None:
    seconds = bench.number(BESIDE_S, 2.0)
    puller = lab.side("ours")
    puller.prepare(PULL)
    looker = lab.client("looker", "depot", lab.depot().address)
    try:
        looker.records(SMALL, KEYS)
        looker.run("put", KEYS, 1, 0)
        alone_rate = puller.run("get", PULL.batch, PULL.depth, 1.0).gb_per_s
        paced, at_pace = together(looker, puller.client, seconds, alone_rate * PACE * 1e9)
        residence = Histogram(lab, "kvdepot_match_residence_seconds")
        full, at_full = together(looker, puller.client, seconds, 0)
        what = {"pulls": "4 MiB, depth 8, one connection", "alone_gb_per_s": round(alone_rate, 2)}
        command = f"match {KEYS} {seconds:g} beside get 1 8"
        bench.value(PACED, paced.p99_us, "us", better="lower", goal=2000.0, command=f"{command} paced to 70 %", **what,
                    pulled_gb_per_s=round(at_pace.gb_per_s, 2), p50_us=paced.p50_us, lookups=paced.requests)
        bench.value(FULL, full.p99_us, "us", better="lower", goal=None, command=command, **what,
                    pulled_gb_per_s=round(at_full.gb_per_s, 2), p50_us=full.p50_us, lookups=full.requests)
        if bench.wants(RESIDENCE):
            bench.value(RESIDENCE, residence.quantile_us(0.99, full.requests), "us", better="lower", goal=300.0, **what,
                        command=f"{command}; kvdepot_match_residence_seconds, the bound of the bucket")
    finally:
        looker.close()


def together(looker: NetClient, puller: NetClient, seconds: float, rate: float):
    """Lookups while the other pulls, at most so many bytes a second; the pulls last longer on both ends."""
    puller.begin("get", PULL.batch, PULL.depth, seconds + 1.0, rate)
    found = looker.run("match", KEYS, seconds)
    return found, puller.result()


class Histogram:
    """What a histogram of the depot has counted since this was made."""

    def __init__(self, lab: NetLab, name: str) -> None:
        self.lab, self.name = lab, name
        self.before = buckets(lab.depot().metrics(), name)

    def quantile_us(self, share: float, requests: int) -> float:
        """An upper bound. It must have counted each of the requests that were made."""
        now = buckets(self.lab.depot().metrics(), self.name)
        counts = {bound: count - self.before.get(bound, 0.0) for bound, count in now.items()}
        counted = max(counts.values())
        if counted < max(1, requests):
            raise BenchError(f"{self.name} has counted {counted:g} of {requests} requests")
        found = min(bound for bound, count in counts.items() if count >= share * counted)
        if math.isinf(found):
            raise BenchError(f"{self.name} has no bound for a share of {share:g}")
        return 1e6 * found


def buckets(text: str, name: str) -> dict[float, float]:
    """Upper bounds in seconds and cumulative counts, from Prometheus' text."""
    found = re.findall(rf'^{name}_bucket{{le="([^"]+)"}} (\S+)', text, re.M)
    if not found:
        raise BenchError(f"the depot's metrics have no histogram {name}")
    return {float(bound): float(count) for bound, count in found}
