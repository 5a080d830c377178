"""What the rows of the engine suite share: the model, prompts of exact length, engines, a depot, quiet between them.

Names of engines: a *writer* stores, a *reader* gets it back in another process, a *plain* engine has no connector.
All engines of a row get the same arguments, memory and thread binding; they differ in the connector only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import engine_process, prompts
from bench.depot import BYTES_LENT, KEYS_GOT, Depot, binary
from bench.engine_process import Answer, Engine, EngineSpec
from bench.harness import ROOT, Bench, BenchError

BLOCK = 128             # tokens of a block on vLLM's CPU back end
DOCUMENT = 54 * BLOCK   # 6,912 tokens
QUESTION = 8
COUNTER_LAG_S = 2.0     # a depot that gets no core counts late what it has sent
REPEATS_MAX = 2         # of a request whose load was given up
PROBE_S = 1.5           # then the client has probed the depot
LEFT_ALONE = "vllm:kvdepot_requests_left_alone"
LOST = "vllm:kvdepot_blocks_failed"
SETTLE_S = 1.2          # vLLM's processes spin for 1 s after a message, then sleep
GIB = 2**30
POOL_BYTES = 2 * GIB    # lends a quarter of three quarters to a connection: a document in float32 has 318 MB
FLASH_BYTES = 4 * GIB


@dataclass
class Model:
    """The engine environment's paths and the geometry of the model's KV cache."""

    python: Path
    path: Path
    dtype: str
    layers: int
    kv_bytes_per_token: int

    @staticmethod
    def of(build: Path) -> Model:
        env = engine_process.model_of(build)
        config = json.loads((Path(env["model"]) / "config.json").read_text())
        heads = config["num_key_value_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        width = 4 if env["dtype"] == "float32" else 2
        layers = config["num_hidden_layers"]
        return Model(Path(env["python"]), Path(env["model"]), env["dtype"], layers,
                     layers * 2 * heads * head_dim * width)


class Lab:
    """Owns the processes of a run; `close()` ends them all. One thread."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.model = Model.of(bench.build)
        self._engines: list[Engine] = []
        self._depots: list[Depot] = []
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise BenchError(f"run this suite with {self.model.python}: it needs the engine's tokenizer") from None
        self._tokenizer = Tokenizer.from_file(str(self.model.path / "tokenizer.json"))

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    # -- prompts --------------------------------------------------------------------------------------------------

    def prompt(self, seed: str, tokens: int) -> list[int]:
        """Token ids of prose, exactly that many; another seed gives another text from the first block on."""
        ids = self._tokenizer.encode(prompts.prose(seed, tokens), add_special_tokens=False).ids
        if len(ids) < tokens:
            raise BenchError(f"prose of {tokens} words has only {len(ids)} tokens")
        return ids[:tokens]

    def question(self, seed: str, tokens: int = QUESTION) -> list[int]:
        return self._tokenizer.encode("\n\n" + prompts.question(seed), add_special_tokens=False).ids[:tokens]

    # -- engines --------------------------------------------------------------------------------------------------

    def engines(self, *specs: EngineSpec) -> list[Engine]:
        """Starts these engines at once and waits for all."""
        self.bench.progress.tick(f"starting engines: {', '.join(spec.name for spec in specs)}")
        started = []
        for spec in specs:
            started.append(Engine(spec))
            self._engines.append(started[-1])
        for engine in started:
            engine.wait_ready()
        return started

    def spec(self, name: str, connector: dict | None = None, **changes) -> EngineSpec:
        changes.setdefault("python", self.model.python)
        changes.setdefault("touch_memory", True)
        return EngineSpec(name=name, model=self.model.path, dtype=self.model.dtype, connector=connector,
                          log_dir=self.bench.work / "log", import_paths=package_paths(self.bench.build), **changes)

    def end(self, *engines: Engine) -> None:
        for engine in engines:
            engine.ask_to_quit()
        for engine in list(engines):
            if engine in self._engines:
                self._engines.remove(engine)
                engine.close()

    # -- the depot ------------------------------------------------------------------------------------------------

    def depot(self, name: str, pool_bytes: int = POOL_BYTES, flash_bytes: int = FLASH_BYTES,
              flags: Sequence[str] = ()) -> Depot:
        folder = self.bench.work / name
        depot = Depot(binary(self.bench.build), folder, pool_bytes, flash_bytes, flags)
        self._depots.append(depot)
        return depot

    def end_depot(self, depot: Depot) -> None:
        self._stop(depot)
        self._depots.remove(depot)
        shutil.rmtree(depot.folder, ignore_errors=True)

    @contextlib.contextmanager
    def scope(self):
        """Ends what was started inside and not ended there, also after an error."""
        engines, depots = list(self._engines), list(self._depots)
        try:
            yield
        finally:
            self.end(*[engine for engine in self._engines if engine not in engines])
            for depot in [depot for depot in self._depots if depot not in depots]:
                self.end_depot(depot)

    def close(self) -> None:
        self.bench.progress.tick("ending engines and servers")
        self.end(*list(self._engines))
        while self._depots:
            self._stop(self._depots.pop())

    def _stop(self, depot: Depot) -> None:
        if depot.repeated:
            self.bench.facts["repeated_requests"] = self.bench.facts.get("repeated_requests", 0) + depot.repeated
            self.bench.progress.note(f"{depot.repeated} requests were asked again: their loads had been given up "
                                     f"({depot.why_repeated})")
            self.bench.write()
        depot.stop()

    # -- measuring ------------------------------------------------------------------------------------------------

    def settle(self, depot: Depot | None = None) -> None:
        """Lets what the last request left behind come to rest: stores, and the engines' spinning."""
        if depot:
            depot.wait_written()
        time.sleep(SETTLE_S)

    def reconnect(self, depot: Depot, engine: Engine, primer: Sequence[int], deadline_s: float = 30.0) -> None:
        """After a restart of the depot: asks for something it holds until the engine gets it from there again."""
        end = time.monotonic() + deadline_s
        while True:
            engine.reset_prefix_cache()
            got = depot.metric(KEYS_GOT)
            if engine.ask(primer).cached >= len(primer) - BLOCK and has_sent(depot, got, 1):
                return
            if time.monotonic() > end:
                raise BenchError(f"engine {engine.spec.name} does not get anything from the restarted depot "
                                 f"after {deadline_s:.0f} s (log: {engine.log})")
            time.sleep(0.5)


