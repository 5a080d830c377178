"""The things a run works with: settings, folders, the depot, the engines; made here, ended here. One thread."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import document, machine
from .depot import Depot, flash_bytes_for
from .engine import Answer, Engine
from .processes import Children, DemoError, descendants, living
from .progress import Progress
from .result import Result

CACHE_GIB = 1               # of an engine: 23,300 tokens in float32, 46,600 in bfloat16
MODEL_TOKENS_MAX = 8192
# Of an engine's three processes with their cache, measured: 3.5 GiB. With less to spare engines start in turn.
ENGINE_BYTES = 7 << 29
ANSWER_TOKENS = 12
SWEEPER = "C"
# Deadline of the sweeper's loads over the time that computing takes. A shaped load of one block takes longer than that
# where the engine computes the first 128 tokens faster than those at the end of the document, which set the shape. Its
# loads behind a kill have that time as well (docs/demo.md).
PATIENCE = 4.0
CONNECT_DEADLINE_S = 30.0   # clients try again once a second; the machine may be busy
CONNECT_POLL_S = 0.2
FILLER_TOKENS = 160         # one block that the depot can hold, and some to compute
FILLER_SEED = 900
MODEL_NAME = "SmolLM2-135M-Instruct"


@dataclass
class Settings:
    """What the command line asks for."""

    build: Path
    model: Path
    binary: str
    parts: Sequence[str]
    quick: bool = False
    keep: bool = False
    engine_command: Sequence[str] | None = None     # tests put other programs in place of the engine and the depot
    depot_command: Sequence[str] | None = None

    @property
    def out(self) -> Path:
        return self.build / "demo"


@dataclass
class Lab:
    """One run's belongings. Made by `opened`."""

    settings: Settings
    progress: Progress
    result: Result
    children: Children
    work: Path
    depot: Depot
    engines: dict[str, Engine] = field(default_factory=dict)

    def start_engines(self, *names: str) -> None:
        """At once where memory allows it: starting is mostly waiting for one core's imports."""
        together = machine.memory_available_bytes() > len(names) * ENGINE_BYTES
        for group in [names] if together else [[name] for name in names]:
            started = [self._start_engine(name) for name in group]
            for number, engine in enumerate(started, 1):
                self.progress.detail(f"{number - 1} of {len(group)} up")
                engine.wait_ready()
        facts = self.engines[names[0]].facts
        self.result.data["engine"] = {
            "vllm": facts["vllm"], "model": self.settings.model.name, "dtype": facts["dtype"],
            "layers": facts["layers"], "block_tokens": facts["block_tokens"],
            "batch_tokens": facts["batch_tokens"], "threads": machine.core_binding()}

    def stop_engines(self, *names: str) -> None:
        for name in names:
            self.engines.pop(name).stop()

    def timeline_path(self, name: str) -> Path:
        return self.work / f"timeline-{name}.jsonl"

    def ask(self, name: str, ids: Sequence[int], tokens: int = ANSWER_TOKENS) -> Answer:
        return self.engines[name].ask(ids, tokens)

    def wake_up(self, name: str, encode: document.Encode) -> None:
        """After a restart of the depot: a small prompt of other content until engine `name` gets it from there again.

        Part of no figure: the first request after a fault may find an open breaker, or a process of the engine that has
        not connected again yet, and is computed. vLLM calls what a connector promised cached, also where its load has
        failed; only a load of all its blocks shows that all connections stand.
        """
        self.progress.detail(f"until engine {name} is connected again")
        filler = document.text_of_tokens(encode, FILLER_SEED, FILLER_TOKENS)
        deadline = time.monotonic() + CONNECT_DEADLINE_S
        self.engines[name].reset()
        while not self._loads(name, filler):
            if time.monotonic() > deadline:
                raise DemoError(f"engine {name} got nothing from the restarted depot within {CONNECT_DEADLINE_S:.0f} s"
                                f" (logs: {self.settings.out / 'logs'})")
            time.sleep(CONNECT_POLL_S)
            self.engines[name].reset()
        self.engines[name].reset()

    def _loads(self, name: str, prompt: Sequence[int]) -> bool:
        """Whether engine `name` gets a block at least of the prompt, and all that it was promised."""
        failed = self.blocks_failed(name)
        return self.ask(name, prompt, 1).cached >= document.BLOCK_TOKENS and self.blocks_failed(name) == failed

    def blocks_failed(self, name: str) -> int:
        """Blocks that engine `name` was promised and did not get, so far."""
        return int(self.engines[name].counter("vllm:kvdepot_blocks_failed"))

    def _more_settings(self, name: str) -> dict:
        """Of the connector. Engine C also runs the sweep: it logs its layers, and is patient with shaped loads."""
        return {"timeline_log": str(self.timeline_path(name)), "deadline_share": PATIENCE} if name == SWEEPER else {}

    def _start_engine(self, name: str) -> Engine:
        dtype = machine.engine_dtype()
        arguments = {
            "model": str(self.settings.model), "dtype": dtype, "max_model_len": MODEL_TOKENS_MAX,
            "max_num_batched_tokens": MODEL_TOKENS_MAX, "enforce_eager": True, "disable_log_stats": False,
            "kv_transfer_config": {
                "kv_connector": "KvDepotConnector", "kv_connector_module_path": "kvdepot.vllm",
                "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"depot": self.depot.address} | self._more_settings(name)}}
        env = {"PYTHONPATH": str(Path(__file__).parents[2]), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
               "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB), "VLLM_CPU_OMP_THREADS_BIND": machine.core_binding(),
               "VLLM_LOGGING_LEVEL": "INFO", "VLLM_NO_USAGE_STATS": "1"}
        log = self.settings.out / "logs" / f"engine-{name}.log"
        command = {"command": self.settings.engine_command} if self.settings.engine_command else {}
        self.engines[name] = Engine(self.children, name, arguments, log, env, **command)
        return self.engines[name]


@contextlib.contextmanager
def opened(settings: Settings, progress: Progress, result: Result) -> Iterator[Lab]:
    """Everything a run needs. On the way out all processes are ended and the depot's data are removed."""
    settings.out.mkdir(parents=True, exist_ok=True)
    with only_one(settings.out / "lock"), contextlib.ExitStack() as stack:
        shutil.rmtree(settings.out / "logs", ignore_errors=True)
        work = Path(tempfile.mkdtemp(prefix="run-", dir=settings.out))
        if settings.keep:
            stack.callback(progress.note, f"kept: {work}")
        else:
            stack.callback(shutil.rmtree, work, ignore_errors=True)
        children = stack.enter_context(Children())
        depot = Depot(children, settings.binary, work / "depot", settings.out / "logs" / "depot.log",
                      flash_bytes_for(work), settings.depot_command)
        yield Lab(settings, progress, result, children, work, depot)


def end(lab: Lab) -> None:
    """Ends all in order, and says whether nothing was left over. Part of the run: it has a check of its own."""
    lab.stop_engines(*list(lab.engines))
    status = lab.depot.stop()
    lab.children.end_all()
    left = living(descendants(os.getpid()))
    lab.result.check("all that was started has ended", status == 0 and not left,
                     f"depot ended with status {status} on SIGTERM; {len(left)} processes left")


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Two runs in one build directory would write over each other's logs and disturb each other's figures."""
    with open(path, "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"another demo runs in {path.parent}; wait for it, or use --build-dir") from None
        yield
