"""Stands in for worker.py in tests of the demo: the same lines of JSON, no engine. It sleeps instead of computing.

Keys of blocks are hashes of their prefix; answers are made from the prompt, as a deterministic engine's would be. It
starts a child of its own in a session of its own, which the demo has to find. Faults: `wrong` gives other tokens when
the KV came from the depot, `misses` never asks the depot, `dies` ends in the first question, `hangs` sleeps in it,
`serial` loads first and computes then, `gives-up` computes what it promised to load, `late` does so twice
after each loss of its connection, `fails` answers with an error.
"""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

BLOCK = 128
LAYERS = 4
COMPUTE_S = 2e-3        # a block
LOAD_UNSHAPED_S = 1e-5


class Worker:
    def __init__(self, engine: dict, fault: str) -> None:
        extra = engine["kv_transfer_config"]["kv_connector_extra_config"]
        host, port = extra["depot"].removeprefix("tcp://").rsplit(":", 1)
        self.address, self.timeline, self.fault = (host, int(port)), extra.get("timeline_log", "/dev/null"), fault
        self.own: set[str] = set()
        self.failed = 0
        self.late = 0
        self.block_s = LOAD_UNSHAPED_S
        self.depot = None
        if fault != "misses":
            self.connect()
        subprocess.Popen(["sleep", "600"], start_new_session=True)

    def connect(self) -> None:
        self.depot = socket.create_connection(self.address, timeout=5).makefile("rw")

    def tell(self, **command: Sequence[str]) -> int:
        """A broken connection is made again, as a client would."""
        for _ in range(2):
            try:
                self.depot.write(json.dumps(command) + "\n")
                self.depot.flush()
                if line := self.depot.readline():
                    reply = json.loads(line)
                    self.block_s = reply["block_s"] or LOAD_UNSHAPED_S
                    return reply["prefix"]
            except OSError:
                pass
            self.connect()
            self.late = 2 if self.fault == "late" else 0
        raise RuntimeError("the depot is gone")

    def ask(self, ids: Sequence[int], max_tokens: int) -> dict:
        began = time.monotonic()
        if self.fault == "dies":
            sys.exit("RuntimeError: out of luck")
        if self.fault == "hangs":
            time.sleep(600)
        if self.fault == "fails":
            raise ValueError("no such token")
        keys, chain = [], b""
        for end in range(BLOCK, len(ids) + 1, BLOCK):
            chain = hashlib.sha256(chain + json.dumps(list(ids[end - BLOCK:end])).encode()).digest()
            keys.append(chain.hex())
        local = next((i for i, key in enumerate(keys) if key not in self.own), len(keys))
        loaded = self.tell(match=keys) - local if self.depot else 0
        loaded = max(0, loaded)
        if loaded:
            self.tell(get=keys[local:local + loaded])
        done = 0 if self.fault == "gives-up" or self.late else loaded
        self.late -= bool(self.late and loaded)
        self.failed += loaded - done
        self._pass(done, len(keys) - local - done)
        self.own |= set(keys)
        first_s = time.monotonic() - began
        if self.depot:
            self.tell(put=keys)
        salt = "x" if self.fault == "wrong" and loaded else ""
        word = hashlib.sha256((salt + json.dumps(list(ids))).encode()).digest()
        return {"first_s": first_s, "total_s": time.monotonic() - began, "at": began,
                "tokens": list(word[:max_tokens]), "text": f" word {word[0]}. And more.",
                "cached": (local + loaded) * BLOCK}

    def _pass(self, loaded: int, computed: int) -> None:
        """All layers, each loaded while the one before is computed (or all loads first)."""
        load_s = loaded * self.block_s / LAYERS
        compute_s = (computed * COMPUTE_S + 1e-3) / LAYERS
        now = time.monotonic()
        events, landed, free = [], now, now
        for layer in range(LAYERS):
            if loaded:
                events.append((layer, "load", landed, landed + load_s))
                landed += load_s
        for layer in range(LAYERS):
            ready = now + (layer + 1) * load_s if self.fault != "serial" else landed
            start = max(free, ready if loaded else now)
            free = start + compute_s
            events.append((layer, "compute", start, free))
            if computed:
                events.append((layer, "store", free, free + 1e-4))
        time.sleep(max(0.0, free - time.monotonic()))
        with open(self.timeline, "a", encoding="utf-8") as log:
            for layer, kind, start, end in events:
                log.write(json.dumps({"req": "r", "layer": layer, "kind": kind, "start": start, "end": end}) + "\n")

    def reset(self) -> dict:
        self.own.clear()
        return {}

    def counters(self) -> dict:
        return {"counters": {"vllm:kvdepot_blocks_failed": self.failed}}


def main() -> None:
    fault, engine = sys.argv[1], json.loads(sys.argv[2])["engine"]
    worker = Worker(engine, fault)
    facts = {"vllm": "0.0", "dtype": engine["dtype"], "layers": LAYERS, "block_tokens": BLOCK, "batch_tokens": 8192}
    print(json.dumps({"ok": True, "facts": facts}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        op = command.pop("op")
        if op == "quit":
            break
        try:
            reply = {"ok": True} | getattr(worker, op)(**command)
        except (ValueError, RuntimeError) as error:
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
