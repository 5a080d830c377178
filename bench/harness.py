"""The harness of all benchmarks: alternation, ratios of pairs, table, result file, command line.

A suite is a module with `run(bench)`, ended by `sys.exit(harness.main("name", run, __doc__))`. It measures *arms*,
callables that take the number of the round and return one figure. `alternate()` runs the arms in turn, round by round,
so that what disturbs the machine disturbs all of them; a result is the median of the rounds' ratios, never a ratio of
medians. What could not be measured is reported with the reason.

    bench.ratio("get_over_redis", ours=a, theirs=b, unit="GB/s", form="ours/theirs", better="higher", goal=1.0,
                peer="redis 7.0", command="...")

Result files have the form of docs/benchmarks.md: build/bench/<suite>.json. No time makes a test fail; `--check` makes
this command fail when a goal is missed. One thread; nothing here is called from another.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import math
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import machine, stats

ROOT = Path(__file__).resolve().parent.parent
RUNS = 5            # rounds when the suite names no other number
RUNS_QUICK = 2
PAIRS_CLOSE = 20    # rounds where a goal is within 10 % of 1
PAIRS_CLOSE_QUICK = 5

Arm = Callable[[int], float]


class BenchError(Exception):
    """One line that says what is wrong and what to do; ends the suite with status 1."""


class Unavailable(Exception):
    """A peer or a tool that can't be had here, with the reason in one line."""


class Progress:
    """What goes on, on stderr: one moving line on a terminal, one line a message elsewhere."""

    def __init__(self) -> None:
        self.stream = sys.stderr
        self.live = self.stream.isatty()
        self.began = time.monotonic()

    def note(self, text: str) -> None:
        """A line that stays."""
        print(self._erase() + self._clock() + text, file=self.stream, flush=True)

    def tick(self, text: str) -> None:
        """A line that the next one replaces; nothing where there is no terminal."""
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            print(self._erase() + (self._clock() + text)[:width], end="", file=self.stream, flush=True)

    def clear(self) -> None:
        print(self._erase(), end="", file=self.stream, flush=True)

    def _erase(self) -> str:
        return "\r\x1b[2K" if self.live else ""

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self.began)
        return f"{seconds // 60:3d}:{seconds % 60:02d}  "


def alternate(arms: Mapping[str, Arm], rounds: int, warmup: int = 0,
              progress: Progress | None = None) -> dict[str, list[float]]:
    """Runs every arm once a round; the order turns by one each round. Warm-up rounds are dropped, nothing else is.

    The round number an arm gets never repeats, warm-up included, so that it can be used to make fresh content.
    """
    figures: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for index in range(warmup + rounds):
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            if progress:
                label = "warm-up" if index < warmup else f"round {index - warmup + 1} of {rounds}"
                progress.tick(f"{label}: {name}")
            value = arms[name](index)
            if index >= warmup:
                figures[name].append(value)
    return figures