def ours(depot: Depot, /, **settings) -> dict:
    """vLLM's kv_transfer_config for the depot, as the README has it."""
    return {"kv_connector": "KvDepotConnector", "kv_connector_module_path": "kvdepot.vllm", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"depot": depot.address, **settings}}


def ours_over_tcp(depot: Depot) -> dict:
    """The same for rows that are about TCP: on the depot's own host the client would read the depot's memory."""
    return ours(depot, shared_memory=False)


def package_paths(build: Path) -> list[Path]:
    """Where the engine finds the package kvdepot: the place this process would take it from."""
    found = importlib.util.find_spec("kvdepot")
    if found is not None and found.submodule_search_locations:
        return [Path(next(iter(found.submodule_search_locations))).parent]
    for folder in (build / "release" / "python", ROOT / "python"):
        if (folder / "kvdepot").is_dir():
            return [folder]
    return []


def expect_cached(answer: Answer, least: int, what: str) -> Answer:
    """A miss is not a hit: a figure counts only if at least that many tokens came from a cache."""
    if answer.cached < least:
        raise BenchError(f"{what}: {answer.cached} tokens came from a cache, {least} expected")
    return answer


def before_repeat(depot: Depot, engine: Engine) -> None:
    """A request's load was given up: counts that, with the engine's own reasons, and waits until the client has probed
    the depot."""
    depot.repeated += 1
    depot.why_repeated = connector_says(engine)
    engine.reset_prefix_cache()
    time.sleep(PROBE_S)


def connector_says(engine: Engine) -> str:
    """What the engine's connector has counted so far that explains a miss."""
    counters = engine.call("counters", 60.0)["counters"]
    return ", ".join(f"{name.removeprefix('vllm:kvdepot_')} {count:.0f}" for name, count in counters.items()
                     if "_failures{" in name or name in (LEFT_ALONE, LOST)) or "nothing"


def expect_lent(lab: Lab, depot: Depot, since: float, tokens: int) -> None:
    """An error unless the depot has lent its memory for so many tokens, or for none, since its counter read `since`."""
    lent = depot.metric(BYTES_LENT) - since
    if tokens == 0 and lent > 0:
        raise BenchError("an engine read the depot's memory, it should have been sent bytes")
    if lent < tokens * lab.model.kv_bytes_per_token:
        raise BenchError("an engine was sent bytes, it should have read them in the depot's memory")


def ask_depot(depot: Depot, engine: Engine, prompt: Sequence[int], least: int, what: str, max_tokens: int = 1,
              may_compute: bool = False) -> Answer:
    """A request whose first `least` tokens must come from the depot, proven by the depot's own counter. When the
    machine stands still for a tenth of a second (a virtual one does) the engine gives a load up and computes, as it
    should; such a request is asked again, twice at most, and counted in `depot.repeated`. `may_compute`: an engine that
    says that it has left the hit alone, because computing was predicted to end sooner, answers as well."""
    for attempt in range(1 + REPEATS_MAX):
        if attempt > 0:
            before_repeat(depot, engine)
        before, left_alone = depot.metric(KEYS_GOT), engine.counter(LEFT_ALONE) if may_compute else 0.0
        answer = engine.ask(prompt, max_tokens)
        if answer.cached >= least:
            break
        if may_compute and not answer.cached and engine.counter(LEFT_ALONE) > left_alone:
            return answer
    expect_cached(answer, least, what)
    expect_sent(depot, before, -(-least // BLOCK), what)
    return answer


def expect_sent(depot: Depot, before: float, blocks: int, what: str) -> None:
    """The depot's counter of sent blocks has grown by at least so much."""
    if not has_sent(depot, before, blocks):
        raise BenchError(f"{what}: the depot has sent {depot.metric(KEYS_GOT) - before:.0f} blocks, {blocks} expected")


def has_sent(depot: Depot, before: float, blocks: int) -> bool:
    """Whether the depot's counter of sent blocks has grown by so much; it may lag behind the client a little."""
    end = time.monotonic() + COUNTER_LAG_S
    while depot.metric(KEYS_GOT) - before < blocks:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def expect_cold(answer: Answer, what: str) -> Answer:
    if answer.cached:
        raise BenchError(f"{what}: {answer.cached} tokens came from a cache, none expected")
    return answer


def expect_same(answer: Answer, right: Answer, what: str) -> Answer:
    """No figure of a wrong answer. `right` comes from a hit of as many tokens (bench/engine_rows/tokens.py)."""
    if answer.tokens != right.tokens:
        raise BenchError(f"{what}: tokens {answer.tokens}, {right.tokens} expected")
    return answer


def expect_all_loaded(engine: Engine, what: str) -> None:
    """After a batch: nothing that our connector promised had to be computed after all."""
    if engine.lost_blocks:
        raise BenchError(f"{what}: {engine.lost_blocks:.0f} blocks were promised but not loaded")
