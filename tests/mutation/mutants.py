"""Programs of a build with one safeguard taken out, and whether that is seen: what the mutation tests share.

A mutant is caught only by a run that ended in a failed check. What says nothing (a text that is not there or there
twice, a mutant that does not build or start, tests that do not exist, a program that fails unchanged, too) is a failure
of the mutation test, and never a mutant that was caught.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77
RUN_LIMIT_S = 240  # a run that does not end is one that went wrong
# What a program dies of by its own fault. Of others (SIGKILL for want of memory, SIGTERM) somebody else made it die.
OWN_SIGNALS = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGILL, -signal.SIGTRAP)


class NoVerdict(Exception):
    """Nothing can be said of a mutant, and why."""


@dataclass(frozen=True)
class Trial:
    """How a program is run, and how its unchanged twin is, which must pass: in less time, perhaps."""

    arguments: tuple[str, ...]
    control: tuple[str, ...]
    limit_s: float = RUN_LIMIT_S

    def goes_wrong(self, program: Path) -> tuple[bool, str]:
        """Whether a run does not end, dies or finds something, and what. Raises NoVerdict."""
        return verdict([str(program), *self.arguments], self.limit_s)

    def check(self, program: Path) -> None:
        """That the unchanged program passes: otherwise what goes wrong is no mutant's fault. Raises NoVerdict."""
        wrong, how = verdict([str(program), *self.control], self.limit_s)
        if wrong:
            raise NoVerdict(f"{program.name} goes wrong unchanged, too: {how}")


@dataclass(frozen=True)
class GoogleTests(Trial):
    """The same of tests of a GoogleTest program: those of a filter, of which each pattern has to name some."""

    tests: str = "*"

    def check(self, program: Path) -> None:
        for pattern in self.tests.split("-")[0].split(":"):
            done = subprocess.run([str(program), "--gtest_list_tests", f"--gtest_filter={pattern}"],
                                  capture_output=True, text=True, timeout=60, check=False)
            if done.returncode != 0 or not any(line.startswith("  ") for line in done.stdout.splitlines()):
                raise NoVerdict(f"{program.name} has no test {pattern}")
        super().check(program)


def tests_fail(tests: str) -> GoogleTests:
    arguments = ("--gtest_brief=1", f"--gtest_filter={tests}")
    return GoogleTests(arguments, arguments, tests=tests)


