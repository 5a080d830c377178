"""The parent's end of a vLLM engine in a process of its own (bench/engine_worker.py): start, command, end.

Every engine of a comparison gets the same environment, made from nothing but what is written here, and the same
thread binding: vLLM otherwise computes with one thread fewer as soon as a connector is configured.
Every call has a deadline; an engine that misses it is killed, and the error names its log. One thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import harness, machine

START_DEADLINE_S = 300.0    # 35 s alone on two cores; several start at once
CALL_DEADLINE_S = 600.0
QUIT_DEADLINE_S = 20.0
TERM_DEADLINE_S = 5.0       # after that SIGKILL, which leaves vLLM's shared memory behind
PR_SET_PDEATHSIG = 1
CACHE_GIB = 1               # 23,300 tokens in float32, 46,600 in bfloat16
# glibc gives large freed memory back to the kernel or keeps it, by what the process has asked for before: of two equal
# engines one had 30,000 page faults in a cold request and the other 150,000, which is a tenth of its time.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_ARENA_MAX": "1"}


class EngineError(harness.BenchError):
    """An engine that did not start, answer or live, with the end of its log."""


@dataclass
class EngineSpec:
    """What to start. `engine` holds vLLM's own arguments, `connector` its kv_transfer_config."""

    name: str
    python: Path
    model: Path
    dtype: str
    log_dir: Path
    connector: dict | None = None
    cache_gib: int = CACHE_GIB
    import_paths: Sequence[Path] = ()
    engine: dict = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    module: str = "bench.engine_worker"
    fork: bool = False              # vLLM's processes fork instead of starting anew: sooner ready, not for figures
    touch_memory: bool = False      # before it is ready: no request pays for pages that were never written

    def arguments(self) -> dict:
        config = {"model": str(self.model), "dtype": self.dtype, "max_model_len": 8192, "enforce_eager": True,
                  "disable_log_stats": False, **self.engine}
        if self.connector is not None:
            config["kv_transfer_config"] = self.connector
        return config

    def environment(self) -> dict[str, str]:
        paths = [str(harness.ROOT), *map(str, self.import_paths)]
        return {
            "PATH": f"{self.python.parent}:{os.defpath}", "HOME": str(Path.home()), "LANG": "C.UTF-8",
            "TMPDIR": tempfile.gettempdir(), "PYTHONPATH": ":".join(paths),
            "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
            "VLLM_CPU_KVCACHE_SPACE": str(self.cache_gib), "VLLM_CPU_OMP_THREADS_BIND": thread_binding(),
            "VLLM_LOGGING_LEVEL": "INFO", "VLLM_NO_USAGE_STATS": "1", **KEEP_FREED_MEMORY, **self.env,
        }


@dataclass
class Answer:
    """One request's outcome. `cached`: tokens whose KV came from a cache; in a batch, those that were promised.
    `lost_s`: for how long the machine itself stood still meanwhile, see bench.machine.Lost."""

    times: list[float]
    tokens: list[int]
    cached: int
    lost_s: float = 0.0

    @property
    def first_s(self) -> float:
        return self.times[0]

    def intervals(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.times, self.times[1:])]


