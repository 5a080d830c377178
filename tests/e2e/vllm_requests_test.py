"""What becomes of requests whose KV is on its way, on real engines: preemption, abort, end, resets, other weights.

    python -m unittest -v tests.e2e.vllm_requests_test

Three engines with memory for 13 blocks: one without a connector, whose answers are the right ones, one that loads
before the pass and one that loads layer by layer inside it. In float32: batches of other shapes then round too little
apart to change an answer. The depot sends a block a second, or slower where computing is slow, so that "in mid-load"
is certain; it is stopped (SIGSTOP) where a store must be in flight. A second class has two engines of two workers each,
with a part of the model.
"""

import time
import unittest

from bench.engine_process import EngineError
from tests.e2e.depot_process import DepotProcess
from tests.e2e.engine_rig import BLOCK, Rig, connector, read_digests, wait_stored, wait_until

ANSWER = 8
MEMORY = 13                                     # blocks; vLLM keeps one more for itself
BLOCK_BYTES = 128 * 30 * 2 * 3 * 64 * 4
BLOCK_S_MIN = 1.0                               # a block takes so long to load, or this share of computing LONG:
BLOCK_SHARE = 0.7
STORE_DEADLINE_MS = 8000                        # an answer takes less on a busy machine, too
LONG, SHORT = 6, 2                              # full blocks of the prompts that all tests use
# Such a request begins with three blocks and needs a fourth after two tokens. (vLLM keeps a block or so free when it
# takes in a request, and uses it afterwards.)
CROSSING = 3 * BLOCK - 2


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rig = Rig()
        cls.addClassCleanup(cls.rig.close)
        cls.depot = cls.enterClassContext(DepotProcess(pool="512MiB", flash="2GiB"))
        cls.digests = cls.rig.work / "digests.jsonl"
        def transfer(load):
            return connector(cls.depot.address, load=load, deadline_share=100, progress_ms=2500, breaker_probe_ms=200,
                             store_deadline_ms=STORE_DEADLINE_MS, digest_log=str(cls.digests))
        same = {"dtype": "float32", "max_model_len": 1024, "num_gpu_blocks_override": MEMORY + 1, "wait": False}
        cls.plain = cls.rig.engine("plain", None, **same)
        cls.before = cls.rig.engine("before", transfer("async"), **same)
        cls.inside = cls.rig.engine("inside", transfer("layerwise"), **same)
        for engine in (cls.plain, cls.before, cls.inside):
            cls.rig.wait_ready(engine)
        cls._prompts, cls._right, cls._open = {}, {}, set()
        stored = cls.depot.metrics()["kvdepot_store_puts_total"]
        cls.before.ask(cls.prompt("short", SHORT * BLOCK + 20), ANSWER)
        long_s = cls.before.ask(cls.prompt("long", LONG * BLOCK + 20), ANSWER).times[-1]
        wait_stored(cls.depot, stored + LONG + SHORT)
        cls.depot.kill()
        cls.depot._extra = [f"--shape-read={int(BLOCK_BYTES / max(BLOCK_S_MIN, BLOCK_SHARE * long_s))}"]
        cls.depot.start()

    def setUp(self):
        self.addCleanup(self.abort_all)

    def abort_all(self):
        """What a test that failed has left behind is not the next one's."""
        for engine, name in self._open:
            engine.abort([name])
        self._open.clear()

    # ---- steps ---------------------------------------------------------------------------------------------------

    @classmethod
    def prompt(cls, name, tokens=0):
        """A prompt by its name; its length is given the first time."""
        if name not in cls._prompts:
            cls._prompts[name] = cls.rig.prompt(name, tokens)
        return cls._prompts[name]

    def right(self, name):
        """What the engine without a connector says."""
        if name not in self._right:
            self._right[name] = self.plain.ask(self.prompt(name), ANSWER).tokens
        return self._right[name]

    def submit(self, engine, *names, max_tokens=ANSWER):
        begun = engine.submit([{"ids": self.prompt(name), "max_tokens": max_tokens} for name in names])
        self._open.update((engine, name) for name in begun)
        return begun

    def collect(self, engine, begun):
        answers = engine.collect(begun)
        self._open.difference_update((engine, name) for name in begun)
        return answers

    def abort(self, engine, begun):
        engine.abort(begun)
        self._open.difference_update((engine, name) for name in begun)

    def assert_right(self, names, answers):
        for name, answer in zip(names, answers, strict=True):
            self.assertEqual(answer.tokens, self.right(name), name)

    def ask(self, engine, name):
        """Asks, checks the answer, and returns how many tokens were cached."""
        answer = engine.ask(self.prompt(name), ANSWER)
        self.assertEqual(answer.tokens, self.right(name), name)
        return answer.cached

    def preemptions(self, engine):
        return engine.counter("vllm:num_preemptions")

    def sent(self):
        return self.depot.metrics()["kvdepot_net_bytes_out_total"]

    def begin_load(self, engine, name):
        """Submits a request and waits until some bytes of its load have come. (names, bytes that were sent before)"""
        before = self.sent()
        names = self.submit(engine, name)
        wait_until(lambda: self.sent() - before > BLOCK_BYTES / 4, "the load has begun", 30)
        return names, before

    def use_again(self, engine, name):
        """The depot is well again, and the engine finds that out by itself. Leaves its own cache filled."""
        def hit():
            engine.reset_prefix_cache()
            return self.ask(engine, name) >= SHORT * BLOCK
        wait_until(hit, "the depot is used again", 60)

    def ready(self, *engines):
        """Their own caches are empty, and they use the depot, whatever the last test has done to it."""
        for engine in engines:
            self.use_again(engine, "short")
            engine.reset_prefix_cache()

    # ---- tests ---------------------------------------------------------------------------------------------------

    def test_1_preempted_while_stores_are_in_flight(self):
        self.ready(self.before)
        names = [f"crossing {i}" for i in range(4)]         # 4 * 3 blocks, then 4 * 4
        for name in names:
            self.prompt(name, CROSSING)
        before, cancelled = self.preemptions(self.before), self.before.counter("vllm:kvdepot_stores_cancelled")
        self.depot.stop()
        try:
            answers = self.collect(self.before, self.submit(self.before, *names))
        finally:
            self.depot.cont()
        self.assert_right(names, answers)
        self.assertGreater(self.preemptions(self.before), before)
        self.before.reset_prefix_cache()                    # every block was given back
        self.assertGreater(self.before.counter("vllm:kvdepot_stores_cancelled"), cancelled)

    def test_2_preempted_while_a_load_is_in_flight(self):
        self.ready(self.before)
        running = [f"running {i}" for i in range(2)]        # 2 * 3 blocks beside the load's 6, then 2 * 4
        for name in running:
            self.prompt(name, CROSSING)
        before = self.preemptions(self.before)
        long, sent = self.begin_load(self.before, "long")
        others = self.submit(self.before, *running)
        (first,) = self.collect(self.before, others[:1])
        self.assertLess(self.sent() - sent, LONG * BLOCK_BYTES)         # it is still under way
        (loaded,) = self.collect(self.before, long)
        self.assertEqual(loaded.cached, LONG * BLOCK)
        self.assert_right(["long", *running], [loaded, first, *self.collect(self.before, others[1:])])
        # vLLM tells of a preemption with the request's next token. Memory was short only while both ran beside it.
        self.assertGreater(self.preemptions(self.before), before)
        self.before.reset_prefix_cache()

    def test_3_ended_while_its_store_is_in_flight(self):
        self.ready(self.before)
        self.prompt("ended", SHORT * BLOCK + 20)
        before = self.depot.metrics()
        stored, asked = before["kvdepot_store_puts_total"], before["kvdepot_requests_match_total"]
        names = self.submit(self.before, "ended")
        # The depot stops between the lookup and the store: where lookups fail nothing is stored.
        wait_until(lambda: self.depot.metrics()["kvdepot_requests_match_total"] > asked, "its lookup has come")
        self.depot.stop()
        try:
            self.assert_right(["ended"], self.collect(self.before, names))
            with self.assertRaisesRegex(EngineError, "blocks are still in use"):
                self.before.reset_prefix_cache(patience_s=0.1)
        finally:
            self.depot.cont()
        self.before.reset_prefix_cache()
        wait_stored(self.depot, stored + SHORT)
        self.use_again(self.before, "ended")

    def test_4_aborted_while_its_store_is_in_flight(self):
        self.ready(self.before)
        self.prompt("aborted in store", SHORT * BLOCK + 20)
        lines = len(self.digests.read_text().splitlines())
        failures = self.before.counter("vllm:kvdepot_store_failures")
        self.depot.stop()
        try:
            names = self.submit(self.before, "aborted in store", max_tokens=500)
            wait_until(lambda: len(self.digests.read_text().splitlines()) >= lines + SHORT, "its store has begun")
            self.abort(self.before, names)
            with self.assertRaisesRegex(EngineError, "blocks are still in use"):
                self.before.reset_prefix_cache(patience_s=0.1)
            self.before.reset_prefix_cache(patience_s=3 * STORE_DEADLINE_MS / 1e3)  # given back at the deadline
        finally:
            self.depot.cont()
        self.ask(self.before, "aborted in store")
        self.assertGreater(self.before.counter("vllm:kvdepot_store_failures"), failures)

    def test_5_aborted_in_mid_load(self):
        self.ready(self.before)
        names, before = self.begin_load(self.before, "short")
        self.abort(self.before, names)
        self.before.reset_prefix_cache(patience_s=5)
        self.assertLess(self.sent() - before, SHORT * BLOCK_BYTES)
        self.prompt("uses the blocks again", 7 * BLOCK + 20)
        self.assertEqual(self.ask(self.before, "uses the blocks again"), 0)
        self.before.reset_prefix_cache()
        self.assertEqual(self.ask(self.before, "short"), SHORT * BLOCK)

    def test_6_aborted_in_a_pass_that_loads(self):
        self.ready(self.inside)
        names, before = self.begin_load(self.inside, "short")
        self.abort(self.inside, names)
        # What the pass went on loading is whole, and stays in the engine's own cache.
        self.assertEqual(self.ask(self.inside, "short"), SHORT * BLOCK)
        self.assertLess(self.sent() - before, 1.5 * SHORT * BLOCK_BYTES)

    def test_7_aborted_in_a_pass_whose_load_then_fails(self):
        self.ready(self.inside)
        failures = self.inside.counter("vllm:kvdepot_load_failures")
        names, _ = self.begin_load(self.inside, "short")
        self.abort(self.inside, names)
        self.depot.kill()
        self.assertEqual(self.ask(self.inside, "short"), 0)     # what did not come is not found in its own cache
        self.assertGreater(self.inside.counter("vllm:kvdepot_load_failures"), failures)
        self.depot.start()

    def test_8_nothing_from_before_a_reset_is_used(self):
        self.ready(self.before, self.inside)
        stored = self.depot.metrics()["kvdepot_store_puts_total"]
        self.before.reset_prefix_cache(connector=True)
        self.assertEqual(self.ask(self.before, "short"), 0)
        self.prompt("after the reset", SHORT * BLOCK + 20)
        self.assertEqual(self.ask(self.before, "after the reset"), 0)
        wait_stored(self.depot, stored + 2 * SHORT)
        self.before.reset_prefix_cache()
        self.assertEqual(self.ask(self.before, "short"), SHORT * BLOCK)         # its own, stored anew
        self.assertEqual(self.ask(self.inside, "after the reset"), 0)           # nobody else's

    def test_9_nothing_of_other_weights_is_used(self):
        self.ready(self.before)
        other = self.rig.other_model("other-weights")
        old = self.right("short")
        names, before = self.begin_load(self.before, "short")
        self.before.collective_rpc("reload_weights", weights_path=str(other))
        self.plain.collective_rpc("reload_weights", weights_path=str(other))
        self.plain.reset_prefix_cache()
        self._right.clear()
        self.assertNotEqual(self.right("short"), old)
        self.assert_right(["short"], self.collect(self.before, names))                # its load was given up
        self.assertLess(self.sent() - before, SHORT * BLOCK_BYTES)
        stored = self.depot.metrics()["kvdepot_store_puts_total"]
        self.before.reset_prefix_cache()
        self.assertEqual(self.ask(self.before, "short"), 0)
        wait_stored(self.depot, stored + SHORT)
        self.before.reset_prefix_cache()
        self.assertEqual(self.ask(self.before, "short"), SHORT * BLOCK)

    def test_digests_after_load_are_those_before_a_store(self):
        stored, loaded = read_digests(self.digests)
        self.assertGreaterEqual(len(loaded), LONG + 2 * SHORT)
        for block, seen in loaded.items():
            self.assertLessEqual(seen, stored[block])


