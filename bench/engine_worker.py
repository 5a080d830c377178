"""One vLLM engine that stays alive and does what it is told, one JSON object a line: the engine arm of the benchmarks.

Starting an engine takes half a minute, so the harness starts each arm once and alternates between live processes.
Runs in the engine environment; its parent is bench/engine_process.py.

    python -m bench.engine_worker '{"engine": {"model": "...", "dtype": "float32", ...}}'

Commands on stdin, one reply each on stdout, in order ({"ok": true, ...} or {"ok": false, "error": "..."}):

    {"op": "generate", "requests": [{"ids": [...], "max_tokens": 1, "at": 0.0, "salt": ""}]}   salt: vLLM's cache_salt
        -> {"wall_s": s, "lost_blocks": n,
            "requests": [{"times": [s, ...], "tokens": [...], "cached": n, "reason": "length"}]}
    {"op": "submit", "requests": [{"ids": [...], "max_tokens": 1}]} -> {"names": [...]}     begins them and returns
    {"op": "collect", "names": [...]} -> {"requests": [as above]}                           waits for their ends
    {"op": "abort", "names": [...]}   -> {}
    {"op": "reset_prefix_cache", "connector": false, "patience_s": 30} -> {"reset": true}
    {"op": "counters"}                -> {"counters": {"vllm:external_prefix_cache_hits": n, ...}}
    {"op": "collective_rpc", "method": "...", "args": [...], "kwargs": {...}} -> {}         on each of vLLM's workers
    {"op": "quit"}

The engine core is a process of its own: what was submitted runs on while other commands are carried out. Its counters
are as of the last output that `generate` or `collect` took. A reset is of the engine's own cache; with `connector` also
of what its connector finds; false when blocks were still in use after `patience_s`.

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

END_S = 3.0     # for vLLM's processes to end by themselves after SIGTERM, and to take their shared memory along
WARMUP_IDS = list(range(1000, 1160))    # more than one block of 128 tokens, so that block code paths have run


@dataclass
class Live:
    """A request under way."""

    at: float
    ids: list[int]
    max_tokens: int
    salt: str = ""
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
        if config.get("fork"):
            fork_processes()
        touch = {"worker_extension_cls": "bench.touch_memory.TouchMemory"} if config.get("touch_memory") else {}
        self.llm = LLM(**config["engine"], **touch)
        if touch:
            self.llm.collective_rpc("touch_kv_memory")
        self.engine = self.llm.llm_engine
        self.count = 0
        self.running: dict[str, Live] = {}
        self.submitted: dict[str, Live] = {}    # neither collected nor aborted
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
        waiting = [live_of(request) for request in requests]
        order = list(waiting)
        waiting.sort(key=lambda live: live.at)
        mine: set[str] = set()
        lost = self._lost_blocks()
        began = time.perf_counter()
        while waiting or not mine.isdisjoint(self.running):
            while waiting and waiting[0].at <= time.perf_counter() - began:
                mine.add(self._begin(waiting.pop(0)))
            if self.running:
                self._step()
            else:
                time.sleep(max(0.0, waiting[0].at - (time.perf_counter() - began)))
        wall_s = time.perf_counter() - began
        return {"wall_s": wall_s, "lost_blocks": self._lost_blocks() - lost,
                "requests": [live.reply() for live in order]}

    def submit(self, requests: list[dict]) -> dict:
        begun = {self._begin(live): live for live in map(live_of, requests)}
        self.submitted |= begun
        return {"names": list(begun)}

    def collect(self, names: list[str]) -> dict:
        while not self.running.keys().isdisjoint(names):
            self._step()
        return {"requests": [self.submitted.pop(name).reply() for name in names]}

    def abort(self, names: list[str]) -> dict:
        self.engine.abort_request(names)
        for name in names:
            self.submitted.pop(name)
            self.running.pop(name, None)        # what it said before it heard of this is dropped in _step()
        return {}

    def _lost_blocks(self) -> float:
        return self.counters()["counters"].get("vllm:kvdepot_blocks_failed", 0)

    def _begin(self, live: Live) -> str:
        self.count += 1
        name = f"bench-{self.count}"
        self.running[name] = live
        live.began = time.perf_counter()
        salt = {"cache_salt": live.salt} if live.salt else {}
        self.engine.add_request(name, {"prompt_token_ids": live.ids} | salt, self.sampling(live.max_tokens))
        return name

    def _step(self) -> None:
        outputs = self.engine.step()
        now = time.perf_counter()
        for output in outputs:
            live = self.running.get(output.request_id)
            if live is None:
                continue
            tokens = list(output.outputs[0].token_ids)
            live.times += [now - live.began] * (len(tokens) - len(live.tokens))
            live.tokens = tokens
            live.cached = output.num_cached_tokens or 0
            if output.finished:
                live.reason = output.outputs[0].finish_reason
                del self.running[output.request_id]

    def reset_prefix_cache(self, connector: bool = False, patience_s: float = 30.0) -> dict:
        """Right after a request its blocks may be held for a moment (a store under way): asks again for a while."""
        deadline = time.monotonic() + patience_s
        while not self.llm.reset_prefix_cache(reset_connector=connector):
            if time.monotonic() > deadline:
                return {"reset": False}
            time.sleep(0.05)
        return {"reset": True}

    def counters(self) -> dict:
        totals: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            value = getattr(metric, "value", None)
            if isinstance(value, (int, float)):
                totals[metric.name] = totals.get(metric.name, 0) + value
                if reason := (getattr(metric, "labels", None) or {}).get("reason"):
                    totals[f'{metric.name}{{reason="{reason}"}}'] = value
        return {"counters": totals}

    def collective_rpc(self, method: str, args: list | None = None, kwargs: dict | None = None) -> dict:
        self.llm.collective_rpc(method, args=tuple(args or ()), kwargs=kwargs or {})
        return {}


def fork_processes() -> None:
    """vLLM's engine core and workers fork from this process, as they do on a GPU, and do not import everything again.
    Its CPU platform asks for new processes, so that a worker's OpenMP takes its cores from the environment."""
    from vllm.platforms import current_platform

    update = current_platform.check_and_update_config

    def update_and_fork(config) -> None:
        update(config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    type(current_platform).check_and_update_config = staticmethod(update_and_fork)


def live_of(request: dict) -> Live:
    return Live(request.get("at", 0.0), request["ids"], request.get("max_tokens", 1), request.get("salt", ""))


def serve(worker: Worker, commands, replies) -> None:
    """Answers until `quit` or the end of input."""
    for line in commands:
        command = json.loads(line)
        op = command.pop("op")
        if op == "quit":
            break
        try:
            handler = {"generate": worker.generate, "submit": worker.submit, "collect": worker.collect,
                       "abort": worker.abort, "reset_prefix_cache": worker.reset_prefix_cache,
                       "counters": worker.counters, "collective_rpc": worker.collective_rpc}[op]
            reply = {"ok": True} | handler(**command)
        except Exception as error:     # the parent decides what a failed command means
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


def end_group(*_) -> None:
    """SIGTERM, also sent when the parent has died: ends all of this engine's processes, which vLLM leaves behind when
    it has several workers. This process leads their group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    time.sleep(END_S)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    config = json.loads(sys.argv[1])
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, end_group)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)    # Ctrl-C is the parent's; it ends this process in order
    worker = Worker(config)
    print(json.dumps({"ok": True, "facts": worker.facts()}), file=replies, flush=True)
    serve(worker, sys.stdin, replies)


if __name__ == "__main__":
    main()
