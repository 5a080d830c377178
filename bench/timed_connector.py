"""KvDepotConnector with a stop-watch around each hook: how long the connector itself takes in a step.

Loaded by vLLM in place of the connector (`kv_connector_module_path: bench.timed_connector`); writes, every 32
steps, a JSON list of seconds per step for each role to <path>.scheduler and <path>.worker; the path is
`hook_times` in vLLM's additional_config. What vLLM spends around the hooks once any connector is configured (finding
the connector in each layer, carrying its plan and report between the processes) is not in it; the whole is in the row
overhead_decode.
"""

from __future__ import annotations

import functools
import json
import time

from kvdepot.vllm import KvDepotConnector

SCHEDULER_HOOKS = ("on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
                   "update_connector_output", "request_finished", "take_events", "get_kv_connector_stats",
                   "has_pending_push_work", "has_pending_block_frees")
WORKER_HOOKS = ("handle_preemptions", "bind_connector_metadata", "start_load_kv", "wait_for_layer_load",
                "save_kv_layer", "wait_for_save", "get_transfer_results", "get_finished",
                "get_block_ids_with_load_errors", "get_kv_connector_stats", "get_kv_connector_kv_cache_events",
                "build_connector_worker_meta", "clear_connector_metadata")
# The hook that ends a step: its return closes the sum.
LAST = {"scheduler": "build_connector_meta", "worker": "clear_connector_metadata"}


class TimedConnector(KvDepotConnector):
    """One instance a role; its hooks are called by one thread."""

    def __init__(self, vllm_config, role, kv_cache_config) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._bench_role = role.name.lower()
        self._bench_log = f"{vllm_config.additional_config['hook_times']}.{self._bench_role}"
        self._bench_steps: list[float] = []
        self._bench_sum = 0.0
        self._bench_depth = 0
        for name in SCHEDULER_HOOKS if self._bench_role == "scheduler" else WORKER_HOOKS:
            setattr(self, name, self._timed(name, getattr(self, name)))

    def _timed(self, name: str, hook):
        @functools.wraps(hook)
        def run(*args, **kwargs):
            if self._bench_depth:
                return hook(*args, **kwargs)
            self._bench_depth = 1
            began = time.perf_counter()
            try:
                return hook(*args, **kwargs)
            finally:
                self._bench_sum += time.perf_counter() - began
                self._bench_depth = 0
                if name == LAST[self._bench_role]:
                    self._bench_steps.append(self._bench_sum)
                    self._bench_sum = 0.0
                    if len(self._bench_steps) % 32 == 0:
                        self._bench_write()
        return run

    def _bench_write(self) -> None:
        with open(self._bench_log, "w", encoding="utf-8") as log:
            json.dump(self._bench_steps, log)
