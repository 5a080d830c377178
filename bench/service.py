"""Server processes that a benchmark starts, waits for and ends: depots and what the peers bring. One thread."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.engine_process import die_with_parent, last_error, signal_group
from bench.harness import BenchError

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0      # `kvdepot serve` drains for at most this long
POLL_S = 0.02


class Service:
    """A child process with its output in a log file; it ends with this process. `stop()` may be called twice."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path,
                 env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as out:
            self._log_start = out.tell()
            try:
                self._child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out,
                                               stderr=subprocess.STDOUT, env=environment(env or {}),
                                               cwd=tempfile.gettempdir(), start_new_session=True,
                                               preexec_fn=die_with_parent)
            except FileNotFoundError:
                raise BenchError(f"{self.command[0]} is not there") from None

    @property
    def pid(self) -> int:
        return self._child.pid

    def alive(self) -> bool:
        return self._child.poll() is None

    def wait_for(self, what: str, ready: Callable[[], bool], deadline_s: float = START_DEADLINE_S) -> None:
        """Polls until `ready()`; an error that names the log when the process ends or the deadline passes."""
        end = time.monotonic() + deadline_s
        while not ready():
            if not self.alive():
                raise BenchError(f"{self.name} has ended: {last_error(self.log)} (log: {self.log})")
            if time.monotonic() > end:
                raise BenchError(f"{self.name}: no {what} after {deadline_s:.0f} s (log: {self.log})")
            time.sleep(POLL_S)

    def wait_for_port(self, port: int) -> None:
        self.wait_for(f"listener on port {port}", lambda: port_open(port))

    def wait_for_line(self, pattern: str) -> re.Match:
        """The first line of this start's output that matches."""
        self.wait_for(f"line {pattern!r}", lambda: self.line(pattern) is not None)
        return self.line(pattern)

    def line(self, pattern: str) -> re.Match | None:
        with open(self.log, "rb") as log:
            log.seek(self._log_start)
            return re.search(pattern, log.read().decode(errors="replace"), re.M)

    def kill(self) -> None:
        """SIGKILL, as a crash would be."""
        signal_group(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def stop(self) -> None:
        if self.alive():
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def cpu_seconds(self) -> float:
        """User and system time of the process so far, all its threads."""
        with open(f"/proc/{self._child.pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """All that a server gets to see of this process' surroundings, and what it needs of its own."""
    return {"PATH": f"{os.defpath}:/usr/local/bin:/usr/sbin:/sbin", "HOME": str(Path.home()), "LANG": "C.UTF-8",
            "TMPDIR": tempfile.gettempdir(), **extra}


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def port_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def http_text(port: int, path: str = "/metrics", post: bytes | None = None, timeout_s: float = 10.0) -> str | None:
    """The body of a loopback GET, or POST of some JSON; None when nobody answers with 200."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", post, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return response.read().decode(errors="replace")
    except (OSError, urllib.error.URLError):
        return None


def prometheus_sum(text: str, name: str) -> float | None:
    """The sum over all label sets of a metric in Prometheus' text format; None when it is not there."""
    values = [float(match.group(1)) for match in
              re.finditer(rf"^{re.escape(name)}(?:\{{[^}}]*\}})?\s+(\S+)", text, re.M)]
    return sum(values) if values else None
