import unittest
import xml.etree.ElementTree as tree

from bench import svg_chart

SPACE = "{http://www.w3.org/2000/svg}"


class Ticks(unittest.TestCase):
    def test_reach_from_nothing_to_the_highest_value_in_even_steps(self):
        for high in (0.013, 0.5, 1, 3.3, 60, 999, 12345):
            marks = svg_chart.ticks(high)
            self.assertEqual(marks[0], 0)
            self.assertGreaterEqual(marks[-1], high * (1 - 1e-9))
            self.assertLess(marks[-2], high)
            self.assertTrue(3 <= len(marks) <= 9, (high, marks))

    def test_there_are_some_for_a_chart_of_zeros(self):
        self.assertEqual(svg_chart.ticks(0), [0, 1])


class Lines(unittest.TestCase):
    def test_a_higher_value_stands_higher_and_a_later_one_further_right(self):
        drawn = tree.fromstring(svg_chart.lines("a < b", "x", "y", {"one": [(2, 30), (1, 10), (4, 20)]}))
        points = [tuple(map(float, p.split(","))) for p in drawn.find(f"{SPACE}polyline").get("points").split()]
        self.assertEqual(points, sorted(points))
        self.assertEqual(min(range(3), key=lambda i: points[i][1]), 1)

    def test_every_series_has_a_line_of_its_own_and_a_name(self):
        series = {f"arm {i}": [(0, i), (1, i + 1)] for i in range(10)}
        drawn = tree.fromstring(svg_chart.lines("t", "x", "y", series, limit=("SLA", 5)))
        lines = drawn.findall(f"{SPACE}polyline")
        self.assertEqual(len({(p.get("stroke"), p.get("stroke-dasharray")) for p in lines}), 10)
        words = [t.text for t in drawn.findall(f"{SPACE}text")]
        self.assertTrue(set(series) <= set(words))
        self.assertIn("SLA", words)

    def test_nothing_is_refused(self):
        for make in (lambda: svg_chart.lines("t", "x", "y", {}), lambda: svg_chart.bars("t", "x", [])):
            with self.assertRaises(ValueError):
                make()


class Bars(unittest.TestCase):
    def test_are_as_long_as_their_values(self):
        drawn = tree.fromstring(svg_chart.bars("t", "x", [("a", 1.0, 0.1), ("b", 2.0, 0.1)]))
        widths = [float(r.get("width")) for r in drawn.findall(f"{SPACE}rect")[1:]]
        self.assertAlmostEqual(widths[1] / widths[0], 2, places=2)


if __name__ == "__main__":
    unittest.main()
