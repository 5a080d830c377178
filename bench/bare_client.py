"""What moving blocks to and from the depot takes when nothing is computed: the client without an engine.

Runs in the harness' own process with the engine's geometry, one operation for all blocks, as the connector does it.
Content is checked on the way back. Needs the Python bindings.
"""

from __future__ import annotations

import time

from bench.depot import Depot
from bench.harness import BenchError

KEY_BYTES = 16
DEADLINE_MS = 300_000
PATTERN = bytes(range(1, 252))  # 251 bytes, a prime: neighbouring slabs differ


class BareClient:
    """One connection and memory for `blocks` blocks. Use it as a context manager; one thread."""

    def __init__(self, depot: Depot, layers: int, slab_bytes: int, block_tokens: int, blocks: int) -> None:
        try:
            import kvdepot
        except ImportError:
            raise BenchError("the Python bindings are not built; run make build") from None
        self._record = layers * slab_bytes
        self._memory = bytearray(blocks * self._record)
        self._layers = [layer * slab_bytes for layer in range(layers)]
        self._client = kvdepot.Client(depot.address, require_connection=True, connect_timeout_ms=10_000)
        self._region = self._client.register(self._memory)
        self._namespace = self._client.open_namespace("bench", b"bare client", [
            {"group": 0, "layers": layers, "slab_bytes": slab_bytes, "parts": 2, "block_tokens": block_tokens,
             "order": "bench", "rule": "all", "hit_blocks": 0}])

    def __enter__(self) -> BareClient:
        return self

    def __exit__(self, *_) -> None:
        self._client.close()

    def put(self, blocks: int, first_key: int) -> float:
        """Seconds until the depot has acknowledged that many new blocks (pooled)."""
        size = blocks * self._record
        self._memory[:size] = (PATTERN * (size // len(PATTERN) + 1))[:size]
        began = time.perf_counter()
        op = self._client.multiput(self._namespace, keys(first_key, blocks), KEY_BYTES, self._region, self._layers,
                                   self._places(blocks), ack="pooled", total_ms=DEADLINE_MS)
        self._finish(op, "put")
        return time.perf_counter() - began

    def get(self, blocks: int, first_key: int) -> float:
        """Seconds until all of them are verified in memory."""
        size = blocks * self._record
        self._memory[:size] = bytes(size)
        began = time.perf_counter()
        op = self._client.multiget(self._namespace, keys(first_key, blocks), KEY_BYTES, self._region, self._layers,
                                   self._places(blocks), total_ms=DEADLINE_MS, progress_ms=DEADLINE_MS)
        self._finish(op, "get")
        seconds = time.perf_counter() - began
        if self._memory[:size] != (PATTERN * (size // len(PATTERN) + 1))[:size]:
            raise BenchError("the bare client got other bytes than it had put")
        return seconds

    def _places(self, blocks: int) -> list[int]:
        return [block * self._record for block in range(blocks)]

    def _finish(self, op: int, what: str) -> None:
        done = self._client.wait(op, -1, DEADLINE_MS)
        self._client.release(op)
        if done is None or not done.ok or done.failed_keys:
            raise BenchError(f"the bare client's {what} failed: {done!r}")


def keys(first: int, count: int) -> bytes:
    return b"".join(number.to_bytes(KEY_BYTES, "big") for number in range(first, first + count))