def verdict(command: Sequence[str], limit_s: float) -> tuple[bool, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return True, "it does not end"
    except OSError as error:
        raise NoVerdict(f"cannot be run: {error}") from None
    if done.returncode == 0:
        if re.search(r"^\[  PASSED  \] 0 tests", done.stdout, re.MULTILINE):
            raise NoVerdict("no test was run")
        return False, "nothing"
    if done.returncode in OWN_SIGNALS:
        return True, f"it dies of {signal.Signals(-done.returncode).name}"
    wrong = [line for line in done.stdout.splitlines() if line.startswith(("WRONG", "[  FAILED  ]"))]
    if done.returncode < 0 or not wrong:
        last = (done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or ["nothing"])[-1]
        raise NoVerdict(f"it ends with status {done.returncode} and names nothing that is wrong: {last}")
    return True, wrong[0]


@dataclass(frozen=True)
class Mutant:
    """What is taken out, the source, what is replaced, by what (the text must occur exactly once in its source); the
    program that is linked with it; the run of it that must go wrong."""

    bug: str
    source: str
    old: str
    new: str
    program: str
    trial: Trial

    def text(self) -> str:
        """The source with the bug. Raises NoVerdict."""
        try:
            original = (ROOT / self.source).read_text(encoding="utf-8")
        except OSError as error:
            raise NoVerdict(f"cannot be read: {error}") from None
        found = original.count(self.old) if self.old else 0
        if found != 1:
            raise NoVerdict(f"its place is {found} times in {self.source}")
        if self.old == self.new:
            raise NoVerdict("it changes nothing")
        return original.replace(self.old, self.new)


def command_line(of: str) -> argparse.Namespace:
    """What every mutation test takes: build (a path), only (words, or none), seconds (or None)."""
    parser = argparse.ArgumentParser(description=of, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=Path, default=Path("build/release"), help="a build made by ninja")
    parser.add_argument("--only", action="append", default=[], metavar="WORDS",
                        help="those whose name or program has these words in it")
    parser.add_argument("--seconds", type=float, metavar="N",
                        help="begin no further one after so long; which come first changes with the commit")
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    return arguments


def misplaced(mutants: Iterable[Mutant]) -> list[str]:
    """What is wrong with the texts of these, a line for each."""
    lines = []
    seen: dict[tuple[str, str, str], str] = {}
    for mutant in mutants:
        try:
            mutant.text()
        except NoVerdict as why:
            lines.append(f"{mutant.bug}: {why}")
        twin = seen.setdefault((mutant.source, mutant.old, mutant.new), mutant.bug)
        if twin != mutant.bug:
            lines.append(f"{mutant.bug}: is the same as: {twin}")
    return lines


def hunt(arguments: argparse.Namespace, mutants: list[Mutant]) -> int:
    """The exit status of a mutation test: 0 when all that there was time for were caught (and there was for one),
    SKIPPED where there is no ninja build. All texts are looked at, also of those that there is no time for."""
    build = arguments.build
    for words in arguments.only:
        mutants = [mutant for mutant in mutants if words in mutant.bug or words in mutant.program]
    if not (build / "build.ninja").is_file():
        print("skipped: no ninja build in", build)
        return SKIPPED
    wrong = misplaced(mutants)
    wrong += [f"{program}: is not built" for program in sorted({mutant.program for mutant in mutants})
              if not (build / "bin" / program).is_file()]
    if wrong or not mutants:
        print("\n".join(wrong or ["there is no such mutant"]))
        return 1
    mutants = in_order_of_commit(mutants) if arguments.seconds else mutants
    deadline = time.monotonic() + arguments.seconds if arguments.seconds else float("inf")
    failed = 0
    left_out: list[str] = []
    checked: dict[tuple[str, Trial], str] = {}
    with tempfile.TemporaryDirectory() as name:
        for mutant in mutants:
            if time.monotonic() > deadline:
                left_out.append(mutant.bug)
                continue
            began = time.monotonic()
            what, how = tried(mutant, build, Path(name), checked)
            print(f"{what:<11} {mutant.bug} ({time.monotonic() - began:.0f} s): {how}", flush=True)
            failed += what != "caught"
    if left_out:
        print(f"{len(left_out)} of {len(mutants)} were not come to in {arguments.seconds:.0f} s:", "; ".join(left_out))
    return 1 if failed or len(left_out) == len(mutants) else 0


def tried(mutant: Mutant, build: Path, folder: Path, checked: dict[tuple[str, Trial], str]) -> tuple[str, str]:
    """"caught", "NOT CAUGHT" or "NO VERDICT", and how. `checked`: what is wrong with unchanged programs, or ""."""
    try:
        key = (mutant.program, mutant.trial)
        if key not in checked:
            try:
                mutant.trial.check(build / "bin" / mutant.program)
                checked[key] = ""
            except NoVerdict as why:
                checked[key] = str(why)
        if checked[key]:
            raise NoVerdict(checked[key])
        caught, how = mutant.trial.goes_wrong(
            build_mutant(build, folder, mutant.source, mutant.text(), mutant.program))
    except NoVerdict as why:
        return "NO VERDICT", str(why)
    return "caught" if caught else "NOT CAUGHT", how


def in_order_of_commit(mutants: list[Mutant]) -> list[Mutant]:
    """The same ones, begun at a place that is another one for each commit."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    first = int(commit[:12] or "0", 16) % max(len(mutants), 1)
    return mutants[first:] + mutants[:first]


def commands(build: Path, program: str) -> tuple[dict[str, tuple[Path, list[str]]], list[str]]:
    """How each source is compiled: in which file, itself or one that includes several, and how; and how the program is
    linked."""
    compile_of = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        file = Path(entry["file"]).resolve()
        sources = [str(file)]
        if file.parent.name == "Unity":
            sources = re.findall(r'#include "(.+)"', file.read_text(encoding="utf-8"))
        for source in sources:
            compile_of[source] = file, shlex.split(entry["command"])
    lines = subprocess.run(["ninja", "-C", str(build), "-t", "commands", program], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    link = [word for word in shlex.split(lines[-1]) if word not in (":", "&&")]
    return compile_of, link


def with_output(command: list[str], output: Path) -> list[str]:
    at = command.index("-o")
    return [*command[:at + 1], str(output), *command[at + 2:]]


def build_mutant(build: Path, folder: Path, source: str, text: str, target: str) -> Path:
    """The program with this text in the place of one source: its object comes before the library that holds the
    original. Raises NoVerdict."""
    compile_of, link = commands(build, target)
    path = str((ROOT / source).resolve())
    if path not in compile_of:
        raise NoVerdict(f"{source} is not compiled by itself")
    changed = folder / Path(source).name
    changed.write_text(text, encoding="utf-8")
    file, command = compile_of[path]
    unit = changed
    if str(file) != path:
        unit = folder / "unit.cc"
        unit.write_text(file.read_text(encoding="utf-8").replace(path, str(changed)), encoding="utf-8")
    program, made = folder / "mutant", folder / "mutant.o"
    program.unlink(missing_ok=True)  # the one before must not be taken for this one
    made.unlink(missing_ok=True)
    run_tool(build, with_output([word.replace(str(file), str(unit)) for word in command], made))
    command = with_output(link, program)
    first = next(i for i, word in enumerate(command) if word.endswith(".o"))
    run_tool(build, [*command[:first], str(made), *command[first:]])
    return program


def run_tool(build: Path, command: list[str]) -> None:
    done = subprocess.run(command, cwd=build, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line]
        raise NoVerdict(f"it does not build: {(errors or done.stderr.splitlines() or ['no word of it'])[0]}")
