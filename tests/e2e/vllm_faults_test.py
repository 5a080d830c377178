"""Faults of the depot under a real engine: every request ends with the right answer, late by its deadline at most.

    python -m unittest -v tests.e2e.vllm_faults_test

One engine for most drills. "The right answer" is what the engine said when nothing was wrong.
The depot is slowed down (`--shape-read`) so that "in mid-load" lasts long enough to do something: a load then takes
half the time of computing its blocks, a quarter of its deadline. About five minutes on two idle cores. What a drill
cost is printed beside the cold time.
"""

import os
import time
import unittest

from tests.e2e.depot_process import DepotProcess
from tests.e2e.engine_rig import BLOCK, SLACK, Asking, Rig, connector, timed, wait_stored, wait_until

BLOCKS = 6
TOKENS = BLOCKS * BLOCK + 10
ANSWER = 8
SHARE = 2.0                                 # deadline: this share of the compute that is saved
SLOWNESS = 0.5                              # a slowed load over the compute that it saves
PAGE = 4096


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rig = Rig()
        cls.addClassCleanup(cls.rig.close)
        cls.depot = cls.enterClassContext(DepotProcess(pool="256MiB", flash="2GiB"))
        cls.model = cls.rig.copy_of_model("model")
        cls.transfer = connector(cls.depot.address, deadline_share=SHARE, load="async", breaker_probe_ms=300)
        cls.engine = cls.rig.engine("engine", cls.transfer, model=cls.model)
        cls.prompts = {}
        cls.right = {}
        cls.cold_s = 0.0
        # Six prompts for the drill of five requests, one for each other; all stored, their answers kept.
        for name in ("kill", "stop 0", "stop 1", "stop 2", "stop 3", "stop 4", "down", "running", "weights"):
            prompt = cls.prompts[name] = cls.rig.prompt(name, TOKENS)
            before = cls.depot.metrics()["kvdepot_store_puts_total"]
            answer, seconds = timed(lambda p=prompt: cls.engine.ask(p, ANSWER))
            cls.right[name], cls.cold_s = answer.tokens, max(cls.cold_s, seconds)
            wait_stored(cls.depot, before + BLOCKS)
        cls.prompt_bytes = cls.engine.counter("vllm:kvdepot_bytes_stored") / len(cls.prompts)
        cls.slow = f"--shape-read={int(cls.prompt_bytes / (SLOWNESS * cls.cold_s))}"

    # ---- steps of drills -----------------------------------------------------------------------------------------

    def restart(self, *flags):
        """A new depot process on the same data, and an engine that is connected to it again."""
        self.depot.kill()
        self.depot._extra = list(flags)
        self.depot.start()
        self.reconnect()

    def reconnect(self):
        filler = self.rig.prompt("filler", BLOCK + 2)
        def connected():
            self.engine.ask(filler)
            return self.depot.metrics()["kvdepot_connections"] >= 4
        wait_until(connected, "the engine is connected")
        self.engine.reset_prefix_cache()

    def bytes_sent(self):
        return self.depot.metrics()["kvdepot_net_bytes_out_total"]

    def in_mid_load(self, name, act):
        """Asks for a prompt, acts when some of its bytes have come and most have not. (answer, seconds)"""
        before = self.bytes_sent()
        asking = Asking(self.engine, self.prompts[name], ANSWER)
        wait_until(lambda: self.bytes_sent() - before > 1_000_000, "the load has begun", 30)
        self.assertTrue(asking.is_alive())
        act()
        return asking.result()

    def timeouts(self):
        """Operations of the engine that waited for their deadline."""
        return sum(self.engine.counter(f'vllm:kvdepot_{what}_failures{{reason="timeout"}}')
                   for what in ("lookup", "load"))

    def assert_right(self, name, answer):
        self.assertEqual(answer.tokens, self.right[name], name)

    def assert_in_time(self, what, seconds):
        print(f"{what}: answered after {seconds:.2f} s, cold {self.cold_s:.2f} s, deadline {SHARE * self.cold_s:.2f} s",
              flush=True)
        self.assertLess(seconds, self.bound())

    def bound(self, deadlines=1.0):
        """Time that a request may take: 1.1 times cold and the deadline, times three for a busy machine."""
        return SLACK * (1.1 * self.cold_s + deadlines * SHARE * self.cold_s + 1.0)

    def recover(self, name):
        """The depot is well again: the engine finds that out by itself."""
        def hit():
            self.engine.reset_prefix_cache()
            return self.engine.ask(self.prompts[name], ANSWER).cached > 0
        wait_until(hit, "the depot is used again", 60)

    # ---- drills --------------------------------------------------------------------------------------------------

    def test_1_killed_in_mid_load(self):
        self.restart(self.slow)
        answer, seconds = self.in_mid_load("kill", self.depot.kill)
        self.assert_right("kill", answer)
        self.assert_in_time("killed in mid-load", seconds)
        self.assertEqual(answer.cached, 0)
        answer, seconds = timed(lambda: self.engine.ask(self.prompts["stop 0"], ANSWER))
        self.assert_right("stop 0", answer)                     # nobody is there: pays nothing
        self.depot.start()
        self.recover("kill")

    def test_2_stopped_in_mid_load_and_for_five_requests(self):
        self.restart(self.slow)
        before = self.timeouts()
        answer, first = self.in_mid_load("stop 0", self.depot.stop)
        self.assert_right("stop 0", answer)
        self.assert_in_time("stopped in mid-load", first)
        total = 0.0
        for i in range(1, 5):
            answer, seconds = timed(lambda i=i: self.engine.ask(self.prompts[f"stop {i}"], ANSWER))
            self.assert_right(f"stop {i}", answer)
            total += seconds
        # The first paid the deadline for all of them: these four only compute.
        self.assertEqual(self.timeouts() - before, 1)
        self.assertLess(total, SLACK * 4 * 1.1 * self.cold_s)
        self.depot.cont()
        self.recover("stop 1")

    def test_3_bytes_flipped_while_it_is_down(self):
        self.depot.kill()
        self.flip()
        self.depot._extra = []
        self.depot.start()
        self.reconnect()
        self.ask_for_damaged("down")

    def test_4_bytes_flipped_while_it_runs(self):
        self.store_again("running")
        self.restart()                                          # so that they are on flash only
        self.flip()
        self.ask_for_damaged("running")

    def store_again(self, name):
        """Asks until the depot has every block, undamaged and written. A load ends at the first damaged block, so that
        each question may find only one of those that earlier drills have left; one behind a fault stores nothing."""
        for _ in range(2 * BLOCKS + 2):
            self.engine.reset_prefix_cache()
            answer = self.engine.ask(self.prompts[name], ANSWER)
            self.assert_right(name, answer)
            time.sleep(1.5)                                     # the last segment is written when the depot is idle
            wait_stored(self.depot, 0)
            if answer.cached == BLOCKS * BLOCK:
                return
        self.fail(f"{name} is not whole again after {2 * BLOCKS + 2} questions")

    def flip(self):
        """Flips a bit in every slab of every record. Few of them hit a table, whose record is then simply lost."""
        path = os.path.join(self.depot.directory, "flash.kvd")
        with open(path, "r+b", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            for offset in range(4 << 20, size, 20 * PAGE):      # a slab has 24 pages or more
                place = offset + 11 * PAGE + 1234
                byte = os.pread(file.fileno(), 1, place)
                if byte and byte != b"\0":                      # what was never written stays as it is
                    os.pwrite(file.fileno(), bytes([byte[0] ^ 0x10]), place)
            os.fsync(file.fileno())

    def ask_for_damaged(self, name, engine=None):
        engine = engine or self.engine
        before = self.depot.metrics()["kvdepot_store_corrupt_total"]
        for _ in range(3):      # behind a restart a request may still compute without asking
            engine.reset_prefix_cache()
            answer, seconds = timed(lambda: engine.ask(self.prompts[name], ANSWER))
            self.assert_right(name, answer)
            self.assert_in_time(f"damaged while {name}", seconds)
            if self.depot.metrics()["kvdepot_store_corrupt_total"] > before:
                break
            time.sleep(1)
        self.assertGreater(self.depot.metrics()["kvdepot_store_corrupt_total"], before)

    def test_5_without_verification_damage_goes_unnoticed(self):
        """The same as before, but nobody verifies: the drill above must fail then, or it would prove nothing."""
        self.store_again("running")
        self.restart("--verify=off")
        trusting = self.rig.engine("trusting", self.transfer | {
            "kv_connector_extra_config": self.transfer["kv_connector_extra_config"] | {"verify": False}},
            model=self.model)
        # What earlier drills have left damaged the other engine finds, and tells the depot.
        before = self.depot.metrics()["kvdepot_store_corrupt_total"]
        self.flip()
        with self.assertRaises(AssertionError):
            self.ask_for_damaged("running", trusting)
        self.assertGreater(trusting.counter("vllm:kvdepot_blocks_loaded"), 0)
        self.assertEqual(self.depot.metrics()["kvdepot_store_corrupt_total"], before)
        trusting.close()
        self.depot._extra = []

    def test_6_more_than_fits(self):
        """A depot whose flash is full drops what is oldest; nobody notices but the hit rate."""
        self.depot.kill()
        segments = max(4, int(5 * self.prompt_bytes / 2) >> 24)     # room for half of what is stored
        with DepotProcess(pool="64MiB", flash=f"{16 * segments + 4}MiB", extra=["--segment=16MiB"]) as small:
            address, small_address = self.depot.address, small.address
            self.assertNotEqual(address, small_address)
            engine = self.rig.engine("small", connector(small_address))
            for i in range(5):
                name = f"stop {i}"
                self.assertEqual(engine.ask(self.prompts[name], ANSWER).tokens, self.right[name])
            engine.reset_prefix_cache()
            for i in range(5):
                name = f"stop {i}"
                self.assertEqual(engine.ask(self.prompts[name], ANSWER).tokens[:1], self.right[name][:1])
            self.assertTrue(small.healthy())
            self.assertGreater(small.metrics()["kvdepot_store_segments_evicted_total"], 0)
            self.kill_in_mid_store(engine, small)

    def kill_in_mid_store(self, engine, depot):
        """An engine that dies while it stores leaves no half record and no memory behind."""
        before = depot.metrics()["kvdepot_requests_put_total"]
        asking = Asking(engine, self.rig.prompt("never finished", 8 * BLOCK), 2)
        wait_until(lambda: depot.metrics()["kvdepot_requests_put_total"] > before, "a store has begun", 60)
        engine.kill()
        with self.assertRaises(Exception):
            asking.result()
        wait_until(lambda: depot.metrics()["kvdepot_store_unfinished_puts"] == 0, "its unfinished stores are freed", 30)
        self.assertEqual(depot.metrics()["kvdepot_unfinished_bytes"], 0)
        self.assertTrue(depot.healthy())

    def test_7_other_weights_under_the_same_name(self):
        self.depot.start()
        self.reconnect()
        self.store_again("weights")
        self.engine.close()
        file = self.model / "model.safetensors"
        stat = file.stat()
        with file.open("r+b") as stream:                        # negate the sign of weights all over the file
            for offset in range(1 << 20, stat.st_size - 1, 1 << 12):
                stream.seek(offset | 1)
                byte = stream.read(1)
                stream.seek(offset | 1)
                stream.write(bytes([byte[0] ^ 0x80]))
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        self.assertEqual((file.stat().st_size, file.stat().st_mtime_ns), (stat.st_size, stat.st_mtime_ns))
        other = self.rig.engine("other-weights", self.transfer, model=self.model)
        answer = other.ask(self.prompts["weights"], ANSWER)
        self.assertEqual(answer.cached, 0)
        self.assertGreater(other.counter("vllm:kvdepot_lookups"), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
