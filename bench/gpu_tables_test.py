import statistics
import tomllib
import unittest

from bench import gpu_tables, harness

PAGE = harness.ROOT / "docs/results/gpu.md"


def h100() -> dict:
    return gpu_tables.device_entry("h100", [gpu_tables.DEVICES])


def costs() -> dict[str, gpu_tables.Cost]:
    return {model: gpu_tables.Cost.of(gpu_tables.DATA / f"{model}.json") for model in gpu_tables.MODELS}


class Recordings(unittest.TestCase):
    def test_both_hold_the_same_passes_with_the_pairs_of_causal_attention(self):
        for model in gpu_tables.MODELS:
            first, second = (gpu_tables.read(f"passes-{model}-{number}") for number in (1, 2))
            shape = ("prefill_tokens", "cached_tokens", "pairs", "decodes", "context_tokens")
            self.assertEqual([[row[name] for name in shape] for row in first],
                             [[row[name] for name in shape] for row in second])
            for row in first + second:
                p = gpu_tables.Pass.of(row)
                self.assertEqual(p.pairs, p.tokens * p.cached + p.tokens * (p.tokens + 1) / 2)
                self.assertLessEqual(float(row["low"]), p.seconds)
                self.assertLessEqual(p.seconds, float(row["high"]))
                self.assertEqual(p.tokens > 0, p.decodes == 0, "no pass has both")

    def test_no_pass_is_faster_than_the_data_sheet(self):
        for model, cost in costs().items():
            for p in gpu_tables.passes(model):
                self.assertLess(gpu_tables.flops_share(cost, p, gpu_tables.PEAK), 0.62)
                read = 2 * (cost.parameters - cost.looked_up) + cost.kv_token_bytes * (p.context + p.cached)
                self.assertLess(read / p.seconds, 3.352e12)

    def test_loads_have_every_prefix_and_none_is_faster_than_the_copy_from_pinned_memory(self):
        for number in (1, 2):
            found = gpu_tables.loads(number)
            copied = {row.tokens: row.median for row in found if row.kind == "copy"}
            for row in found:
                if row.kind in ("load", "serial", "pipeline"):
                    self.assertGreater(row.median, copied[row.tokens])
                    self.assertEqual(row.size, row.tokens * costs()["llama-3-8b"].kv_token_bytes)
            arms = {(row.transport, row.clients, row.block_tokens) for row in found if row.kind == "load"}
            for arm in arms:
                self.assertEqual(sorted(copied), sorted(
                    row.tokens for row in found
                    if row.kind == "load" and (row.transport, row.clients, row.block_tokens) == arm))


class Model(unittest.TestCase):
    def test_counts_what_the_planner_counts(self):
        # `kvdepot plan --model ... --gpu h100 --precision bf16 --json`: params, flops_per_pair, kv_bytes_per_token.
        eight, one = costs()["llama-3-8b"], costs()["llama-1b"]
        self.assertEqual((eight.parameters, eight.pair_flops, eight.kv_token_bytes),
                         (8029995008, 524288, 131072))
        self.assertEqual((one.parameters, one.pair_flops, one.kv_token_bytes), (1235746816, 131072, 32768))
        # tpot_one_s there.
        expected = gpu_tables.Expected(eight, h100())
        self.assertAlmostEqual(expected.base + expected.seq, 0.007225988443604761, places=9)
        # s3_with_all_reuse_found.compute_s_per_token for 4,096 tokens, whose pairs the closed form takes as N / 2.
        self.assertAlmostEqual(expected.token + expected.pair * 4096 / 2, 2.7069217391304347e-05, places=10)

    def test_expects_of_the_h100_what_the_page_says(self):
        expected = {model: gpu_tables.Expected(cost, h100()) for model, cost in costs().items()}
        eight = gpu_tables.errors(gpu_tables.passes("llama-3-8b"), expected["llama-3-8b"].plan)
        self.assertLess(max(map(abs, eight["prefill of 1,024 and more"])), 0.05)
        self.assertLess(max(map(abs, eight["decode"])), 0.15)
        for model in gpu_tables.MODELS:
            found = gpu_tables.passes(model)
            by_plan = gpu_tables.errors(found, expected[model].plan)["64 or 256 behind a prefix"]
            self.assertLess(max(by_plan), -0.2, "a mended model: say so on the page")
            by_fleet = gpu_tables.errors(found, expected[model].fleet)["prefill of 256 or 512"]
            self.assertGreater(min(by_fleet), 0.2, "a mended model: say so on the page")


class Page(unittest.TestCase):
    def test_has_the_tables_as_the_recordings_give_them(self):
        text = PAGE.read_text(encoding="utf-8").splitlines()
        for table in gpu_tables.tables(h100()):
            for line in table:
                self.assertIn(line, text, "python3 -m bench.gpu_tables prints what belongs there")

    def test_says_how_loading_compares_with_computing(self):
        found = gpu_tables.loads(1)
        computed = gpu_tables.prefill_s(found)
        ratio = {(row.transport, row.clients, row.tokens): [] for row in found if row.kind == "pipeline"}
        for row in found:
            if row.kind == "pipeline":
                ratio[row.transport, row.clients, row.tokens].append(computed[row.tokens] / row.median)
        self.assertLess(max(ratio["shm", 1, 1024] + ratio["shm", 1, 4096]), 1, "one client: not before 16,384 tokens")
        self.assertGreater(min(ratio["shm", 1, 16384]), 1)
        self.assertGreater(min(ratio["shm", 4, 1024]), 2.5)
        self.assertGreater(min(ratio["shm", 8, 32768]), 7)


class Entries(unittest.TestCase):
    def test_are_near_the_catalogues_and_say_what_was_not_measured(self):
        with open(gpu_tables.DATA / "h100.toml", "rb") as file:
            entries = tomllib.load(file)
        roofline, passes = entries["device"]
        self.assertEqual((roofline["name"], passes["name"]), ("h100-roofline", "h100-passes"))
        self.assertIn("layer_s", roofline["data_sheet"])
        catalogue = h100()["flops_per_s"]["bf16"] * h100()["compute_efficiency"]
        self.assertLess(abs(passes["flops_per_s"]["bf16"] / catalogue - 1), 0.1)
        for model in gpu_tables.MODELS:
            by_products = gpu_tables.Expected(costs()[model], roofline)
            for p in gpu_tables.passes(model):
                if p.tokens >= 1024 and not p.cached:
                    self.assertLess(abs(by_products.plan(p) / p.seconds - 1), roofline["error"])
        pinned = next(link for link in entries["link"] if link["name"] == "h100-roofline-host")["bytes_per_s"]
        copied = statistics.median(row.gb_per_s for row in gpu_tables.loads(1) if row.kind == "copy")
        self.assertLess(copied, 1e-9 * pinned[-1][1], "the copy of a layer has a kernel behind it")


if __name__ == "__main__":
    unittest.main()