class Shards(unittest.TestCase):
    """Tensor parallelism: each worker of an engine stores and loads its part of every block."""

    WORKERS = 2

    def test_what_one_engine_stores_another_gets_back(self):
        rig = Rig()
        self.addCleanup(rig.close)
        depot = self.enterContext(DepotProcess(pool="256MiB", flash="1GiB"))
        digests = rig.work / "digests.jsonl"
        transfer = connector(depot.address, load="async", deadline_share=100, progress_ms=5000,
                             digest_log=str(digests))
        model = rig.part_of_model("two-heads", layers=8, kv_heads=self.WORKERS)
        engines = [rig.engine(name, transfer, model=model, wait=False, tensor_parallel_size=self.WORKERS,
                              dtype="float32", max_model_len=1024, num_gpu_blocks_override=MEMORY + 1)
                   for name in ("writer", "reader")]
        for engine in engines:
            rig.wait_ready(engine)
        writer, reader = engines
        prompt = rig.prompt("in shards", LONG * BLOCK + 20)
        before = depot.metrics()["kvdepot_store_puts_total"]
        cold = writer.ask(prompt, ANSWER)
        self.assertEqual(cold.cached, 0)
        wait_stored(depot, before + LONG * self.WORKERS)
        loaded = reader.ask(prompt, ANSWER)
        self.assertEqual(loaded.cached, LONG * BLOCK)
        self.assertEqual(loaded.tokens, cold.tokens)
        stored, loads = read_digests(digests)
        for shard in range(self.WORKERS):
            self.assertGreaterEqual(sum(s == shard for s, _ in loads), LONG)
        for block, seen in loads.items():
            self.assertLessEqual(seen, stored[block])


if __name__ == "__main__":
    unittest.main(verbosity=2)
