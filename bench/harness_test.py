import io
import json
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from bench import harness


class Alternation(unittest.TestCase):
    def test_every_arm_runs_once_a_round_and_the_order_turns(self):
        calls = []
        arms = {name: (lambda index, name=name: calls.append((name, index)) or float(index)) for name in "abc"}
        figures = harness.alternate(arms, rounds=3)
        self.assertEqual([name for name, _ in calls], list("abcbcacab"))
        self.assertEqual(figures, {"a": [0.0, 1.0, 2.0], "b": [0.0, 1.0, 2.0], "c": [0.0, 1.0, 2.0]})

    def test_warm_up_rounds_are_dropped_and_their_numbers_not_used_again(self):
        figures = harness.alternate({"a": float}, rounds=2, warmup=1)
        self.assertEqual(figures, {"a": [1.0, 2.0]})


class Goals(unittest.TestCase):
    def test_close_goals_are_judged_by_the_worse_end_of_the_interval(self):
        self.assertEqual(harness.judged(1.02, (0.97, 1.07), "lower", 1.05), 1.07)
        self.assertEqual(harness.judged(1.02, (0.97, 1.07), "higher", 1.0), 0.97)
        self.assertEqual(harness.judged(1.02, None, "lower", 1.05), 1.02)
        self.assertEqual(harness.judged(2.0, (1.0, 3.0), "lower", 2.2), 2.0)

    def test_at_least_and_at_most(self):
        self.assertTrue(harness.meets(50.0, "higher", 50))
        self.assertFalse(harness.meets(49.9, "higher", 50))
        self.assertTrue(harness.meets(2.2, "lower", 2.2))
        self.assertFalse(harness.meets(2.21, "lower", 2.2))
        self.assertIsNone(harness.meets(1.0, "lower", None))

    def test_a_misspelt_direction_is_refused(self):
        with self.assertRaises(ValueError):
            harness.meets(1.0, "up", 1.0)


class Figures(unittest.TestCase):
    def test_three_digits(self):
        for value, text in ((0, "0"), (0.0523, "0.052"), (1.2345, "1.23"), (52.34, "52.3"), (4321.0, "4,321"),
                            (2.5e-7, "2.5e-07"), (None, "-")):
            self.assertEqual(harness.figure(value), text)


