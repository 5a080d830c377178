"""Mooncake Store's client as an arm of the net suite, in the peer's own environment: net_mooncake.py MASTER_PORT

Takes the lines of bench/net_driver/arm.h, depth 1 (its calls block). Gets go with batch_get_into straight to registered
memory. Content is compared behind the timed part, as its client has no checksums on the way.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import sys
import time

LOCAL_BUFFER_BYTES = 128 << 20


class Client:
    def __init__(self, master_port: str) -> None:
        from mooncake.store import MooncakeDistributedStore

        self.store = MooncakeDistributedStore()
        if self.store.setup("127.0.0.1", "P2PHANDSHAKE", 0, LOCAL_BUFFER_BYTES, "tcp", "",
                            f"127.0.0.1:{master_port}") != 0:
            raise RuntimeError("Mooncake's client does not start")
        self.generation = f"{os.getpid()}-0"
        self.source = self.target = None

    def records(self, size: int, count: int) -> dict:
        for memory in (self.source, self.target):
            if memory is not None:
                self.store.unregister_buffer(ctypes.addressof(memory))
        self.size, self.count = size, count
        self.generation = f"{os.getpid()}-{time.monotonic_ns()}"
        self.source = ctypes.create_string_buffer(os.urandom(size * count), size * count)
        self.target = ctypes.create_string_buffer(size * count)
        for memory in (self.source, self.target):
            if self.store.register_buffer(ctypes.addressof(memory), size * count) != 0:
                raise RuntimeError("Mooncake does not register memory")
        return {"records": count}

    def places(self, memory, first: int, count: int) -> tuple[list[str], list[int], list[int]]:
        base = ctypes.addressof(memory)
        which = range(first, first + count)
        return ([f"{self.generation}-{i}" for i in which], [base + i * self.size for i in which],
                [self.size] * count)

    def put(self, batch: int, _seconds: float) -> dict:
        return self.go(batch, 0, self.source, lambda places: all(
            code == 0 for code in self.store.batch_put_from(*places)))

    def get(self, batch: int, seconds: float) -> dict:
        ctypes.memset(self.target, 0, self.size * self.count)
        figures = self.go(batch, seconds, self.target, lambda places: all(
            got == self.size for got in self.store.batch_get_into(*places)))
        if memoryview(self.source).cast("B") != memoryview(self.target).cast("B"):
            raise RuntimeError("a value is not what was put")
        return figures

    def go(self, batch: int, seconds: float, memory, request) -> dict:
        """Round and round through the records until the time is over and each was in one. Names and addresses are made
        before the time begins."""
        requests = [self.places(memory, first, min(batch, self.count - first))
                    for first in range(0, self.count, batch)]
        took: list[float] = []
        cpu, begun = processor_s(), time.perf_counter()
        while len(took) < len(requests) or time.perf_counter() - begun < seconds:
            places = requests[len(took) % len(requests)]
            at = time.perf_counter()
            if not request(places):
                raise RuntimeError("a value is missing")
            took.append(time.perf_counter() - at)
        elapsed = time.perf_counter() - begun
        passes, rest = divmod(len(took), len(requests))
        records = passes * self.count + min(rest * batch, self.count)
        took.sort()
        return {"bytes": records * self.size, "seconds": elapsed, "cpu_seconds": processor_s() - cpu,
                "requests": len(took), "p50_us": statistics.median(took) * 1e6,
                "p99_us": took[int(0.99 * (len(took) - 1))] * 1e6}


def processor_s() -> float:
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


def main() -> int:
    out = os.fdopen(os.dup(1), "w", buffering=1)    # the store's own words must not come between the answers
    os.dup2(2, 1)
    try:
        client = Client(sys.argv[1])
        for line in sys.stdin:
            verb, *words = line.split()
            if verb == "records":
                reply = client.records(int(words[0]), int(words[1]))
            elif verb in ("put", "get"):
                reply = getattr(client, verb)(int(words[0]), float(words[2]))
            else:
                raise RuntimeError(f"unknown command {verb}")
            print(json.dumps(reply), file=out)
    except RuntimeError as error:
        print(json.dumps({"error": str(error)}), file=out)
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)    # its threads do not end by themselves
