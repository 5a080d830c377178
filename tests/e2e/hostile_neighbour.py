"""A well-behaved client in a process of its own: looks up and gets 1 MiB at a steady pace, verifies every byte.

    python -m tests.e2e.hostile_neighbour tcp://127.0.0.1:7070 [TOKEN-FILE]

Reads commands from its input, a line each, and answers each with one of JSON: `begin`, then `end`, for what happened
between the two. Ends with its input.
"""

import hashlib
import json
import queue
import sys
import threading
import time

import kvdepot

RECORDS = 16
LAYERS, SLAB_BYTES, KEY_BYTES = 16, 64 << 10, 32
GROUP = {"group": 0, "layers": LAYERS, "slab_bytes": SLAB_BYTES, "parts": 2, "block_tokens": 16, "order": "test"}
FINGERPRINT = b"hostile test"
PACE_S = 0.01
OPERATION_MS = 20_000


def key_of(number):
    return hashlib.sha256(f"record {number}".encode()).digest()


def content_of(number):
    return b"".join(hashlib.sha256(f"{number}/{layer}".encode()).digest() * (SLAB_BYTES // 32)
                    for layer in range(LAYERS))


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(len(values) * q))] if values else 0.0


class Neighbour:
    def __init__(self, address, token_file=""):
        self.buffer = bytearray(LAYERS * SLAB_BYTES)
        self.contents = [content_of(number) for number in range(RECORDS)]
        self.client = kvdepot.Client(address, require_connection=True, connect_timeout_ms=10_000, shared_memory=False,
                                     token_file=token_file)
        self.region = self.client.register(self.buffer)
        self.ns = self.client.open_namespace("default", FINGERPRINT, [GROUP])
        self.layers = [layer * SLAB_BYTES for layer in range(LAYERS)]
        self.begin()
        for number in range(RECORDS):
            self.buffer[:] = self.contents[number]
            done = self._finish(self.client.multiput(self.ns, key_of(number), KEY_BYTES, self.region, self.layers, [0],
                                                     ack="written", total_ms=OPERATION_MS))
            assert done is not None and done.ok, done

    def begin(self):
        self.figures = {"errors": 0, "wrong": 0, "misses": 0, "lookups_s": [], "gets_s": []}

    def _finish(self, operation):
        done = self.client.wait(operation, -1, OPERATION_MS)
        self.client.release(operation)
        if done is None or done.code != "ok":
            self.figures["errors"] += 1
            self.figures["why"] = "no answer" if done is None else f"{done.code}: {done.why}"
            return None
        return done

    def step(self, number):
        keys = b"".join(key_of(n) for n in range(RECORDS))
        began = time.perf_counter()
        self._finish(self.client.match(self.ns, keys, KEY_BYTES, total_ms=OPERATION_MS, progress_ms=OPERATION_MS))
        self.figures["lookups_s"].append(time.perf_counter() - began)
        self.buffer[:] = bytes(len(self.buffer))
        began = time.perf_counter()
        done = self._finish(self.client.multiget(self.ns, key_of(number), KEY_BYTES, self.region, self.layers, [0],
                                                 total_ms=OPERATION_MS, progress_ms=OPERATION_MS))
        self.figures["gets_s"].append(time.perf_counter() - began)
        if done is not None and any(done.failed):
            self.figures["misses"] += 1
        elif done is not None and self.buffer != self.contents[number]:
            self.figures["wrong"] += 1

    def report(self):
        report = dict(self.figures)
        for name in ("lookups_s", "gets_s"):
            values = report.pop(name)
            what = name.removesuffix("_s")
            report[what] = len(values)
            report[f"{what}_p50_ms"] = quantile(values, 0.5) * 1e3
            report[f"{what}_p99_ms"] = quantile(values, 0.99) * 1e3
        return report


def main():
    neighbour = Neighbour(*sys.argv[1:])
    commands = queue.SimpleQueue()

    def listen():
        for line in sys.stdin:
            commands.put(line.strip())
        commands.put("")

    threading.Thread(target=listen, daemon=True).start()
    print(json.dumps({"ready": True}), flush=True)
    number, due = 0, time.perf_counter()
    while True:
        while not commands.empty():
            command = commands.get()
            if not command:
                return
            print(json.dumps(neighbour.report()), flush=True)
            if command == "begin":
                neighbour.begin()
        neighbour.step(number % RECORDS)
        number += 1
        due = max(due + PACE_S, time.perf_counter() - PACE_S)
        time.sleep(max(0.0, due - time.perf_counter()))


if __name__ == "__main__":
    main()
