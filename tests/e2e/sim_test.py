"""`kvdepot sim` as a user types it: same bytes twice, bad input answered with file, line and what was expected."""

from __future__ import annotations

import csv
import json
import lzma
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

    def test_replays_a_trace_through_the_stores_eviction(self) -> None:
        trace = self.path / "conversation.jsonl"
        trace.write_bytes(lzma.decompress((ROOT / "data/mooncake/conversation_trace.jsonl.xz").read_bytes()))
        replay = json.loads(self.sim("replay", str(trace), "--json").stdout)
        self.assertEqual((replay["requests"], replay["distinct_blocks"]), (12031, 182790))
        rates = {cache["cache"]: dict(zip(replay["capacities_percent"], cache["hit_rates"], strict=True))
                 for cache in replay["caches"]}
        for percent in (10, 20, 40):
            for blocks in (4, 8):       # whole segments cost at most a point
                self.assertGreater(rates[f"segments of {blocks}, LRU"][percent],
                                   rates["single blocks, LRU"][percent] - 0.01)
            self.assertGreater(rates["segments of 4, LRU"][percent], rates["segments of 4, FIFO"][percent])
        self.assertIn("| segments of 128, LRU, 2 requests interleaved |",
                      self.sim("replay", str(trace), "--interleave", "2").stdout)
        self.assertIn("--capacity: 0 is no share", self.complaint("replay", str(trace), "--capacity", "5,0"))
        plain = self.path / "plain.csv"
        plain.write_text("prompt_tokens,output_tokens\n5,5\n", encoding="utf-8")
        self.assertIn("no ids of prefix blocks", self.complaint("replay", str(plain)))

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
                                  ("fleet.instances", "section.key=value"), ("workload.speed=nan", "number"),
                                  ("dram.capacity=64", "with a unit"), ("workload.turns=3", "is not a key of trace")):
            with self.subTest(setting):
                self.assertIn(expected, self.complaint("run", str(self.config), "--set", setting))

    def test_opportunities_need_more_than_one_seed(self) -> None:
        self.assertIn("at least 2", self.complaint("opportunities", "--seeds", "1"))

    def test_a_fleet_that_can_report_nothing_says_why(self) -> None:
        name = self.path / "requests.csv"
        for setting, expected in (("engine.kv_tokens=1024", "none of the 400 requests fits"),
                                  ("fleet.warmup_s=1e6", "nothing is left to count"),
                                  ("workload.copies=4000000000", "can be told apart")):
            with self.subTest(setting):
                said = self.complaint("run", str(self.config), "--set", setting, "--requests", str(name))
                self.assertIn(expected, said)
                self.assertFalse(name.exists())
        self.assertIn("engine.kv_tokens=1024: ", self.complaint("sweep", str(self.config), "--seeds", "1", "--vary",
                                                                "engine.kv_tokens=32768,1024"))

    def test_takes_model_and_gpus_of_the_catalogue(self) -> None:
        named = ["--set", "engine.model=llama-3.1-8b", "--set", "engine.gpu=a100", "--json"]
        own = json.loads(self.sim("run", str(self.config), *named).stdout)
        self.assertEqual(own["requests"], 400)
        # The same model from its own file, in a folder beside the configuration.
        model = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
                 "max_position_embeddings": 131072}
        (self.path / "mine").mkdir()
        (self.path / "mine" / "config.json").write_text(json.dumps(model), encoding="utf-8")
        self.config.write_text(self.config.read_text(encoding="utf-8").replace(
            "[engine]", '[engine]\nmodel = "mine/config.json"\ngpu = "a100"'), encoding="utf-8")
        mine = json.loads(self.sim("run", str(self.config), "--json").stdout)
        self.assertAlmostEqual(mine["ttft_s"]["mean"] / own["ttft_s"]["mean"], 1, places=2)
        self.assertIn("does not fit 1 x a100", self.complaint("run", str(self.config), "--set",
                                                              "engine.model=llama-3-70b"))

    def test_traces_are_looked_for_beside_the_configuration(self) -> None:
        text = self.config.read_text(encoding="utf-8").replace(str(self.path) + "/", "")
        self.config.write_text(text, encoding="utf-8")
        self.assertEqual(self.sim("run", str(self.config)).returncode, 0)
        self.assertIn("trace.jsonl cannot be read", self.complaint("run", str(self.config), "--set",
                                                                   "workload.trace=trace.jsonl"))

    def test_repeats_are_the_same_load_for_longer(self) -> None:
        runs = [json.loads(self.sim("run", str(self.config), "--json", "--set", f"workload.repeats={n}",
                                    "--set", "workload.copies=2").stdout) for n in (1, 5)]
        self.assertEqual([run["requests"] for run in runs], [800, 4000])
        self.assertAlmostEqual(runs[1]["seconds"] / runs[0]["seconds"], 5, delta=0.5)
        self.assertAlmostEqual(runs[1]["hit_share"], runs[0]["hit_share"], delta=0.05)

    def test_an_unstable_queue_has_no_mean(self) -> None:
        run = self.sim("run", str(self.config), "--set", "workload.speed=100")
        self.assertIn("UNSTABLE", run.stdout)
        self.assertNotIn("mean", run.stdout)
        name = self.path / "sweep.csv"
        swept = self.sim("sweep", str(self.config), "--set", "workload.speed=100", "--seeds", "2", "--out", str(name))
        self.assertIn("unstable in 2 of 2", swept.stdout)
        head, row = [line.split(",") for line in name.read_text(encoding="utf-8").splitlines()[:2]]
        self.assertEqual(len(head), len(row))
        self.assertEqual(dict(zip(head, row))["ttft_p90_s"], "")

    def test_a_bad_trace_is_answered_with_its_line(self) -> None:
        lines = TRACE.split("\n")
        lines[6] = lines[6].replace('"input_length": ', '"input_length": -')
        (self.path / "trace.jsonl").write_text("\n".join(lines), encoding="utf-8")
        name = self.path / "requests.csv"
        self.assertIn("trace.jsonl:7", self.complaint("run", str(self.config), "--requests", str(name)))
        self.assertFalse(name.exists())

    def test_switches_mechanisms_off_by_name(self) -> None:
        depot = ["--set", "depot.bandwidth=50GB/s", "--json"]
        with_depot = json.loads(self.sim("run", str(self.config), *depot).stdout)
        without = json.loads(self.sim("run", str(self.config), *depot, "--ablate", "depot").stdout)
        self.assertGreater(with_depot["loaded_share"], 0)
        self.assertEqual(without["loaded_share"], 0)
        self.assertIn("near: write-budget", self.complaint("run", str(self.config), "--ablate", "write-budgets"))
        self.assertIn("nothing of that kind", self.complaint("run", str(self.config), "--ablate", "flash"))
        self.assertIn("kv-reads", self.sim("run", "--help").stdout)

    def test_a_sweep_gives_the_same_bytes_on_any_number_of_threads(self) -> None:
        out = []
        for jobs in ("1", "2", "7"):
            name = self.path / f"{jobs}.csv"
            done = self.sim("sweep", str(self.config), "--vary", "fleet.policy=least-request,random", "--vary",
                            "workload.speed=1,4", "--seeds", "3", "--jobs", jobs, "--out", str(name))
            self.assertEqual(done.returncode, 0, done.stderr)
            out.append((done.stdout, name.read_bytes()))
        self.assertEqual(out[0], out[1])
        self.assertEqual(out[0], out[2])
        self.assertEqual(out[0][1].count(b"\n"), 2 * 2 * 3 + 1)
        self.assertIn("| least-request | 1 |", out[0][0])

    def test_a_sweep_ablates_each_mechanism(self) -> None:
        done = self.sim("sweep", str(self.config), "--vary", "ablate=each", "--seeds", "2", "--json")
        arms = [arm["arm"]["ablate"] for arm in json.loads(done.stdout)]
        self.assertEqual(arms[0], "none")
        self.assertIn("prefix-cache", arms)
        self.assertNotIn("depot", arms)

    def test_a_sweep_shows_its_checks_and_what_it_leaves_out(self) -> None:
        name = self.path / "sweep.csv"
        done = self.sim("sweep", str(self.config), "--set", "fleet.warmup_s=20", "--seeds", "3", "--out", str(name))
        self.assertRegex(done.stdout, r"\nchecks: .* hold in 3 of 3 runs; 2[0-9]{2} requests of warm-ups not counted, "
                                      r"0 unfinished\n$")
        self.assertIn("fewer than the 10 seeds", done.stdout)
        for run in csv.DictReader(name.read_text(encoding="utf-8").splitlines()):
            self.assertEqual(int(run["warmup_requests"]) + int(run["requests"]), 400)
            self.assertEqual((run["unfinished"], run["sound"]), ("0", "1"))
            self.assertLess(float(run["little_error"]), 0.01)

    def test_a_sweep_of_one_seed_has_no_intervals(self) -> None:
        one = ["sweep", str(self.config), "--seeds", "1"]
        self.assertNotIn("±", self.sim(*one).stdout)
        self.assertIn("no intervals", self.sim(*one).stdout)
        for seeds, known in (("1", False), ("2", True)):
            arm = json.loads(self.sim("sweep", str(self.config), "--seeds", seeds, "--json").stdout)[0]
            self.assertEqual(arm["goodput_over_first"]["half_95"] is not None, known)
            self.assertTrue(arm["runs"][0]["checks"]["sound"])

    def test_a_sweep_says_what_it_expects(self) -> None:
        for flags, expected in ((["--vary", "speed=1,2"], "section.key=VALUE"), (["--seeds", "0"], "--seeds"),
                                (["--vary", "fleet.seed=1,2"], "--seeds"),
                                (["--vary", "fleet.policy=random,best"], "least-request"),
                                (["--vary", "ablate=none,dpot"], "depot")):
            with self.subTest(flags):
                self.assertIn(expected, self.complaint("sweep", str(self.config), *flags))

    def test_writes_series_passes_and_charts(self) -> None:
        names = [str(self.path / name) for name in ("series.csv", "passes.csv", "page.html")]
        done = self.sim("run", str(self.config), "--no-skip", "--series", names[0], "--passes", names[1],
                        "--html", names[2])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(Path(names[0]).read_text(encoding="utf-8").count("\n"), 60)
        page = Path(names[2]).read_text(encoding="utf-8")
        self.assertEqual(page.count("<svg"), 4)
        self.assertNotIn("<script", page)
        # A log of passes is what `sim calibrate` reads, and its fit finds the simulator's own model.
        fitted = json.loads(self.sim("calibrate", names[1], "--json").stdout)
        self.assertLess(fitted["left_out_p95_error"], 0.05)
        # The planner takes the device that is made of it.
        entry = str(self.path / "device.toml")
        made = self.sim("calibrate", names[1], "--device", "simulated", "--model", "qwen3-32b", "--memory", "160GB",
                        "--out", entry)
        self.assertEqual(made.returncode, 0, made.stderr)
        plan = subprocess.run(["kvdepot", "plan", "--model", "qwen3-32b", "--gpu", "simulated", "--catalogue", entry,
                               "--prompt", "2000", "--output", "100", "--reuse", "0.5", "--precision", "bf16"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        # And a fleet the engine that is made of it: the same model again, so the same times.
        section = self.path / "engine.toml"
        made = self.sim("calibrate", names[1], "--engine", "--model", "qwen3-32b", "--out", str(section))
        self.assertEqual(made.returncode, 0, made.stderr)
        fitted = self.config.read_text(encoding="utf-8").replace("[engine]", section.read_text(encoding="utf-8"))
        (self.path / "fitted.toml").write_text(fitted, encoding="utf-8")
        runs = [json.loads(self.sim("run", str(self.path / name), "--json").stdout)
                for name in ("fleet.toml", "fitted.toml")]
        for what in ("ttft_s", "tpot_s"):
            self.assertAlmostEqual(runs[1][what]["mean"] / runs[0][what]["mean"], 1, delta=0.01)
        self.assertIn("choose one", self.complaint("calibrate", names[1], "--engine", "--device", "x"))
        self.assertIn("a CSV", self.complaint("calibrate", "--engine"))
        self.assertIn("--memory", self.complaint("calibrate", names[1], "--device", "x", "--model", "qwen3-32b"))
        self.assertIn("qwen3-32b", self.complaint("calibrate", names[1], "--device", "x", "--model", "qwen"))

    def test_writes_all_files_or_none(self) -> None:
        names = [self.path / name for name in ("requests.csv", "passes.csv", "series.csv")]
        there = sorted(self.path.iterdir())
        flags = [part for name in names for part in (f"--{name.stem}", str(name))]
        self.assertIn("missing/page.html", self.complaint("run", str(self.config), *flags, "--html",
                                                          str(self.path / "missing/page.html")))
        self.assertEqual(sorted(self.path.iterdir()), there)
        self.assertIn("missing/page.html", self.complaint("sweep", str(self.config), "--seeds", "1", "--out",
                                                          str(names[0]), "--html",
                                                          str(self.path / "missing/page.html")))
        self.assertEqual(sorted(self.path.iterdir()), there)

    def test_examples_are_configurations(self) -> None:
        for example in sorted((ROOT / "examples/sim").glob("*.toml")):
            with self.subTest(example.name):
                text = example.read_text(encoding="utf-8")
                # The trace here ends before these examples' warm-up does.
                trace = ["--set", f"workload.trace={self.path / 'trace.jsonl'}", "--set", "fleet.warmup_s=0"] \
                    if "\ntrace = " in text else []
                done = self.sim("run", str(example), *trace, "--json")
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_tables_that_nothing_can_be_fitted_to_are_answered_with_their_place(self) -> None:
        for name in ("calibration.json", "workloads.json"):
            (self.path / name).write_text((ROOT / "data/ipdps25" / name).read_text(encoding="utf-8"), encoding="utf-8")
        tables = json.loads((self.path / "calibration.json").read_text(encoding="utf-8"))
        swap = tables["fig8b_overhead_vs_evicted_tokens"]["data"]["Swap (Pinned Mem.)"]
        chunked = tables["fig4a_chunked_prefill_8k"]["data"]["throughput"]
        for change, expected in ((lambda: swap.__setitem__(2, 0), "swap pinned: point 9 of 11"),
                                 (lambda: chunked.__setitem__("prefill-8K", []), "4a whole: 0 points")):
            change()
            (self.path / "calibration.json").write_text(json.dumps(tables), encoding="utf-8")
            said = self.complaint("calibrate", "--data", str(self.path))
            self.assertIn(expected, said)
            self.assertIn("calibration.json: ", said)
        (self.path / "calibration.json").write_text("{\n\"fig3a\": oops\n", encoding="utf-8")
        self.assertIn("calibration.json:2: not JSON here: expected", self.complaint("study", "--data", str(self.path)))

    def test_the_study_needs_no_files(self) -> None:
        done = subprocess.run(["kvdepot", "sim", "study", "--figure", "8a"], cwd=self.path, capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, self.sim("study", "--figure", "8a", "--data", "data/ipdps25").stdout)

    def test_a_trace_that_is_still_packed_is_answered_with_the_command(self) -> None:
        (self.path / "trace.jsonl").rename(self.path / "trace.jsonl.xz")
        self.assertIn(f"xz -dk {self.path}/trace.jsonl.xz", self.complaint("run", str(self.config)))

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
