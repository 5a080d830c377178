"""The parent's end against a fake worker: protocol, deadlines, ends. No vLLM needed."""

import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from bench import engine_process
from bench.engine_process import Engine, EngineError, EngineSpec


class WithFakeWorker(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def spec(self, model, **changes):
        return EngineSpec(name="fake", python=Path(sys.executable), model=Path(model), dtype="float32",
                          log_dir=self.folder, module="bench.testing.fake_worker", **changes)

    def engine(self, model="echo"):
        engine = Engine(self.spec(model))
        self.addCleanup(engine.close)
        engine.wait_ready(30.0)
        return engine


class Protocol(WithFakeWorker):
    def test_a_request_is_answered(self):
        engine = self.engine()
        self.assertEqual(engine.facts["block_tokens"], 128)
        answer = engine.ask([7, 8, 9])
        self.assertEqual((answer.first_s, answer.tokens, answer.cached), (0.25, [7, 8], 2))
        self.assertEqual(answer.intervals(), [0.25])
        self.assertEqual(engine.external_hits(), 3)

    def test_what_was_promised_but_not_loaded_does_not_count_as_cached(self):
        engine = self.engine("lossy")
        self.assertEqual(engine.ask(range(300)).cached, 299 - 128)
        self.assertEqual(engine.lost_blocks, 1)

    def test_a_failed_command_names_engine_reason_and_log_and_the_engine_goes_on(self):
        engine = self.engine()
        with self.assertRaisesRegex(EngineError, r"engine fake ValueError: not now: .*fake\.log"):
            engine.reset_prefix_cache()
        self.assertEqual(engine.ask([1, 2]).cached, 1)

    def test_submitted_requests_are_collected_or_aborted(self):
        engine = self.engine()
        first, second = engine.submit([{"ids": [1, 2, 3], "max_tokens": 2}, {"ids": [4, 5]}])
        self.assertEqual([answer.tokens for answer in engine.collect([second])], [[4, 5]])
        with self.assertRaisesRegex(EngineError, "blocks are still in use after 0.5 s"):
            engine.reset_prefix_cache(connector=True, patience_s=0.5)
        engine.abort([first])
        engine.reset_prefix_cache(connector=True)

    def test_a_request_that_ends_early_is_an_error(self):
        with self.assertRaisesRegex(EngineError, "'abort'"):
            self.engine("aborts").ask([1, 2])


class Ends(WithFakeWorker):
    def test_an_engine_that_does_not_start_is_an_error_with_its_last_words(self):
        engine = Engine(self.spec("broken"))
        self.addCleanup(engine.close)
        with self.assertRaisesRegex(EngineError, "has ended: RuntimeError: no such model"):
            engine.wait_ready(30.0)

    def test_an_engine_that_misses_a_deadline_is_killed(self):
        with mock.patch.object(engine_process, "TERM_DEADLINE_S", 0.05):
            engine = self.engine("stubborn")
            with self.assertRaisesRegex(EngineError, "did not answer within 0 s"):
                engine.call("generate", 0.05, requests=[])
        self.assertFalse(alive(engine.pid))

    def test_close_ends_an_engine_that_does_not_want_to_and_may_be_repeated(self):
        with mock.patch.object(engine_process, "TERM_DEADLINE_S", 0.05), \
                mock.patch.object(engine_process, "QUIT_DEADLINE_S", 0.05):
            engine = self.engine("stubborn")
            engine.close()
            engine.close()
        self.assertFalse(alive(engine.pid))

    def test_a_killed_engine_is_noticed_at_the_next_call(self):
        engine = self.engine()
        engine.kill()
        with self.assertRaisesRegex(EngineError, "has ended"):
            engine.ask([1])


class Specification(WithFakeWorker):
    def test_every_engine_sees_the_same_small_environment(self):
        with mock.patch.dict("os.environ", {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "3"}):
            plain, other = self.spec("m").environment(), self.spec("m", connector={"kv_connector": "X"}).environment()
        self.assertEqual(plain, other)
        self.assertNotIn("OMP_NUM_THREADS", plain)
        self.assertNotIn("PYTHONHASHSEED", plain)
        self.assertEqual(plain["VLLM_CPU_OMP_THREADS_BIND"], engine_process.thread_binding())

    def test_only_the_connector_differs_between_arms(self):
        plain = self.spec("m").arguments()
        ours = self.spec("m", connector={"kv_connector": "X"}).arguments()
        self.assertEqual(ours.pop("kv_transfer_config"), {"kv_connector": "X"})
        self.assertEqual(plain, ours)

    def test_binding_spells_ranges_and_lists(self):
        for cores, text in (({0, 1}, "0-1"), ({0, 2}, "0,2"), ({3}, "3-3")):
            with mock.patch.object(os, "sched_getaffinity", return_value=cores):
                self.assertEqual(engine_process.thread_binding(), text)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    unittest.main()
