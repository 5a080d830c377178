import io
import unittest

from kvdepot.demo.progress import Progress, Step
from kvdepot.demo.terminal import Terminal


class Plan(unittest.TestCase):
    def setUp(self):
        self.out = io.StringIO()
        self.progress = Progress(Terminal(self.out))
        self.progress.plan([Step("a", "first", 10), Step("b", "second", 20)])

    def test_is_shown_before_anything_starts(self):
        self.assertIn("Plan: 2 steps, about 30 s", self.out.getvalue())
        self.assertIn("2. second ~20 s", self.out.getvalue())

    def test_each_step_is_told_when_it_begins_and_ends(self):
        with self.progress.step("a"):
            self.assertIn("[ 1/2] first  0 of ~10 s", self.out.getvalue())
        self.assertRegex(self.out.getvalue(), r"\[ 1/2\] first: 0\.\d s ok")

    def test_a_step_that_fails_is_told_as_stopped(self):
        with self.assertRaises(ValueError), self.progress.step("a"):
            raise ValueError
        self.assertRegex(self.out.getvalue(), r"\[ 1/2\] first: 0\.\d s stopped")

    def test_the_rest_shrinks_as_steps_end_and_follows_corrections(self):
        self.assertAlmostEqual(self.progress.rest_s(), 30)
        with self.progress.step("a"):
            self.progress.expect("b", 5)
        self.assertAlmostEqual(self.progress.rest_s(), 5)

    def test_a_live_line_is_wiped_before_a_lasting_one(self):
        out = io.StringIO()
        progress = Progress(Terminal(out, live=True))
        progress.plan([Step("a", "first", 1)])
        with progress.step("a"):
            progress.note("kept")
        self.assertIn("\r\x1b[2K        kept\n", out.getvalue())
