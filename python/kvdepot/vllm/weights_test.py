"""Files of weights: every tensor is found in each format, and any that has changed changes the model's digest."""

from __future__ import annotations

import functools
import os
import random
import struct
import zipfile
from pathlib import Path

import pytest

from kvdepot.vllm import fingerprint, weights

LARGE, SMALL = 20_000_000, 1_000
NAMES = ("embed", "norm", "head")
SIZES = dict(zip(NAMES, (LARGE, SMALL, LARGE), strict=True)) | {f"bias.{i}": 100 for i in range(20)}


@functools.cache
def tensors() -> dict[str, bytes]:
    numbers = random.Random(1)
    return {name: numbers.randbytes(size) for name, size in SIZES.items()}


def torch_file(path: Path, content: dict[str, bytes], comment: bytes = b"") -> None:
    """As torch.save writes it: stored members below one folder, a pickle first, the version last."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        def member(name: str, data: bytes) -> None:
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), data)
        member("data.pkl", b"\x80\x02" + repr(list(content)).encode())
        for name, data in content.items():
            member(f"data/{name}", data)
        member("version", b"3\n")
        archive.comment = comment


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_file(path: Path, content: dict[str, bytes], alignment: int = 32, words: int = 1000, version: int = 3,
              stride: int = 0) -> None:
    """stride: tensors lie so far apart, and the file ends before them."""
    values = [text("general.alignment") + struct.pack("<II", 4, alignment),
              text("general.name") + struct.pack("<I", 8) + text("a model"),
              text("a.flag") + struct.pack("<IB", 7, 1),
              text("a.scores") + struct.pack("<IIQ", 9, 6, 3) + struct.pack("<3f", 1, 2, 3),
              text("a.nest") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 0, 2) + b"ab",
              text("a.words") + struct.pack("<IIQ", 9, 8, words) + b"".join(text(f"w{i}") for i in range(words))]
    table, data = b"", b""
    for i, (name, tensor) in enumerate(content.items()):
        table += text(name) + struct.pack("<IQIQ", 1, len(tensor), 0, i * stride or len(data))
        data += tensor + bytes(-len(tensor) % alignment)
    head = b"GGUF" + struct.pack("<IQQ", version, len(content), len(values)) + b"".join(values) + table
    path.write_bytes(head + bytes(-len(head) % alignment) + data)


WRITERS = {"pytorch_model.bin": torch_file, "model.pt": torch_file, "consolidated.pth": torch_file,
           "model.gguf": gguf_file}


def overwrite(path: Path, content: dict[str, bytes]) -> None:
    """Another content of the same size, name and time."""
    before = path.stat()
    WRITERS[path.name](path, content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


@pytest.mark.parametrize("name", WRITERS)
def test_every_tensor_is_found_where_it_lies(tmp_path, name):
    file, content = tmp_path / name, tensors()
    WRITERS[name](file, content)
    found, data = weights.contents(file), file.read_bytes()
    for tensor in content.values():
        at = data.index(tensor)
        assert any(start <= at and at + len(tensor) <= start + size < at + len(tensor) + 200
                   for start, size in found.tensors)


@pytest.mark.parametrize("name", WRITERS)
def test_a_copy_is_the_same_model(tmp_path, name):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        WRITERS[name](tmp_path / folder / name, tensors())
    assert fingerprint.weights_digest(tmp_path / "a") == fingerprint.weights_digest(tmp_path / "b")


@pytest.mark.parametrize("changed", NAMES)
@pytest.mark.parametrize("name", WRITERS)
def test_one_tensor_of_other_content_makes_another_model(tmp_path, name, changed):
    """The small one would lie between samples of the whole file."""
    file = tmp_path / name
    WRITERS[name](file, tensors())
    before = fingerprint.weights_digest(tmp_path)
    overwrite(file, tensors() | {changed: random.Random(9).randbytes(SIZES[changed])})
    assert fingerprint.weights_digest(tmp_path) != before


@pytest.mark.parametrize("name", WRITERS)
def test_one_byte_of_a_small_tensor_makes_another_model(tmp_path, name):
    file, norm = tmp_path / name, bytearray(tensors()["norm"])
    WRITERS[name](file, tensors())
    before = fingerprint.weights_digest(tmp_path)
    norm[SMALL // 2] ^= 1
    overwrite(file, tensors() | {"norm": bytes(norm)})
    assert fingerprint.weights_digest(tmp_path) != before


def test_any_byte_of_a_large_tensor_changes_the_directory_of_a_torch_file(tmp_path):
    file, head = tmp_path / "pytorch_model.bin", bytearray(tensors()["head"])
    torch_file(file, tensors())
    before = fingerprint.weights_digest(tmp_path)
    for at in (1, 777_777, LARGE // 2 + 12_345, LARGE - 2):
        head[at] ^= 1
        overwrite(file, tensors() | {"head": bytes(head)})
        assert fingerprint.weights_digest(tmp_path) != before
        head[at] ^= 1


def test_a_small_tensor_changed_without_its_checksum_is_found(tmp_path):
    """As a writer leaves it that computes none."""
    file = tmp_path / "pytorch_model.bin"
    torch_file(file, tensors())
    before, data = fingerprint.weights_digest(tmp_path), bytearray(file.read_bytes())
    data[data.index(tensors()["norm"]) + SMALL // 2] ^= 1
    file.write_bytes(data)
    assert fingerprint.weights_digest(tmp_path) != before


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.gguf", "model"])
def test_a_file_of_another_format_is_refused_with_the_way_out(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(random.Random(1).randbytes(100_000))
    with pytest.raises(fingerprint.FingerprintError, match=f"{name}.*weights_id"):
        fingerprint.weights_digest(file)


def test_a_gguf_file_is_known_by_its_content(tmp_path):
    gguf_file(tmp_path / "named-otherwise", tensors())
    assert len(fingerprint.weights_digest(tmp_path / "named-otherwise")) == 32


@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_gguf_tensors_lie_behind_the_alignment_the_file_asks_for(tmp_path, alignment):
    file = tmp_path / "model.gguf"
    gguf_file(file, {"a": b"x" * 100, "b": b"y" * 100}, alignment)
    (first, _), (second, size) = weights.contents(file).tensors
    data = file.read_bytes()
    assert data[first:first + 100] == b"x" * 100
    assert data[second:second + size][:100] == b"y" * 100


def test_damaged_files_are_refused_and_not_guessed_at(tmp_path):
    file = tmp_path / "model.gguf"
    gguf_file(file, {"a": b"x" * 100}, words=10)
    whole = file.read_bytes()
    for length in range(4, weights.contents(file).tensors[0][0], 7):
        file.write_bytes(whole[:length])
        assert weights.contents(file) is None, length
    for version in (1, 4, 3 << 24):
        gguf_file(file, {"a": b"x"}, version=version)
        assert weights.contents(file) is None
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60) + bytes(1000))
    assert weights.contents(file) is None
    zipped = tmp_path / "model.pt"
    torch_file(zipped, {"a": b"x" * 100})
    zipped.write_bytes(zipped.read_bytes()[:-30])
    assert weights.contents(zipped) is None


def test_large_files_of_each_format_cost_few_small_reads(tmp_path):
    """As of 200 GB: the files are sparse."""
    file = tmp_path / "model.gguf"
    gguf_file(file, {f"t{i}": b"" for i in range(2000)}, words=200_000, stride=100 << 20)
    with file.open("r+b") as stream:
        stream.truncate(2001 * (100 << 20))
    plan = fingerprint._plan(file, fingerprint.PIECES_MAX)
    assert 2000 < len(plan) <= fingerprint.PIECES_MAX + 1
    assert sum(piece.length for piece in plan) < 32 << 20
