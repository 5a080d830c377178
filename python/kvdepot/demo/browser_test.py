"""The report in a real browser.

    python -m kvdepot.demo.browser_test

Where no Chromium is installed (`tools/setup.sh --test` installs it) it ends with status 77: skipped.
"""

import sys
import tempfile
import unittest
from pathlib import Path

from kvdepot.demo import report
from kvdepot.demo.testing import browser, synthetic

SIZES = """Array.from(document.querySelectorAll('svg')).map(s => {
  const box = s.getBoundingClientRect(), drawn = s.getBBox();
  return [s.getAttribute('aria-label'), box.width, box.height, drawn.width, drawn.height,
          drawn.x, drawn.y, s.viewBox.baseVal.width, s.viewBox.baseVal.height]; })"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


class ReportInBrowser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.window = browser.Browser(browser.find())
        cls.addClassCleanup(cls.window.close)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.page = Path(folder.name) / "report.html"
        self.page.write_text(report.page(synthetic.result()), encoding="utf-8")

    def test_draws_every_picture_without_errors_or_requests(self):
        for dark in (False, True):
            with self.subTest(dark=dark):
                self.window.open(self.page, dark)
                sizes = self.window.evaluate(SIZES)
                self.assertEqual(len(sizes), 4)
                for label, width, height, *_ in sizes:
                    self.assertGreater(width, 300, label)
                    self.assertGreater(height, 100, label)
                self.assertEqual(self.window.errors, [])
                foreign = [url for url in self.window.requests if url != self.page.as_uri() and url[:5] != "data:"]
                self.assertEqual(foreign, [])

    def test_nothing_is_drawn_outside_of_a_picture(self):
        self.window.open(self.page)
        for label, _, _, width, height, x, y, right, bottom in self.window.evaluate(SIZES):
            self.assertTrue(x >= 0 and y >= 0 and x + width <= right and y + height <= bottom, label)

    def test_fits_a_narrow_window(self):
        self.window.open(self.page, width=390)
        self.assertEqual(self.window.evaluate(OVERFLOW), 0)

    def test_background_follows_the_colour_scheme(self):
        shade = "getComputedStyle(document.body).backgroundColor"
        self.window.open(self.page)
        light = self.window.evaluate(shade)
        self.window.open(self.page, dark=True)
        self.assertNotEqual(self.window.evaluate(shade), light)

    def test_sees_requests_and_errors_where_there_are_some(self):
        self.page.write_text("<img src='http://192.0.2.1/x.png'><script>console.error('no'); missing()</script>")
        self.window.open(self.page)
        self.assertIn("http://192.0.2.1/x.png", self.window.requests)
        self.assertGreaterEqual(len(self.window.errors), 2)


if __name__ == "__main__":
    if not browser.find():
        print("no Chromium on this machine: tools/setup.sh --test")
        sys.exit(77)
    unittest.main()
