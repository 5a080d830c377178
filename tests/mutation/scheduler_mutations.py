#!/usr/bin/env python3
"""Proves that the scheduler's property test can fail: puts five bugs into a copy of the scheduler, one at a time,
builds the test against each copy, and expects it to fail. Skipped (exit 77) where there is no C++ compiler.

    tests/mutation/scheduler_mutations.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77

# name, what is replaced, by what. Each text must occur exactly once in src/sched/scheduler.cc.
MUTATIONS = [
    ("finished requests keep a block",
     "  for (; !r.blocks.empty(); r.blocks.pop_back()) pool_.give(r.blocks.back(), id);\n"
     "  host_used_ -= r.host_blocks;",
     "  for (; r.blocks.size() > 1; r.blocks.pop_back()) pool_.give(r.blocks.back(), id);\n"
     "  host_used_ -= r.host_blocks;"),
    ("a swapped request gives its place on the host back twice",
     "    host_used_ -= r.host_blocks;\n    r.host_blocks = 0;\n    const std::uint32_t tokens",
     "    host_used_ -= 2 * r.host_blocks;\n    r.host_blocks = 0;\n    const std::uint32_t tokens"),
    ("recomputation keeps what was computed",
     "    r.computed = std::min(r.computed, static_cast<std::uint32_t>(r.blocks.size()) * config_.block_tokens);", ""),
    ("preempted requests queue behind new ones", "waiting_.push_front(id)", "waiting_.push_back(id)"),
    ("the first running request is the victim", "    const RequestId victim = running_.back();\n    preempt(victim);",
     "    std::swap(running_.front(), running_.back());\n    const RequestId victim = running_.back();\n"
     "    preempt(victim);"),
]


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++-19")


def build_and_run(source: str, folder: Path, cxx: str) -> tuple[bool, str]:
    """Whether the test passes with this text of scheduler.cc, and the end of what it printed."""
    (folder / "scheduler.cc").write_text(source, encoding="utf-8")
    program = folder / "test"
    sources = [folder / "scheduler.cc", ROOT / "src/sched/block_pool.cc", ROOT / "src/base/check.cc",
               ROOT / "src/base/random.cc", ROOT / "src/sched/scheduler_property_test.cc"]
    subprocess.run([cxx, "-std=c++23", "-O1", f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", *map(str, sources),
                    "-lgtest", "-lgtest_main", "-lpthread", "-o", str(program)], check=True)
    try:
        done = subprocess.run([str(program)], capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return False, "stuck"
    return done.returncode == 0, (done.stdout + done.stderr)[-400:]


def main() -> int:
    cxx = compiler()
    if cxx is None:
        print("skipped: no C++ compiler")
        return SKIPPED
    original = (ROOT / "src/sched/scheduler.cc").read_text(encoding="utf-8")
    survived = []
    with tempfile.TemporaryDirectory() as name:
        for bug, old, new in MUTATIONS:
            if original.count(old) != 1:
                print(f"{bug}: its place is not in scheduler.cc any more")
                return 1
            passed, _ = build_and_run(original.replace(old, new), Path(name), cxx)
            print(f"{'NOT CAUGHT' if passed else 'caught':<11} {bug}")
            if passed:
                survived.append(bug)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
