"""Test hook: digests of KV blocks in the engine's memory, before they are stored and after they were loaded.

With `"digest_log": PATH` each worker appends one JSON line for each block that it stores or loads:
{"event": "store" | "load", "shard": n, "key": hex, "digest": hex, "request": id}. What was loaded must have a digest
that was stored for its key and shard; computed twice, in passes of other shapes, a block may have two. It reads every
byte once more and is meant for tests only.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from typing import Any

from kvdepot.vllm.layout import BlockMemory
from kvdepot.vllm.messages import Store
from kvdepot.vllm.transfers import LoadOp


class DigestLog:
    def __init__(self, path: str, memory: BlockMemory, shard: int) -> None:
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115: lives as long as the worker
        self._memory = memory
        self._shard = shard
        self._partial: dict[int, list[Any]] = {}     # layer-wise loads: a digest of each block, layer by layer

    def stored(self, store: Store) -> None:
        """All layers of the store's blocks are final and not yet overwritten."""
        self._write("store", store.request_id, store.keys, len(store.block_ids),
                    [self._whole(block_id) for block_id in store.block_ids])

    def loaded(self, op: LoadOp) -> None:
        """An asynchronous load has ended; its good blocks are in place and not yet used."""
        self._write("load", op.load.request_id, op.load.keys, op.blocks,
                    [self._whole(block_id) for block_id in op.load.block_ids[:op.good_blocks]])

    def loaded_layer(self, op: LoadOp, layer: int) -> None:
        """One layer of a layer-wise load is in place and not yet used."""
        if layer == 0:      # a load that failed half way has left its digests behind, perhaps under the same id
            self._partial[id(op)] = [hashlib.blake2b(digest_size=16) for _ in op.load.block_ids]
        partial = self._partial[id(op)]
        for digest, block_id in zip(partial, op.load.block_ids, strict=True):
            digest.update(self._slab(layer, block_id))
        if layer + 1 == len(self._memory.layer_names):
            del self._partial[id(op)]
            self._write("load", op.load.request_id, op.load.keys, op.blocks,
                        [digest.hexdigest() for digest in partial[:op.good_blocks]])

    def _whole(self, block_id: int) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for layer in range(len(self._memory.layer_names)):
            digest.update(self._slab(layer, block_id))
        return digest.hexdigest()

    def _slab(self, layer: int, block_id: int) -> Any:
        memory = self._memory
        address = memory.address + memory.layer_offsets[layer] + block_id * memory.block_stride
        return (ctypes.c_char * memory.slab_bytes).from_address(address)

    def _write(self, event: str, request_id: str, keys: bytes, blocks: int, digests: list[str]) -> None:
        key_bytes = len(keys) // blocks
        for i, digest in enumerate(digests):
            key = keys[i * key_bytes:(i + 1) * key_bytes].hex()
            self._file.write(json.dumps({"event": event, "shard": self._shard, "key": key, "digest": digest,
                                         "request": request_id}) + "\n")

    def close(self) -> None:
        self._file.close()
