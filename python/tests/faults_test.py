"""The client against a real `kvdepot serve` that is stopped, killed and restarted."""

import os
import signal
import time
import unittest
from concurrent import futures

import kvdepot
from tests.e2e.depot_process import DepotProcess

LAYERS, BLOCKS, SLAB = 8, 32, 65536
LAYER_OFFSETS = [layer * BLOCKS * SLAB for layer in range(LAYERS)]
BLOCK_OFFSETS = [block * SLAB for block in range(BLOCKS)]
KEYS = b"".join(b"key-%04d" % block for block in range(BLOCKS))
GROUPS = [dict(group=0, layers=LAYERS, slab_bytes=SLAB, parts=2, block_tokens=16, order="LBHNC")]
DEADLINE_SECONDS = 0.5
SLACK = 3  # times a deadline: what a loaded machine may add


class FaultsTest(unittest.TestCase):
    def setUp(self):
        self.depot = DepotProcess(flash="2GiB")
        self.depot.__enter__()
        self.addCleanup(self.depot.__exit__, None, None, None)
        self.client = kvdepot.Client(self.depot.address, require_connection=True, connect_timeout_ms=10_000)
        self.addCleanup(self.client.close)
        self.memory = bytearray(os.urandom(LAYERS * BLOCKS * SLAB))
        self.region = self.client.register(self.memory)
        self.ns = self.client.open_namespace("default", b"faults", GROUPS)

    def finish(self, op):
        done = self.client.wait(op, timeout_ms=60_000)
        self.client.release(op)
        return done

    def put(self, ack="written"):
        return self.finish(self.client.multiput(self.ns, KEYS, 8, self.region, LAYER_OFFSETS, BLOCK_OFFSETS,
                                                ack=ack, total_ms=60_000))

    def get(self, **limits):
        return self.client.multiget(self.ns, KEYS, 8, self.region, LAYER_OFFSETS, BLOCK_OFFSETS, **limits)

    def until(self, what, condition, seconds=20):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.01)

    def until_connected(self):
        self.until("connected", lambda: self.client.stats()["connected"]
                   and not self.client.stats()["breaker_open"])

    def restart_slowly(self, seconds=1):
        """Gets then last for most of a second (or of several), so that one can be caught half done."""
        self.depot._extra = [f"--shape-read={len(self.memory) // seconds}"]
        self.depot.restart()
        self.until_connected()

    def test_connecting_now_may_wait_for_longer_than_clocks_count(self):
        self.depot.kill()
        self.until("it is lost", lambda: not self.client.stats()["connected"])
        with futures.ThreadPoolExecutor(1) as pool:
            waits = pool.submit(self.client.reconnect, 2**62)
            self.depot.restart()
            waits.result(60)
        self.assertTrue(self.client.stats()["connected"])

    def test_five_requests_to_a_stopped_depot_together_pay_one_deadline(self):
        self.assertTrue(self.put().ok)
        self.depot.stop()
        codes = []
        start = time.monotonic()
        for _ in range(5):
            try:
                op = self.client.match(self.ns, KEYS, 8, progress_ms=int(DEADLINE_SECONDS * 1000))
                codes.append(self.finish(op).code)
            except kvdepot.KvdepotError as error:
                codes.append(error.code)
        self.assertLess(time.monotonic() - start, DEADLINE_SECONDS * SLACK)
        self.assertEqual(codes, ["timeout"] + ["unavailable"] * 4)
        self.depot.cont()
        self.until("the breaker closes", lambda: not self.client.stats()["breaker_open"])
        self.until("connected", lambda: self.client.stats()["connected"])
        self.assertEqual(self.finish(self.get(total_ms=60_000)).first_failed(), BLOCKS)

    def test_a_load_from_a_stopped_depot_ends_and_its_late_bytes_land_nowhere(self):
        self.assertTrue(self.put().ok)
        self.restart_slowly()
        op = self.get(progress_ms=int(DEADLINE_SECONDS * 1000), total_ms=60_000)
        self.assertEqual(self.client.wait(op, 0, 60_000).first_failed(), BLOCKS)    # the first layer is there,
        self.depot.stop()
        self.assertEqual(self.finish(op).code, "timeout")                           # the last ones are not
        poison = b"\xa5" * len(self.memory)
        self.memory[:] = poison
        self.depot.cont()
        self.until_connected()
        self.assertTrue(self.finish(self.client.match(self.ns, KEYS, 8, total_ms=60_000)).ok)
        self.assertEqual(self.memory, poison)

    def test_after_a_kill_the_client_comes_back_and_the_bytes_are_right(self):
        stored = bytes(self.memory)
        self.assertTrue(self.put().ok)
        # No limit on progress: a process that is killed gives its memory back first, its sockets later.
        op = self.get(total_ms=60_000, progress_ms=0)
        self.depot.restart()
        self.assertIn(self.finish(op).code, ("ok", "unavailable"))
        self.until_connected()
        self.memory[:] = bytes(len(self.memory))
        self.assertEqual(self.finish(self.get(total_ms=60_000)).first_failed(), BLOCKS)
        self.assertEqual(self.memory, stored)
        self.assertEqual(self.client.stats()["corrupt_slabs"], 0)

    def test_a_load_through_memory_from_a_stopped_depot_ends_or_is_right(self):
        """The depot, which has to read from flash first, is stopped at some moment of a get."""
        stored = bytes(self.memory)
        self.assertTrue(self.put().ok)
        codes = []
        for delay_ms in (0, 0, 0, 2, 4, 8):
            self.depot.restart()
            self.until_connected()
            self.memory[:] = bytes(len(self.memory))
            op = self.get(progress_ms=100, total_ms=60_000)
            time.sleep(delay_ms / 1000)
            self.depot.stop()
            done = self.finish(op)
            codes.append(done.code)
            if done.ok:
                self.assertEqual(self.memory, stored)
            found = bytes(self.memory)
            self.depot.cont()
            self.until_connected()
            self.assertTrue(self.finish(self.client.match(self.ns, KEYS, 8, total_ms=60_000)).ok)
            self.assertEqual(self.memory, found)        # nothing lands afterwards
        self.assertIn("timeout", codes)
        self.assertLessEqual(set(codes), {"ok", "timeout"})
        self.memory[:] = bytes(len(self.memory))
        self.assertEqual(self.finish(self.get(total_ms=60_000)).first_failed(), BLOCKS)
        self.assertEqual(self.memory, stored)
        self.assertGreaterEqual(self.client.stats()["bytes_shared"], len(self.memory))
        self.assertEqual(self.client.stats()["corrupt_slabs"], 0)

    def test_what_is_read_in_the_memory_of_a_depot_that_is_killed_is_right_or_fails(self):
        stored = bytes(self.memory)
        self.assertTrue(self.put().ok)
        self.assertEqual(self.finish(self.get(total_ms=60_000)).first_failed(), BLOCKS)
        self.assertEqual(self.client.stats()["bytes_shared"], len(self.memory))
        for turn in range(6):
            self.memory[:] = bytes(len(self.memory))
            op = self.get(total_ms=60_000, progress_ms=0)
            time.sleep(turn * 0.001)
            self.depot.restart()
            done = self.finish(op)
            self.assertIn(done.code, ("ok", "unavailable"))
            if done.ok:
                self.assertEqual(self.memory, stored)
            self.until_connected()
        self.assertEqual(self.client.stats()["corrupt_slabs"], 0)

    def test_what_was_in_memory_only_is_there_after_sigterm(self):
        stored = bytes(self.memory)
        self.assertTrue(self.put(ack="pooled").ok)
        self.assertEqual(self.depot.terminate(), 0)
        self.until("it says so", lambda: "drained, goodbye" in self.depot.output)
        self.assertNotIn("lost", self.depot.output)
        self.depot.start()
        self.until_connected()
        self.memory[:] = bytes(len(self.memory))
        self.assertEqual(self.finish(self.get(total_ms=60_000)).first_failed(), BLOCKS)
        self.assertEqual(self.memory, stored)

    def test_a_second_signal_ends_a_drain_at_once(self):
        self.assertTrue(self.put().ok)
        self.restart_slowly(seconds=8)      # the drain waits that long for the get
        op = self.get(total_ms=60_000, progress_ms=0)
        self.assertEqual(self.client.wait(op, 0, 60_000).first_failed(), BLOCKS)    # it is under way
        os.kill(self.depot.pid, signal.SIGTERM)
        self.until("the drain begins", lambda: "shutting down" in self.depot.output)
        time.sleep(1.2)                     # sooner it would be taken for a repetition of the first
        self.assertIsNone(self.depot.status)
        os.kill(self.depot.pid, signal.SIGTERM)
        self.until("the end", lambda: self.depot.status is not None, seconds=4)
        self.assertEqual(self.depot.status, 1)
        self.until("it says so", lambda: "a second signal" in self.depot.output)
        self.assertEqual(self.finish(op).code, "unavailable")


if __name__ == "__main__":
    unittest.main()
