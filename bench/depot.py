"""A depot as an arm of a benchmark: `kvdepot serve` in a process of its own, its crashes and its own counters.

The port is chosen by the kernel at the first start and kept over restarts, as an operator's depot would keep it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness import BenchError
from bench.service import Service, http_text, prometheus_sum

WRITE_OUT_DEADLINE_S = 120.0    # demotion starts when the device is idle, at the latest after 30 s
STORED_QUIET_S = 0.3            # no new byte for this long: what an engine stores behind its answer has arrived
BYTES_PUT = "kvdepot_store_bytes_put_total"
KEYS_GOT = "kvdepot_keys_got_total"
BYTES_LENT = "kvdepot_bytes_lent_total"     # through shared memory
PUT_ARENA_BYTES = "kvdepot_put_arena_bytes_total"
FLASH_READ = "kvdepot_store_flash_bytes_read_total"
DIRTY_BYTES = "kvdepot_store_dirty_bytes"
UNFINISHED_PUTS = "kvdepot_store_unfinished_puts"


def binary(build: Path) -> Path:
    """The `kvdepot` of PATH (the Makefile puts the release build there), else that of the build directory."""
    found = shutil.which("kvdepot") or shutil.which("kvdepot", path=str(build / "release" / "bin"))
    if found is None:
        raise BenchError("kvdepot is not built; run make build")
    return Path(found).resolve()


class Depot:
    """One depot on one directory. `flags` can be changed at a restart. One thread."""

    def __init__(self, program: Path, folder: Path, pool_bytes: int, flash_bytes: int,
                 flags: Sequence[str] = (), listen: str = "tcp://127.0.0.1:0") -> None:
        self.program = program
        self.folder = folder
        self.sizes = [f"--pool={pool_bytes}", f"--flash={flash_bytes}"]
        self.listen = listen
        self._service: Service | None = None
        self._http_port = 0
        self.repeated = 0       # requests that were asked again, see engine_lab.ask_depot
        self.why_repeated = ""  # what the engine had counted by the last of them
        self.start(flags)

    def start(self, flags: Sequence[str] = ()) -> None:
        self._service = Service("kvdepot", [
            self.program, "serve", f"--dir={self.folder}", *self.sizes, f"--listen={self.listen}",
            "--http=127.0.0.1:0", *flags], Path(f"{self.folder}.log"))
        self.listen = self._service.wait_for_line(r"listening on ((?:tcp|tls)://\S+)").group(1)
        self._http_port = int(self._service.wait_for_line(r"http://[\d.]+:(\d+)").group(1))

    @property
    def pid(self) -> int:
        return self._service.pid

    @property
    def address(self) -> str:
        return self.listen

    @property
    def command(self) -> str:
        return " ".join(["kvdepot", *self._service.command[1:]])

    def metrics(self) -> str:
        """All of them, in Prometheus' text format."""
        text = http_text(self._http_port)
        if text is None:
            raise BenchError(f"the depot does not answer on its HTTP port (log: {self._service.log})")
        return text

    def kill(self) -> None:
        self._service.kill()

    def stop(self) -> None:
        if self._service:
            self._service.stop()

    def crash_and_restart(self, flags: Sequence[str] = ()) -> None:
        """SIGKILL, then a new process on the same directory and port."""
        self.kill()
        self.start(flags)

    def restart(self, flags: Sequence[str] = (), emptied: bool = False) -> None:
        """An orderly stop, then a new process on the same directory and port with other flags; emptied: with nothing
        in it."""
        self.stop()
        if emptied:
            shutil.rmtree(self.folder)
        self.start(flags)

    def metric(self, name: str) -> float:
        """A figure of the depot's metrics page, summed over its labels."""
        value = prometheus_sum(self.metrics(), name)
        if value is None:
            raise BenchError(f"the depot's metrics have no {name}")
        return value

    def wait_stored(self) -> None:
        """Until no engine stores any more: put bytes have not grown for a moment."""
        last, since = -1.0, time.monotonic()
        while time.monotonic() - since < STORED_QUIET_S:
            now = self.metric(BYTES_PUT)
            if now != last or self.metric(UNFINISHED_PUTS):
                last, since = now, time.monotonic()
            time.sleep(0.05)

    def wait_written(self) -> None:
        """Until nothing waits to be written to flash."""
        self.wait_stored()
        end = time.monotonic() + WRITE_OUT_DEADLINE_S
        while self.metric(DIRTY_BYTES) > 0:
            if time.monotonic() > end:
                raise BenchError(f"the depot still has bytes to write after {WRITE_OUT_DEADLINE_S:.0f} s")
            time.sleep(0.05)

    def corrupt(self) -> float:
        """Records that failed verification since the depot was started."""
        return self.metric("kvdepot_store_corrupt_total")