class Bench:
    """One run of one suite: its options, its progress, its results. Owns the folder `work` for the suite's files."""

    def __init__(self, suite: str, options: argparse.Namespace, quick_limit_s: float = math.inf) -> None:
        self.suite = suite
        self.options = options
        self.build = Path(options.build_dir).resolve()
        self.work = self.build / "bench" / f"{suite}.work"
        self.progress = Progress()
        self._quick_end = time.monotonic() + quick_limit_s
        self.results: list[dict] = []
        self.facts: dict = {}           # of the run, beside the results

    # -- what to run ----------------------------------------------------------------------------------------------

    @property
    def quick(self) -> bool:
        return self.options.quick

    def rounds(self, full: int = RUNS, quick: int = RUNS_QUICK) -> int:
        """How many rounds: --runs, else by --quick."""
        return self.options.runs or self.number(full, quick)

    def number(self, full: int, quick: int) -> int:
        """Of what is not to be had with less, --runs or not."""
        return quick if self.quick else full

    def close_rounds(self) -> int:
        """Rounds for a bound within 10 % of 1."""
        return max(self.options.runs, self.number(PAIRS_CLOSE, PAIRS_CLOSE_QUICK))

    def wants(self, *names: str) -> bool:
        """Whether one of these results was asked for (--only takes patterns; without it, all are)."""
        patterns = self.options.only
        return not patterns or any(fnmatch.fnmatch(name, pattern) for name in names for pattern in patterns)

    def has_time(self, seconds: float, *names: str) -> bool:
        """Whether a part that takes so long still fits into --quick; if not, its results are skipped."""
        if not self.quick or time.monotonic() + seconds <= self._quick_end:
            return True
        for name in filter(self.wants, names):
            self.skip(name, "no time left with --quick")
        return False

    # -- results --------------------------------------------------------------------------------------------------

    def ratio(self, name: str, *, ours: Sequence[float], theirs: Sequence[float], unit: str, form: str, better: str,
              goal: float | None, peer: str, command: str, **extra) -> dict:
        """A result made of pairs. `form` is "ours/theirs" or "theirs/ours"; `unit` is that of the figures."""
        pairs = (ours, theirs) if form == "ours/theirs" else (theirs, ours)
        ratios = stats.pair_ratios(*pairs)
        interval = stats.median_interval(ratios)
        return self._add(name, statistics.median(ratios), "ratio", better, goal, {
            "met": meets(judged(statistics.median(ratios), interval, better, goal), better, goal),
            "ours": stats.summary(ours, unit), "theirs": stats.summary(theirs, unit), "runs": len(ratios),
            "interval": list(interval) if interval else None, "form": form, "command": command, "peer": peer, **extra})

    def value(self, name: str, value: float, unit: str, *, better: str, goal: float | None, command: str,
              ours: Sequence[float] | None = None, theirs: Sequence[float] | None = None, peer: str = "",
              **extra) -> dict:
        """A result that is a figure of its own: a time, a count, a share."""
        more: dict = {"runs": len(ours or [value]), "command": command, "peer": peer, **extra}
        if ours:
            more["ours"] = stats.summary(ours, unit)
        if theirs:
            more["theirs"] = stats.summary(theirs, unit)
        return self._add(name, value, unit, better, goal, more)

    def skip(self, name: str, reason: str, peer: str = "") -> None:
        """A result that can't be had here. It stays in table and file, with the reason."""
        self.progress.note(f"skipped: {name}: {reason}")
        self._replace({"name": name, "value": None, "skipped": reason, "peer": peer})

    def fail(self, name: str, reason: str, peer: str = "") -> None:
        """A result that should be there and is not: the suite goes on and ends with status 1."""
        self.progress.note(f"FAILED: {name}: {reason}")
        self._replace({"name": name, "value": None, "failed": reason, "peer": peer})

    @contextlib.contextmanager
    def part(self, *names: str, peer: str = ""):
        """A part of the suite that measures these results. An error in it stands for those that are missing then;
        the suite goes on with the next part."""
        try:
            yield
        except (BenchError, Unavailable) as error:
            report = self.skip if isinstance(error, Unavailable) else self.fail
            for name in names:
                if self.wants(name) and not any(result["name"] == name for result in self.results):
                    report(name, str(error), peer)

    def _add(self, name: str, value: float, unit: str, better: str, goal: float | None, more: dict) -> dict:
        result = {"name": name, "value": value, "unit": unit, "better": better, "goal": goal,
                  "met": meets(value, better, goal), **more}
        self._replace(result)
        self.progress.note(result_line(result))
        return result

    def _replace(self, result: dict) -> None:
        """Results keep their place; measuring one again replaces it. The file is written each time: an interrupted
        run leaves what it had."""
        for index, other in enumerate(self.results):
            if other["name"] == result["name"]:
                self.results[index] = result
                break
        else:
            self.results.append(result)
        self.write()

    # -- output ---------------------------------------------------------------------------------------------------

    @property
    def file(self) -> Path:
        return self.build / "bench" / f"{self.suite}.json"

    def write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        if not hasattr(self, "_head"):
            self._head = {"suite": self.suite, "version": machine.version(ROOT), "quick": self.quick,
                          "machine": machine.facts(self.file.parent)}
        partial = self.file.with_suffix(".json.partial")
        partial.write_text(json.dumps(self._head | self.facts | {"results": self.results}, indent=1) + "\n")
        os.replace(partial, self.file)

    def missed(self) -> list[str]:
        return [r["name"] for r in self.results if r.get("met") is False]

    def failed(self) -> list[str]:
        return [r["name"] for r in self.results if r.get("failed")]

    def table(self) -> str:
        return table(self.results)


def meets(value: float, better: str, goal: float | None) -> bool | None:
    """Whether a value is at least (higher) or at most (lower) its goal; None without a goal."""
    if better not in ("higher", "lower"):
        raise ValueError(f"better is {better!r}, not higher or lower")
    if goal is None:
        return None
    return value >= goal if better == "higher" else value <= goal


def judged(median: float, interval: tuple[float, float] | None, better: str, goal: float | None) -> float:
    """What is held against a goal: the median; where the goal is within 10 % of 1, the worse end of the interval."""
    if goal is None or interval is None or abs(goal - 1.0) > 0.1:
        return median
    return interval[0] if better == "higher" else interval[1]


def figure(value: float | None) -> str:
    """Three significant digits, without exponents for what people read as plain numbers."""
    if value is None:
        return "-"
    if value == 0 or 0.001 <= abs(value) < 100_000:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
        return f"{value:,.{digits}f}" if value else "0"
    return f"{value:.3g}"


