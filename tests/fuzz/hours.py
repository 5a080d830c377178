#!/usr/bin/env python3
"""Runs fuzz targets until each has had so much time of a core, in runs that each begin with what the last one found.

    tests/fuzz/hours.py                               # all of build/asan for an hour, as many at a time as cores
    tests/fuzz/hours.py --only kvd_wire --seconds 600
    tests/fuzz/hours.py --minimize build/small        # what was found and reaches more, a folder for each target

What is counted is processor time, so other work on the machine takes none of it away. It can be stopped at any time
and goes on where it stopped: build/fuzz-hours/ has a state for each target, and the logs. New inputs are in
build/fuzz-corpus/, as those of `make fuzz`. Exit status 1 when a target found something: it ends, the others go on.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/asan"
STATES = ROOT / "build/fuzz-hours"
CORPORA = ROOT / "build/fuzz-corpus"
RUN_SECONDS = 300           # of one process: what it has found is in the corpus, and it begins with less memory again
INPUT_SECONDS_MAX = 20
MEMORY_MIB_MAX = 3000


def targets() -> dict[str, str]:
    """Names, and the folders of the inputs that the project keeps."""
    try:
        lines = (BUILD / "fuzz_targets.txt").read_text().split("\n")
    except FileNotFoundError:
        sys.exit("there is no build with fuzz targets: `cmake --preset asan`, "
                 "then `cmake --build build/asan --target kvd_fuzzers`")
    return dict(line.split(maxsplit=1) for line in lines if line.strip())


class Target:
    def __init__(self, name: str, kept: str):
        self.name, self.kept = name, kept
        self.pid, self.stopped = 0, False
        self.program = BUILD / "bin" / name
        self.corpus = CORPORA / name
        self.corpus.mkdir(parents=True, exist_ok=True)
        self.state_file = STATES / f"{name}.json"
        self.state = {"cpu_s": 0.0, "runs": 0, "found": 0}
        if self.state_file.exists():
            self.state = json.loads(self.state_file.read_text())

    def folders(self) -> list[str]:
        return [str(self.corpus), *([self.kept] if pathlib.Path(self.kept).is_dir() else [])]

    def run(self, seconds: float) -> bool:
        """One process; whether it ended as it should."""
        log = STATES / f"{self.name}.log"
        # In a session of its own: what is typed to end this program would look like a find there.
        with log.open("w") as out:
            process = subprocess.Popen(
                ["env", "ASAN_OPTIONS=detect_leaks=1", "nice", str(self.program),
                 f"-max_total_time={max(1, int(seconds))}", f"-timeout={INPUT_SECONDS_MAX}",
                 f"-rss_limit_mb={MEMORY_MIB_MAX}", "-print_final_stats=1", f"-artifact_prefix={STATES}/{self.name}-",
                 *self.folders()], stdout=out, stderr=out, cwd=ROOT, start_new_session=True)
            self.pid = process.pid
            _, status, usage = os.wait4(process.pid, 0)
            self.pid = 0
        runs = re.search(r"number_of_executed_units: *(\d+)", log.read_text(errors="replace"))
        self.state["cpu_s"] += usage.ru_utime + usage.ru_stime
        self.state["runs"] += int(runs[1]) if runs else 0
        found = status != 0 and not self.stopped
        self.state["found"] += found
        self.state_file.write_text(json.dumps(self.state))
        if found:
            log.rename(STATES / f"{self.name}.found.{int(time.time())}.log")
        return status == 0

    def stop(self) -> None:
        self.stopped = True
        if self.pid:
            os.killpg(self.pid, signal.SIGINT)

    def run_until(self, cpu_s: float) -> str:
        while self.state["cpu_s"] < cpu_s and not self.stopped:
            if not self.run(min(RUN_SECONDS, cpu_s - self.state["cpu_s"] + 1)):
                break
            print(self, flush=True)
        return str(self)

    def minimize(self, into: pathlib.Path) -> str:
        into.mkdir(parents=True, exist_ok=True)
        subprocess.run([str(self.program), "-set_cover_merge=1", "-use_counters=0", str(into),
                        *reversed(self.folders())], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       cwd=ROOT)
        return f"{self.name}: {sum(1 for _ in into.iterdir())} inputs"

    def __str__(self) -> str:
        state = self.state
        found = f", {state['found']} times something found: see {STATES}" if state["found"] else ""
        return f"{time.strftime('%T')} {self.name}: {state['cpu_s']:.0f} s, {state['runs']} inputs{found}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], metavar="TEXT", help="targets with that in their names")
    parser.add_argument("--seconds", type=float, default=3600, help="of a core, for each (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at a time (default: the cores, %(default)s)")
    parser.add_argument("--minimize", type=pathlib.Path, metavar="FOLDER",
                        help="run nothing; keep what reaches all edges that are reached")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    STATES.mkdir(parents=True, exist_ok=True)
    chosen = [Target(name, kept) for name, kept in targets().items() if any(text in name for text in options.only)]
    if not chosen:
        parser.error("no target has such a name")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        if options.minimize is not None:
            work = pool.map(lambda target: target.minimize(options.minimize / target.name), chosen)
        else:
            work = pool.map(lambda target: target.run_until(options.seconds), chosen)
        try:
            for line in work:
                print(line, flush=True)
        except KeyboardInterrupt:
            for target in chosen:
                target.stop()
    return 1 if any(target.state["found"] for target in chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
