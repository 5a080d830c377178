"""The rows' own arithmetic, without engines."""

import json
import tempfile
import unittest
from collections import Counter
from pathlib import Path
from unittest import mock

from bench import engine, engine_lab, harness
from bench.engine_process import Answer
from bench.engine_rows import batch, main_job, overhead, peers, sweep, tokens


class Sweep(unittest.TestCase):
    def test_shares_are_rounded_to_whole_blocks(self):
        self.assertEqual([sweep.blocks_of(share) for share in sweep.SHARES], [0, 14, 27, 41, 49, 54])

    def test_a_point_over_its_longest_part_and_over_their_sum(self):
        point = sweep.Point(27, [sweep.Sample(total=11.0, load=10.0, compute=8.0, store=2.0),
                                 sweep.Sample(total=24.0, load=10.0, compute=20.0, store=2.0),
                                 sweep.Sample(total=50.0, load=10.0, compute=8.0, store=2.0)])
        self.assertAlmostEqual(point.over_max, 1.2)
        self.assertAlmostEqual(point.over_sum, 0.75)


    def sweep(self):
        """A sweep whose samples take a second each, and the results it reports."""
        class Counted(sweep.Sweep):
            def __init__(self):
                self.shares, self.samples, self.nothing_stored = sweep.SHARES, [], None
                self.document = self.primer = []
                self.reader = self.plain = self.lab = self.depot = self.bench = mock.MagicMock()
                self.bench.rounds = lambda full=5, quick=2: full
                self.bench.value = lambda name, value, unit, **more: self.results.__setitem__(name, (value, more))
                self.lab.model.kv_bytes_per_token = 1
                self.results = {}

            def _sample(self, share):
                self.samples.append(share)
                return sweep.Sample(total=1.2, load=1.0, compute=1.0, store=0.1)

        return Counted()

    def test_every_point_has_five_samples_and_nothing_stored_is_measured_once(self):
        swept = self.sweep()
        swept.measure([1, 3, 9])
        counts = Counter(swept.samples)
        self.assertEqual(counts[0.0], 5)
        self.assertEqual({counts[share] for share in sweep.SHARES[1:]}, {20})
        self.assertTrue(all(len(point["samples"]) == 5 for value, more in swept.results.values()
                            for point in more.get("curve", [])))

    def test_the_unshaped_sweep_is_judged_like_the_shaped_ones(self):
        swept = self.sweep()
        swept.measure([3])
        value, more = swept.results[sweep.UNSHAPED]
        self.assertIs(harness.meets(value, more["better"], more["goal"]), False)
        self.assertEqual(more["goal"], swept.results["pipeline_over_max_e3"][1]["goal"])


class RandomKill(unittest.TestCase):
    def engine(self, cached):
        engine = mock.MagicMock()
        engine.ask.side_effect = lambda ids, max_tokens=1: Answer(times=[1.0], tokens=[len(ids)], cached=cached)
        return engine

    def test_the_oracle_has_as_many_tokens_cached(self):
        engine = self.engine(256)
        self.assertEqual(main_job.own_answer(engine, list(range(1000)), 256, 8).tokens, [1000])
        self.assertEqual([call.args for call in engine.ask.call_args_list],
                         [(list(range(256)),), (list(range(1000)), 8)])
        with self.assertRaises(harness.BenchError):
            main_job.own_answer(self.engine(128), list(range(1000)), 256, 8)

    def test_one_wrong_answer_misses_the_goal(self):
        for wrong, met in ((0, True), (1, False)):
            job, bench = main_job.MainJob.__new__(main_job.MainJob), mock.MagicMock()
            job.figures = {name: [1.0] for name in ("cold", "own", "depot", "killed", "own_whole", "depot_whole")}
            job.depot = job.writer = mock.MagicMock()
            job.survived, job.survivors_wrong = [1.0], wrong
            job.report(bench)
            (call,) = [c for c in bench.value.call_args_list if c.args[0] == "wrong_after_random_kill"]
            self.assertIs(harness.meets(call.args[1], call.kwargs["better"], call.kwargs["goal"]), met)


    def test_an_answer_with_another_token_has_no_figure(self):
        right = Answer([1.0], [7], 128)
        self.assertEqual(engine_lab.expect_same(Answer([0.5], [7], 128), right, "depot").first_s, 0.5)
        with self.assertRaisesRegex(harness.BenchError, "depot: tokens"):
            engine_lab.expect_same(Answer([0.5], [8], 128), right, "depot")


