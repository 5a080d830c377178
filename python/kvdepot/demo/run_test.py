"""The whole demo with stand-ins for engine and depot (testing/fake_*.py): its story, its claims, its clean-up."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from kvdepot.demo import processes
from kvdepot.demo.depot import FIGURES, store_figures
from kvdepot.demo.processes import DemoError

PACKAGES = Path(processes.__file__).parents[2]
DEADLINE_S = 120.0


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = Path(folder.name)

    def command(self, *flags):
        return [sys.executable, "-m", "kvdepot.demo.testing.fake_run", str(self.build), *flags]

    @property
    def environment(self):
        return {"PYTHONPATH": str(PACKAGES), "PATH": os.defpath, "TMPDIR": tempfile.gettempdir()}

    def run_demo(self, *flags):
        done = subprocess.run(self.command(*flags), capture_output=True, text=True, timeout=DEADLINE_S,
                              env=self.environment)
        self.assertEqual(done.stderr, "")
        self.assert_nothing_left()
        return done.returncode, done.stdout

    def assert_nothing_left(self):
        """Neither a process that has our build folder in its command line nor the depot's data."""
        end = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(left, [])
        self.assertEqual(list(self.build.glob("demo/run-*")), [])

    def processes(self):
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text()
            except OSError:
                continue
            if str(self.build) in words and processes.living([int(pid)]):
                found.append(words.replace("\0", " ")[:80])
        return found

    def result(self):
        return json.loads((self.build / "demo" / "result.json").read_text())

    def failed(self):
        return [check["name"] for check in self.result()["checks"] if not check["ok"]]

    def test_tells_the_whole_story(self):
        self.run_demo()
        result = self.result()
        self.assertEqual([row["name"] for row in result["ttft"]],
                         ["cold", "prefix_cache", "depot", "depot_after_kill"])
        self.assertEqual([row["cached_tokens"] for row in result["ttft"]], [0, 6912, 6912, 6912])
        self.assertEqual(result["crash"]["exit"], ["SIGKILL"] * 3)
        self.assertEqual(result["crash"]["dirty_bytes"], [0] * 3)
        self.assertTrue(all(answer["tokens_identical"] for answer in result["answers"]))
        self.assertEqual([arm["name"] for arm in result["sweep"]["arms"]], ["unshaped", "e3"])
        self.assertEqual(len(result["sweep"]["arms"][1]["points"]), 4)
        self.assertTrue(result["timeline"]["events"])
        self.assertIn("cold_over_depot_6920_shm", result["ratios"])
        self.assertIn("<svg", (self.build / "demo" / "report.html").read_text())
        self.assert_claims_but_those_on_time_hold()

    def assert_claims_but_those_on_time_hold(self):
        """A busy machine may stretch the stand-ins' few milliseconds; what is not about time must hold anyway."""
        about_time = re.compile("times faster|overlap|timeline")
        self.assertEqual([name for name in self.failed() if not about_time.search(name)], [])

    def test_exit_status_is_that_of_its_claims(self):
        status, output = self.run_demo("--quick", "--only", "reuse")
        self.assertEqual(status, 0 if self.result()["status"] == "ok" else 1)
        self.assertIn("claims ok", output)

    def test_other_tokens_from_the_depot_fail(self):
        status, output = self.run_demo("--quick", "--only", "reuse", "--worker-fault", "wrong")
        self.assertEqual(status, 1)
        self.assertIn("engine B's answers are those of an engine with its own cache", self.failed())
        self.assertIn("DIFFERENT", output)

    def test_a_depot_that_sends_what_engines_are_said_to_read_in_its_memory_fails(self):
        status, _ = self.run_demo("--quick", "--only", "reuse", "--depot-fault", "sends")
        self.assertEqual(status, 1)
        self.assertIn("engine B read it in the depot's memory", self.failed())
        self.assertIn("cold_over_depot_6920_tcp", self.result()["ratios"])
        self.assertIn("Engines were sent it", (self.build / "demo" / "report.html").read_text())

    def test_loads_that_were_promised_and_given_up_fail(self):
        status, _ = self.run_demo("--quick", "--only", "reuse", "--worker-fault", "gives-up")
        self.assertEqual(status, 1)
        self.assertIn("engine B got the document from the depot", self.failed())

    def test_a_load_that_fails_right_behind_a_restart_is_no_part_of_the_story(self):
        status, _ = self.run_demo("--quick", "--only", "crash", "--worker-fault", "late")
        self.assertEqual((status, self.failed()), (0, []))

    def test_a_depot_that_forgets_at_a_kill_fails(self):
        status, _ = self.run_demo("--quick", "--only", "crash", "--depot-fault", "forgets")
        self.assertEqual(status, 1)
        self.assertIn("each restart found the document", self.failed())
        self.assertIn("engine C got the document from the depot", self.failed())

    def test_a_damaged_record_fails(self):
        status, _ = self.run_demo("--quick", "--only", "reuse", "--depot-fault", "corrupt")
        self.assertEqual(status, 1)
        self.assertIn("the depot found no damaged record", self.failed())

    def test_loading_before_computing_fails(self):
        self.assertEqual(self.run_demo("--quick", "--only", "sweep", "--worker-fault", "serial")[0], 1)
        self.assertIn("the timeline shows layers loading while others are computed", self.failed())

    def test_what_can_not_go_on_is_one_line_and_keeps_what_was_measured(self):
        for flag, fault, line in (
                ("--depot-fault", "refuses", r"demo: the depot did not start, ended with status 1: .*in use"),
                ("--worker-fault", "dies", r"demo: engine A has ended: RuntimeError: out of luck \(log: "),
                ("--worker-fault", "fails", r"demo: engine A refused: ValueError: no such token \(log: ")):
            with self.subTest(fault=fault):
                status, output = self.run_demo("--quick", flag, fault)
                self.assertEqual(status, 1)
                self.assertRegex(output.splitlines()[-1], line)
                self.assertEqual(self.result()["status"], "incomplete")

    def test_ctrl_c_in_mid_request_leaves_nothing(self):
        demo = subprocess.Popen(self.command("--worker-fault", "hangs"), stdout=subprocess.PIPE, text=True,
                                env=self.environment)
        for line in demo.stdout:
            if "engine A reads" in line and " of ~" in line:
                break
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=DEADLINE_S)
        self.assertEqual(demo.returncode, 130)
        self.assertIn("SIGINT; everything it started has been ended", rest)
        self.assert_nothing_left()

    def test_a_reader_that_goes_away_ends_it_quietly(self):
        demo = subprocess.Popen(self.command("--quick"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=self.environment)
        demo.stdout.readline()
        demo.stdout.close()
        _, errors = demo.communicate(timeout=DEADLINE_S)
        self.assertEqual((demo.returncode, errors), (1, ""))
        self.assert_nothing_left()

    def test_a_second_run_in_the_same_folder_is_refused(self):
        demo = subprocess.Popen(self.command("--worker-fault", "hangs"), stdout=subprocess.PIPE, text=True,
                                env=self.environment)
        self.addCleanup(demo.stdout.close)
        for line in demo.stdout:
            if "start the depot" in line and " of ~" in line:
                break
        second = subprocess.run(self.command(), capture_output=True, text=True, timeout=DEADLINE_S,
                                env=self.environment)
        self.assertEqual(second.returncode, 1)
        self.assertIn("another demo runs in", second.stdout)
        demo.send_signal(signal.SIGTERM)
        self.assertEqual(demo.wait(DEADLINE_S), 130)
        self.assert_nothing_left()


class CommandLine(unittest.TestCase):
    def demo(self, *flags):
        return subprocess.run([sys.executable, "-m", "kvdepot.demo", *flags], capture_output=True, text=True,
                              timeout=60, env={"PYTHONPATH": str(PACKAGES), "PATH": os.defpath})

    def test_help_names_the_parts(self):
        done = self.demo("--help")
        self.assertEqual(done.returncode, 0)
        for part in ("reuse", "crash", "sweep", "report", "--keep", "--json", "example:"):
            self.assertIn(part, done.stdout)

    def test_wrong_usage_is_status_2_and_says_what_there_is(self):
        done = self.demo("--only", "nonsense")
        self.assertEqual(done.returncode, 2)
        self.assertIn("unknown part 'nonsense'; there are reuse, crash, sweep, report", done.stderr)

    def test_what_is_missing_is_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            for flags, line in ((("--only", "report"), "result.json is not there; run the demo first"),
                                (("--binary", "/no/kvdepot"), "/no/kvdepot is not there; run `make demo`"),
                                (("--binary", "true"), "holds no model; run tools/engine_env.py")):
                with self.subTest(flags=flags):
                    done = self.demo("--build-dir", folder, *flags)
                    self.assertEqual((done.returncode, len(done.stdout.splitlines())), (1, 1))
                    self.assertIn(line, done.stdout)


class StoreFigures(unittest.TestCase):
    def test_are_summed_over_labels_and_found_under_prometheus_names(self):
        page = "".join(f'kvdepot_{name}_total{{tier="a"}} 2\nkvdepot_{name}_total{{tier="b"}} 3\n' for name in FIGURES)
        self.assertEqual(store_figures("# HELP x\n" + page), dict.fromkeys(FIGURES, 5.0))

    def test_that_are_missing_are_named(self):
        with self.assertRaisesRegex(DemoError, "lacks .*corrupt"):
            store_figures("kvdepot_puts 1\n")


if __name__ == "__main__":
    unittest.main()
