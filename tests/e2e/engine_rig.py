"""vLLM with the real model as a child process, for end-to-end tests: prompts, engines with our connector, digests.

Engines are bench/engine_worker.py processes; depots are tests/e2e/depot_process.py. Times are judged against the engine
itself on the same machine in the same minute, with a factor of three.
"""

import json
import os
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import kvdepot
from bench import engine_process, prompts
from bench.engine_process import Engine, EngineError, EngineSpec
from bench.harness import ROOT

BLOCK = 128             # tokens of a block on vLLM's CPU back end
SLACK = 3.0             # of bounds in time: the machine is shared with whatever else runs on it
# For tests of what is loaded and not of how soon: no deadline passes, though the machine stands still for seconds.
PATIENT = {"deadline_share": 100, "progress_ms": 10_000}


def connector(address, **settings):
    """vLLM's kv_transfer_config for a depot, as the README has it."""
    return {"kv_connector": "KvDepotConnector", "kv_connector_module_path": "kvdepot.vllm", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"depot": address, **settings}}


class Rig:
    """Owns the engines of a test and a folder for what they write. `close()` ends and removes all."""

    def __init__(self):
        self._stack = ExitStack()
        self._engines = []
        self.work = Path(tempfile.mkdtemp(prefix="kvd-vllm-"))
        self._stack.callback(shutil.rmtree, self.work, ignore_errors=True)
        env = engine_process.model_of(ROOT / "build")
        self.python, self.model, self.dtype = Path(env["python"]), Path(env["model"]), env["dtype"]
        from tokenizers import Tokenizer
        self._tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))

    def close(self):
        self.end_engines()
        self._stack.close()

    def end_engines(self):
        """All at the same time: vLLM takes seven seconds to end."""
        for engine in self._engines:
            engine.ask_to_quit()
        for engine in self._engines:
            engine.close()
        self._engines.clear()

    def engine(self, name, transfer, *, model=None, wait=True, fork=True, **arguments):
        """Starts an engine. wait=False: the caller waits, so that several start at once. Its processes fork, as vLLM's
        do on a GPU; fork=False: they start anew, as it is vLLM's way on a CPU, and each imports all of it again."""
        workers = arguments.get("tensor_parallel_size", 1)
        engine = Engine(EngineSpec(
            name=name, python=self.python, model=model or self.model, dtype=self.dtype, log_dir=self.work / "log",
            connector=transfer, cache_gib=1, fork=fork, import_paths=[Path(kvdepot.__file__).parent.parent],
            env={"VLLM_CPU_OMP_THREADS_BIND": cores_of(workers)} if workers > 1 else {},
            engine={"max_model_len": 4096, **arguments}))
        self._engines.append(engine)
        if wait:
            self.wait_ready(engine)
        return engine

    def wait_ready(self, engine):
        """Waits for the start of an engine; when it fails, the end of its log is in the error."""
        try:
            engine.wait_ready()
        except EngineError as error:
            lines = [line for line in engine.log.read_text(errors="replace").splitlines() if "INFO" not in line]
            raise EngineError(f"{error}\n" + "\n".join(lines[-60:])) from None

    def prompt(self, seed, tokens):
        """Token ids of prose; another seed gives another text from the first block on."""
        return self._tokenizer.encode(prompts.prose(seed, tokens), add_special_tokens=False).ids[:tokens]

    def part_of_model(self, name, layers, kv_heads):
        """The model with fewer layers and heads: its own three KV heads can't be shared out to two workers. What it
        says makes no sense, but depends on every token."""
        config = json.loads((self.model / "config.json").read_text())
        head = config["head_dim"]
        heads = config["num_attention_heads"] // config["num_key_value_heads"] * kv_heads
        def cut(name, tensor):
            if name.endswith(("k_proj.weight", "v_proj.weight")):
                return tensor[:kv_heads * head].contiguous()
            if name.endswith("q_proj.weight"):
                return tensor[:heads * head].contiguous()
            return tensor[:, :heads * head].contiguous() if name.endswith("o_proj.weight") else tensor
        def kept(name):
            return ".layers." not in name or int(name.split(".layers.")[1].split(".")[0]) < layers
        folder = self._rewritten(name, lambda name, tensor: cut(name, tensor) if kept(name) else None)
        config |= {"num_hidden_layers": layers, "num_key_value_heads": kv_heads, "num_attention_heads": heads}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def other_model(self, name):
        """The model with other weights, for reload_weights. They are those of its norms: vLLM 0.32 goes on with the
        packed matrices that it made at the start on a CPU."""
        return self._rewritten(name, lambda name, tensor: tensor.flip(0) if "layernorm" in name else tensor)

    def _rewritten(self, name, change):
        """A copy whose tensors are what `change(name, tensor)` returns; None leaves one out."""
        from safetensors.torch import load_file, save_file
        folder = self.work / name
        shutil.copytree(self.model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
        weights = {key: change(key, tensor) for key, tensor in load_file(self.model / "model.safetensors").items()}
        save_file({key: tensor for key, tensor in weights.items() if tensor is not None}, folder / "model.safetensors",
                  {"format": "pt"})
        return folder

    def copy_of_model(self, name):
        """The model in a folder of its own; a third of its layers where the processor has no AVX-512, because a pass
        takes several times as long there."""
        if self.dtype == "float32":
            return self.part_of_model(name, layers=10, kv_heads=3)
        folder = self.work / name
        shutil.copytree(self.model, folder)
        return folder


def cores_of(workers):
    """One core for each of an engine's workers, as vLLM writes them; they share cores where there are too few."""
    cores = sorted(os.sched_getaffinity(0))
    return "|".join(str(cores[i % len(cores)]) for i in range(workers))


def negate_weights(model):
    """Makes other weights of the same name, size and time: negates the sign of some all over the file."""
    file = model / "model.safetensors"
    stat = file.stat()
    with file.open("r+b") as stream:
        for offset in range(1 << 20, stat.st_size - 1, 1 << 12):
            stream.seek(offset | 1)
            byte = stream.read(1)
            stream.seek(offset | 1)
            stream.write(bytes([byte[0] ^ 0x80]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def timed(ask):
    """(answer, seconds) of a call."""
    began = time.monotonic()
    answer = ask()
    return answer, time.monotonic() - began


class Asking(threading.Thread):
    """One request in a thread of its own, so that the test can do something to the depot meanwhile."""

    def __init__(self, engine, ids, max_tokens=8):
        super().__init__(daemon=True)
        self._ask = lambda: timed(lambda: engine.ask(ids, max_tokens))
        self._result, self._error = None, None
        self.start()

    def run(self):
        try:
            self._result = self._ask()
        except Exception as error:      # raised again in result()
            self._error = error

    def result(self, seconds=300):
        self.join(seconds)
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise AssertionError(f"the request did not end within {seconds} s")
        return self._result


def wait_until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.01)


def wait_stored(depot, blocks, seconds=60):
    """Waits until the depot has taken `blocks` records in all, and nothing waits to be written."""
    def arrived():
        metrics = depot.metrics()
        return metrics["kvdepot_store_puts_total"] >= blocks and metrics["kvdepot_store_dirty_bytes"] == 0
    wait_until(arrived, f"{blocks} blocks stored and written", seconds)


def read_digests(path):
    """(store, load): (shard, key) -> set of digests that the connector's test hook saw."""
    seen = {"store": {}, "load": {}}
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        seen[row["event"]].setdefault((row["shard"], row["key"]), set()).add(row["digest"])
    return seen["store"], seen["load"]
