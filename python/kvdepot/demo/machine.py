"""What the demo runs on, for its result and report. Every fact may be missing; then it reads "unknown"."""

from __future__ import annotations

import os
import re
from pathlib import Path

UNKNOWN = "unknown"
# What vLLM's CPU build computes bfloat16 with; without them it emulates it, three times slower than float32.
BFLOAT16_FLAGS = {"avx512f", "avx512_bf16", "amx_bf16", "bf16"}


def facts() -> dict:
    cpuinfo, meminfo = _read("/proc/cpuinfo"), _read("/proc/meminfo")
    return {"cpu": _field(cpuinfo, "model name|Model|CPU part"), "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(_kib(meminfo, "MemTotal") / 2**20, 1), "kernel": os.uname().release}


def version() -> str:
    """Of the bindings, which carry the build's."""
    try:
        from kvdepot import __version__
    except ImportError:
        return UNKNOWN
    return __version__


def engine_dtype() -> str:
    """What this machine computes fastest in."""
    flags = set(_field(_read("/proc/cpuinfo"), "flags|Features").split())
    return "bfloat16" if flags & BFLOAT16_FLAGS else "float32"


def memory_available_bytes() -> int:
    return _kib(_read("/proc/meminfo"), "MemAvailable") << 10


def core_binding() -> str:
    """All cores this process may use, as vLLM writes them: "0-1", "0,2,4"."""
    cores = sorted(os.sched_getaffinity(0))
    if cores == list(range(cores[0], cores[-1] + 1)):
        return f"{cores[0]}-{cores[-1]}"
    return ",".join(map(str, cores))


def _field(text: str, names: str) -> str:
    match = re.search(rf"^(?:{names})\s*:\s*(.+)$", text, re.M)
    return match[1].strip() if match else UNKNOWN


def _kib(text: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", text, re.M)
    return int(match[1]) if match else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