def run_suite(run, *arguments):
    """Status, standard output and the result file of a suite of that name in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = harness.main("toy", run, "A toy.", ["--build-dir", folder, *arguments])
        path = Path(folder) / "bench" / "toy.json"
        written = json.loads(path.read_text()) if path.exists() else None
        work_left = (Path(folder) / "bench" / "toy.work").exists()
        return status, out.getvalue(), err.getvalue(), written, work_left


def two_results(bench):
    bench.ratio("get_over_peer", ours=[2.0, 4.0, 6.0], theirs=[1.0, 4.0, 2.0], unit="GB/s", form="ours/theirs",
                better="higher", goal=1.5, peer="peer 1.0", command="get")
    bench.value("share", 0.5, "ratio", better="higher", goal=1.0, command="count")
    bench.skip("get_over_other", "no wheel", "other")


class Suite(unittest.TestCase):
    def test_writes_results_in_the_documented_form(self):
        status, out, _, written, work_left = run_suite(two_results)
        self.assertEqual(status, 0)
        self.assertEqual(written["suite"], "toy")
        self.assertLessEqual({"cpu", "cores", "kernel", "disk"}, written["machine"].keys())
        ratio, share, skipped = written["results"]
        self.assertEqual(ratio["value"], 2.0)      # the median of 2, 1, 3: not 4 / 2
        self.assertEqual(ratio["ours"], {"min": 2.0, "median": 4.0, "max": 6.0, "unit": "GB/s"})
        self.assertEqual((ratio["goal"], ratio["met"], ratio["runs"], ratio["peer"]), (1.5, True, 3, "peer 1.0"))
        self.assertFalse(share["met"])
        self.assertEqual(skipped, {"name": "get_over_other", "value": None, "skipped": "no wheel", "peer": "other"})
        self.assertFalse(work_left)
        for word in ("get_over_peer", "MISSED", "no wheel"):
            self.assertIn(word, out)

    def test_check_fails_when_a_goal_is_missed_and_only_then(self):
        status, _, err, _, _ = run_suite(two_results, "--check")
        self.assertEqual(status, 1)
        self.assertIn("missed: share", err)
        self.assertEqual(run_suite(lambda bench: bench.skip("x", "y"), "--check")[0], 0)

    def test_theirs_over_ours_is_the_other_way_round(self):
        def run(bench):
            bench.ratio("cold_over_depot", ours=[1.0], theirs=[5.0], unit="s", form="theirs/ours", better="higher",
                        goal=None, peer="", command="")
        self.assertEqual(run_suite(run)[3]["results"][0]["value"], 5.0)

    def test_an_error_is_one_line_and_keeps_what_was_measured(self):
        def run(bench):
            two_results(bench)
            raise harness.BenchError("the engine has ended")
        status, out, err, written, work_left = run_suite(run)
        self.assertEqual(status, 1)
        self.assertIn("bench toy: the engine has ended", err)
        self.assertEqual(len(written["results"]), 3)
        self.assertIn("get_over_peer", out)
        self.assertFalse(work_left)

    def test_a_part_that_fails_stands_in_the_results_and_the_rest_goes_on(self):
        def run(bench):
            with bench.part("a", "b"):
                bench.value("a", 1.0, "s", better="lower", goal=None, command="")
                raise harness.BenchError("no answer")
            with bench.part("c"):
                raise harness.Unavailable("no wheel")
            bench.value("d", 1.0, "s", better="lower", goal=None, command="")
        status, out, err, written, _ = run_suite(run)
        self.assertEqual(status, 1)
        self.assertEqual([(r["name"], r.get("failed"), r.get("skipped")) for r in written["results"]],
                         [("a", None, None), ("b", "no answer", None), ("c", None, "no wheel"), ("d", None, None)])
        self.assertIn("failed: b", err)
        self.assertIn("no answer", out)

    def test_an_interrupt_cleans_up_and_says_so(self):
        def run(bench):
            (bench.work / "file").touch()
            raise KeyboardInterrupt
        status, _, err, _, work_left = run_suite(run)
        self.assertEqual(status, 130)
        self.assertIn("interrupted", err)
        self.assertFalse(work_left)

    def test_a_result_measured_again_replaces_the_first(self):
        def run(bench):
            for value in (1.0, 2.0):
                bench.value("x", value, "s", better="lower", goal=None, command="")
        self.assertEqual([r["value"] for r in run_suite(run)[3]["results"]], [2.0])

    def test_what_no_longer_fits_into_quick_is_skipped(self):
        def run(bench):
            self.assertTrue(bench.has_time(1.0, "a"))
            self.assertEqual(bench.has_time(1e9, "b"), not bench.quick)
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            for options, results in (([], 0), (["--quick"], 1)):
                bench = None

                def keep(made):
                    nonlocal bench
                    bench = made
                    run(made)
                harness.main("toy", keep, "", ["--build-dir", folder, *options], quick_limit_s=100.0)
                self.assertEqual(len(bench.results), results)

    def test_only_selects_by_pattern_and_runs_sets_the_rounds(self):
        seen = {}

        def run(bench):
            seen.update(a=bench.wants("pipeline_over_max_e3"), b=bench.wants("x", "overhead_cold"),
                        c=bench.wants("tokens_identical"), rounds=bench.rounds(5, 2))
        run_suite(run, "--only", "pipeline_*", "--only", "overhead_cold", "--runs", "7")
        self.assertEqual(seen, {"a": True, "b": True, "c": False, "rounds": 7})
        run_suite(run, "--quick")
        self.assertEqual((seen["c"], seen["rounds"]), (True, 2))


if __name__ == "__main__":
    unittest.main()
