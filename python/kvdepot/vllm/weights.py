"""What of a file of weights can be told apart: its description, and where each of its tensors lies.

Three formats that vLLM loads, known by their content:

    safetensors   a JSON header before the tensors
    GGUF          a header of typed values, then a list of the tensors (versions 2 and 3, little-endian)
    zip           `.bin`, `.pt`, `.pth` as torch.save has written them since PyTorch 1.6: a directory behind the
                  members that holds a CRC-32 of each one's content

Nothing is read but descriptions: kilobytes as a rule, some megabytes where a GGUF file holds its tokenizer.
"""

from __future__ import annotations

import bisect
import json
import mmap
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

HEADER_BYTES_MAX = 64 << 20
GGUF_ALIGNMENT = 32                 # unless the file says otherwise
GGUF_STRING, GGUF_ARRAY = 8, 9
# Type of a value -> its bytes: u8, i8, u16, i16, u32, i32, f32, bool, u64, i64, f64.
GGUF_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
GGUF_NESTING_MAX = 4


@dataclass(frozen=True)
class Contents:
    """(offset, length) of the description and of each tensor, the latter in the order of their offsets."""

    description: tuple[int, int]
    tensors: list[tuple[int, int]]


def contents(file: Path) -> Contents | None:
    """None: a file of no known format, or a damaged one. Raises OSError."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        magic = stream.read(4)
    if file.suffix == ".safetensors":
        return _safetensors(file, size)
    if magic == b"GGUF":
        return _gguf(file, size)
    return _zip(file, size)


def _safetensors(file: Path, size: int) -> Contents | None:
    with file.open("rb") as stream:
        head = stream.read(8)
        if len(head) < 8:
            return None
        (header_bytes,) = struct.unpack("<Q", head)
        if not 2 <= header_bytes <= min(HEADER_BYTES_MAX, size - 8):
            return None
        try:
            header = json.loads(stream.read(header_bytes))
            spans = [tuple(entry["data_offsets"]) for name, entry in header.items() if name != "__metadata__"]
            base = 8 + header_bytes
            tensors = sorted((base + first, last - first) for first, last in spans)
        except (ValueError, KeyError, TypeError):
            return None
    return Contents((0, min((offset for offset, _ in tensors), default=size)), tensors)


def _zip(file: Path, size: int) -> Contents | None:
    """Members lie one behind the other, each with a header of its own that is taken for a part of it."""
    try:
        with zipfile.ZipFile(file) as archive:
            starts = sorted(member.header_offset for member in archive.infolist())
            directory = archive.start_dir
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError):
        return None
    if not starts or not starts[-1] < directory or size - directory > HEADER_BYTES_MAX:
        return None
    return Contents((directory, size - directory), _spans(starts, directory))


def _spans(starts: list[int], end: int) -> list[tuple[int, int]]:
    """Each from its start to the next one's."""
    return [(start, following - start) for start, following in zip(starts, [*starts[1:], end], strict=True)]


def _gguf(file: Path, size: int) -> Contents | None:
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        try:
            offsets, base = _Gguf(memory).tensors()
        except (struct.error, ValueError, KeyError):
            return None
    starts = sorted({base + offset for offset in offsets})
    if base > size or bisect.bisect_left(starts, size) < len(starts):
        return None
    return Contents((0, base), _spans(starts, size))


class _Gguf:
    """Reads a GGUF header from its beginning. Raises struct.error, ValueError, KeyError on what is none."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._at = 4

    def tensors(self) -> tuple[list[int], int]:
        """Offsets of the tensors behind the place where they begin, and that place."""
        version, tensors, values = self._take("<IQQ")
        if version not in (2, 3):
            raise ValueError("another version")
        alignment = GGUF_ALIGNMENT
        for _ in range(values):
            key = self._string()
            (kind,) = self._take("<I")
            if key == b"general.alignment" and kind == 4:
                (alignment,) = struct.unpack_from("<I", self._memory, self._at)
            self._skip_value(kind)
        offsets = []
        for _ in range(tensors):
            self._string()
            (dimensions,) = self._take("<I")
            self._skip(8 * dimensions)
            offsets.append(self._take("<IQ")[1])
        if not alignment:
            raise ValueError("impossible alignment")
        return offsets, -(-self._at // alignment) * alignment

    def _take(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(form, self._memory, self._at)
        self._skip(struct.calcsize(form))
        return values

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > min(len(self._memory), HEADER_BYTES_MAX):
            raise ValueError("longer than the file or than what is read")

    def _string(self) -> bytes:
        (length,) = self._take("<Q")
        self._skip(length)
        return self._memory[self._at - length:self._at] if length <= 64 else b""

    def _skip_value(self, kind: int, depth: int = 0) -> None:
        if kind == GGUF_STRING:
            self._skip(self._take("<Q")[0])
        elif kind == GGUF_ARRAY:
            inner, count = self._take("<IQ")
            if inner in GGUF_BYTES:
                self._skip(count * GGUF_BYTES[inner])
                return
            if depth == GGUF_NESTING_MAX:
                raise ValueError("nested too deeply")
            for _ in range(count):
                self._skip_value(inner, depth + 1)
        else:
            self._skip(GGUF_BYTES[kind])
