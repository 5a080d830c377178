"""Where the engine's KV memory lies: one region, the offset of each layer in it, the stride of a block.

A block of one layer (a slab) is moved as opaque bytes, so all that matters is that they are contiguous. What is inside
(K transposed or not, head order) is named by the layout and is part of the fingerprint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class LayoutError(ValueError):
    """KV memory of a shape that this connector cannot move."""


@dataclass(frozen=True)
class BlockMemory:
    """One engine's KV memory. address(layer, block) = address + layer_offsets[layer] + block * block_stride."""

    layer_names: tuple[str, ...]
    address: int
    nbytes: int
    layer_offsets: tuple[int, ...]
    block_stride: int
    slab_bytes: int
    blocks: int
    owner: Any                    # keeps the memory alive
    spans: tuple[tuple[int, int], ...] = ()     # (address, bytes) of each allocation; the region may have gaps

    def block_offsets(self, block_ids: Sequence[int]) -> list[int]:
        stride = self.block_stride
        return [i * stride for i in block_ids]


def layer_order(name: str) -> tuple[Any, ...]:
    """Sort key that puts `model.layers.2` before `model.layers.10`: the same order in every engine."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def describe(tensors: Mapping[str, Any], num_blocks: int) -> BlockMemory:
    """Reads addresses and strides of the tensors that vLLM registers. Raises LayoutError."""
    if not tensors:
        raise LayoutError("the engine registered no KV cache")
    names = sorted(tensors, key=layer_order)
    shapes = {name: _slab(name, tensors[name], num_blocks) for name in names}
    if len(set(shapes.values())) != 1:
        raise LayoutError("layers with KV blocks of different sizes are not supported")
    stride, slab_bytes = shapes[names[0]]
    if len({tensors[n].data_ptr() for n in names}) != len(names):
        raise LayoutError("layers that share one KV cache are not supported")
    # All layers usually share one allocation; where each has its own, the region spans them and only offsets that
    # lie inside a tensor are ever touched.
    storages = [tensors[n].untyped_storage() for n in names]
    address = min(s.data_ptr() for s in storages)
    end = max(s.data_ptr() + s.nbytes() for s in storages)
    offsets = tuple(tensors[n].data_ptr() - address for n in names)
    return BlockMemory(tuple(names), address, end - address, offsets, stride, slab_bytes, num_blocks,
                       [tensors[n] for n in names], tuple(sorted({(s.data_ptr(), s.nbytes()) for s in storages})))


def _slab(name: str, tensor: Any, num_blocks: int) -> tuple[int, int]:
    """(stride of a block, bytes of a block) of one layer."""
    if tensor.device.type != "cpu":
        raise LayoutError(f"KV cache of {name} is on {tensor.device.type}: this version supports only host memory")
    size = tensor.element_size()
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if not shape or shape[0] % num_blocks != 0:
        raise LayoutError(f"KV cache of {name} has shape {shape}: its first dimension is not the {num_blocks} blocks")
    inner = size
    for extent, stride in sorted(zip(shape[1:], strides[1:], strict=True), key=lambda pair: pair[1]):
        if extent != 1 and stride * size != inner:
            raise LayoutError(f"KV cache of {name} has strides {strides}: a block is not contiguous")
        inner *= extent
    parts = shape[0] // num_blocks        # a block of the scheduler may be several of the attention kernel's
    stride = strides[0] * size
    if parts > 1 and stride != inner:
        raise LayoutError(f"KV cache of {name} has strides {strides}: a block is not contiguous")
    if stride < inner:
        raise LayoutError(f"KV cache of {name} has strides {strides}: blocks overlap")
    return stride * parts, inner * parts
