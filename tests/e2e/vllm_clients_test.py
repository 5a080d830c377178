"""A worker whose loads and stores go over three clients: the same KV, layer by layer too, and a depot killed meanwhile.

    python -m unittest -v tests.e2e.vllm_clients_test

Three engines: one with one client, and two with three, of which one loads before its pass and one inside it. In float32
a prompt's blocks are enough for a share of each client. The depot sends slowly where it is killed in mid-load.
"""

import re
import unittest

from tests.e2e.depot_process import DepotProcess
from tests.e2e.engine_rig import BLOCK, PATIENT, Asking, Rig, connector, read_digests, wait_stored, wait_until

CLIENTS = 3
BLOCK_BYTES = BLOCK * 30 * 2 * 3 * 64 * 4
BLOCKS = 6                              # 35 MB: a share of a client is 8 MiB at least
ANSWER = 8
LOAD_S = 4.0                            # of a prompt, when the depot is slow


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rig = Rig()
        cls.addClassCleanup(cls.rig.close)
        cls.depot = cls.enterClassContext(DepotProcess(pool="512MiB", flash="2GiB"))
        cls.digests = cls.rig.work / "digests.jsonl"
        def engine(name, **settings):
            # As long as nothing comes, not as long as it takes, decides when a load is given up.
            settings = {"breaker_probe_ms": 300, "digest_log": str(cls.digests), **PATIENT, **settings}
            return cls.rig.engine(name, connector(cls.depot.address, **settings), dtype="float32", wait=False)
        cls.one = engine("one", clients=1, load="async")
        cls.before = engine("before", clients=CLIENTS, load="async")
        cls.inside = engine("inside", clients=CLIENTS, load="layerwise")
        for started in (cls.one, cls.before, cls.inside):
            cls.rig.wait_ready(started)
        cls.prompts = {name: cls.rig.prompt(name, BLOCKS * BLOCK + 10) for name in ("a", "b", "c")}
        cls.right = {}

    def stored(self, engine, name):
        """Computes a prompt and waits until the depot has its blocks."""
        before = self.depot.metrics()["kvdepot_store_puts_total"]
        answer = engine.ask(self.prompts[name], ANSWER)
        self.assertEqual(answer.cached, 0)
        self.right[name] = answer.tokens
        wait_stored(self.depot, before + BLOCKS)

    def shares(self, engine, ask):
        """What `ask` gives, and how many gets it took."""
        before = self.depot.metrics()
        answer = ask()
        after = self.depot.metrics()
        return answer, int(after["kvdepot_requests_get_total"] - before["kvdepot_requests_get_total"])

    def test_1_what_one_client_has_stored_three_load(self):
        self.stored(self.one, "a")
        for engine in (self.before, self.inside):
            with self.subTest(engine=engine.spec.name):
                answer, gets = self.shares(engine, lambda e=engine: e.ask(self.prompts["a"], ANSWER))
                self.assertEqual((answer.cached, answer.tokens, gets), (BLOCKS * BLOCK, self.right["a"], CLIENTS))

    def test_2_what_three_have_stored_one_loads(self):
        self.stored(self.before, "b")
        answer, gets = self.shares(self.one, lambda: self.one.ask(self.prompts["b"], ANSWER))
        self.assertEqual((answer.cached, answer.tokens, gets), (BLOCKS * BLOCK, self.right["b"], 1))

    def test_3_a_depot_killed_in_mid_load_costs_no_answer(self):
        self.stored(self.one, "c")
        self.restart(f"--shape-read={int(BLOCKS * BLOCK_BYTES / LOAD_S)}")
        for engine in (self.before, self.inside):
            with self.subTest(engine=engine.spec.name):
                engine.reset_prefix_cache()
                self.used(engine)
                engine.reset_prefix_cache()
                failed = engine.counter('vllm:kvdepot_load_failures{reason="unavailable"}')
                sent = self.depot.metrics()["kvdepot_net_bytes_out_total"]
                asking = Asking(engine, self.prompts["c"], ANSWER)
                wait_until(lambda s=sent: self.depot.metrics()["kvdepot_net_bytes_out_total"] - s > BLOCK_BYTES,
                           "the load has begun", 30)
                self.depot.kill()
                answer, _ = asking.result()
                self.assertEqual(answer.tokens, self.right["c"])
                self.assertEqual(engine.counter('vllm:kvdepot_load_failures{reason="unavailable"}'), failed + 1)
                # What the failed load has left in the engine's own cache.
                self.assertEqual(engine.ask(self.prompts["c"], ANSWER).tokens, self.right["c"])
                self.depot.start()
        self.restart()
        for engine in (self.before, self.inside):
            engine.reset_prefix_cache()
            self.used(engine)

    def restart(self, *flags):
        self.depot.kill()
        self.depot._extra = list(flags)
        self.depot.start()

    def used(self, engine):
        """Asks until the engine has found the depot with all its clients, and has all blocks of a prompt from it."""
        def loads():
            engine.reset_prefix_cache()
            answer, gets = self.shares(engine, lambda: engine.ask(self.prompts["a"], ANSWER))
            self.assertEqual(answer.tokens, self.right["a"])
            return answer.cached == BLOCKS * BLOCK and gets == CLIENTS
        wait_until(loads, "the depot is used again", 60)

    def test_4_digests_before_store_and_after_load_are_equal(self):
        stored, loaded = read_digests(self.digests)
        self.assertGreaterEqual(len(loaded), 2 * BLOCKS)
        for key, digests in loaded.items():
            self.assertEqual(digests, stored[key])

    def test_5_the_start_says_how_many_clients_there_are(self):
        for engine in (self.one, self.before):
            said = re.search(r"clients: (\d+)", engine.log.read_text())
            self.assertEqual(int(said[1]), 1 if engine is self.one else CLIENTS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
