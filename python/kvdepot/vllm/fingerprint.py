"""The fingerprint of a model: everything that the bytes of a KV block depend on.

Two engines share blocks only when their fingerprints are equal. It is made of facts (configuration, layout,
instruction set, ...) and of the content of the weights. Weights are sampled: every file's size, its description
(weights.py: the header, or the directory with its checksums) and, of each tensor, all bytes when it is small (norms,
scales, routers of small models) and otherwise up to 16 pieces from its head, its tail and places between; at least its
head. That costs some thousand small reads, or one for each tensor where there are more, whatever the size of the
model, and finds weights that were overwritten in place under the same name, size and time. A file in which tensors
cannot be told apart is refused: samples of the whole would miss small ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdepot.vllm import weights

WEIGHT_SUFFIXES = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
IGNORED_NAMES = ("training_args.bin", "optimizer.pt", "optimizer.bin", "scheduler.pt", "rng_state.pth")
SMALL_BYTES = 8192          # a tensor of at most this many bytes is read whole
PIECE_BYTES = 256
PIECES_MAX = 6000           # of all files together, 2 s at 5 ms a read on a slow file system with 16 readers; more only
                            # where there are more tensors
READ_ONLY = {"pt": (".pt",), "npcache": (".bin",)}     # load formats of vLLM that ignore safetensors beside them
READERS = 16


class FingerprintError(ValueError):
    """The weights cannot be identified; the text says what to do."""


@dataclass(frozen=True)
class Piece:
    """Bytes of one file that enter the digest."""

    offset: int
    length: int


def weight_files(path: Path, load_format: str = "auto") -> list[Path]:
    """The files that hold weights, in a fixed order. Safetensors win over other formats unless vLLM's load format says
    otherwise."""
    if path.is_file():
        return [path]
    suffixes = READ_ONLY.get(load_format, WEIGHT_SUFFIXES)
    found = sorted(p for p in path.iterdir()
                   if p.suffix in suffixes and p.name not in IGNORED_NAMES and p.is_file())
    chosen = [p for p in found if p.suffix == ".safetensors"] or found
    if not chosen:
        raise FingerprintError(f"{path} holds no weights that can be read (files *{', *'.join(WEIGHT_SUFFIXES)}); "
                               'set "weights_id" in kv_connector_extra_config to name them')
    return chosen


def weights_digest(path: Path, load_format: str = "auto") -> bytes:
    """32 bytes that change when the weights below `path` (a folder or one file) change. Raises FingerprintError."""
    files = weight_files(path, load_format)
    try:
        tasks = [(file, chunk) for file in files for chunk in _chunks(_plan(file, max(PIECES_MAX // len(files), 16)))]
        with ThreadPoolExecutor(READERS, thread_name_prefix="kvdepot-weights") as pool:
            contents = list(pool.map(lambda task: _read(*task), tasks))
    except OSError as error:
        raise FingerprintError(f"cannot read the weights: {error.strerror}: {error.filename}") from error
    digest = hashlib.blake2b(digest_size=32, person=b"kvdepot-weights")
    for file in files:
        # Names count: shards of one model are told apart by them. Folders don't: a copy elsewhere is the same model.
        digest.update(f"{file.name if len(files) > 1 else ''}\0{file.stat().st_size}\0".encode())
    for content in contents:
        digest.update(content)
    return digest.digest()


def written_since(path: Path, began_s: float, load_format: str = "auto") -> bool:
    """Whether a file of these weights was written, replaced or renamed after `began_s` (seconds since 1970, by this
    machine's clock; of files on other machines it is their clock): an engine that began then may have loaded what was
    there before. Files of a hub's cache are left out: they are named by their content and never overwritten. Raises
    FingerprintError."""
    try:
        return any(file.stat().st_ctime > began_s for file in weight_files(path, load_format)
                   if file.resolve().parent.name != "blobs")
    except OSError as error:
        raise FingerprintError(f"cannot read the weights: {error.strerror}: {error.filename}") from error


def _chunks(plan: list[Piece]) -> Iterable[list[Piece]]:
    for start in range(0, len(plan), 64):
        yield plan[start:start + 64]


def _read(file: Path, pieces: list[Piece]) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    fd = os.open(file, os.O_RDONLY)
    try:
        for piece in pieces:
            digest.update(struct.pack("<QI", piece.offset, piece.length))
            digest.update(os.pread(fd, piece.length, piece.offset))
    finally:
        os.close(fd)
    return digest.digest()


def _plan(file: Path, pieces_max: int) -> list[Piece]:
    found = weights.contents(file)
    if found is None and file.suffix == ".safetensors":
        return _spread(0, file.stat().st_size, pieces_max)     # no engine can load it
    if found is None:
        raise FingerprintError(f"{file}: its tensors cannot be told apart (neither GGUF nor as torch.save has written "
                               'since PyTorch 1.6); save them as safetensors, or set "weights_id" in '
                               "kv_connector_extra_config to name them")
    plan = [Piece(*found.description)]
    each = min(max(pieces_max // max(len(found.tensors), 1), 1), 16)
    for offset, length in found.tensors:
        plan += [Piece(offset, length)] if length <= SMALL_BYTES else _spread(offset, length, each)
    return plan


def _spread(offset: int, length: int, count: int) -> list[Piece]:
    """`count` pieces of a range: its head, its tail and places between, the same for the same range."""
    if length <= count * PIECE_BYTES:
        return [Piece(offset, length)]
    step = (length - PIECE_BYTES) / max(count - 1, 1)
    return [Piece(offset + int(i * step), PIECE_BYTES) for i in range(count)]


def fingerprint(facts: Mapping[str, Any], content: bytes) -> bytes:
    """32 bytes for facts (anything JSON can hold) and the digest of the weights' content."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), default=_stable)
    digest = hashlib.blake2b(digest_size=32, person=b"kvdepot-model")
    digest.update(text.encode())
    digest.update(b"\0")
    digest.update(content)
    return digest.digest()


def _stable(value: Any) -> Any:
    """Text for what JSON cannot hold. An address in it would make every process its own model."""
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    text = str(value)
    return type(value).__qualname__ if " at 0x" in text else text


def with_epoch(base: bytes, epoch: bytes) -> bytes:
    """The fingerprint of a namespace: the model's own, or a new one for each epoch after a reset."""
    if not epoch:
        return base
    return hashlib.blake2b(base + epoch, digest_size=32, person=b"kvdepot-epoch").digest()
