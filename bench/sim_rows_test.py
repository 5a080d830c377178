import contextlib
import io
import tempfile
import unittest
from pathlib import Path

from bench import harness, sim, sim_rows


def run(ttft: float, tpot: float, unstable: bool = False) -> dict:
    if unstable:
        return {"unstable": True, "ttft_s": None, "tpot_s": None}
    return {"unstable": False, "ttft_s": {"p90": ttft}, "tpot_s": {"p90": tpot}}


class Cells(unittest.TestCase):
    def test_are_means_over_seeds(self):
        self.assertEqual(sim_rows.time_cells([run(1, 0.01), run(3, 0.03)]), "2.00 | 20.0")

    def test_one_queue_that_grows_is_enough_for_no_mean(self):
        self.assertEqual(sim_rows.time_cells([run(1, 0.01), run(0, 0, unstable=True)]), "unstable in 1 of 2 | ")


class Capacity(unittest.TestCase):
    def test_holds_within_both_limits_only(self):
        self.assertTrue(sim_rows.holds(run(5, 0.05)))
        self.assertFalse(sim_rows.holds(run(5.01, 0.01)))
        self.assertFalse(sim_rows.holds(run(1, 0.051)))
        self.assertFalse(sim_rows.holds(run(1, 0.01, unstable=True)))

    def test_halving_finds_the_largest_that_holds(self):
        for edge in (0.03, 1.0, 1.234, 3.9):
            self.assertAlmostEqual(sim_rows.largest(lambda load: load <= edge), edge, delta=0.0079)
        self.assertEqual(sim_rows.largest(lambda load: False), 0)


class Fleets(unittest.TestCase):
    def test_have_the_load_of_the_hour_on_eight_instances(self):
        for instances, requests in ((1, 2000), (64, 100_000), (64, 10_000_000), (1000, 1_000_000), (4096, 8_192_000)):
            fleet = sim_rows.hour_fleet(instances, requests)
            copies = fleet["workload.copies"]
            self.assertEqual(fleet["workload.speed"] * copies / instances, 1 / 8)
            self.assertGreaterEqual(copies * sim_rows.TRACE_REQUESTS * fleet["workload.repeats"], requests)
            self.assertLess(copies * sim_rows.TRACE_REQUESTS * (fleet["workload.repeats"] - 1), requests)

    def test_long_and_short_runs_differ_in_their_length_only(self):
        short, long = sim_rows.hour_fleet(64, 100_000), sim_rows.hour_fleet(64, 10_000_000)
        self.assertEqual({k for k in short if short[k] != long[k]}, {"workload.repeats", "workload.requests_max"})


class Records(unittest.TestCase):
    def test_of_other_bytes_are_not_the_same(self):
        class Writer:
            """Writes as it is told, for the run that skips and the one that does not."""

            def run(self, _config, settings, _requests: str, requests: str, _series: str, series: str,
                    *flags: str) -> dict:
                said = settings["stepped" if flags else "skipped"]
                Path(requests).write_text(said[0], encoding="utf-8")
                Path(series).write_text(said[1], encoding="utf-8")
                return {"goodput_per_s": said[2], "passes_executed": len(flags), "wall_s": 1 + len(flags)}

        with tempfile.TemporaryDirectory() as folder:
            for stepped, differ in ((("a", "b", 3), []), (("x", "b", 3), ["--requests"]), (("a", "x", 3), ["--series"]),
                                    (("a", "b", 4), ["goodput_per_s"])):
                found = sim_rows.same_output(Writer(), {"skipped": ("a", "b", 3), "stepped": stepped}, Path(folder))
                self.assertEqual(found[0], differ)
                self.assertEqual([run["passes_executed"] for run in found[1:]], [0, 1])


class Suite(unittest.TestCase):
    def test_goes_on_behind_a_row_that_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "release" / "bin" / "kvdepot"
            program.parent.mkdir(parents=True)
            program.write_text("#!/bin/sh\necho no >&2\nexit 3\n", encoding="utf-8")
            program.chmod(0o755)
            with contextlib.redirect_stderr(io.StringIO()):
                bench = harness.Bench("sim", harness.parse("sim", "", ["--quick", "--build-dir", folder], None))
                sim.run(bench)
            self.assertIn("study", bench.failed())
            self.assertIn("long_run_64", bench.failed())


class Arms(unittest.TestCase):
    def test_compare_what_the_page_says(self):
        arms = sim_rows.depot_arms()
        self.assertIn(sim_rows.BASE, arms)
        self.assertEqual(len([name for name in arms if name.startswith("private")]), 6)
        for gb in (1, 5, 10, 25, 50):
            self.assertEqual(arms[f"depot {gb} GB/s, load"]["fleet.policy"], "load")


if __name__ == "__main__":
    unittest.main()
