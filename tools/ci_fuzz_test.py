"""Tests of .ci/fuzz: it passes only where each target ran something and found nothing."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = "stat::number_of_executed_units: "


class CiFuzzTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for name in (".ci", "tools", "build/asan/bin"):
            (self.root / name).mkdir(parents=True)
        shutil.copy(ROOT / ".ci" / "fuzz", self.root / ".ci" / "fuzz")
        (self.root / "build/asan/build.ninja").touch()
        self.script("tools/cmake", "exit 0")

    def script(self, path: str, text: str) -> None:
        (self.root / path).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        (self.root / path).chmod(0o755)

    def fuzz(self, **targets: str | None) -> tuple[int, list[str]]:
        """Its status and summary, where these are the targets and how they end; None: not built."""
        (self.root / "build/asan/fuzz_targets.txt").write_text(
            "".join(f"{name} src/none\n" for name in targets) + "\n", encoding="utf-8")
        for name, text in targets.items():
            if text is not None:
                self.script(f"build/asan/bin/{name}", text)
        done = subprocess.run(["sh", "-c", 'PATH="$1/tools:$PATH" exec "$1/.ci/fuzz" 1', "sh", str(self.root)],
                              capture_output=True, text=True, timeout=60, check=False)
        summary = (self.root / "build/test-results/fuzz/summary").read_text(encoding="utf-8")
        return done.returncode, sorted(summary.splitlines())

    def test_passes_where_each_target_ran_something(self) -> None:
        self.assertEqual(self.fuzz(a=f"echo {RUNS}7", b=f"echo {RUNS}1"), (0, ["a ok", "b ok"]))

    def test_what_a_target_finds_fails_it(self) -> None:
        self.assertEqual(self.fuzz(a=f"echo {RUNS}7; exit 77", b=f"echo {RUNS}1"), (1, ["a failed", "b ok"]))

    def test_without_targets_it_fails(self) -> None:
        self.assertEqual(self.fuzz(), (1, ["targets failed"]))

    def test_a_target_that_runs_nothing_fails_it(self) -> None:
        for text in (f"echo {RUNS}0", "exit 0", None):
            self.assertEqual(self.fuzz(a=text), (1, ["a failed"]))

    def test_targets_that_do_not_build_fail_it(self) -> None:
        self.script("tools/cmake", "exit 1")
        self.assertEqual(self.fuzz(a=f"echo {RUNS}7"), (1, ["build failed"]))


if __name__ == "__main__":
    unittest.main()
