"""Tests of test_summary.py: what counts as passed, failed and skipped."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import test_summary  # noqa: E402

RESULTS = """<testsuite tests="4">
  <testcase name="a" status="run"/>
  <testcase name="b" status="fail"><failure message="x"/></testcase>
  <testcase name="c" status="notrun"><skipped message="x"/><system-out>one line
no browser
</system-out></testcase>
  <testcase name="d" status="disabled"/>
</testsuite>
"""


class AddUpTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, "a.xml")

    def test_each_kind_is_counted(self) -> None:
        self.path.write_text(RESULTS)
        self.assertEqual(test_summary.add_up([self.path, self.path]),
                         (2, ["b", "b"], ["c: no browser", "d: it did not say why"] * 2))

    def test_a_missing_or_torn_file_is_a_failure(self) -> None:
        for text in ("", RESULTS[:60]):
            passed, failed, skipped = test_summary.add_up([self.path])
            self.assertEqual((passed, len(failed), skipped), (0, 1, []))
            self.path.write_text(text)


if __name__ == "__main__":
    unittest.main()
