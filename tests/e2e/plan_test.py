"""`kvdepot plan` as its users meet it: the example, a real trace, pages and files, and what it says about bad input.

    python -m unittest tests.e2e.plan_test        # kvdepot is taken from PATH
"""

import json
import lzma
import os
import shutil
import subprocess
import tempfile
import statistics
import time
import tomllib
import unittest

TRACE = os.path.join(os.path.dirname(__file__), "..", "..", "data", "mooncake", "conversation_trace.jsonl.xz")
CHAT = ["--model", "llama-3-70b", "--gpu", "h100:2", "--prompt", "2200", "--output", "170", "--reuse", "0.9"]
QWEN = ["--model", "qwen3-32b", "--context", "131072", "--gpu", "h100:2", "--replicas", "8"]


DATA = os.path.join(os.path.dirname(__file__), "..", "..", "data")
STUDY = os.path.join(DATA, "ipdps25", "calibration.json")


def plan(*args):
    return subprocess.run(["kvdepot", "plan", *args], capture_output=True, text=True, timeout=60)


class PlanTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvd-plan-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def json(self, *args):
        done = plan(*args, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def refused(self, *args):
        """What is said: one line on standard error, nothing on standard output, status 2."""
        done = plan(*args)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertEqual(done.stdout, "")
        self.assertTrue(done.stderr.startswith("kvdepot: error: "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1)
        return done.stderr

    def test_the_example_of_the_help_text(self):
        done = plan(*CHAT)
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("S3", "break-even", "drive life", "first token", "crossover"):
            self.assertIn(word, done.stdout)

    def test_check_vector_through_the_command_line(self):
        found = self.json(*CHAT, "--attention", "full", "--efficiency", "0.5", "--io", "40GB/s")
        talk = found["s3_with_all_reuse_found"]
        self.assertAlmostEqual(talk["compute_s_per_token"] * 1e6, 74.263, places=3)
        self.assertAlmostEqual(talk["read_s_per_token"] * 1e6, 4.096, places=3)
        self.assertAlmostEqual(talk["acceleration"], 18.131, places=3)
        self.assertAlmostEqual(talk["crossover"], 0.94773, places=5)
        self.assertAlmostEqual(talk["ttft_vanilla_s"] * 1e3, 163.379, places=3)
        self.assertAlmostEqual(talk["ttft_s"] * 1e3, 16.338, places=3)

    def test_reuse_in_the_mooncake_conversation_trace(self):
        with lzma.open(TRACE, "rt", encoding="utf-8") as file:
            trace = self.path("conversation_trace.jsonl", file.read())
        start = time.monotonic()
        found = self.json(*QWEN, "--trace", trace)["trace"]
        print(f"plan --trace, whole process: {time.monotonic() - start:.3f} s")
        self.assertEqual(found["requests"], 12031)
        self.assertAlmostEqual(found["ideal_hit_rate"], 0.3736, delta=0.002)
        self.assertAlmostEqual(found["ideal_hit_rate_blocks"], 0.3664, delta=0.002)
        self.assertEqual(found["distinct_blocks"], 182790)
        self.assertAlmostEqual(found["private_ideal_hit_rate"], 0.139, delta=0.001)
        by_blocks = {row["blocks"]: row["hit_rate"] for row in found["lru"]}
        published = {5000: 0.114, 10000: 0.216, 20000: 0.294, 30000: 0.332, 50000: 0.362, 100000: 0.371}
        for blocks, hit_rate in published.items():
            self.assertAlmostEqual(by_blocks[blocks], hit_rate, delta=0.002, msg=blocks)
        for share, blocks in {"p25": 4292, "p50": 8357, "p75": 17849, "p90": 31588, "p99": 85267}.items():
            self.assertAlmostEqual(found["stack_distance_blocks"][share] / blocks, 1, delta=0.005, msg=share)

    def test_the_a100s_efficiency_is_that_of_the_study(self):
        with open(STUDY, encoding="utf-8") as file:
            tables = json.load(file)["fig3a_prefill_fixed_tokens_per_s"]
        achieved = []
        for model, (params, layers, hidden) in {"Yarn-Llama-2-7B": (6.74e9, 32, 4096),
                                                "Llama-3.1-8B": (8.03e9, 32, 4096)}.items():
            for name, row in tables[model]["throughput"].items():
                length = name.removeprefix("prefill-")
                length = int(length[:-1]) * 1024 if length.endswith("K") else int(length)
                for batch, rate in zip(tables[model]["batch_size"], row, strict=True):
                    if rate and length * batch >= 1024:
                        achieved.append(rate * (2 * params + 2 * layers * hidden * length) / 312e12)
        with open(os.path.join(DATA, "catalogue", "devices.toml"), "rb") as file:
            device = next(d for d in tomllib.load(file)["device"] if d["name"] == "a100-40gb")
        median = statistics.median(achieved)
        deviations = sorted(abs(share / median - 1) for share in achieved)
        self.assertEqual(len(achieved), 64)
        self.assertAlmostEqual(device["compute_efficiency"], median, places=2)
        self.assertAlmostEqual(device["error"], deviations[int(0.95 * len(deviations))], places=2)

    def test_a_page_is_whole_and_needs_no_network(self):
        page = self.path("plan.html")
        self.assertEqual(plan(*CHAT, "--html", page).returncode, 0)
        with open(page, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(text.count("<svg "), 3)
        self.assertNotIn("src=", text)
        self.assertTrue(text.endswith("</html>\n"))
        self.assertEqual(os.listdir(self.folder), ["plan.html"])

    def test_a_class_without_a_price_has_no_cost_and_says_so(self):
        priced = plan(*CHAT, "--price-gpu", "2.5", "--price", "nvme-gen5=20", "--price", "dram=150").stdout
        self.assertIn("no cost for S2b: shared-fs has no price", priced)
        classes = {c["class"]: c for c in self.json(*CHAT, "--price-gpu", "2.5", "--price", "nvme-gen5=20")["classes"]}
        self.assertIsNone(classes["S1a"]["dollars_per_million_tokens"])
        self.assertEqual(classes["S1a"]["storage_without_price"], "dram")
        self.assertGreater(classes["S3"]["dollars_per_million_tokens"], 0)

    def test_talk_and_catalogue(self):
        self.assertIn("llama-70b-chat", plan("talk", "--seeds", "2").stdout)
        talk = json.loads(plan("talk", "--seeds", "2", "--json").stdout)
        self.assertIn("efficiency-qwen3-14b", talk)
        self.assertEqual(talk["seeds"], 2)
        known = plan("catalogue").stdout
        self.assertIn("measured but for", known)
        self.assertIn("data sheet", known)
        self.assertIn("IPDPS'25", known)
        for name in ("object-store", "nvme-gen4", "nic-100g", "nic-200g", "pcie-gen4-x16"):
            self.assertIn(name, known)
        entries = self.json("catalogue")
        self.assertEqual(sorted(entries), ["class", "device", "link", "model", "storage"])
        self.assertIn("h100", [alias for device in entries["device"] for alias in [device["name"], *device["aliases"]]])

    def test_bad_input_is_named_with_what_was_expected(self):
        self.assertIn("nearest: llama-3-70b", self.refused("--model", "llama-3-70", *CHAT[2:]))
        self.assertIn("nearest: h100", self.refused(*CHAT, "--gpu", "hh100"))
        self.assertIn("no storage 'drum' is known; nearest: dram",
                      self.refused(*CHAT, "--price-gpu", "2", "--price", "drum=3"))
        self.assertIn("80.0 GB x 0.9", self.refused(*CHAT, "--gpu", "h100:1", "--precision", "bf16"))
        self.assertIn("with its unit", self.refused(*CHAT, "--sla-tpot", "40"))
        self.assertIn("cannot be read", self.refused(*CHAT, "--trace", self.path("missing")))
        self.assertIn("cannot be written", self.refused(*CHAT, "--html", self.path("missing/plan.html")))
        catalogue = self.path("mine.toml", "[[device]]\nname = 'x'\nmemory_byte = 3\n")
        self.assertIn("mine.toml:3: no key 'memory_byte' is known: expected 'memory_bytes'",
                      self.refused(*CHAT, "--catalogue", catalogue))
        self.assertEqual(sorted(os.listdir(self.folder)), ["mine.toml"])

    def test_bad_traces_are_named_with_their_line(self):
        header = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
        for text, said in {
            "arrived_at,num_decode_tokens\n0,5\n": "t.csv:1: no column of prompt tokens",
            header + "1,10,10\n-1,10,10\n": "t.csv:3: the arrival is negative",
            header + "nan,10,10\n": "t.csv:2: the arrival is not a finite number",
            header + "5,10,10\n4,10,10\n": "t.csv:3: arrives at 4 s, before",
            header + "5,10000,10\n": "t.csv:2: 10000 prompt and 10 output tokens make 10010, more than the context of",
        }.items():
            self.assertIn(said, self.refused(*CHAT, "--trace", self.path("t.csv", text)))


if __name__ == "__main__":
    unittest.main()
