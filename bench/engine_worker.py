"""One vLLM engine that stays alive and does what it is told, one JSON object a line: the engine arm of the benchmarks.

Starting an engine takes half a minute, so the harness starts each arm once and alternates between live processes.
Runs in the engine environment; its parent is bench/engine_process.py.

    python -m bench.engine_worker '{"engine": {"model": "...", "dtype": "float32", ...}}'

Commands on stdin, one reply each on stdout, in order ({"ok": true, ...} or {"ok": false, "error": "..."}):

    {"op": "generate", "requests": [{"ids": [...], "max_tokens": 1, "at": 0.0}]}
        -> {"wall_s": s, "lost_blocks": n,
            "requests": [{"times": [s, ...], "tokens": [...], "cached": n, "reason": "length"}]}
    {"op": "reset_prefix_cache"}   -> {}            the engine's own cache only, never the connector's store
    {"op": "counters"}             -> {"counters": {"vllm:external_prefix_cache_hits": n, ...}}
    {"op": "collective_rpc", "method": "...", "args": [...]} -> {"result": [...]}   on the worker extension
    {"op": "quit"}

Times are seconds since the request was submitted, taken in this process with one clock: times[0] is the time to first
token, the differences are inter-token latencies. vLLM counts a token as cached when a connector has promised it, also
when its load then failed; `lost_blocks` is what our connector counted as such meanwhile. Whatever else writes to
standard output goes to standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field

WARMUP_IDS = list(range(1000, 1160))    # more than one block of 128 tokens, so that block code paths have run


@dataclass
class Live:
    """A request under way."""

    at: float
    ids: list[int]
    max_tokens: int
    began: float = 0.0
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    reason: str | None = None

    def reply(self) -> dict:
        return {"times": self.times, "tokens": self.tokens, "cached": self.cached, "reason": self.reason}


class Worker:
    """The engine and the loop that steps it. One thread."""

    def __init__(self, config: dict) -> None:
        from vllm import LLM, SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.sampling = lambda max_tokens: SamplingParams(
            max_tokens=max_tokens, temperature=0.0, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.CUMULATIVE)
        began = time.perf_counter()
        self.llm = LLM(**config["engine"])
        self.engine = self.llm.llm_engine
        self.count = 0
        self.generate([{"ids": WARMUP_IDS, "max_tokens": 2}])
        self.started_s = time.perf_counter() - began

    def facts(self) -> dict:
        import vllm

        config = self.engine.vllm_config
        return {
            "vllm": vllm.__version__,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "block_tokens": config.cache_config.block_size,
            "batch_tokens": config.scheduler_config.max_num_batched_tokens,
            "cache_blocks": config.cache_config.num_gpu_blocks,
            "start_s": self.started_s,
        }

    def generate(self, requests: list[dict]) -> dict:
        waiting = [Live(r.get("at", 0.0), r["ids"], r.get("max_tokens", 1)) for r in requests]
        order = list(waiting)
        waiting.sort(key=lambda live: live.at)
        running: dict[str, Live] = {}
        lost = self._lost_blocks()
        began = time.perf_counter()
        while waiting or running:
            while waiting and waiting[0].at <= time.perf_counter() - began:
                self._submit(waiting.pop(0), running)
            if running:
                self._step(running)
            else:
                time.sleep(max(0.0, waiting[0].at - (time.perf_counter() - began)))
        wall_s = time.perf_counter() - began
        return {"wall_s": wall_s, "lost_blocks": self._lost_blocks() - lost,
                "requests": [live.reply() for live in order]}

    def _lost_blocks(self) -> float:
        return self.counters()["counters"].get("vllm:kvdepot_blocks_failed", 0)

    def _submit(self, live: Live, running: dict[str, Live]) -> None:
        self.count += 1
        name = f"bench-{self.count}"
        running[name] = live
        live.began = time.perf_counter()
        self.engine.add_request(name, {"prompt_token_ids": live.ids}, self.sampling(live.max_tokens))

    def _step(self, running: dict[str, Live]) -> None:
        outputs = self.engine.step()
        now = time.perf_counter()
        for output in outputs:
            live = running[output.request_id]
            tokens = list(output.outputs[0].token_ids)
            live.times += [now - live.began] * (len(tokens) - len(live.tokens))
            live.tokens = tokens
            live.cached = output.num_cached_tokens or 0
            if output.finished:
                live.reason = output.outputs[0].finish_reason
                del running[output.request_id]

    def reset_prefix_cache(self) -> dict:
        """Right after a request its blocks may be held for a moment (a store under way): asks again for a while."""
        deadline = time.monotonic() + 30.0
        while not self.llm.reset_prefix_cache():
            if time.monotonic() > deadline:
                raise RuntimeError("the engine's prefix cache can't be reset: blocks are still in use after 30 s")
            time.sleep(0.05)
        return {}

    def counters(self) -> dict:
        totals: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            value = getattr(metric, "value", None)
            if isinstance(value, (int, float)):
                totals[metric.name] = totals.get(metric.name, 0) + value
                if reason := (getattr(metric, "labels", None) or {}).get("reason"):
                    totals[f'{metric.name}{{reason="{reason}"}}'] = value
        return {"counters": totals}

    def collective_rpc(self, method: str, args: list) -> dict:
        return {"result": self.llm.collective_rpc(method, args=tuple(args))}


def serve(worker: Worker, commands, replies) -> None:
    """Answers until `quit` or the end of input."""
    for line in commands:
        command = json.loads(line)
        op = command.pop("op")
        if op == "quit":
            break
        try:
            handler = {"generate": worker.generate, "reset_prefix_cache": worker.reset_prefix_cache,
                       "counters": worker.counters, "collective_rpc": worker.collective_rpc}[op]
            reply = {"ok": True} | handler(**command)
        except Exception as error:     # the parent decides what a failed command means
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


def main() -> None:
    config = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)    # Ctrl-C is the parent's; it ends this process in order
    worker = Worker(config)
    print(json.dumps({"ok": True, "facts": worker.facts()}), file=replies, flush=True)
    serve(worker, sys.stdin, replies)


if __name__ == "__main__":
    main()
