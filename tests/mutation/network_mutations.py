#!/usr/bin/env python3
"""Proves that the runs on a simulated network can fail: takes one safeguard at a time out of a copy of the sources of
client, node and connections, links kvd_net_runs against each copy, and expects 100 seeds of it to go wrong. Skipped
(exit 77) where there is no build with a ninja file.

    tests/mutation/network_mutations.py build/release
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from storage_mutations import ROOT, SKIPPED, build_mutant

PROGRAM = "kvd_net_runs"
LIMIT_S = 240  # a run that does not end is one that went wrong

# What is taken out, the source, what is replaced, by what. Each text must occur exactly once in its source.
MUTATIONS = [
    ("an operation that has ended is received for", "src/client/core.cc",
     "  if (receiving_ == &running) receiving_ = nullptr;", ""),
    ("answers of requests that were given up stay owed", "src/client/core_replies.cc",
     "header.last()) side.draining.erase(found);", "header.last()) return {};"),
    ("operations have no deadline", "src/client/core.cc",
     "  running.timer->arm(at);\n", ""),
    ("a lost connection is not made again", "src/client/channel.cc",
     "  timer_.arm_in(backoff_.next());", ""),
    ("a region is in use until its operation is released", "src/client/core.cc",
     "  op.request.region.drop();", ""),
    ("a session that has ended stays", "src/node/node.cc",
     "  const auto gone = sessions_.extract(session.number());  // until the end: it owns `why`", ""),
]


def goes_wrong(program: Path) -> tuple[bool, str]:
    try:
        done = subprocess.run([str(program), "--seeds", "100"], capture_output=True, text=True, timeout=LIMIT_S,
                              check=False)
    except subprocess.TimeoutExpired:
        return True, "it does not end"
    if done.returncode < 0:
        return True, f"it dies of signal {-done.returncode}"
    wrong = [line for line in done.stdout.splitlines() if line.startswith("WRONG")]
    return done.returncode != 0, wrong[0] if wrong else "nothing"


def main() -> int:
    build = Path(sys.argv[1] if len(sys.argv) > 1 else "build/release").resolve()
    if not (build / "build.ninja").is_file() or not (build / "bin" / PROGRAM).is_file():
        print("skipped: no ninja build of", PROGRAM)
        return SKIPPED
    survived = []
    with tempfile.TemporaryDirectory() as name:
        for bug, source, old, new in MUTATIONS:
            original = (ROOT / source).read_text(encoding="utf-8")
            if original.count(old) != 1:
                print(f"{bug}: its place is not in {source} any more")
                return 1
            began = time.monotonic()
            mutant = build_mutant(build, Path(name), source, original.replace(old, new), PROGRAM)
            caught, how = goes_wrong(mutant)
            took = time.monotonic() - began
            print(f"{'caught' if caught else 'NOT CAUGHT':<11} {bug} ({took:.0f} s): {how}", flush=True)
            if not caught:
                survived.append(bug)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
