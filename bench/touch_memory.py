"""An extension of vLLM's workers: touches all of the KV memory, so that no arm pays for its pages while it is measured.

The kernel gives memory out when it is first written. An engine that has run for a minute has paid for that; one of the
benchmarks' fresh engines would pay within its first requests, and one arm less than another. Must be called before
anything is cached.
"""

from __future__ import annotations

from typing import Any


class TouchMemory:
    model_runner: Any

    def touch_kv_memory(self) -> None:
        for cache in self.model_runner.kv_caches:
            cache.zero_()
