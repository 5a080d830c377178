"""The rows' own arithmetic, without engines."""

import json
import tempfile
import unittest
from pathlib import Path

from bench import engine, harness
from bench.engine_process import Answer
from bench.engine_rows import batch, overhead, peers, sweep, tokens


class Sweep(unittest.TestCase):
    def test_shares_are_rounded_to_whole_blocks(self):
        self.assertEqual([sweep.blocks_of(share) for share in sweep.SHARES], [0, 14, 27, 41, 49, 54])

    def test_a_point_over_its_longest_part_and_over_their_sum(self):
        point = sweep.Point(27, [sweep.Sample(total=11.0, load=10.0, compute=8.0, store=2.0),
                                 sweep.Sample(total=24.0, load=10.0, compute=20.0, store=2.0),
                                 sweep.Sample(total=50.0, load=10.0, compute=8.0, store=2.0)])
        self.assertAlmostEqual(point.over_max, 1.2)
        self.assertAlmostEqual(point.over_sum, 0.75)


class Batch(unittest.TestCase):
    def test_only_intervals_within_the_time_count(self):
        answer = Answer(times=[1.0, 2.0, 3.0, 4.0, 5.0], tokens=[], cached=0)
        self.assertEqual(batch.intervals_between(answer, 2.0, 5.0), [1.0, 1.0])


class Overhead(unittest.TestCase):
    def test_the_median_step_leaves_out_the_prefill(self):
        with tempfile.NamedTemporaryFile("w") as log:
            log.write(json.dumps([9.0] * 8 + [0.001] * 140 + [0.5] * 12))
            log.flush()
            self.assertEqual(overhead.median_step(Path(log.name)), 0.001)

    def test_too_few_steps_are_an_error(self):
        with self.assertRaises(harness.BenchError):
            overhead.median_step(Path("/no/such/log"))


class Digests(unittest.TestCase):
    def logs(self, stored, loaded):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        paths = []
        for name, event, pairs in (("w", "store", stored), ("r", "load", loaded)):
            paths.append(Path(folder.name) / name)
            paths[-1].write_text("".join(
                json.dumps({"event": event, "key": key, "digest": digest}) + "\n" for key, digest in pairs))
        return paths

    def test_each_loaded_block_is_looked_up_by_its_key(self):
        logs = self.logs([("a", "1"), ("b", "2")], [("a", "1"), ("b", "2"), ("b", "3"), ("c", "1")])
        self.assertEqual(tokens.compare(*logs), (4, 2))

    def test_no_load_at_all_proves_nothing(self):
        with self.assertRaises(harness.BenchError):
            tokens.compare(*self.logs([("a", "1")], []))


class Names(unittest.TestCase):
    def test_are_those_that_other_tools_read(self):
        names = {*engine.SHARED, batch.ITL_MEDIAN, batch.ITL_P99, *sweep.names(), *peers.all_names()}
        expected = {"cold_over_depot_6920", "cold_over_depot_after_kill_6920", "depot_over_prefix_cache_6920",
                    "same_prompt_4096_s", "overhead_cold", "overhead_decode", "tokens_identical"}
        expected |= {f"pipeline_over_{what}_e{e}" for what in ("max", "sum") for e in (1, 3, 9)}
        expected |= {f"{peer}_over_depot_{tokens}" for tokens in (512, 2048, 4096, 7000)
                     for peer in ("example", "lmcache_shm", "lmcache_fs", "lmcache_redis", "mooncake")}
        self.assertLessEqual(expected, names)


if __name__ == "__main__":
    unittest.main()
