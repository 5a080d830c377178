"""What the connector costs where it brings nothing: cold requests, decoding, and a decode step with nothing to do.

Engines with and without the connector take turns on the same content, which neither has seen. The connector stores
what is computed, also the blocks that fill while decoding.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from bench.depot import PUT_ARENA_BYTES, Depot
from bench.engine_lab import Lab, expect_cold, ours
from bench.engine_process import Engine
from bench.harness import Bench, BenchError, alternate

COLD_TOKENS = 2048
COLD_TOKENS_QUICK = 1024
DECODE_PROMPT = 96
DECODE_TOKENS = 161     # 160 intervals; two blocks fill on the way
NAMES = ("overhead_cold", "overhead_decode", "connector_idle_step_share")
SHM_NAMES = ("overhead_cold_shm", "overhead_decode_shm")


def run(lab: Lab, bench: Bench, depot: Depot, on: Engine, off: Engine) -> None:
    """`on` has our connector and sends what it stores over TCP, `off` has none."""
    compare(lab, bench, depot, on, off, "")
    if bench.wants("connector_idle_step_share") and bench.has_time(60.0, "connector_idle_step_share"):
        idle_step(lab, bench, depot)


def run_shm(lab: Lab, bench: Bench, depot: Depot, off: Engine) -> None:
    """The same of an engine on the depot's host as it is without further settings, which stores through memory."""
    if not bench.wants(*SHM_NAMES):
        return
    (on,) = lab.engines(lab.spec("same-host-overhead", ours(depot)))
    before = depot.metric(PUT_ARENA_BYTES)
    compare(lab, bench, depot, on, off, "_shm")
    if depot.metric(PUT_ARENA_BYTES) == before:
        raise BenchError("what the engine stored did not go through memory")


def compare(lab: Lab, bench: Bench, depot: Depot, on: Engine, off: Engine, way: str) -> None:
    rounds = bench.close_rounds()
    peer, command = "the same engine without connector", depot.command
    arms = (("on", on), ("off", off))
    if bench.wants(f"overhead_cold{way}"):
        tokens = COLD_TOKENS_QUICK if bench.quick else COLD_TOKENS
        figures = alternate({name: lambda index, engine=engine: cold(lab, depot, engine, f"{way}{index}", tokens)
                             for name, engine in arms}, rounds, 1, bench.progress)
        bench.ratio(f"overhead_cold{way}", ours=figures["on"], theirs=figures["off"], unit="s", form="ours/theirs",
                    better="lower", goal=1.05, peer=peer, command=command, tokens=tokens)
    if bench.wants(f"overhead_decode{way}"):
        figures = alternate({name: lambda index, engine=engine: decode(lab, depot, engine, f"{way}{index}")
                             for name, engine in arms}, rounds, 1, bench.progress)
        bench.ratio(f"overhead_decode{way}", ours=figures["on"], theirs=figures["off"], unit="s", form="ours/theirs",
                    better="lower", goal=1.03, peer=peer, command=command, tokens=DECODE_TOKENS)


def cold(lab: Lab, depot: Depot, engine: Engine, content: str, tokens: int) -> float:
    """Time to first token of content this engine has not seen."""
    answer = expect_cold(engine.ask(lab.prompt(f"overhead cold {content}", tokens)), "cold request")
    lab.settle(depot)
    return answer.first_s


def decode(lab: Lab, depot: Depot, engine: Engine, content: str) -> float:
    """Mean inter-token latency of one request alone."""
    answer = engine.ask(lab.prompt(f"overhead decode {content}", DECODE_PROMPT), DECODE_TOKENS)
    lab.settle(depot)
    return (answer.times[-1] - answer.times[0]) / (DECODE_TOKENS - 1)


def idle_step(lab: Lab, bench: Bench, depot: Depot) -> None:
    """The hooks' own time in steps that load and store nothing, as a share of the step. What vLLM spends around them
    for any connector is in overhead_decode only."""
    log = bench.work / "hook_times"
    connector = ours(depot) | {"kv_connector": "TimedConnector", "kv_connector_module_path": "bench.timed_connector"}
    (engine,) = lab.engines(lab.spec("timed", connector, engine={"additional_config": {"hook_times": str(log)}}))
    answer = engine.ask(lab.prompt("idle step", DECODE_PROMPT), DECODE_TOKENS)
    lab.end(engine)
    step_s = statistics.median(answer.intervals())
    hooks_s = sum(median_step(Path(f"{log}.{role}")) for role in ("scheduler", "worker"))
    bench.value("connector_idle_step_share", hooks_s / step_s, "ratio", better="lower", goal=0.01,
                command=depot.command, hooks_us=hooks_s * 1e6, step_ms=step_s * 1e3, steps=DECODE_TOKENS)


def median_step(log: Path) -> float:
    """Median of the seconds that one role's hooks took per step; most decode steps have nothing to do."""
    try:
        times = json.loads(log.read_text())
    except (OSError, ValueError):
        times = []
    if len(times) < DECODE_TOKENS // 2:
        raise BenchError(f"{log} holds {len(times)} steps, {DECODE_TOKENS} were decoded")
    return statistics.median(times[-(DECODE_TOKENS - 8):])
