#!/usr/bin/env python3
"""Adds up JUnit files of ctest and prints one line: `12 passed, 0 failed, 1 skipped`.

    tools/test_summary.py [--list-failed] FILE.xml...

Before it, one line for each test that was skipped, with the reason it gave: nobody should take it for passed.
A file that is missing or not complete counts as one failure: a test program that was cut off must not look green.
Exit status 0 always; whoever runs the tests knows their status.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def add_up(paths: list[Path]) -> tuple[int, list[str], list[str]]:
    """How many tests of all files passed, the names of those that failed, and of the skipped ones with the reason."""
    passed = 0
    failed: list[str] = []
    skipped: list[str] = []
    for path in paths:
        try:
            cases = ElementTree.parse(path).getroot().iter("testcase")
        except (OSError, ElementTree.ParseError):
            failed.append(f"{path} (no results)")
            continue
        for case in cases:
            status = case.get("status", "run")
            if case.find("skipped") is not None or status in ("notrun", "disabled"):
                skipped.append(f"{case.get('name', '?')}: {reason(case)}")
            elif case.find("failure") is not None or case.find("error") is not None or status == "fail":
                failed.append(case.get("name", "?"))
            else:
                passed += 1
    return passed, failed, skipped


def reason(case: ElementTree.Element) -> str:
    """What a skipped test said last."""
    lines = [line.strip() for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
    return lines[-1] if lines else "it did not say why"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list-failed", action="store_true", help="names of failed tests before the line")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.xml")
    arguments = parser.parse_args()
    passed, failed, skipped = add_up(arguments.files)
    if arguments.list_failed:
        for name in failed:
            print(f"failed: {name}")
    for name in skipped:
        print(f"SKIPPED: {name}")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
