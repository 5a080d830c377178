#!/usr/bin/env python3
"""Adds up JUnit files of ctest and prints one line: `12 passed, 0 failed, 1 skipped`.

    tools/test_summary.py [--list-failed] FILE.xml...

A file that is missing or not complete counts as one failure: a test program that was cut off must not look green.
Exit status 0 always; whoever runs the tests knows their status.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def add_up(paths: list[Path]) -> tuple[int, int, int, list[str]]:
    """Passed, failed and skipped tests of all files, and the names of the failed ones."""
    passed = skipped = 0
    failed: list[str] = []
    for path in paths:
        try:
            cases = ElementTree.parse(path).getroot().iter("testcase")
        except (OSError, ElementTree.ParseError):
            failed.append(f"{path} (no results)")
            continue
        for case in cases:
            status = case.get("status", "run")
            if case.find("skipped") is not None or status in ("notrun", "disabled"):
                skipped += 1
            elif case.find("failure") is not None or case.find("error") is not None or status == "fail":
                failed.append(case.get("name", "?"))
            else:
                passed += 1
    return passed, len(failed), skipped, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list-failed", action="store_true", help="names of failed tests before the line")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.xml")
    arguments = parser.parse_args()
    passed, failed, skipped, names = add_up(arguments.files)
    if arguments.list_failed:
        for name in names:
            print(f"failed: {name}")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
