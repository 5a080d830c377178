"""Programs of a build with one safeguard taken out, and whether that is seen: what the mutation tests share."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77
RUN_LIMIT_S = 240  # a run that does not end is one that went wrong


@dataclass(frozen=True)
class Mutant:
    """What is taken out, the source, what is replaced, by what (the text must occur exactly once in its source); the
    program that is linked with it; whether a run of that goes wrong, as it must, and how."""

    bug: str
    source: str
    old: str
    new: str
    program: str
    goes_wrong: Callable[[Path], tuple[bool, str]]


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


def hunt(arguments: argparse.Namespace, mutants: list[Mutant]) -> int:
    """The exit status of a mutation test: 0 when all that there was time for were caught (and there was for one),
    SKIPPED without a ninja build of their programs."""
    build = arguments.build
    for words in arguments.only:
        mutants = [mutant for mutant in mutants if words in mutant.bug or words in mutant.program]
    mutants = in_order_of_commit(mutants) if arguments.seconds else mutants
    deadline = time.monotonic() + arguments.seconds if arguments.seconds else float("inf")
    for program in sorted({mutant.program for mutant in mutants}):
        if not (build / "build.ninja").is_file() or not (build / "bin" / program).is_file():
            print("skipped: no ninja build of", program)
            return SKIPPED
    survived = 0
    left_out: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        for mutant in mutants:
            if time.monotonic() > deadline:
                left_out.append(mutant.bug)
                continue
            original = (ROOT / mutant.source).read_text(encoding="utf-8")
            if original.count(mutant.old) != 1:
                print(f"{mutant.bug}: its place is not in {mutant.source} any more")
                return 1
            began = time.monotonic()
            text = original.replace(mutant.old, mutant.new)
            caught, how = mutant.goes_wrong(build_mutant(build, Path(name), mutant.source, text, mutant.program))
            took = time.monotonic() - began
            print(f"{'caught' if caught else 'NOT CAUGHT':<11} {mutant.bug} ({took:.0f} s): {how}", flush=True)
            survived += not caught
    if left_out:
        print(f"{len(left_out)} of {len(mutants)} were not come to in {arguments.seconds:.0f} s:", "; ".join(left_out))
    return 1 if survived or len(left_out) == len(mutants) else 0


def in_order_of_commit(mutants: list[Mutant]) -> list[Mutant]:
    """The same ones, begun at a place that is another one for each commit."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    first = int(commit[:12] or "0", 16) % max(len(mutants), 1)
    return mutants[first:] + mutants[:first]


def goes_wrong(arguments: list[str], program: Path) -> tuple[bool, str]:
    """Whether a run of it does not end, dies or finds something, and what."""
    try:
        done = subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=RUN_LIMIT_S,
                              check=False)
    except subprocess.TimeoutExpired:
        return True, "it does not end"
    if done.returncode < 0:
        return True, f"it dies of signal {-done.returncode}"
    wrong = [line for line in done.stdout.splitlines() if line.startswith(("WRONG", "[  FAILED  ]"))]
    return done.returncode != 0, wrong[0] if wrong else "nothing"


def tests_fail(tests: str) -> Callable[[Path], tuple[bool, str]]:
    """The same of these tests of a test program (GoogleTest's filter)."""
    return partial(goes_wrong, ["--gtest_brief=1", f"--gtest_filter={tests}"])


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
    original."""
    compile_of, link = commands(build, target)
    path = str((ROOT / source).resolve())
    changed = folder / Path(source).name
    changed.write_text(text, encoding="utf-8")
    file, command = compile_of[path]
    unit = changed
    if str(file) != path:
        unit = folder / "unit.cc"
        unit.write_text(file.read_text(encoding="utf-8").replace(path, str(changed)), encoding="utf-8")
    command = [word.replace(str(file), str(unit)) for word in command]
    subprocess.run(with_output(command, folder / "mutant.o"), cwd=build, check=True)
    program = folder / "mutant"
    command = with_output(link, program)
    first = next(i for i, word in enumerate(command) if word.endswith(".o"))
    subprocess.run([*command[:first], str(folder / "mutant.o"), *command[first:]], cwd=build, check=True)
    return program
