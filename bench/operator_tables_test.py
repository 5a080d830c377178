import statistics
import tomllib
import unittest

from bench import harness, operator_tables


def entry(file: str, kind: str, name: str) -> dict:
    with open(harness.ROOT / "data/catalogue" / file, "rb") as opened:
        return next(e for e in tomllib.load(opened)[kind] if e["name"] == name)


class Catalogue(unittest.TestCase):
    def test_has_the_h100s_efficiencies_as_the_tables_give_them(self):
        device = entry("devices.toml", "device", "h100")
        found = operator_tables.efficiencies("h100")
        self.assertAlmostEqual(device["compute_efficiency"], found["compute"], places=2)
        self.assertAlmostEqual(device["memory_efficiency"], found["memory"], places=2)
        self.assertEqual(operator_tables.PEAKS["h100"], (device["flops_per_s"]["bf16"], device["memory_bytes_per_s"]))
        for name, missing in (("compute_efficiency", False), ("memory_efficiency", False), ("layer_s", True)):
            self.assertEqual(name in device["data_sheet"], missing, name)

    def test_has_the_all_reduces_as_the_tables_give_them(self):
        for device in ("h100", "a100"):
            link = entry("storage.toml", "link", f"nvlink-{device}")
            found = operator_tables.all_reduce(device)
            self.assertAlmostEqual(link["latency_s"], found["latency_s"], places=6)
            self.assertAlmostEqual(link["bytes_per_s"][-1][1] / found["bytes_per_s"], 1, delta=0.005)


class Tables(unittest.TestCase):
    def test_count_the_parameters_of_a_layer(self):
        row = {"width": "8192", "heads": "64", "kv_heads": "8", "feed_width": "28672", "gpus": "2"}
        self.assertEqual(2 * operator_tables.layer_parameters(row),
                         8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672)

    def test_sizes_of_all_reduces_are_bytes_and_rings_follow_from_two(self):
        two = operator_tables.all_reduce("h100")
        self.assertLess(two["bytes_per_s"], 450e9, "what NVLink 4 carries one way")
        for gpus in (4, 8):
            off = statistics.median(operator_tables.predicted_s(two, gpus, b) / s - 1
                                    for b, s in operator_tables.points("h100", gpus)
                                    if b >= operator_tables.LARGE_BYTES)
            self.assertLess(abs(off), 0.1, gpus)

    def test_no_share_is_above_the_peak(self):
        for row in operator_tables.read("operators"):
            self.assertLess(operator_tables.compute_share(row), 1)
            self.assertLess(operator_tables.memory_share(row), 1)


if __name__ == "__main__":
    unittest.main()
