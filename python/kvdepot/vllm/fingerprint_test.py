"""The fingerprint: equal for the same model anywhere, different for anything that changes a byte of KV."""

from __future__ import annotations

import json
import os
import random
import struct
import time
from pathlib import Path

import pytest

from kvdepot.vllm import fingerprint as f
from kvdepot.vllm.weights_test import torch_file

LARGE = 3_000_000


def safetensors(path: Path, tensors: dict[str, bytes]) -> None:
    header, offset = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


def model(folder: Path, seed: int = 1, **changed: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    numbers = random.Random(seed)
    tensors = {"layers.0.q.weight": numbers.randbytes(LARGE), "layers.0.norm.weight": numbers.randbytes(1000),
               "layers.1.q.weight": numbers.randbytes(LARGE), "layers.1.kv_scale": numbers.randbytes(4)}
    safetensors(folder / "model.safetensors", tensors | changed)
    (folder / "config.json").write_text("{}")
    return folder


def test_a_copy_elsewhere_is_the_same_model(tmp_path):
    a, b = model(tmp_path / "a"), model(tmp_path / "b")
    os.utime(b / "model.safetensors", (1, 1))
    assert f.weights_digest(a) == f.weights_digest(b)


def test_weights_that_were_written_behind_a_moment_are_told_whatever_their_time_says(tmp_path):
    folder = model(tmp_path / "m")
    os.utime(folder / "model.safetensors", (1, 1))
    assert f.written_since(folder, time.time() - 60)
    assert not f.written_since(folder, time.time() + 60)


def test_files_of_a_hub_cache_are_named_by_their_content(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshots").mkdir()
    model(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "blobs" / "5eed")
    (tmp_path / "snapshots" / "model.safetensors").symlink_to("../blobs/5eed")
    assert not f.written_since(tmp_path / "snapshots", time.time() - 60)


def test_other_weights_of_the_same_size_and_time_are_another_model(tmp_path):
    folder = model(tmp_path / "m")
    file = folder / "model.safetensors"
    before, stat = f.weights_digest(folder), file.stat()
    model(folder, seed=2)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_size == stat.st_size
    assert f.weights_digest(folder) != before


@pytest.mark.parametrize("name", ["layers.0.norm.weight", "layers.1.kv_scale", "layers.1.q.weight"])
def test_one_tensor_that_differs_is_found(tmp_path, name):
    before = f.weights_digest(model(tmp_path / "a"))
    size = {"layers.0.norm.weight": 1000, "layers.1.kv_scale": 4, "layers.1.q.weight": LARGE}[name]
    after = f.weights_digest(model(tmp_path / "b", **{name: random.Random(9).randbytes(size)}))
    assert before != after


def test_one_byte_of_a_small_tensor_is_found(tmp_path):
    before = f.weights_digest(model(tmp_path / "a"))
    norm = bytearray(random.Random(1).randbytes(LARGE + 1000)[LARGE:])
    norm[500] ^= 1
    assert f.weights_digest(model(tmp_path / "b", **{"layers.0.norm.weight": bytes(norm)})) != before


def test_shards_that_are_swapped_are_another_model(tmp_path):
    for name, first, second in (("a", 1, 2), ("b", 2, 1)):
        folder = tmp_path / name
        folder.mkdir()
        safetensors(folder / "model-1.safetensors", {"x": random.Random(first).randbytes(5000)})
        safetensors(folder / "model-2.safetensors", {"x": random.Random(second).randbytes(5000)})
    assert f.weights_digest(tmp_path / "a") != f.weights_digest(tmp_path / "b")


def test_broken_safetensors_are_sampled_over_their_whole_length(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 10_000)
    assert len(f.weights_digest(tmp_path)) == 32
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert len(f.weights_digest(tmp_path)) == 32


@pytest.mark.parametrize("tensors", [1, 500, 50_000])
def test_reads_are_bounded_whatever_the_size(tmp_path, tensors):
    file = tmp_path / "model.safetensors"
    size = (500 << 30) // tensors
    text = json.dumps({f"t{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]}
                       for i in range(tensors)}).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate((500 << 30) + len(text) + 8)        # sparse: 500 GiB
    plan = f._plan(file, f.PIECES_MAX)
    assert len(plan) <= max(f.PIECES_MAX, tensors) + 1
    assert sum(piece.length for piece in plan) < 32 << 20
    assert len(f.weights_digest(file)) == 32


def test_one_tensor_among_very_many_in_many_files_is_found(tmp_path):
    """As of a large mixture of experts, of which a fine-tune has changed a few tensors."""
    tensors = {f"t{i:03}": bytes([i % 251]) * (f.SMALL_BYTES + 1) for i in range(100)}
    for part in range(f.PIECES_MAX // 16):
        (tmp_path / f"model-{part:03}.safetensors").write_bytes(b"")
    safetensors(tmp_path / "model-100.safetensors", tensors)
    before = f.weights_digest(tmp_path)
    for name in ("t000", "t001", "t050", "t099"):
        safetensors(tmp_path / "model-100.safetensors", tensors | {name: b"\xff" * (f.SMALL_BYTES + 1)})
        assert f.weights_digest(tmp_path) != before


@pytest.mark.parametrize(("load_format", "name"), [("pt", "model.pt"), ("npcache", "model.bin")])
def test_the_files_that_the_load_format_reads_are_sampled(tmp_path, load_format, name):
    folder = model(tmp_path / "m")
    torch_file(folder / name, {"x": random.Random(1).randbytes(1000)})
    before, beside = f.weights_digest(folder, load_format), f.weights_digest(folder)
    torch_file(folder / name, {"x": random.Random(2).randbytes(1000)})
    assert f.weights_digest(folder, load_format) != before
    assert f.weights_digest(folder) == beside


def test_a_folder_without_weights_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(f.FingerprintError, match="weights_id"):
        f.weights_digest(tmp_path)


def test_facts_that_are_no_json_do_not_make_every_process_its_own_model():
    class Odd:
        pass

    one = f.fingerprint({"x": Odd(), "y": {2, 1}}, b"w")
    assert one == f.fingerprint({"y": {1, 2}, "x": Odd()}, b"w")
    assert one != f.fingerprint({"x": Odd(), "y": {1}}, b"w")
    assert one != f.fingerprint({"x": Odd(), "y": {1, 2}}, b"v")


def test_an_epoch_is_a_namespace_of_its_own():
    assert f.with_epoch(b"base", b"") == b"base"
    assert len({f.with_epoch(b"base", b""), f.with_epoch(b"base", b"1"), f.with_epoch(b"base", b"2")}) == 3
