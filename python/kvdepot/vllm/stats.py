"""The connector's counts in vLLM's own statistics: its log line and its Prometheus metrics."""

from __future__ import annotations

from typing import Any

from kvdepot.vllm import counters
from kvdepot.vllm._compat import KVConnectorPromMetrics, KVConnectorStats, create_metric_per_engine

BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

_HELP = {
    "lookups": "Lookups sent to the depot.",
    "blocks_asked": "Blocks that lookups asked for.",
    "blocks_found": "Blocks that the depot held and that were chosen to be loaded.",
    "blocks_found_on_flash": "Of these, blocks that were on flash.",
    "requests_left_alone": "Requests with a hit that computing was predicted to beat.",
    "loads_layerwise": "Loads layer by layer inside a pass.",
    "loads_async": "Loads before a pass.",
    "blocks_loaded": "Blocks loaded into the engine's memory.",
    "bytes_loaded": "Bytes loaded into the engine's memory.",
    "blocks_failed": "Blocks that were promised by a lookup and not loaded; they were computed.",
    "stores": "Stores that ended, well or not.",
    "blocks_stored": "Blocks that the depot acknowledged.",
    "bytes_stored": "Bytes that the depot acknowledged.",
    "stores_cancelled": "Stores that were cancelled because their blocks were needed or worthless.",
}


class KvDepotStats(KVConnectorStats):
    """What happened since the last collection, see kvdepot.vllm.counters."""

    def reset(self) -> None:
        self.data = counters.empty()

    def aggregate(self, other: KVConnectorStats) -> KvDepotStats:
        counters.join(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        return counters.reduce(self.data)

    def is_empty(self) -> bool:
        return not self.data


class KvDepotPromMetrics(KVConnectorPromMetrics):
    """vllm:kvdepot_* in the engine's /metrics."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._per_engine(self._counter_cls(name=f"vllm:kvdepot_{name}", documentation=_HELP[name],
                                                     labelnames=labelnames))
            for name in counters.NUMBERS}
        self._load_seconds = self._per_engine(self._histogram_cls(
            name="vllm:kvdepot_load_seconds", documentation="Time of a load from its submission to its last byte.",
            buckets=list(BUCKETS_S), labelnames=labelnames))
        self._failures = {
            name: self._counter_cls(name=f"vllm:kvdepot_{name}", documentation=f"Failed operations, by reason: {name}.",
                                    labelnames=[*labelnames, "reason"])
            for name in counters.BY_CODE}

    def _per_engine(self, metric: Any) -> dict[int, Any]:
        return create_metric_per_engine(metric, self.per_engine_labelvalues)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, metric in self._counters.items():
            if value := transfer_stats_data.get(name):
                metric[engine_idx].inc(value)
        for seconds in transfer_stats_data.get("load_seconds", ()):
            self._load_seconds[engine_idx].observe(seconds)
        for name, metric in self._failures.items():
            for code, count in transfer_stats_data.get(name, {}).items():
                metric.labels(*self.per_engine_labelvalues[engine_idx], code).inc(count)
