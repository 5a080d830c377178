import io
import re
import unittest
import xml.etree.ElementTree as ElementTree

from kvdepot.demo import charts, picture, report, svg
from kvdepot.demo.terminal import Terminal
from kvdepot.demo.testing import synthetic


class Page(unittest.TestCase):
    def test_names_no_place_outside_of_itself(self):
        page = report.page(synthetic.result()).replace("http://www.w3.org/2000/svg", "")
        self.assertNotRegex(page, r"https?:|//[a-z]|@import|url\(|<script")

    def test_shows_what_the_result_says(self):
        page = report.page(synthetic.result())
        for text in ("71 times sooner", "51 times after it was killed", "2 of 2 claims ok", "7.20 s", "141 ms"):
            self.assertIn(text, page)

    def test_says_how_engines_got_it_as_the_depot_counted(self):
        data = synthetic.result()
        self.assertIn("in the depot's memory, of which 956 MB were lent", report.page(data))
        data["lent"]["C"]["bytes"] -= 1
        self.assertIn("Engines were sent it", report.page(data))

    def test_escapes_text(self):
        page = report.page(synthetic.result())
        self.assertIn("The &lt;bell&gt; hangs on", page)
        self.assertNotIn("<bell>", page)

    def test_leaves_out_parts_that_were_not_run_and_shows_what_failed(self):
        page = report.page(synthetic.failed())
        self.assertIn("FAILED", page)
        self.assertIn("0 of 1 claims ok", page)
        self.assertNotIn("Reuse sweep", page)
        self.assertNotIn("<b>engine", page)

    def test_of_a_run_that_measured_nothing_is_still_a_page(self):
        nothing = synthetic.failed() | {"ttft": [], "checks": [], "engine": {}, "document": {}, "status": "incomplete"}
        self.assertIn("the run did not end", report.page(nothing))


class Charts(unittest.TestCase):
    def test_are_well_formed(self):
        data = synthetic.result()
        for markup in (charts.bars(data["ttft"]), charts.sweep(data["sweep"]["arms"][1], "a < b"),
                       charts.layers(data["timeline"])):
            ElementTree.fromstring(markup)

    def test_layers_hold_one_rectangle_for_each_event(self):
        markup = charts.layers(synthetic.result()["timeline"])
        self.assertEqual(len(re.findall(r"<title>layer \d+: load", markup)), synthetic.LAYERS)
        self.assertEqual(len(re.findall(r"<title>layer \d+: store", markup)), synthetic.LAYERS)

    def test_bars_are_to_scale(self):
        rows = [synthetic._ttft("cold", "a", [2.0]), synthetic._ttft("depot", "b", [1.0])]
        widths = [float(w) for w in re.findall(r'<rect [^>]*width="([\d.]+)"', charts.bars(rows))]
        self.assertAlmostEqual(widths[0] / widths[1], 2.0, places=2)

    def test_ticks_are_round_and_reach_the_largest(self):
        for largest in (0.013, 0.9, 1.0, 7.2, 36.0, 104.0):
            marks = svg.ticks(largest)
            self.assertGreaterEqual(marks[-1], largest * 0.999)
            self.assertLessEqual(len(marks), 12)


class Picture(unittest.TestCase):
    def shown(self, data, **how):
        out = io.StringIO()
        picture.show(Terminal(out, **how), data)
        return out.getvalue()

    def test_is_ascii_where_the_terminal_is(self):
        self.shown(synthetic.result()).encode("ascii")

    def test_has_no_colour_unless_it_may(self):
        self.assertNotIn("\x1b", self.shown(synthetic.result(), unicode=True))
        self.assertIn("\x1b[32m", self.shown(synthetic.result(), colour=True))

    def test_says_what_failed(self):
        text = self.shown(synthetic.failed())
        self.assertIn("FAILED <b>engine B</b>: 0 of 6912 tokens", text)
        self.assertIn("0 of 1 claims ok: not all were so", text)

    def test_bars_end_within_the_width(self):
        for width in (60, 80, 120):
            lines = self.shown(synthetic.result(), unicode=True, width=width).splitlines()
            self.assertLessEqual(max(len(line) for line in lines if "█" in line), max(width, 82))

    def test_the_smallest_bar_can_be_seen(self):
        self.assertEqual(Terminal(io.StringIO(), unicode=True).bar(1e-9, 1.0, 20), "▏")
        self.assertEqual(Terminal(io.StringIO()).bar(1e-9, 1.0, 20), "#")
