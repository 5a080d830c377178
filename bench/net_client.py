"""A client of the net suite in a process of its own: lines in, JSON out (bench/net_driver/arm.h says which lines).

Every command has a deadline; a client that misses it or reports an error is ended, and the next command says so. One
thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.engine_process import die_with_parent, last_error
from bench.harness import BenchError
from bench.service import environment

COMMAND_DEADLINE_S = 60.0
QUIT_DEADLINE_S = 5.0


@dataclass
class Run:
    """What one command printed, and the processor time that the server spent meanwhile."""

    bytes: int
    seconds: float
    cpu_seconds: float
    requests: int
    p50_us: float
    p99_us: float
    server_cpu_seconds: float = 0.0

    @property
    def gb_per_s(self) -> float:
        return self.bytes / self.seconds / 1e9

    def per_gb(self, seconds: float) -> float:
        return seconds / (self.bytes / 1e9)


class NetClient:
    """A started client. `begin()` and `result()` are `run()` in two halves, for clients at the same time."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path,
                 env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self._buffer = b""
        with open(log, "ab") as err:
            try:
                self._child = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE,
                                               stdout=subprocess.PIPE, stderr=err, env=environment(env or {}),
                                               cwd=tempfile.gettempdir(), start_new_session=True,
                                               preexec_fn=die_with_parent)
            except FileNotFoundError:
                build = "make build PRESET=release TARGETS=kvd_net_bench"
                raise BenchError(f"{command[0]} is not there: {build}") from None

    def alive(self) -> bool:
        return self._child.poll() is None

    def begin(self, *words: object) -> None:
        line = " ".join(map(str, words)) + "\n"
        with contextlib.suppress(BrokenPipeError):      # the answer says why it has ended
            self._child.stdin.write(line.encode())
            self._child.stdin.flush()

    def reply(self, deadline_s: float = COMMAND_DEADLINE_S) -> dict:
        end = time.monotonic() + deadline_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._child.stdout], [], [], max(0.0, end - time.monotonic()))
            part = os.read(self._child.stdout.fileno(), 1 << 16) if ready else b""
            if not part:
                self.close()
                what = f"has ended: {last_error(self.log)}" if ready else f"did not answer within {deadline_s:.0f} s"
                raise BenchError(f"client {self.name} {what} (log: {self.log})")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if "error" in reply:
            self.close()
            raise BenchError(f"client {self.name}: {reply['error']}")
        return reply

    def result(self, deadline_s: float = COMMAND_DEADLINE_S) -> Run:
        return Run(**self.reply(deadline_s))

    def run(self, *words: object, deadline_s: float = COMMAND_DEADLINE_S) -> Run:
        self.begin(*words)
        return self.result(deadline_s)

    def records(self, record_bytes: int, count: int) -> None:
        self.begin("records", record_bytes, count)
        self.reply()

    def close(self) -> None:
        """May be called more than once."""
        with contextlib.suppress(OSError, ValueError):
            self._child.stdin.close()
        try:
            self._child.wait(0.0 if self._buffer else QUIT_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
