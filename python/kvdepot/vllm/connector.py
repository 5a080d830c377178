"""KvDepotConnector: vLLM's side of kvdepot. Thin: it wires vLLM's hooks to the two halves, scheduler.py and worker.py.

vLLM makes one object in its engine core (role SCHEDULER) and one beside each model worker (role WORKER). A worker opens
its client when the KV memory is registered, tells the engine core who it is by vLLM's handshake, and from then on every
step carries a StepPlan down and a WorkerReport up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

import kvdepot._kvdepot as native
from kvdepot.vllm import _compat, machine
from kvdepot.vllm.client_group import ClientGroup
from kvdepot.vllm.config import ConfigError, parse_settings
from kvdepot.vllm.digests import DigestLog
from kvdepot.vllm.fingerprint import FingerprintError, fingerprint, weights_digest, written_since
from kvdepot.vllm.layout import LayoutError, describe
from kvdepot.vllm.messages import StepPlan, WorkerIdentity, WorkerReport
from kvdepot.vllm.notices import log
from kvdepot.vllm.prefault import Prefault
from kvdepot.vllm.scheduler import SchedulerHalf
from kvdepot.vllm.stats import KvDepotPromMetrics, KvDepotStats
from kvdepot.vllm.timeline import Timeline
from kvdepot.vllm.worker import WorkerHalf


@dataclass
class KvDepotMetadata(_compat.KVConnectorMetadata):
    plan: StepPlan


@dataclass
class KvDepotHandshake(_compat.KVConnectorHandshakeMetadata):
    identity: WorkerIdentity


@dataclass
class KvDepotWorkerMetadata(_compat.KVConnectorWorkerMetadata):
    report: WorkerReport = field(default_factory=WorkerReport)

    def aggregate(self, other: KvDepotWorkerMetadata) -> KvDepotWorkerMetadata:
        return KvDepotWorkerMetadata(self.report.aggregate(other.report))


class KvDepotConnector(_compat.KVConnectorBase_V1):
    """The class that `"kv_connector": "KvDepotConnector"` names. docs/vllm.md is its manual."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _compat.check_version()
        self._settings = parse_settings(self._kv_transfer_config.kv_connector_extra_config)
        _compat.check_supported(vllm_config, kv_cache_config, self._settings)
        self._client: Any = None
        self._pool: Any = None
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        self._prefault: Prefault | None = None
        self._identity: WorkerIdentity | None = None
        if not self._settings.verify:
            log.warning('kvdepot: "verify" is false: what is loaded is not verified, damaged KV would be used. For '
                        "tests only")
        if role == _compat.KVConnectorRole.SCHEDULER:
            self._client = self._open_client("vllm-scheduler", attach_only=self._settings.embedded)
            self._scheduler = SchedulerHalf(
                self._settings, self._client, self._choice_of,
                pass_tokens_max=vllm_config.scheduler_config.max_num_batched_tokens,
                may_load=self._kv_transfer_config.is_kv_consumer, may_store=self._kv_transfer_config.is_kv_producer,
                local_blocks=self._local_blocks)

    def _open_client(self, name: str, *, attach_only: bool = False) -> Any:
        """A client of the depot. Seam for tests."""
        settings = self._settings
        try:
            return native.Client(settings.depot, attach_only=attach_only, breaker_probe_ms=settings.breaker_probe_ms,
                                 verify=settings.verify, name=name, shared_memory=settings.shared_memory,
                                 token_file=settings.token_file, tls_ca=settings.tls_ca, tls_cert=settings.tls_cert,
                                 tls_key=settings.tls_key, tls_server_name=settings.tls_server_name)
        except native.KvdepotError as error:
            raise ConfigError(f"kvdepot cannot open {settings.depot}: {error}") from error

    def _open_clients(self, count: int, block_bytes: int) -> Any:
        """A worker's: one, or a group of several that is used like one."""
        if count == 1:
            return self._open_client("vllm-worker")
        opened: list[Any] = []
        try:
            for i in range(count):      # the first one owns an embedded depot
                opened.append(self._open_client("vllm-worker", attach_only=self._settings.embedded and i > 0))
        except BaseException:
            for client in reversed(opened):
                client.close()
            raise
        return ClientGroup(opened, block_bytes)

    @staticmethod
    def _choice_of(identity: WorkerIdentity) -> Any:
        return native.LoadChoice(*identity.pass_prior, identity.spare_core)

    # ---- properties of the class ----------------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        return False                              # a store that is lost is a later miss

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return True                               # the hooks of each layer do real work

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvDepotStats:
        return KvDepotStats(data=data) if data is not None else KvDepotStats()

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> KvDepotPromMetrics:
        return KvDepotPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # ---- worker ---------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        try:
            self._start_worker(kv_caches)
        except BaseException:
            self.shutdown()     # this process may start another engine, which wants the depot's directory
            raise

    def _start_worker(self, kv_caches: dict[str, torch.Tensor]) -> None:
        clients = self._settings.clients or machine.clients_for(
            len(machine.all_cores()), *_compat.cores_taken(self._vllm_config))
        try:
            memory = describe(kv_caches, self._kv_cache_config.num_blocks)
            identity = self._identify(len(memory.layer_names), memory.slab_bytes, clients)
        except (LayoutError, FingerprintError) as error:
            raise ConfigError(f"kvdepot: {error}") from error
        with machine.on_all_cores():
            self._client = self._open_clients(clients, identity.block_bytes)
            self._prefault = Prefault(memory.spans if self._settings.prefault else ())
        settings = self._settings
        try:
            self._worker = WorkerHalf(
                settings, self._client, memory, identity,
                digests=DigestLog(settings.digest_log, memory, identity.shard) if settings.digest_log else None,
                timeline=Timeline(settings.timeline_log, self._client, identity.layers, identity.slab_bytes)
                if settings.timeline_log else None)
        except native.KvdepotError as error:
            raise ConfigError(f"kvdepot: the depot at {settings.depot} refuses this model: {error}") from error
        except OSError as error:
            raise ConfigError(f"kvdepot: {error.filename}: {error.strerror} (digest_log, timeline_log)") from error
        self._identity = identity
        _compat.on_weights_changed(self._worker.weights_changed)

    def _identify(self, layers: int, slab_bytes: int, clients: int) -> WorkerIdentity:
        config = self._vllm_config
        began = time.monotonic()
        weights = self._settings.weights_id.encode()
        if not weights and (path := _compat.weights_path(config)) is not None:
            load_format = str(config.load_config.load_format)
            weights = weights_digest(path, load_format)
            if written_since(path, machine.process_began(), load_format):
                log.warning("kvdepot: the weights in %s were written after this engine was started: it may have loaded "
                            "others. It shares its blocks with no other engine; restart it to share them", path)
                weights += machine.engine_mark()
        sampled_s = time.monotonic() - began
        facts = _compat.model_facts(config, self._kv_cache_config)
        mark = fingerprint(facts, weights)
        log.info("kvdepot: depot %s, tenant %s, fingerprint %s (weights sampled in %.2f s), %d layers of %d bytes, "
                 "blocks of %d tokens, clients: %d", self._settings.depot, self._settings.tenant, mark.hex()[:16],
                 sampled_s, layers, slab_bytes, config.cache_config.block_size, clients)
        log.debug("kvdepot: the fingerprint covers %s", facts)      # compare these where two engines do not share
        dtype = config.model_config.dtype
        left, right = torch.ones(128, 512, dtype=dtype), torch.ones(512, 512, dtype=dtype)

        def product() -> float:
            torch.mm(left, right)
            return 128.0 * 512 * 512

        return WorkerIdentity(
            shard=_compat.shard_number(), layers=layers, slab_bytes=slab_bytes,
            fingerprint=mark, block_tokens=config.cache_config.block_size,
            order=self._kv_cache_config.kv_cache_layout or "opaque",
            pass_prior=machine.pass_prior(*_compat.pass_sizes(config), product),
            spare_core=len(machine.all_cores()) - torch.get_num_threads() >= clients)

    def get_handshake_metadata(self) -> KvDepotHandshake | None:
        return KvDepotHandshake(self._identity) if self._identity is not None else None

    def handle_preemptions(self, kv_connector_metadata: KvDepotMetadata) -> None:
        if self._worker is not None:
            self._worker.begin_step(kv_connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            plan = self._get_connector_metadata().plan
            self._worker.begin_step(plan)
            self._worker.start_layerwise()

    def wait_for_layer_load(self, layer_name: str) -> None:
        worker = self._worker
        if worker is not None and (worker.waiting or worker.storing):
            worker.wait_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        worker = self._worker
        if worker is not None and (worker.waiting or worker.storing):
            worker.save_layer(layer_name)

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.end_pass()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._worker is None:
            return None, None
        sent, received = self._worker.finished()
        return sent or None, received or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.take_errors() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> KvDepotWorkerMetadata | None:
        report = self._worker.take_report() if self._worker is not None else None
        return KvDepotWorkerMetadata(report) if report is not None else None

    # ---- scheduler ------------------------------------------------------------------------------------------------

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], KvDepotHandshake]) -> None:
        try:
            self._scheduler.bind(handshake.identity for handshake in metadata.values())
        except native.KvdepotError as error:
            raise ConfigError(f"kvdepot: the depot at {self._settings.depot} refuses this model: {error}") from error

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._pool = gpu_block_pool

    def _local_blocks(self, request: Any) -> int:
        if self._pool is None:
            return 0
        return _compat.local_blocks(self._pool, request, self._vllm_config.cache_config.block_size)

    def on_new_request(self, request: Any) -> None:
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.after_alloc(request, blocks.get_block_ids()[0], num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        flash = self._scheduler.flash_tokens(request, num_external_tokens)
        sources = {_compat.CacheHitSource.HOST: num_external_tokens - flash, _compat.CacheHitSource.DISK: flash}
        return {source: tokens for source, tokens in sources.items() if tokens}

    def build_connector_meta(self, scheduler_output: Any) -> KvDepotMetadata:
        return KvDepotMetadata(self._scheduler.build_plan(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        meta = connector_output.kv_connector_worker_meta
        received: Iterable[str] = connector_output.finished_recving or ()
        self._scheduler.on_output(meta.report if meta is not None else None, received,
                                  self._kv_cache_manager.evict_blocks)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._scheduler.request_finished(request), None

    def reset_cache(self) -> bool:
        self._scheduler.reset()
        return True

    # ---- both -----------------------------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KvDepotStats | None:
        half = self._scheduler or self._worker
        if self._settings.embedded and self._worker is not None:
            for line in self._client.take_warnings():   # an embedded depot has no log of its own
                log.warning("kvdepot: the embedded depot: %s", line)
        if half is None or not half.counts:
            return None
        return KvDepotStats(data=half.take_counts())

    def shutdown(self) -> None:
        half, client = self._scheduler or self._worker, self._client
        self._scheduler = self._worker = self._client = None
        try:
            if self._prefault is not None:
                self._prefault.close()
            if half is not None:
                half.close()
        finally:
            if client is not None:
                client.close()      # its thread moves bytes into the engine's memory

