"""Tests of the mutation tests: what says nothing is not taken for a mutant that was caught."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import arena_mutations  # noqa: E402
import mutants  # noqa: E402
import network_mutations  # noqa: E402
import scheduler_mutations  # noqa: E402
import service_mutations  # noqa: E402
import storage_mutations  # noqa: E402
import unit_mutations  # noqa: E402
import view_mutations  # noqa: E402

LISTS = (arena_mutations, network_mutations, scheduler_mutations, service_mutations, storage_mutations, unit_mutations,
         view_mutations)

# A program of tests: what it lists, and how a run of it ends.
PROGRAM = """#!/bin/sh
case "$1" in --gtest_list_tests) case "$2" in *Known*) printf 'Known.\\n  Test\\n' ;; esac; exit 0 ;; esac
{run}
"""


class MutantsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "bin").mkdir()
        (self.folder / "build.ninja").touch()
        (self.folder / "a.cc").write_text("int a = 1;\nint b = 1;\n", encoding="utf-8")
        mock.patch.object(mutants, "ROOT", self.folder).start()
        self.addCleanup(mock.patch.stopall)
        self.program("exit 0")

    def program(self, run: str, name: str = "program") -> Path:
        path = self.folder / "bin" / name
        path.write_text(PROGRAM.replace("{run}", run), encoding="utf-8")
        path.chmod(0o755)
        return path

    def mutant(self, old: str = "int a = 1;", new: str = "int a = 2;", bug: str = "bug", program: str = "program",
               tests: str = "Known.*") -> mutants.Mutant:
        return mutants.Mutant(bug, "a.cc", old, new, program, mutants.tests_fail(tests))

    def hunt(self, *them: mutants.Mutant, run: str = "echo '[  FAILED  ] Known.Test'; exit 1", builds: bool = True,
             seconds: float | None = None) -> int:
        """A hunt whose mutants are programs that end so."""
        arguments = SimpleNamespace(build=self.folder, only=[], seconds=seconds)

        def build_mutant(*_arguments: object) -> Path:
            if not builds:
                raise mutants.NoVerdict("it does not build")
            return self.program(run, "mutant")

        with mock.patch.object(mutants, "build_mutant", build_mutant), mock.patch("builtins.print"):
            return mutants.hunt(arguments, list(them))

    def no_verdict(self, run: str, limit_s: float = 10) -> str:
        with self.assertRaises(mutants.NoVerdict) as raised:
            mutants.verdict([str(self.program(run))], limit_s)
        return str(raised.exception)

    def test_a_failed_check_a_crash_and_a_run_without_end_are_what_was_looked_for(self) -> None:
        self.assertEqual(mutants.verdict([str(self.program("echo '[  FAILED  ] Known.Test'; exit 1"))], 10),
                         (True, "[  FAILED  ] Known.Test"))
        self.assertEqual(mutants.verdict([str(self.program("echo WRONG seed 1; exit 1"))], 10), (True, "WRONG seed 1"))
        self.assertEqual(mutants.verdict([str(self.program("kill -ABRT $$"))], 10), (True, "it dies of SIGABRT"))
        self.assertEqual(mutants.verdict([str(self.program("exec sleep 60"))], 0.1), (True, "it does not end"))
        self.assertEqual(mutants.verdict([str(self.program("exit 0"))], 10), (False, "nothing"))

    def test_an_end_that_names_nothing_is_no_verdict(self) -> None:
        self.assertIn("status 127 and names nothing that is wrong: no such library",
                      self.no_verdict("echo no such library >&2; exit 127"))
        self.assertIn("status 2", self.no_verdict("exit 2"))
        self.assertIn("status -9", self.no_verdict("echo '[  FAILED  ] Known.Test'; kill -KILL $$"))
        self.assertIn("no test was run", self.no_verdict("echo '[  PASSED  ] 0 tests.'"))
        with self.assertRaises(mutants.NoVerdict):
            mutants.verdict([str(self.folder / "none")], 10)

    def test_a_hunt_passes_when_each_is_caught(self) -> None:
        self.assertEqual(self.hunt(self.mutant(), self.mutant("int b = 1;", bug="other")), 0)
        self.assertEqual(self.hunt(self.mutant(), run="exit 0"), 1)

    def test_a_text_that_is_not_there_or_twice_fails_it_also_when_there_is_no_time(self) -> None:
        for old in ("int c = 1;", " = 1;", ""):
            self.assertEqual(self.hunt(self.mutant(old)), 1)
            self.assertEqual(self.hunt(self.mutant(), self.mutant(old, bug="other"), seconds=0.0001), 1)
        self.assertEqual(self.hunt(self.mutant(new="int a = 1;")), 1, "it changes nothing")
        self.assertEqual(self.hunt(self.mutant(), self.mutant(bug="twin")), 1)

    def test_what_does_not_build_or_is_not_there_fails_it(self) -> None:
        self.assertEqual(self.hunt(self.mutant(), builds=False), 1)
        self.assertEqual(self.hunt(self.mutant(program="none")), 1)
        self.assertEqual(self.hunt(), 1)

    def test_tests_that_do_not_exist_or_fail_anyway_fail_it(self) -> None:
        self.assertEqual(self.hunt(self.mutant(tests="Known.*:Gone.*")), 1)
        self.program("echo '[  FAILED  ] Known.Test'; exit 1")
        self.assertEqual(self.hunt(self.mutant()), 1)
        self.program("echo '[  PASSED  ] 0 tests.'")
        self.assertEqual(self.hunt(self.mutant()), 1)

    def test_without_a_build_it_is_skipped(self) -> None:
        (self.folder / "build.ninja").unlink()
        self.assertEqual(self.hunt(self.mutant()), mutants.SKIPPED)

    def test_a_tool_that_fails_is_no_mutant(self) -> None:
        with self.assertRaises(mutants.NoVerdict) as raised:
            mutants.run_tool(self.folder, ["sh", "-c", "echo 'a.cc:1: error: what' >&2; exit 1"])
        self.assertIn("a.cc:1: error: what", str(raised.exception))


class ListsTest(unittest.TestCase):
    def test_each_text_is_once_in_its_source(self) -> None:
        for module in LISTS:
            self.assertEqual(mutants.misplaced(module.MUTANTS), [], module.__name__)


if __name__ == "__main__":
    unittest.main()
