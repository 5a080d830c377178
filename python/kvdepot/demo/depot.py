"""The demo's depot: `kvdepot serve` as a child process, its statistics, SIGKILL, and restart on the same directory.

The kernel chooses the port at the first start; a restart takes the same one, as a real depot would, so that engines
find it again. Figures come from the depot's own /metrics. One thread.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .processes import Child, Children, DemoError

POOL_BYTES = 1 << 30
FLASH_BYTES = 4 << 30
FLASH_BYTES_MIN = 2 << 30
START_DEADLINE_S = 60.0
CLEAN_DEADLINE_S = 60.0
STOP_DEADLINE_S = 25.0      # SIGTERM drains for at most 20 s
POLL_S = 0.02
HTTP_DEADLINE_S = 10.0


@dataclass(frozen=True)
class Start:
    """How one start went: seconds until it listened, and what it found in its directory."""

    listening_s: float
    recovered_records: int
    recovery_ms: float


@dataclass
class Totals:
    """Counters of all lives of the depot: a SIGKILL starts them anew."""

    corrupt: int = 0
    io_errors: int = 0


@dataclass
class Depot:
    """One data directory and the server process that has it at the moment."""

    children: Children
    binary: str
    directory: Path
    log: Path
    flash_bytes: int = FLASH_BYTES
    command: Sequence[str] | None = None    # what to start instead of the binary; tests
    address: str = "tcp://127.0.0.1:0"
    totals: Totals = field(default_factory=Totals)
    _child: Child | None = None
    _http: tuple[str, int] = ("", 0)

    def start(self, shape_bytes_s: float | None = None) -> Start:
        command = [*(self.command or (self.binary, "serve")), "--dir", self.directory, "--pool", str(POOL_BYTES),
                   "--flash", str(self.flash_bytes), "--listen", self.address, "--http", "127.0.0.1:0"]
        if shape_bytes_s:
            command += ["--shape-read", str(int(shape_bytes_s))]
        began = time.monotonic()
        self._child = self.children.start("depot", command, self.log)
        self.address = self._line(r"listening on (tcp://\S+)")
        host, port = self._line(r"http://([\d.]+:\d+)").rsplit(":", 1)
        self._http = (host, int(port))
        listening_s = time.monotonic() - began
        stats = self.stats()
        return Start(listening_s, int(stats["recovered_records"]), stats["recovery_ms"])

    def stats(self) -> dict[str, float]:
        """FIGURES now, as src/node/metrics.cc names them."""
        connection = http.client.HTTPConnection(*self._http, timeout=HTTP_DEADLINE_S)
        try:
            with contextlib.closing(connection):
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(f"does not tell its figures ({error})") from None
        return store_figures(text)

    def wait_until(self, what: str, ready: Callable[[dict], bool], deadline_s: float) -> dict[str, float]:
        """Polls the figures until they are as wanted; returns them."""
        end = time.monotonic() + deadline_s
        while not ready(stats := self.stats()):
            if time.monotonic() > end:
                raise self._failure(f"still {what} after {deadline_s:.0f} s")
            time.sleep(POLL_S * 2)
        return stats

    def wait_clean(self) -> dict[str, float]:
        """Until nothing is being put and nothing waits to be written to flash."""
        return self.wait_until("has something to write", lambda s: s["dirty_bytes"] + s["unfinished_puts"] == 0,
                               CLEAN_DEADLINE_S)

    def kill(self) -> int:
        """SIGKILL. Returns the exit status that the kernel reported."""
        self._count()
        return self._child.kill()

    def stop(self) -> int:
        """SIGTERM: drains, then ends."""
        if self._child is None or self._child.status() is not None:
            return 0
        self._count()
        return self._child.stop(STOP_DEADLINE_S)

    def _count(self) -> None:
        stats = self.stats()
        self.totals.corrupt += int(stats["corrupt"] + stats["put_corrupt"])
        self.totals.io_errors += int(stats["io_errors"])

    def _line(self, pattern: str) -> str:
        end = time.monotonic() + START_DEADLINE_S
        while True:
            with open(self._child.log, "rb") as log:
                log.seek(self._child.log_start)
                whole_lines = log.read().decode(errors="replace").rpartition("\n")[0]
            if found := re.search(pattern, whole_lines):
                return found[1]
            if self._child.status() is not None:
                raise self._failure("did not start")
            if time.monotonic() > end:
                raise self._failure(f"does not listen after {START_DEADLINE_S:.0f} s")
            time.sleep(POLL_S)

    def _failure(self, what: str) -> DemoError:
        status = self._child.status()
        ended = "" if status is None else f", ended with {signal_name(status)}"
        return DemoError(f"the depot {what}{ended}{self._child.last_words()} (log: {self._child.log})")


FIGURES = ("keys_got", "puts", "bytes_put", "corrupt", "put_corrupt", "io_errors", "flash_bytes_read", "dirty_bytes",
           "unfinished_puts", "recovered_records", "recovery_ms", "bytes_lent")


def store_figures(text: str) -> dict[str, float]:
    """FIGURES from a Prometheus page, each summed over its labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if match := re.match(r"kvdepot_(?:store_)?(\w+?)(?:_total)?(?:\{[^}]*\})? (\S+)$", line):
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    missing = [name for name in FIGURES if name not in found]
    if missing:
        raise DemoError(f"the depot's /metrics lacks {', '.join(missing)}")
    return {name: found[name] for name in FIGURES}


def flash_bytes_for(directory: Path) -> int:
    """A flash log that fits the disk below `directory`; at least half a gigabyte stays free."""
    free = shutil.disk_usage(directory).free - (512 << 20)
    if free < FLASH_BYTES_MIN:
        raise DemoError(f"{directory} has {free / 2**30:.1f} GiB to spare, the demo needs {FLASH_BYTES_MIN >> 30}; "
                        "make room or name another place with --build-dir")
    return min(FLASH_BYTES, free >> 28 << 28)


def signal_name(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"status {status}"
