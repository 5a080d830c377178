"""What the figures were measured on, which version of the project, and what the machine was short of: read from /proc,
/sys and git.

Every fact may be missing (containers, other systems); then it reads "unknown", and nothing fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from pathlib import Path

UNKNOWN = "unknown"
WATCH_S, LATE_S = 0.01, 0.05        # the watch wakes so often; so much later than that it was not the scheduler


def facts(data_dir: Path) -> dict:
    """CPU, cores, kernel, memory, and the disk that holds `data_dir`."""
    return {
        "cpu": cpu_model(_read("/proc/cpuinfo")),
        "cores": len(os.sched_getaffinity(0)),
        "vector": vector_extensions(_read("/proc/cpuinfo")),
        "memory_gib": memory_gib(_read("/proc/meminfo")),
        "kernel": os.uname().release,
        "tcp_congestion_control": _read("/proc/sys/net/ipv4/tcp_congestion_control").strip() or UNKNOWN,
        "disk": disk(data_dir),
    }


def stolen_s(stat: str | None = None) -> list[float]:
    """Seconds that the host of this virtual machine gave to others while a core had work, since its start, for each
    core. `stat`: /proc/stat; empty where it does not say."""
    found = re.findall(r"^cpu\d+(?: +\d+){7} +(\d+)", _read("/proc/stat") if stat is None else stat, re.M)
    return [int(ticks) / os.sysconf("SC_CLK_TCK") for ticks in found]


class Watch(threading.Thread):
    """Sees the machine stand still, also where its host does not say so: a thread that sleeps wakes up too late."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.late_s = 0.0
        self.start()

    def run(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(WATCH_S)
            now = time.monotonic()
            if now - last > WATCH_S + LATE_S:
                self.late_s += now - last - WATCH_S
            last = now


class Lost:
    """Time that the machine has lost since this was made: what its host kept of that core of which it kept most, or, if
    that is more, for how long the `watch`, if there is one, was not woken."""

    watch: Watch | None = None

    def __init__(self) -> None:
        self._stolen_s, self._late_s = stolen_s(), self._late()

    def _late(self) -> float:
        return self.watch.late_s if self.watch else 0.0

    def seconds(self) -> float:
        stolen = [after - before for after, before in zip(stolen_s(), self._stolen_s)]
        return max([self._late() - self._late_s, *stolen])


def pressure() -> str:
    """What tasks have waited for in the last 10, 60 and 300 seconds, one line for each of the kernel's kinds."""
    return "\n".join(f"{kind}: {line}" for kind in ("cpu", "io", "memory")
                     for line in _read(f"/proc/pressure/{kind}").splitlines())


def version(root: Path) -> str:
    """`git describe` of the checkout; unknown outside one."""
    try:
        out = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty", "--tags"],
                             capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return out or UNKNOWN


def cpu_model(cpuinfo: str) -> str:
    match = re.search(r"^(?:model name|Model|CPU part)\s*:\s*(.+)$", cpuinfo, re.M)
    return match.group(1).strip() if match else UNKNOWN


def vector_extensions(cpuinfo: str) -> str:
    """The widest vector extensions, as they decide how fast an engine computes on a CPU."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.M)
    flags = set(match.group(1).split()) if match else set()
    found = [name for name in ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "sve", "asimd") if name in flags]
    return " ".join(found[:3]) or UNKNOWN


def memory_gib(meminfo: str) -> float:
    match = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.M)
    return round(int(match.group(1)) / 2**20, 1) if match else 0.0


def disk(path: Path) -> str:
    """File system and device below `path`, with the device's model where the system tells it."""
    try:
        number = os.stat(path).st_dev
    except OSError:
        return UNKNOWN
    device, kind = mount_of(_read("/proc/self/mountinfo"), f"{os.major(number)}:{os.minor(number)}")
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not (block / "queue").exists():
        block = block / ".."
    model = _read(block / "device" / "model").strip()
    virtual = Path(device).name.startswith(("vd", "xvd"))   # says nothing about what is behind it
    spinning = _read(block / "queue" / "rotational").strip() == "1"
    parts = [device, kind, model or ("virtual disk" if virtual else "rotating disk" if spinning else "solid state")]
    return " ".join(part for part in parts if part) or UNKNOWN


def mount_of(mountinfo: str, number: str) -> tuple[str, str]:
    """Device and file system type of the mount with that device number ("major:minor")."""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) > 2 and fields[2] == number and len(right.split()) >= 2:
            kind, device = right.split()[:2]
            return device, kind
    return "", ""


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
