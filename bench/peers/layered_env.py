"""A peer's Python environment: its own packages over those of the engine environment, which stays as it is.

Only the packages named here are installed, without dependencies: what the engine already has is used from there, so
that an arm differs from ours in the peer and in nothing else. A stamp makes the second call free.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Progress, Unavailable


def ensure(build: Path, name: str, packages: Sequence[str], engine_python: Path, probe: str,
           progress: Progress) -> Path:
    """Path of the environment's interpreter. `probe`: a module whose import shows that it works."""
    home = build / f"peer-{name}"
    python = home / "bin" / "python"
    stamp = home / "kvdepot-stamp.json"
    wanted = json.dumps({"packages": sorted(packages), "engine": str(engine_python), "home": str(home)})
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    progress.note(f"installing {', '.join(packages[:2])} into {home}")
    shutil.rmtree(home, ignore_errors=True)
    _run([engine_python, "-m", "venv", "--without-pip", home], f"no environment for {name}")
    site = next(home.glob("lib/python3*/site-packages"))
    engine_site = next(engine_python.parent.parent.glob("lib/python3*/site-packages"))
    (site / "engine.pth").write_text(f"{engine_site}\n")
    _run([engine_python, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--no-deps",
          "--quiet", *packages], f"{packages[0]} can't be installed")
    _run([python, "-c", f"import {probe}"], f"{packages[0]} is installed but can't be imported")
    stamp.write_text(wanted)
    return python


def _run(command: Sequence[object], failure: str) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if "rror" in line] or lines or ["no output"]
        raise Unavailable(f"{failure}: {errors[-1].strip()[:200]}")
