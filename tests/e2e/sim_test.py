"""`kvdepot sim` as a user types it: same bytes twice, bad input answered with file, line and what was expected."""

from __future__ import annotations

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TRACE = "\n".join(json.dumps({"timestamp": 250 * i, "input_length": 1500 + 37 * (i % 9), "output_length": 20 + i % 50,
                              "hash_ids": [i % 5, 100 + i % 5, 1000 + i, 5000 + i][:-(-(1500 + 37 * (i % 9)) // 512)]})
                  for i in range(400)) + "\n"
CONFIG = """
[fleet]
instances = 2
[engine]
kv_tokens = 32768
[workload]
trace = "TRACE"
jitter_s = 1
"""


class SimTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)
        (self.path / "trace.jsonl").write_text(TRACE, encoding="utf-8")
        self.config = self.path / "fleet.toml"
        self.config.write_text(CONFIG.replace("TRACE", str(self.path / "trace.jsonl")), encoding="utf-8")

    def sim(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(["kvdepot", "sim", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)

    def complaint(self, *arguments: str) -> str:
        done = self.sim(*arguments)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stderr

    def test_gives_the_same_bytes_again_and_without_skipping(self) -> None:
        files = []
        for flags in ([], [], ["--no-skip"]):
            name = self.path / f"{len(files)}.csv"
            done = self.sim("run", str(self.config), "--requests", str(name), *flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            files.append(name.read_bytes())
        self.assertEqual(files[0], files[1])
        self.assertEqual(files[0], files[2])
        self.assertEqual(files[0].count(b"\n"), 401)

    def test_summary_reports_its_checks(self) -> None:
        summary = json.loads(self.sim("run", str(self.config), "--json").stdout)
        self.assertTrue(summary["checks"]["tokens_conserved"] and summary["checks"]["blocks_conserved"])
        self.assertLess(summary["checks"]["little_error"], 0.01)
        self.assertEqual(summary["requests"], 400)

    def test_names_the_nearest_key_with_its_line(self) -> None:
        self.config.write_text("[fleet]\ninstances = 2\npolicey = \"random\"\n", encoding="utf-8")
        said = self.complaint("run", str(self.config))
        self.assertIn("fleet.toml:3", said)
        self.assertIn("fleet.policy", said)

    def test_complains_about_values(self) -> None:
        for setting, expected in (("fleet.policy=best", "least-request"), ("fleet.instances=0", "from 1"),
                                  ("depot.bandwidth=10GB", "10GB/s"), ("engine.block_tokens=7", "whole blocks"),
                                  ("fleet.instances", "section.key=value"), ("workload.speed=nan", "number")):
            with self.subTest(setting):
                self.assertIn(expected, self.complaint("run", str(self.config), "--set", setting))

    def test_a_bad_trace_is_answered_with_its_line(self) -> None:
        lines = TRACE.split("\n")
        lines[6] = lines[6].replace('"input_length": ', '"input_length": -')
        (self.path / "trace.jsonl").write_text("\n".join(lines), encoding="utf-8")
        name = self.path / "requests.csv"
        self.assertIn("trace.jsonl:7", self.complaint("run", str(self.config), "--requests", str(name)))
        self.assertFalse(name.exists())

    def test_study_says_which_figures_there_are(self) -> None:
        self.assertIn("10a", self.complaint("study", "--figure", "12"))
        self.assertIn("--data", self.complaint("study", "--data", str(self.path)))

    def test_study_has_the_layout_that_is_documented(self) -> None:
        out = self.path / "study.json"
        self.assertEqual(self.sim("study", "--out", str(out)).returncode, 0)
        study = json.loads(out.read_text(encoding="utf-8"))
        self.assertEqual(len(study), 14)
        self.assertEqual(len(study["fig3a"]["OPT-13B"]["16"]), 10)
        self.assertIsNone(study["fig3a"]["OPT-13B"]["2048"][1])
        self.assertEqual(set(study["fig4b"]["w1"]["4096"]["vllm"]), {"tokens_per_s", "passes"})
        self.assertEqual([len(v) for v in study["fig9"]["128-8K"].values()], [3, 3])
        self.assertEqual(len(study["fig11"]["a"]["swap"][0]), 3)


if __name__ == "__main__":
    unittest.main()
