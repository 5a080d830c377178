"""The recorders of bench/gpu_*.py, as far as they go without a GPU: small shapes, on the CPU."""

import csv
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from bench import depot, harness

SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 500, "tie_word_embeddings": True}
DEADLINE_S = 100


class GpuTools(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.shape = self.folder / "tiny.json"
        self.shape.write_text(json.dumps(SHAPE), encoding="utf-8")

    def rows(self, module: str, *flags: str) -> list[dict]:
        out = self.folder / "rows.csv"
        done = subprocess.run([sys.executable, "-m", module, str(self.shape), "--quick", "--out", str(out), *flags],
                              cwd=harness.ROOT, capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(out, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def test_loads_arrive_as_they_were_stored_over_each_transport(self):
        program = str(depot.binary(harness.ROOT / "build"))
        rows = self.rows("bench.gpu_load", "--kvdepot", program)      # it ends where a byte differs
        done = {(row["kind"], row["transport"]) for row in rows}
        for transport in ("shm", "tcp"):
            self.assertLessEqual({("load", transport), ("pipeline", transport)}, done)
        self.assertIn(("load", "view"), done)
        for row in rows:
            self.assertGreater(float(row["median"]), 0, row)

    def test_passes_say_what_they_held(self):
        rows = self.rows("bench.gpu_passes", "--plain-pieces")
        self.assertEqual([(row["prefill_tokens"], row["cached_tokens"], row["pairs"], row["decodes"],
                           row["context_tokens"]) for row in rows],
                         [("256", "0", "32896", "0", "0"), ("64", "128", "10272", "0", "0"),
                          ("0", "0", "0", "1", "128"), ("0", "0", "0", "4", "512")])


class Model(unittest.TestCase):
    def test_a_prompt_in_parts_and_a_decode_leave_the_kv_that_the_whole_prompt_leaves(self):
        import torch

        from bench import gpu_model

        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            path = Path(folder) / "tiny.json"
            path.write_text(json.dumps(SHAPE), encoding="utf-8")
            model = gpu_model.Model(gpu_model.Shape.read(path), gpu_model.Pieces(False), "cpu")
            ids = model.tokens(3, 40)
            whole, parts = model.memory(3, 40), model.memory(3, 40)
            model.run(ids, whole, 0, "plain")
            model.run(ids[:, :24], parts, 0, "plain")
            model.run(ids[:, 24:39], parts, 24, "plain")
            model.run(ids[:, 39:], parts, 39, "plain")
            for a, b in zip(whole, parts):      # the second layer's is of what the first one's attention gave
                self.assertLess(((a.float() - b.float()).norm() / a.float().norm()).item(), 0.02)


if __name__ == "__main__":
    unittest.main()