class Batch(unittest.TestCase):
    def test_only_intervals_within_the_time_count(self):
        answer = Answer(times=[1.0, 2.0, 3.0, 4.0, 5.0], tokens=[], cached=0)
        self.assertEqual(batch.intervals_between(answer, 2.0, 5.0), [1.0, 1.0])


    def burst(self, *cached):
        """The burst of a reader whose first request has found so many tokens each time; what it took, and the depot."""
        depot, reader = mock.MagicMock(repeated=0), mock.MagicMock(lost_blocks=0)
        depot.metric.side_effect = lambda name: 93.0 * reader.generate.call_count
        reader.call.return_value = {"counters": {'vllm:kvdepot_lookup_failures{reason="timeout"}': 2.0,
                                                 "vllm:kvdepot_lookups": 16.0}}
        reader.generate.side_effect = [
            (float(i), [Answer([1.0], [], n, lost_s=0.15), Answer([1.0], [], batch.SHARED)])
            for i, n in enumerate(cached)]
        with mock.patch.object(engine_lab.time, "sleep"):
            return batch.burst_from_depot(mock.MagicMock(), depot, reader, []), depot

    def test_a_burst_with_a_miss_is_repeated_and_counted(self):
        wall, depot = self.burst(batch.SHARED)
        self.assertEqual((wall, depot.repeated), (0.0, 0))
        wall, depot = self.burst(0, batch.SHARED)
        self.assertEqual((wall, depot.repeated), (1.0, 1))
        self.assertEqual(depot.why_repeated, 'lookup_failures{reason="timeout"} 2')

    def test_a_burst_that_misses_each_time_says_what_the_connector_counted(self):
        with self.assertRaisesRegex(harness.BenchError, 'reason="timeout"} 2; .* 0.15 s.*: 0 tokens'):
            self.burst(0, 0, 0)


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
        self.assertEqual(tokens.compare(*logs), (3, 2))

    def test_no_load_at_all_proves_nothing(self):
        with self.assertRaises(harness.BenchError):
            tokens.compare(*self.logs([("a", "1")], []))


class Asked(unittest.TestCase):
    """A figure counts only where its blocks came from the depot, or where the connector says it chose otherwise."""

    def ask(self, cached, left_alone, **more):
        depot, reader = mock.MagicMock(), mock.MagicMock()
        depot.metric.side_effect = [0.0] + [2.0] * 9
        reader.ask.return_value = Answer([1.0], [1], cached)
        reader.counter.side_effect = [0.0, left_alone] * 3
        with mock.patch.object(engine_lab, "before_repeat"):
            return engine_lab.ask_depot(depot, reader, [1] * 256, 255, "two blocks", **more)

    def test_a_hit_counts(self):
        self.assertEqual(self.ask(256, 0.0).cached, 256)

    def test_a_miss_does_not(self):
        for more in ({}, {"may_compute": True}):
            with self.assertRaises(harness.BenchError):
                self.ask(0, 0.0, **more)

    def test_a_hit_that_was_left_alone_does_where_that_is_allowed(self):
        self.assertEqual(self.ask(0, 1.0, may_compute=True).cached, 0)
        with self.assertRaises(harness.BenchError):
            self.ask(0, 1.0)


class Connector(unittest.TestCase):
    def test_settings_of_a_row_win_over_the_depots_own_address(self):
        depot = mock.MagicMock(address="tcp://127.0.0.1:1")
        extra = engine_lab.ours(depot, depot="unix:///depot.sock")["kv_connector_extra_config"]
        self.assertEqual(extra["depot"], "unix:///depot.sock")
        self.assertEqual(engine_lab.ours(depot)["kv_connector_extra_config"], {"depot": "tcp://127.0.0.1:1"})
        over_tcp = engine_lab.ours_over_tcp(depot)["kv_connector_extra_config"]
        self.assertEqual(over_tcp, {"depot": "tcp://127.0.0.1:1", "shared_memory": False})


class Names(unittest.TestCase):
    def test_are_those_that_other_tools_read(self):
        names = {*engine.SHARED, batch.ITL_MEDIAN, batch.ITL_P99, *sweep.names(), *peers.all_names()}
        expected = {"cold_over_depot_6920", "cold_over_depot_after_kill_6920", "depot_over_prefix_cache_6920",
                    "cold_over_depot_6920_shm", "depot_over_prefix_cache_6920_shm", "same_prompt_4096_s",
                    "overhead_cold", "overhead_decode", "overhead_cold_shm", "overhead_decode_shm", "tokens_identical"}
        expected |= {f"pipeline_over_{what}_e{e}" for what in ("max", "sum") for e in (1, 3, 9)}
        expected |= {f"{peer}_over_depot_{tokens}" for tokens in (512, 2048, 4096, 7000)
                     for peer in ("example", "lmcache_shm", "lmcache_fs", "lmcache_redis", "mooncake")}
        self.assertLessEqual(expected, names)


if __name__ == "__main__":
    unittest.main()