def goal_text(result: dict) -> str:
    if result.get("goal") is None:
        return ""
    return (">= " if result["better"] == "higher" else "<= ") + figure(result["goal"])


def span_text(part: dict | None) -> str:
    return f"{figure(part['median'])} ({figure(part['min'])}-{figure(part['max'])})" if part else ""


def result_line(result: dict) -> str:
    mark = {True: "met", False: "MISSED", None: ""}[result["met"]]
    goal = f" (goal {goal_text(result)}, {mark})" if goal_text(result) else ""
    return f"{result['name']} = {figure(result['value'])} {result['unit']}{goal}"


def table(results: Sequence[dict]) -> str:
    """All results for people: one line each, skipped ones with the reason."""
    head = ("result", "value", "95 %", "goal", "", "ours", "theirs", "runs", "peer")
    rows = [head]
    for r in results:
        if r["value"] is None:
            word = "failed" if r.get("failed") else "skipped"
            rows.append((r["name"], word, "", "", "", r[word], "", "", ""))
            continue
        interval = r.get("interval")
        unit = "" if r["unit"] == "ratio" else " " + r["unit"]
        part_unit = " " + (r.get("ours") or {}).get("unit", "") if r.get("ours") else ""
        rows.append((r["name"], figure(r["value"]) + unit,
                     f"{figure(interval[0])}-{figure(interval[1])}" if interval else "",
                     goal_text(r), {True: "met", False: "MISSED", None: ""}[r["met"]],
                     (span_text(r.get("ours")) + part_unit).strip(), span_text(r.get("theirs")),
                     str(r.get("runs", "")), r.get("peer", "")))
    # A reason spans columns, so it does not widen them.
    sized = [row for row in rows if row[1] not in ("skipped", "failed")]
    widths = [max(len(row[column]) for row in sized) for column in range(len(head))]
    widths[0] = max(len(row[0]) for row in rows)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * min(len(lines[0]), 120), *lines[1:]])


def parse(suite: str, doc: str | None, argv: Sequence[str] | None,
          add_arguments: Callable[[argparse.ArgumentParser], None] | None) -> argparse.Namespace:
    text = (doc or suite).strip()
    parser = argparse.ArgumentParser(prog=f"python -m bench.{suite}", description=text.split("\n\n")[0],
                                     epilog=f'example: make bench-{suite} ARGS="--quick --check"')
    parser.add_argument("--quick", action="store_true", help="fewer rounds and points; the names stay")
    parser.add_argument("--check", action="store_true", help="exit with status 1 when a goal is missed")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN",
                        help="measure only results whose name matches (may be given more than once)")
    parser.add_argument("--runs", type=int, default=0, metavar="N",
                        help="rounds, instead of the suite's own number; rows with a bound near 1 have twenty at least")
    parser.add_argument("--build-dir", default=str(ROOT / "build"), metavar="DIR", help="default: build/ here")
    parser.add_argument("--keep", action="store_true", help="keep the files the suite made")
    if add_arguments:
        add_arguments(parser)
    options = parser.parse_args(argv)
    if options.runs < 0:
        parser.error(f"--runs {options.runs}: a number of rounds is at least 1")
    return options


def main(suite: str, run: Callable[[Bench], None], doc: str | None = None, argv: Sequence[str] | None = None,
         add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
         quick_limit_s: float = math.inf) -> int:
    """Runs a suite from its command line and returns the exit status. Cleans up, also on SIGTERM and Ctrl-C."""
    bench = Bench(suite, parse(suite, doc, argv, add_arguments), quick_limit_s)
    status = 0
    signal.signal(signal.SIGTERM, _terminate)
    try:
        shutil.rmtree(bench.work, ignore_errors=True)
        bench.work.mkdir(parents=True)
        run(bench)
    except (BenchError, Unavailable) as error:
        bench.progress.note(f"bench {suite}: {error}")
        status = 1
    except OSError as error:
        bench.progress.note(f"bench {suite}: {error.strerror}: {error.filename}")
        status = 1
    except KeyboardInterrupt:
        bench.progress.note(f"bench {suite}: interrupted")
        status = 130
    finally:
        if not bench.options.keep:
            shutil.rmtree(bench.work, ignore_errors=True)
    bench.progress.clear()
    if bench.results:
        bench.write()
        print(bench.table())
        print(f"\n{bench.file}")
    if status == 0 and bench.failed():
        print(f"bench {suite}: failed: {', '.join(bench.failed())}", file=sys.stderr)
        status = 1
    if status == 0 and bench.options.check and bench.missed():
        print(f"bench {suite}: missed: {', '.join(bench.missed())}", file=sys.stderr)
        status = 1
    return status


def _terminate(_signal, _frame) -> None:
    raise KeyboardInterrupt
