"""What drills cost, kept in build/test-results/PRESET/drills.json: of each drill the request that it held up most.

A drill's row holds the time to first token, the cold time of such a request, the deadline that may be paid on top, and

    ratio = first_s / (1.1 * cold_s + deadline_s)

which is at most 1 where a fault costs no more than it may. A test fails at three times that bound only, because the
machine is shared. lost_s, for how long the machine itself stood still meanwhile, is not taken off.
"""

import json
import os
from pathlib import Path

import kvdepot
from bench import machine
from bench.harness import ROOT

COLD_FACTOR = 1.1
# The package is used from the build folder: build/PRESET/python/kvdepot/__init__.py.
FILE = ROOT / "build" / "test-results" / Path(kvdepot.__file__).parents[2].name / "drills.json"


class DrillFigures:
    """The rows of one test module, in order. Modules share the file, so that two of them must not run at once."""

    def __init__(self, suite):
        self._suite = suite
        self._facts = {"version": machine.version(ROOT), "machine": machine.facts(ROOT)}
        self._rows = {}

    def add(self, drill, engine, first_s, cold_s, deadline_s, lost_s):
        """Prints a request of a drill on `engine`, and keeps it unless another one of that drill was worse."""
        row = {"drill": drill, "engine": engine, "first_s": round(first_s, 3), "cold_s": round(cold_s, 3),
               "deadline_s": round(deadline_s, 3), "lost_s": round(lost_s, 3),
               "ratio": round(first_s / (COLD_FACTOR * cold_s + deadline_s), 3)}
        print(f"drill: {drill} ({engine}): first token after {first_s:.2f} s, cold {cold_s:.2f} s, deadline "
              f"{deadline_s:.2f} s, ratio {row['ratio']:.2f}, {lost_s:.2f} s lost by the machine", flush=True)
        kept = self._rows.setdefault((drill, engine), row)
        if row["ratio"] >= kept["ratio"]:
            self._rows[drill, engine] = row
            self._save()

    def _save(self):
        FILE.parent.mkdir(parents=True, exist_ok=True)
        suites = json.loads(FILE.read_text()) if FILE.exists() else {}
        suites[self._suite] = self._facts | {"drills": list(self._rows.values())}
        partial = FILE.with_suffix(".partial")
        partial.write_text(json.dumps(suites, indent=1) + "\n")
        os.replace(partial, FILE)
