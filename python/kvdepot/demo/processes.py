"""Child processes that never outlive the demo: started in groups of their own, ended together, whatever happens.

Three nets, each for what the one before lets through: `Children` ends every group it started, in reverse order; as the
subreaper of its descendants this process then finds and kills what left its group; and a child is told by the
kernel when its parent was killed itself (PR_SET_PDEATHSIG, set between fork and exec by a Python one-liner so
that no code runs in a forked child of a process with threads).
Linux only. Used by one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STOP_DEADLINE_S = 10.0      # between SIGTERM and SIGKILL when all is ended
POLL_S = 0.02

# argv: parent's pid, program, arguments. A parent that died before prctl() is seen by its changed pid.
LAUNCH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


class DemoError(Exception):
    """The demo can't go on: one line that says what happened and what to look at."""


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP. Not an Exception: nothing but the clean-up may catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Child:
    """One started program with its output in a log file. stdin and stdout are pipes when asked for."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None,
                 pipes: bool = False) -> None:
        self.name = name
        self.log = log
        launch = [sys.executable, "-S", "-E", "-c", LAUNCH, str(os.getpid()), *map(str, command)]
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as out:
            self.log_start = out.tell()
            self._popen = subprocess.Popen(
                launch, stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else out, stderr=out if pipes else subprocess.STDOUT,
                env=surroundings(env or {}), cwd=tempfile.gettempdir(), start_new_session=True)
        self.stdin, self.stdout = self._popen.stdin, self._popen.stdout

    @property
    def pid(self) -> int:
        return self._popen.pid

    def status(self) -> int | None:
        """None while it runs, then its exit status, negative for a signal."""
        return self._popen.poll()

    def signal(self, number: int) -> None:
        """To the whole group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, number)

    def wait(self, deadline_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(deadline_s)
        return None

    def kill(self) -> int:
        """SIGKILL to the group; returns the exit status of the program."""
        self.signal(signal.SIGKILL)
        return self._popen.wait()

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """SIGTERM, and SIGKILL when that did not help in time. Calling it again does nothing."""
        if self.status() is None:
            self.signal(signal.SIGTERM)
            self.wait(deadline_s)
        return self.close()

    def close(self) -> int:
        status = self.kill()
        for pipe in (self.stdin, self.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        return status

    def last_words(self) -> str:
        """": " and the line of the log that most likely says what went wrong; empty when there is none."""
        try:
            with open(self.log, "rb") as log:
                log.seek(self.log_start)
                lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        except OSError:
            lines = []
        errors = [line for line in lines if "rror" in line and "Traceback" not in line]
        if not errors and self.status() is not None:
            errors = lines
        return f": {errors[-1][:300]}" if errors else ""


class Children:
    """All children of one run. Use it as a context: leaving it ends them all."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all()

    def start(self, *args, **kwargs) -> Child:
        child = Child(*args, **kwargs)
        self._children.append(child)
        return child

    def end_all(self) -> int:
        """Ends every child and every descendant; returns how many descendants had to be hunted down one by one.

        A second Ctrl-C in here must not leave orphans: signals stay blocked until all is over.
        """
        with uninterrupted():
            deadline = time.monotonic() + STOP_DEADLINE_S
            for child in reversed(self._children):
                child.signal(signal.SIGTERM)
            for child in reversed(self._children):
                child.wait(max(0.0, deadline - time.monotonic()))
                child.close()
            self._children.clear()
            return reap_descendants()


def reap_descendants() -> int:
    """Kills what is left below this process and collects it. For one that runs no other children than the demo's."""
    hunted = 0
    deadline = time.monotonic() + STOP_DEADLINE_S
    while (left := living(descendants(os.getpid()))) and time.monotonic() < deadline:
        hunted = max(hunted, len(left))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return hunted


def descendants(root: int) -> list[int]:
    """Pids of all processes below `root`, from /proc."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parents[int(entry)] = int(_stat(int(entry))[1])
    below: list[int] = []
    front = [root]
    while front:
        front = [pid for pid, parent in parents.items() if parent in front]
        below += front
    return below


def living(pids: list[int]) -> list[int]:
    """Those that still run; a zombie has ended."""
    left = []
    for pid in pids:
        with contextlib.suppress(OSError, IndexError):
            if _stat(pid)[0] not in "ZX":
                left.append(pid)
    return left


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; the name before it may hold spaces and parentheses."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()


def surroundings(extra: Mapping[str, str]) -> dict[str, str]:
    """All that a child sees of this process' environment, so that no setting of a shell changes a figure."""
    home = str(Path.home())
    return {"PATH": f"{Path(sys.executable).parent}:/usr/local/bin:{os.defpath}", "HOME": home, "LANG": "C.UTF-8",
            "TMPDIR": tempfile.gettempdir(), **extra}


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def raise_on_signals() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP raise Interrupted in the main thread."""
    def interrupt(number: int, _frame: object) -> None:
        raise Interrupted(number)
    for number in SIGNALS:
        signal.signal(number, interrupt)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals wait until the block is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
