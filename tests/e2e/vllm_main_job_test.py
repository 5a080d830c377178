"""The main job with real engines: what one stores another gets back, after a kill -9 as well, with equal tokens and KV.

    python -m unittest -v tests.e2e.vllm_main_job_test

Two engines on one depot, and one with the store inside it. About two minutes on two idle cores.
"""

import time
import unittest

from bench.engine_process import EngineError
from tests.e2e.depot_process import DepotProcess
from tests.e2e.engine_rig import BLOCK, PATIENT, Rig, connector, read_digests, wait_stored

BLOCK_BYTES = BLOCK * 30 * 2 * 3 * 64 * 2       # layers, k|v, heads, head_dim; at least bfloat16
DOCUMENT = 6 * BLOCK
ANSWER = 16
BEGUN = 8                                       # tokens of an answer that a whole prompt ends with


class MainJob(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rig = Rig()
        cls.addClassCleanup(cls.rig.close)
        cls.depot = cls.enterClassContext(DepotProcess(pool="512MiB", flash="2GiB"))
        cls.digests = cls.rig.work / "digests.jsonl"
        transfer = connector(cls.depot.address, digest_log=str(cls.digests), **PATIENT)
        cls.writer = cls.rig.engine("writer", transfer, wait=False)
        cls.reader = cls.rig.engine("reader", transfer, wait=False, fork=False)
        cls.folder = cls.rig.work / "kv"
        cls.inside = f"file://{cls.folder}?pool=256MiB&flash=2GiB"
        cls.embedded = cls.rig.engine("embedded", connector(cls.inside, **PATIENT), wait=False)
        for engine in (cls.writer, cls.reader, cls.embedded):
            cls.rig.wait_ready(engine)
        cls.document = cls.rig.prompt("a document", DOCUMENT)
        cls.first = cls.document + cls.rig.prompt("the first question", 9)
        cls.second = cls.document + cls.rig.prompt("the second question", 11)

    def stored(self):
        return self.depot.metrics()["kvdepot_store_puts_total"]

    def test_1_another_process_gets_what_one_has_stored(self):
        before = self.stored()
        self.assertEqual(self.writer.ask(self.first).cached, 0)
        own = self.writer.ask(self.second, ANSWER)              # the oracle: the engine's own cache
        self.assertEqual(own.cached, DOCUMENT)
        wait_stored(self.depot, before + DOCUMENT // BLOCK)
        hits = self.reader.external_hits()                      # not 0: the warm-up of one engine serves the other
        loaded = self.reader.ask(self.second, ANSWER)
        self.assertEqual(loaded.cached, DOCUMENT)
        self.assertEqual(loaded.tokens, own.tokens)
        self.assertEqual(self.reader.external_hits() - hits, DOCUMENT)

    def test_2_a_whole_prompt_is_loaded_and_one_token_computed(self):
        """No engine finds a whole prompt in its own cache, but while it answers, it computes each token behind all that
        came before. So the prompt is one with the beginning of its answer, and the oracle how that answer went on."""
        prompt = self.rig.prompt("a whole prompt", DOCUMENT - BEGUN)
        before = self.stored()
        own = self.writer.ask(prompt, BEGUN + ANSWER).tokens
        wait_stored(self.depot, before + DOCUMENT // BLOCK)
        whole = self.reader.ask(prompt + own[:BEGUN], ANSWER)
        self.assertGreaterEqual(whole.cached, DOCUMENT - 1)
        self.assertEqual(whole.tokens, own[BEGUN:])

    def test_3_blocks_made_while_answering_are_there_for_the_next_turn(self):
        prompt = self.rig.prompt("a chat", BLOCK - 20)
        before = self.stored()
        answer = self.writer.ask(prompt, BLOCK + 30)            # fills the prompt's block and one of its own
        wait_stored(self.depot, before + 2)
        turn = prompt + answer.tokens + self.rig.prompt("and then", 7)
        own = self.writer.ask(turn, ANSWER)
        self.assertEqual(own.cached, 2 * BLOCK)
        loaded = self.reader.ask(turn, ANSWER)
        self.assertEqual((loaded.cached, loaded.tokens), (own.cached, own.tokens))

    def test_4_after_kill_minus_nine_it_comes_from_flash(self):
        before = self.reader.ask(self.second, ANSWER)
        self.depot.restart()
        self.assertEqual(self.depot.metrics()["kvdepot_store_recovered_dropped"], 0)
        self.wait_reconnected()
        self.reader.reset_prefix_cache()
        read = self.depot.metrics()["kvdepot_store_flash_bytes_read_total"]
        after = self.reader.ask(self.second, ANSWER)
        self.assertEqual(after.cached, DOCUMENT)
        self.assertEqual(after.tokens, before.tokens)
        # Not its flash hits: the lookup starts the reads, and a get that comes late finds all in the pool.
        read = self.depot.metrics()["kvdepot_store_flash_bytes_read_total"] - read
        self.assertGreaterEqual(read, DOCUMENT // BLOCK * BLOCK_BYTES)

    def wait_reconnected(self):
        primer = self.rig.prompt("a chat", BLOCK - 20) + [1] * 40
        for _ in range(100):
            self.reader.ask(primer)
            if self.depot.metrics()["kvdepot_connections"] >= 4:    # two for each role
                return
            time.sleep(0.2)
        self.fail("the engine did not reconnect")

    def test_5_a_burst_that_shares_a_prefix_loads_it_once(self):
        prompts = [self.document + self.rig.prompt(f"tail {i}", 20) for i in range(4)]
        burst = [{"ids": ids, "max_tokens": 4} for ids in prompts]
        alone = [self.writer.ask(ids, 4) for ids in prompts]
        _, together = self.writer.generate(burst)
        self.assertEqual([own.cached for own in alone + together], [DOCUMENT] * 8)
        self.reader.reset_prefix_cache()
        before = self.depot.metrics()["kvdepot_keys_got_total"]
        _, answers = self.reader.generate(burst)
        self.assertEqual([answer.cached for answer in answers], [DOCUMENT] * 4)
        self.assertEqual(self.depot.metrics()["kvdepot_keys_got_total"] - before, DOCUMENT // BLOCK)
        for ids, answer, *own in zip(prompts, answers, alone, together, strict=True):
            # In bfloat16 a token may depend on how many requests share a pass, which is up to the engine.
            self.assertIn(answer.tokens, [one.tokens for one in own])
            self.assertEqual(self.reader.ask(ids, 4).tokens, own[0].tokens)     # from what the burst has loaded

    def test_6_a_salt_keeps_what_it_was_stored_with_to_itself(self):
        prompt = self.rig.prompt("a secret", 2 * BLOCK + 5)
        before = self.stored()
        self.assertEqual(self.writer.ask(prompt, salt="a").cached, 0)
        wait_stored(self.depot, before + 2)
        self.assertEqual(self.reader.ask(prompt, salt="b").cached, 0)
        self.assertEqual(self.reader.ask(prompt).cached, 0)
        self.assertEqual(self.reader.ask(prompt, salt="a").cached, 2 * BLOCK)

    def test_7_digests_before_store_and_after_load_are_equal(self):
        stored, loaded = read_digests(self.digests)
        self.assertGreater(len(loaded), DOCUMENT // BLOCK)
        for key, digests in loaded.items():
            self.assertEqual(digests, stored[key])

    def test_8_counts_appear_in_the_engines_own_metrics(self):
        self.assertGreater(self.reader.counter("vllm:kvdepot_blocks_loaded"), 0)
        self.assertGreater(self.writer.counter("vllm:kvdepot_bytes_stored"), 0)
        self.assertEqual(self.reader.counter("vllm:kvdepot_load_failures"), 0)

    def test_9_the_same_store_inside_the_engine_is_for_one_engine(self):
        prompt = self.rig.prompt("embedded", 3 * BLOCK + 5)
        self.assertEqual(self.embedded.ask(prompt).cached, 0)
        self.embedded.ask(self.rig.prompt("another", 20), 4)    # lets the store end
        self.embedded.reset_prefix_cache()
        self.assertEqual(self.embedded.ask(prompt).cached, 3 * BLOCK)
        self.assertEqual(self.folder.stat().st_mode & 0o777, 0o700)
        with self.assertRaises(EngineError):
            self.rig.engine("second", connector(self.inside))
        self.assertIn("kvdepot serve", (self.rig.work / "log" / "second.log").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
