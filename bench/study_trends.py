"""Each sentence of the IPDPS'25 paper that states an ordering or a trend, against the simulator's predictions.

    python3 -m bench.study_trends [--study FILE...] [--kvdepot PROGRAM] [--markdown] [--page FILE [--update]]

Prints for every sentence whether it holds, with the predicted figures. One that does not hold is a finding about the
model or the paper, explained in docs/results/study.md, and no reason to fail. With --page it fails when the table of
that page says anything else than today's predictions; --update writes the table into it.

--study takes what `kvdepot sim study`, `kvdepot sim study --figure evictions --figure makespans --figure accesses
--figure prompt_passes` and `kvdepot sim calibrate --json` wrote; without it they are run.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.study_checks import Study
from bench.study_sentences import SENTENCES, Sentence

TABLE_HEAD = ["| figure, section | the paper says | | predicted |", "|---|---|---|---|"]
COUNT_LINE = re.compile(r"\d+ of \d+ sentences hold")
ASIDES = ("evictions", "makespans", "accesses", "prompt_passes")
NEEDED = {*(f"fig{n}" for n in "3a 3b 3c 4a 4b 4c 4c_fixed 5 8a 8b 9 10a 10b 11".split()), *ASIDES, "constants"}
RUNS = (["study"], ["study", *(word for name in ASIDES for word in ("--figure", name))], ["calibrate", "--json"])


GIVEN = " by construction"


def verdicts(study: Study) -> Iterator[tuple[Sentence, str, str]]:
    """Sentence, "holds" or not, predicted figures; "... by construction" where nothing that is simulated decides it."""
    for sentence in SENTENCES:
        if sentence.check is None:
            yield sentence, "not simulated", sentence.why_not
            continue
        holds, figures = sentence.check(study)
        verdict = "holds" if holds else "does not hold"
        yield (sentence, verdict + GIVEN, f"{figures} ({sentence.given})") if sentence.given else \
            (sentence, verdict, figures)


def count_line(found: Sequence[tuple[Sentence, str, str]]) -> str:
    said = [verdict for _, verdict, _ in found]
    given, none = sum(verdict.endswith(GIVEN) for verdict in said), said.count("not simulated")
    return f"{said.count('holds')} of {len(said) - given - none} sentences hold; {given} more are decided by " \
           f"construction, and {none} are not simulated."


def table(found: Sequence[tuple[Sentence, str, str]]) -> list[str]:
    """The table as lines of Markdown, and how many hold."""
    rows = [f"| {s.figure} | {s.text} | {verdict} | {figures} |" for s, verdict, figures in found]
    return [*TABLE_HEAD, *rows, "", count_line(found)]


def place(page: Sequence[str]) -> tuple[int, int]:
    """Where the page has its table, from the head to the line with the count."""
    try:
        begin = page.index(TABLE_HEAD[0])
        end = next(i for i in range(begin, len(page)) if COUNT_LINE.match(page[i])) + 1
    except (ValueError, StopIteration):
        raise SystemExit(f"the page has no table that begins with {TABLE_HEAD[0]} and ends with a count") from None
    return begin, end


def differences(page: Sequence[str], today: Sequence[str]) -> list[str]:
    begin, end = place(page)
    return list(difflib.unified_diff(page[begin:end], today, "page", "today", lineterm="", n=0))


def updated(page: Sequence[str], today: Sequence[str]) -> list[str]:
    begin, end = place(page)
    return [*page[:begin], *today, *page[end:]]


def predicted(kvdepot: str, files: Sequence[Path]) -> Study:
    if files:
        texts = [file.read_text(encoding="utf-8") for file in files]
    else:
        texts = [subprocess.run([kvdepot, "sim", *what], check=True, capture_output=True, text=True).stdout
                 for what in RUNS]
    study: Study = {}
    for text in texts:
        study.update(json.loads(text))
    return study


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, nargs="+", default=[])
    parser.add_argument("--kvdepot", default="kvdepot")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--page", type=Path, help="compare its table with the predictions; fail when it differs")
    parser.add_argument("--update", action="store_true", help="with --page: write the table into it instead")
    args = parser.parse_args()
    if args.update and not args.page:
        parser.error("--update: say which page, too: --page FILE")
    study = predicted(args.kvdepot, args.study)
    lacking = NEEDED - set(study)
    if lacking:
        parser.error(f"--study: {', '.join(sorted(lacking))} is missing; these write all that is needed: " +
                     ", ".join(f"kvdepot sim {' '.join(run)}" for run in RUNS))
    found = list(verdicts(study))
    if args.page:
        page = args.page.read_text(encoding="utf-8").splitlines()
        if args.update:
            args.page.write_text("\n".join(updated(page, table(found))) + "\n", encoding="utf-8")
            return 0
        changed = differences(page, table(found))
        print("\n".join(changed) if changed else f"{args.page}: {count_line(found)}")
        return 1 if changed else 0
    if args.markdown:
        print("\n".join(table(found)))
        return 0
    for sentence, verdict, figures in found:
        print(f"{verdict:<30} {sentence.figure:<5} {sentence.text}\n{'':<36} {figures}")
    print(f"\n{count_line(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
