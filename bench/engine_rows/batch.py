"""Many requests at once: a burst that shares prefixes, and decoding while somebody's prefix loads slowly."""

from __future__ import annotations

import statistics

from bench import stats
from bench.depot import KEYS_GOT, Depot
from bench.engine_lab import (
    BLOCK, REPEATS_MAX, Lab, before_repeat, connector_says, expect_all_loaded, expect_cached, expect_sent, ours,
    ours_over_tcp)
from bench.engine_process import Answer, Engine
from bench.harness import Bench, BenchError

MAKESPAN = "shared_prefix_makespan_off_over_on"
ITL_MEDIAN, ITL_P99 = "itl_median_while_loading", "itl_p99_while_loading"
BURST, PREFIXES, PREFIX, SUFFIX, OUTPUT = 16, 3, 4000, 64, 16
SHARED = PREFIX // BLOCK * BLOCK    # tokens of a prefix that a cache can hold
DECODERS, DECODE_PROMPT, DECODE_TOKENS = 8, 48, 200
LOADED = 55 * BLOCK         # 7,040 tokens: all of it is loaded, one token is computed
LOAD_AT_S = 2.0             # by then all eight decode
SHAPED = 50_000_000         # bytes a second
PATIENCE = 4.0              # deadline of the load in recompute times: it is slow on purpose


def burst(lab: Lab, bench: Bench, depot: Depot, writer: Engine) -> None:
    """16 requests at t = 0 in engines that have just been started, with their own prefix cache on; the depot was warmed
    by another engine."""
    if not bench.wants(MAKESPAN) or not bench.has_time(120.0, MAKESPAN):
        return
    on, off = [], []
    for index in range(bench.rounds(quick=1)):
        bench.progress.tick(f"burst, round {index + 1}: warming the depot")
        prefixes, requests = shared_prefixes(lab, f"burst {index}")
        for prefix in prefixes:
            writer.ask(prefix)
        with lab.scope():
            plain, reader = lab.engines(lab.spec("burst-off"), lab.spec("burst-on", ours_over_tcp(depot)))
            arms = [(plain, off, "off"), (reader, on, "on")]
            for engine, times, note in arms[::-1] if index % 2 else arms:
                bench.progress.tick(f"burst, round {index + 1}: {note}")
                lab.settle(depot)
                times.append(engine.generate(requests)[0] if engine is plain else
                             burst_from_depot(lab, depot, reader, requests))
    bench.ratio(MAKESPAN, ours=on, theirs=off, unit="s", form="theirs/ours", better="higher", goal=3,
                peer="vLLM with its own prefix cache", command=depot.command)


def burst_from_depot(lab: Lab, depot: Depot, reader: Engine, requests: list[dict]) -> float:
    """Seconds until the last of them has ended. All must find their prefix, in the depot or where another of them has
    brought it; when one does not, all are asked again, as in ask_depot()."""
    for attempt in range(1 + REPEATS_MAX):
        if attempt > 0:
            before_repeat(depot, reader)
            lab.settle(depot)
        got = depot.metric(KEYS_GOT)
        wall, answers = reader.generate(requests)
        if not reader.lost_blocks and all(answer.cached >= SHARED for answer in answers):
            expect_sent(depot, got, PREFIXES * (SHARED // BLOCK), "shared prefixes")
            return wall
    lost_s = max(answer.lost_s for answer in answers)
    what = f"a shared prefix (its connector: {connector_says(reader)}; the machine stood still for {lost_s:.2f} s)"
    for answer in answers:
        expect_cached(answer, SHARED, what)
    raise BenchError(f"{what}: {reader.lost_blocks:.0f} blocks were promised but not loaded")


def shared_prefixes(lab: Lab, seed: str) -> tuple[list[list[int]], list[dict]]:
    """The prefixes, and the requests that share them."""
    prefixes = [lab.prompt(f"{seed} {which}", PREFIX) for which in range(PREFIXES)]
    return prefixes, [{"ids": prefixes[k % PREFIXES] + lab.prompt(f"{seed} suffix {k}", SUFFIX), "max_tokens": OUTPUT}
                      for k in range(BURST)]


def while_loading(lab: Lab, bench: Bench) -> None:
    """Inter-token latency of eight requests with and without a prefix that loads at 50 MB/s beside them."""
    if not bench.wants(ITL_MEDIAN, ITL_P99) or not bench.has_time(240.0, ITL_MEDIAN, ITL_P99):
        return
    depot = lab.depot("slow")
    filler, reader = lab.engines(lab.spec("slow-writer", ours(depot)),
                                 lab.spec("slow-reader", ours(depot, deadline_share=PATIENCE)))
    prefix = lab.prompt("slow", LOADED)
    filler.ask(prefix)
    lab.settle(depot)
    lab.end(filler)
    depot.restart([f"--shape-read={SHAPED}"])
    lab.reconnect(depot, reader, prefix[:BLOCK * 2], 60.0)
    medians, tails = {True: [], False: []}, {True: [], False: []}
    window = 0.0        # how long the last load ran: the time that counts when nothing loads
    for index in range(bench.close_rounds()):
        for loading in ((True, False) if index % 2 == 0 else (False, True)):
            bench.progress.tick(f"decoding {'beside a load' if loading else 'alone'}, pair {index + 1}")
            intervals, window = decode_beside(lab, depot, reader, prefix if loading else None, window)
            medians[loading].append(statistics.median(intervals))
            tails[loading].append(stats.percentile(intervals, 0.99))
    for name, figures, goal in ((ITL_MEDIAN, medians, 1.05), (ITL_P99, tails, 1.3)):
        bench.ratio(name, ours=figures[True], theirs=figures[False], unit="s", form="ours/theirs", better="lower",
                    goal=goal, peer="the same without the load", command=depot.command)


def decode_beside(lab: Lab, depot: Depot, engine: Engine, prefix: list[int] | None,
                  window_s: float) -> tuple[list[float], float]:
    """Intervals of all eight while the load ran (without one: for as long as the last), and how long that is."""
    engine.reset_prefix_cache()
    lab.settle(depot)
    requests = [{"ids": lab.prompt(f"decoder {k}", DECODE_PROMPT), "max_tokens": DECODE_TOKENS}
                for k in range(DECODERS)]
    if prefix is not None:
        requests.append({"ids": prefix, "max_tokens": 1, "at": LOAD_AT_S})
    _, answers = engine.generate(requests)
    for _ in range(REPEATS_MAX):        # as in ask_depot()
        if not engine.lost_blocks:
            break
        before_repeat(depot, engine)
        lab.settle(depot)
        _, answers = engine.generate(requests)
    expect_all_loaded(engine, "the slow prefix")
    if prefix is not None:
        window_s = expect_cached(answers.pop(), LOADED - 1, "the slow prefix").first_s
    end = LOAD_AT_S + window_s
    intervals = [i for answer in answers for i in intervals_between(answer, LOAD_AT_S, end)]
    if len(intervals) < 10 * DECODERS:
        raise BenchError(f"only {len(intervals)} inter-token latencies fall into the load of {window_s:.1f} s")
    return intervals, window_s


def intervals_between(answer: Answer, begin: float, end: float) -> list[float]:
    """Those that begin and end within the time; the last one before `end` belongs to the loaded request's own pass."""
    return [later - sooner for sooner, later in zip(answer.times, answer.times[1:]) if sooner >= begin and later < end]
