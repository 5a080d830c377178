"""Where KV memory lies, read from tensors; what cannot be moved as whole blocks is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvdepot.vllm.layout import LayoutError, describe, layer_order


class Tensor:
    def __init__(self, pointer, shape, strides=None, storage=None, device="cpu"):
        if strides is None:
            strides, step = [], 1
            for extent in reversed(shape):
                strides.insert(0, step)
                step *= extent
        self.shape, self._strides, self._pointer = shape, strides, pointer
        self._storage = storage or (pointer, 2 * shape[0] * strides[0])
        self.device = SimpleNamespace(type=device)

    def data_ptr(self):
        return self._pointer

    def stride(self):
        return self._strides

    def element_size(self):
        return 2

    def untyped_storage(self):
        return SimpleNamespace(data_ptr=lambda: self._storage[0], nbytes=lambda: self._storage[1])


def shared(layers=12, blocks=10, inner=(3, 4, 8)):
    """All layers in one allocation, one after the other, as vLLM's CPU back end has them."""
    slab = 2 * 3 * 4 * 8
    storage = (1000, layers * blocks * slab)
    return {f"model.layers.{i}.attn": Tensor(1000 + i * blocks * slab, (blocks, *inner), storage=storage)
            for i in range(layers)}


def test_layers_of_one_allocation_are_one_region_in_the_order_of_their_numbers():
    memory = describe(dict(reversed(list(shared().items()))), 10)
    assert memory.layer_names[2] == "model.layers.2.attn"
    assert memory.layer_names[-1] == "model.layers.11.attn"
    assert (memory.address, memory.nbytes) == (1000, 12 * 10 * 192)
    assert memory.layer_offsets[:3] == (0, 1920, 3840)
    assert (memory.block_stride, memory.slab_bytes) == (192, 192)
    assert memory.block_offsets([0, 3]) == [0, 576]


def test_layers_with_allocations_of_their_own_lie_in_one_span():
    memory = describe({"l.1": Tensor(9000, (10, 96)), "l.0": Tensor(100, (10, 96))}, 10)
    assert (memory.address, memory.nbytes) == (100, 9000 + 1920 - 100)
    assert memory.layer_offsets == (0, 8900)


def test_order_of_dimensions_inside_a_block_does_not_matter():
    assert describe({"l.0": Tensor(0, (10, 4, 3, 8), (96, 8, 32, 1))}, 10).slab_bytes == 192


def test_padding_between_blocks_is_left_out():
    memory = describe({"l.0": Tensor(0, (10, 96), (128, 1))}, 10)
    assert (memory.block_stride, memory.slab_bytes) == (256, 192)


def test_blocks_that_the_kernel_splits_are_put_together():
    memory = describe({"l.0": Tensor(0, (40, 24))}, 10)
    assert (memory.block_stride, memory.slab_bytes) == (192, 192)


@pytest.mark.parametrize(("tensors", "words"), [
    ({}, "no KV cache"),
    ({"l.0": Tensor(0, (10, 96), device="cuda")}, "only host memory"),
    ({"l.0": Tensor(0, (2, 10, 96))}, "first dimension is not the 10 blocks"),
    ({"l.0": Tensor(0, (10, 2, 48), (48, 480, 1))}, "not contiguous"),
    ({"l.0": Tensor(0, (10, 96)), "l.1": Tensor(5000, (10, 48))}, "different sizes"),
    ({"l.0": Tensor(0, (10, 96)), "l.1": Tensor(0, (10, 96))}, "share one KV cache"),
    ({"l.0": Tensor(0, (20, 48), (64, 1))}, "not contiguous"),
])
def test_other_layouts_are_refused(tensors, words):
    with pytest.raises(LayoutError, match=words):
        describe(tensors, 10)


def test_names_sort_by_their_numbers():
    assert sorted(["a.10.x", "a.9.x", "a.1.x"], key=layer_order) == ["a.1.x", "a.9.x", "a.10.x"]
