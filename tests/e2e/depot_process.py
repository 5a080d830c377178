"""A depot as a child process, for end-to-end tests: start, stop, SIGKILL, SIGSTOP, restart on the same directory.

`kvdepot` is taken from PATH, where the test runner puts the build under test. Ports are always chosen by the kernel; a
restart keeps the port, as a real depot would, so that clients can reconnect. Used as a context manager it leaves no
process and no directory behind.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

START_SECONDS_MAX = 30  # recovery of a few GiB under a sanitizer included
STOP_SECONDS_MAX = 30   # SIGTERM drains for at most 20 s


class DepotError(RuntimeError):
    """The depot did not start; the message holds what it printed."""


class DepotProcess:
    """One `kvdepot serve` on a directory of its own (or `directory`, which then stays)."""

    def __init__(self, directory=None, pool="256MiB", flash="2GiB", extra=(), *,
                 listen="tcp://127.0.0.1:0", prefix=()):
        """`prefix`: words before the command, of something that ends by executing it."""
        self._own_directory = directory is None
        self.directory = directory or tempfile.mkdtemp(prefix="kvd-e2e-")
        self._pool, self._flash, self._extra = pool, flash, list(extra)
        self._listen, self._prefix = listen, list(prefix)
        self._process = None
        self._output = []
        self.starts = 0         # processes so far; `output` is of the last one
        self.address = None
        self.http = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pid(self):
        return self._process.pid

    @property
    def status(self):
        """How the last process ended; None while it runs."""
        return self._process.poll()

    @property
    def output(self):
        """All that the depot has printed since its last start."""
        return "".join(self._output)

    def start(self):
        command = [*self._prefix, "kvdepot", "serve", "--dir", self.directory, "--pool", self._pool,
                   "--flash", self._flash, "--listen", self._listen,
                   "--http", "127.0.0.1:0", *self._extra]
        self._output = []
        self.address = self.http = None     # what a process before this one printed says nothing about this one
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.starts += 1
        ready = threading.Event()
        threading.Thread(target=self._read, args=(self._process, self._output, ready), daemon=True).start()
        if not ready.wait(START_SECONDS_MAX) or not (self.address and self.http):
            self.kill()
            raise DepotError(f"the depot did not start:\n{self.output}")
        self._listen = self.address

    def _read(self, process, output, ready):
        with process.stdout:
            for line in process.stdout:
                output.append(line)
                if found := re.search(r"listening on ((?:tcp|tls|unix)://\S+)", line):
                    self.address = found[1]
                if found := re.search(r"(http://[\d.]+:\d+)", line):
                    self.http = found[1]
                if self.address and self.http:
                    ready.set()
        ready.set()

    def kill(self, with_signal=signal.SIGKILL):
        """Ends the process at once (nothing is drained) and reaps it."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(with_signal)
        self._process.wait(STOP_SECONDS_MAX)

    def terminate(self):
        """SIGTERM: drains and ends. Returns the exit status."""
        self._process.terminate()
        return self._process.wait(STOP_SECONDS_MAX)

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self):
        os.kill(self.pid, signal.SIGCONT)

    def restart(self):
        """SIGKILL and start again on the same directory and port."""
        self.kill()
        self.start()

    def metrics(self):
        """The Prometheus page as a dict of name (with labels) to number."""
        with urllib.request.urlopen(self.http + "/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return {name: float(value) for name, value in
                (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))}

    def healthy(self):
        try:
            with urllib.request.urlopen(self.http + "/healthz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def wait_until_clean(self, client, seconds=60):
        """Waits until nothing waits to be written to flash. Returns the depot's statistics."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stats = client.depot_stats()
            if dirty_bytes(stats) == 0:
                return stats
            time.sleep(0.05)
        raise AssertionError(f"still dirty after {seconds} s: {json.dumps(stats)}")


def dirty_bytes(stats):
    """Bytes that wait to be written, wherever the statistics keep them."""
    return stats["store"]["dirty_bytes"] if "store" in stats else stats["dirty_bytes"]
