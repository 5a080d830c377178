#!/usr/bin/env python3
"""Says which lines that deal with errors the tests of io, policy and store reach: docs/results/coverage.md.

    make coverage

A line deals with an error when it makes one (fail(...)), hands one on (.error()) or tells of one in the log. Those of
simulated disks, which make errors for a living, and of tests are not counted.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ("io", "policy", "store")
TESTS = ("kvd_io_test", "kvd_io_sim_test", "kvd_policy_test", "kvd_store_test", "kvd_store_sim_test")
DEALS_WITH_ERROR = re.compile(r"\bfail(_errno|_with)?\(|\.error\(\)|\blog_?\.(warn|error)\(")
HEAD = """# Error branches that tests reach

`make coverage`: the unit and simulated tests of io, policy and store, built by clang 19. Counted are lines that make
an error (`fail(...)`), hand one on (`.error()`) or tell of one in the log, in what ships. `kvd_fault_runs`, the crash
states, bit flips and the end-to-end tests are not in it.

| room | lines that deal with errors | reached | |
|---|---|---|---|
"""


def profiles(binaries: pathlib.Path, into: pathlib.Path) -> list[pathlib.Path]:
    ran = []
    for name in TESTS:
        binary = binaries / name
        if not binary.exists():
            continue
        room = ROOT / "build" / "coverage" / "src" / name.split("_")[1]
        print(f"coverage: {name}", file=sys.stderr, flush=True)
        profile = f"LLVM_PROFILE_FILE={into / name}-%p.profraw"
        subprocess.run(["env", profile, binary], check=True, cwd=room, stdout=subprocess.DEVNULL)
        ran.append(binary)
    if not ran:
        sys.exit(f"no test program in {binaries}: run make coverage")
    return ran


def counts(binaries: list[pathlib.Path], into: pathlib.Path) -> dict[str, dict[int, int]]:
    """By file below the root, how often each of its lines ran."""
    data = into / "all.profdata"
    raw = sorted(into.glob("*.profraw"))
    subprocess.run(["llvm-profdata-19", "merge", "-sparse", *raw, "-o", data], check=True)
    objects = [word for binary in binaries[1:] for word in ("-object", str(binary))]
    command = ["llvm-cov-19", "export", "-format=lcov", f"-instr-profile={data}", str(binaries[0]), *objects]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines: dict[str, dict[int, int]] = collections.defaultdict(dict)
    name = ""
    for line in text.splitlines():
        if line.startswith("SF:"):
            path = pathlib.Path(line[3:])
            name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
        elif line.startswith("DA:") and name:
            number, count = line[3:].split(",")[:2]
            lines[name][int(number)] = max(lines[name].get(int(number), 0), int(count))
    return lines


def shipped(name: str) -> bool:
    return not re.search(r"/(sim|testing)/|_(test|fuzz)\.cc$", name)


def page(lines: dict[str, dict[int, int]]) -> str:
    rows, missed = [], []
    for room in ROOMS:
        dealing = reached = 0
        for name in sorted(n for n in lines if n.startswith(f"src/{room}/") and shipped(n)):
            for number, source in enumerate((ROOT / name).read_text().splitlines(), 1):
                code = source.split("//")[0]
                if not DEALS_WITH_ERROR.search(code) or number not in lines[name]:
                    continue
                dealing += 1
                reached += lines[name][number] > 0
                if lines[name][number] == 0:
                    missed.append(f"{name}:{number}: {code.strip()}")
        if dealing:
            rows.append(f"| {room} | {dealing} | {reached} | {100 * reached / dealing:.0f} % |\n")
    return HEAD + "".join(rows) + "\nNot reached:\n\n```\n" + "".join(line + "\n" for line in missed) + "```\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=pathlib.Path, help="where the test programs are")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        into = pathlib.Path(folder)
        print(page(counts(profiles(options.binaries.resolve(), into), into)), end="")


if __name__ == "__main__":
    main()