class Engine:
    """A started engine. `close()` ends it; so does the end of this process."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.facts: dict = {}
        self.lost_blocks = 0        # of the last generate(): promised by our connector, but computed after all
        spec.log_dir.mkdir(parents=True, exist_ok=True)
        self.log = spec.log_dir / f"{spec.name}.log"
        self._buffer = b""
        with open(self.log, "wb") as log:
            self._child = subprocess.Popen(
                [str(spec.python), "-m", spec.module,
                 json.dumps({"engine": spec.arguments(), "touch_memory": spec.touch_memory, "fork": spec.fork})],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=spec.environment(),
                cwd=tempfile.gettempdir(), start_new_session=True, preexec_fn=die_with_parent)

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> None:
        self.facts = self._reply(deadline_s)["facts"]

    def call(self, op: str, deadline_s: float = CALL_DEADLINE_S, **fields) -> dict:
        line = json.dumps({"op": op, **fields}) + "\n"
        try:
            self._child.stdin.write(line.encode())
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._failure("has ended") from None
        return self._reply(deadline_s)

    def generate(self, requests: Sequence[dict], deadline_s: float = CALL_DEADLINE_S) -> tuple[float, list[Answer]]:
        """All requests at their times; the time until the last one's end, and their answers in the same order."""
        lost = machine.Lost()
        reply = self.call("generate", deadline_s, requests=list(requests))
        lost_s = lost.seconds()
        self.lost_blocks = reply["lost_blocks"]
        answers = self._answers(reply["requests"])
        for answer in answers:
            answer.lost_s = lost_s
        return reply["wall_s"], answers

    def _answers(self, replies: Sequence[dict]) -> list[Answer]:
        for reply in replies:
            if reply["reason"] != "length" or not reply["times"]:
                raise self._failure(f"ended a request with {reply['reason']!r}")
        return [Answer(reply["times"], reply["tokens"], reply["cached"]) for reply in replies]

    def ask(self, ids: Sequence[int], max_tokens: int = 1, salt: str = "") -> Answer:
        """One request alone. `salt`: vLLM's cache_salt, which keeps caches of several clients apart."""
        (answer,) = self.generate([{"ids": list(ids), "max_tokens": max_tokens, "salt": salt}])[1]
        answer.cached = max(0, int(answer.cached - self.lost_blocks * self.facts["block_tokens"]))
        return answer

    def submit(self, requests: Sequence[dict]) -> list[str]:
        """Begins requests and returns their names; collect() or abort() each of them."""
        return self.call("submit", requests=list(requests))["names"]

    def collect(self, names: Sequence[str], deadline_s: float = CALL_DEADLINE_S) -> list[Answer]:
        """Waits for these requests. Their times count from submit(), but tokens are only seen in here."""
        return self._answers(self.call("collect", deadline_s, names=list(names))["requests"])

    def abort(self, names: Sequence[str]) -> None:
        """As when their clients went away; returns when the engine core has been told."""
        self.call("abort", 60.0, names=list(names))

    def reset_prefix_cache(self, *, connector: bool = False, patience_s: float = 30.0) -> None:
        """Drops the engine's own cache; with `connector`, its connector finds nothing that was stored before, either.
        An error when blocks are still in use after `patience_s`."""
        if not self.call("reset_prefix_cache", patience_s + 60.0, connector=connector, patience_s=patience_s)["reset"]:
            raise self._failure(f"can't reset its prefix cache: blocks are still in use after {patience_s:g} s")

    def collective_rpc(self, method: str, *args, **kwargs) -> None:
        """Calls a method of vLLM's worker in each of its processes."""
        self.call("collective_rpc", method=method, args=list(args), kwargs=kwargs)

    def counter(self, name: str) -> float:
        """One of the engine's own counters, summed over its labels; 0 when it has not counted yet."""
        return self.call("counters", 60.0)["counters"].get(name, 0.0)

    def external_hits(self) -> float:
        """Tokens that a connector delivered, as the engine's scheduler counted them."""
        return self.counter("vllm:external_prefix_cache_hits")

    @property
    def pid(self) -> int:
        return self._child.pid

    def kill(self) -> None:
        """SIGKILL to the engine and all its processes, as a crash would be."""
        signal_group(self._child.pid, signal.SIGKILL)
        self._child.wait()

    def ask_to_quit(self) -> None:
        """Without waiting: several engines can end at the same time."""
        with contextlib.suppress(OSError, ValueError):
            self._child.stdin.close()

    def close(self) -> None:
        """Asks it to end, then insists. May be called more than once."""
        self.ask_to_quit()
        try:
            self._child.wait(QUIT_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._terminate()
        self.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):      # what was written to an engine that has ended
                pipe.close()

    def _terminate(self) -> None:
        signal_group(self._child.pid, signal.SIGTERM)
        try:
            self._child.wait(TERM_DEADLINE_S)
        except subprocess.TimeoutExpired:
            pass

    def _reply(self, deadline_s: float) -> dict:
        end = time.monotonic() + deadline_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._child.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                self._terminate()
                self.kill()
                raise self._failure(f"did not answer within {deadline_s:.0f} s and was killed")
            part = os.read(self._child.stdout.fileno(), 1 << 20)
            if not part:
                raise self._failure("has ended")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if not reply["ok"]:
            raise self._failure(reply["error"])
        return reply

    def _failure(self, what: str) -> EngineError:
        return EngineError(f"engine {self.spec.name} {what}: {last_error(self.log)} (log: {self.log})")


def thread_binding() -> str:
    """All cores this process may use, as vLLM writes them: "0-1", "0,2,4"."""
    cores = sorted(os.sched_getaffinity(0))
    if cores == list(range(cores[0], cores[-1] + 1)):
        return f"{cores[0]}-{cores[-1]}"
    return ",".join(map(str, cores))


def die_with_parent() -> None:
    """Runs in the child: SIGTERM when the process that started it ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def last_error(log: Path) -> str:
    """The line of a log that most likely says what went wrong."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-400:]
    except OSError:
        return "no log"
    errors = [line for line in lines if "Error" in line and "Traceback" not in line]
    return (errors or [line for line in lines if line.strip()] or ["empty log"])[-1].strip()[:300]


def model_of(build: Path) -> dict:
    """Paths and dtype of the engine environment in a build directory, made if it is not there yet."""
    command = [sys.executable, str(harness.ROOT / "tools" / "engine_env.py"), "--json", "--build-dir", str(build)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise harness.BenchError("the engine environment can't be made; see above")
    return json.loads(done.stdout)
