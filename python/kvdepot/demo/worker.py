"""One vLLM engine in a process of its own that does what it is told, one JSON object a line.

    python -m kvdepot.demo.worker '{"engine": {"model": "...", "dtype": "float32", ...}}'

`engine` holds vLLM's own arguments. Replies go to standard output, in order; whatever else is written there goes to
standard error. The first line is {"ok": true, "facts": {...}} once the engine is up. Commands:

    {"op": "ask", "ids": [...], "max_tokens": 12}
        -> {"first_s": s, "total_s": s, "at": t, "tokens": [...], "text": "...", "cached": n}
    {"op": "reset"}      -> {}     the engine's own prefix cache only, never the depot
    {"op": "counters"}   -> {"counters": {"vllm:external_prefix_cache_hits": n, ...}}
    {"op": "quit"}

first_s and total_s count from the request's submission, on this process' monotonic clock, which reads `at` then.
When standard input ends, because the demo is gone, the whole process group ends at once, also in mid-request.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time

WARM_UP_IDS = list(range(1000, 1160))   # more than one block, so that all code has run once before anything is timed
RESET_DEADLINE_S = 30.0


class Worker:
    """The engine and the loop that steps it. One thread."""

    def __init__(self, engine: dict) -> None:
        from vllm import LLM

        began = time.monotonic()
        self.llm = LLM(**engine)
        self.engine = self.llm.llm_engine
        self.count = 0
        self.ask(WARM_UP_IDS, 2)
        self.start_s = time.monotonic() - began

    def facts(self) -> dict:
        import vllm

        config = self.engine.vllm_config
        return {"vllm": vllm.__version__, "dtype": str(config.model_config.dtype).removeprefix("torch."),
                "block_tokens": config.cache_config.block_size,
                "batch_tokens": config.scheduler_config.max_num_batched_tokens,
                "layers": config.model_config.hf_config.num_hidden_layers, "start_s": self.start_s}

    def ask(self, ids: list[int], max_tokens: int) -> dict:
        from vllm import SamplingParams

        self.count += 1
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        began = time.monotonic()
        self.engine.add_request(f"demo-{self.count}", {"prompt_token_ids": ids}, sampling)
        first = None
        while True:
            outputs = self.engine.step()
            now = time.monotonic() - began
            for output in outputs:
                if first is None and output.outputs[0].token_ids:
                    first = now
                if output.finished:
                    if output.outputs[0].finish_reason != "length":
                        raise RuntimeError(f"the request ended with {output.outputs[0].finish_reason!r}")
                    return {"first_s": first, "total_s": now, "at": began, "cached": output.num_cached_tokens or 0,
                            "tokens": list(output.outputs[0].token_ids), "text": output.outputs[0].text}

    def reset(self) -> dict:
        """Right after a request its blocks may be held for a moment (a store under way): asks again for a while."""
        deadline = time.monotonic() + RESET_DEADLINE_S
        while not self.llm.reset_prefix_cache():
            if time.monotonic() > deadline:
                raise RuntimeError(f"blocks of the prefix cache are still in use after {RESET_DEADLINE_S:.0f} s")
            time.sleep(0.05)
        return {}

    def counters(self) -> dict:
        totals: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            value = getattr(metric, "value", None)
            if isinstance(value, (int, float)):
                totals[metric.name] = totals.get(metric.name, 0) + value
        return {"counters": totals}


def read_commands(commands: queue.SimpleQueue) -> None:
    """Runs in a thread of its own, to see the end of input also while the engine computes."""
    for line in sys.stdin:
        commands.put(json.loads(line))
        if '"quit"' in line:
            return
    os.killpg(os.getpgrp(), signal.SIGKILL)


def serve(worker: Worker, commands: queue.SimpleQueue, replies) -> None:
    handlers = {"ask": worker.ask, "reset": worker.reset, "counters": worker.counters}
    while (op := (command := commands.get()).pop("op")) != "quit":
        try:
            reply = {"ok": True} | handlers[op](**command)
        except Exception as error:      # the demo decides what a failed command means
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


def main() -> None:
    config = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    commands: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(commands,), daemon=True).start()
    worker = Worker(config["engine"])
    print(json.dumps({"ok": True, "facts": worker.facts()}), file=replies, flush=True)
    serve(worker, commands, replies)


if __name__ == "__main__":
    main()
