#!/usr/bin/env python3
"""Installs a build into a folder, with the prefix of its configuration and with another, moves that, and each time has
pkg-config find what the C example needs, which must build and store and load blocks.

    tests/library/installed.py BUILD CMAKE CC         skipped (exit 77) where there is no pkg-config
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/store_and_load.c"


UNSET = ("DESTDIR", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_SYSROOT_DIR")


def run(*command: object, **variables: object) -> str:
    """Runs a command with these variables in its environment; returns what it prints."""
    words = ["env", *(f"--unset={name}" for name in UNSET), *(f"{name}={value}" for name, value in variables.items())]
    done = subprocess.run([*words, *(str(word) for word in command)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def builds_and_runs(root: Path, cc: str) -> None:
    """With what pkg-config says of the one kvdepot.pc below `root`."""
    (pc,) = root.rglob("kvdepot.pc")
    flags = run("pkg-config", "--cflags", "--libs", "kvdepot", PKG_CONFIG_PATH=pc.parent).split()
    print(pc, flags)
    for flag in flags:
        place = Path(flag[2:])
        if flag[:2] in ("-I", "-L") and not place.resolve().is_relative_to(root.resolve()):
            raise SystemExit(f"{flag} is not below {root}")
    program = root / "store_and_load"
    run(cc, "-std=c99", EXAMPLE, *flags, "-o", program)
    run(program, f"file://{root}/kv?pool=64MiB&flash=256MiB", LD_LIBRARY_PATH=pc.parent.parent)


def main() -> None:
    build, cmake, cc = sys.argv[1:]
    if shutil.which("pkg-config") is None:
        print("skipped: no pkg-config")
        raise SystemExit(77)
    with tempfile.TemporaryDirectory(prefix="kvdepot-install-") as work:
        staged, elsewhere, moved = Path(work, "staged"), Path(work, "elsewhere"), Path(work, "moved")
        run(cmake, "--install", build, DESTDIR=staged)
        builds_and_runs(staged, cc)
        run(cmake, "--install", build, "--prefix", elsewhere)
        builds_and_runs(elsewhere, cc)
        elsewhere.rename(moved)
        builds_and_runs(moved, cc)


if __name__ == "__main__":
    main()
