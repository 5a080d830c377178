"""Several clients as one against a real `kvdepot serve`, slow, stopped and killed: through its memory, and over TCP."""

import ctypes
import os
import select
import time
import unittest

import kvdepot
from kvdepot.vllm.client_group import ClientGroup
from tests.e2e.depot_process import DepotProcess

CLIENTS = 3
LAYERS, BLOCKS, SLAB = 8, 31, 65536
LAYER_OFFSETS = [layer * BLOCKS * SLAB for layer in range(LAYERS)]
BLOCK_OFFSETS = [block * SLAB for block in range(BLOCKS)]
KEYS = b"".join(b"key-%04d" % block for block in range(BLOCKS))
GROUPS = [dict(group=0, layers=LAYERS, slab_bytes=SLAB, parts=2, block_tokens=16, order="LBHNC", rule="all",
               hit_blocks=0)]
PATIENT = dict(total_ms=30_000, progress_ms=10_000)


class ClientGroupTest(unittest.TestCase):
    shared_memory = True

    def setUp(self):
        self.depot = DepotProcess(flash="2GiB")
        self.depot.__enter__()
        self.addCleanup(self.depot.__exit__, None, None, None)
        self.clients = [kvdepot.Client(self.depot.address, require_connection=True, connect_timeout_ms=10_000,
                                       breaker_probe_ms=100, shared_memory=self.shared_memory) for _ in range(CLIENTS)]
        self.group = ClientGroup(self.clients, LAYERS * SLAB, 4 * LAYERS * SLAB)
        self.addCleanup(self.group.close)
        self.memory = bytearray(os.urandom(LAYERS * BLOCKS * SLAB))
        self.stored = bytes(self.memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.region = self.group.register_address(address, len(self.memory), self.memory)
        self.ns = self.group.open_namespace("default", b"group", GROUPS)

    def store(self, ack="pooled"):
        op = self.group.multiput(self.ns, KEYS, 8, self.region, LAYER_OFFSETS, BLOCK_OFFSETS, ack=ack, whole=False,
                                 total_ms=30_000, progress_ms=0)
        for layer in range(LAYERS):
            self.group.put_layer(op, layer)
        done = self.ended(op)
        self.assertEqual((done.code, done.failed_keys), ("ok", 0))
        self.group.release(op)

    def load(self, **limits):
        self.memory[:] = bytes(len(self.memory))
        return self.group.multiget(self.ns, KEYS, 8, self.region, LAYER_OFFSETS, BLOCK_OFFSETS, shard=0,
                                   stop_at_first_failure=True, **PATIENT | limits)

    def ended(self, op):
        """Waits as a worker does in a step without a pass."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            select.select([self.group.event_fd], [], [], 1)
            for done in self.group.poll():
                self.assertEqual(done.op, op)
                return done
        return self.fail("the operation does not end")

    def layer(self, memory, number):
        return bytes(memory[LAYER_OFFSETS[number]:][:BLOCKS * SLAB])

    def until(self, what, condition, seconds=20):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.01)

    def slow_down(self, seconds):
        """A load takes so long from now on."""
        self.depot.kill()
        self.depot._extra = [f"--shape-read={int(len(self.memory) / seconds)}"]
        self.depot.start()
        self.until_connected()

    def until_connected(self):
        self.until("connected", lambda: all(stats["connected"] and not stats["breaker_open"]
                                            for stats in (client.stats() for client in self.clients)))

    def loaded_by(self):
        return [client.stats()["bytes_loaded"] // (LAYERS * SLAB) for client in self.clients]

    def test_each_client_brings_its_share_and_every_layer_is_whole_when_it_is_told(self):
        self.store()
        op = self.load()
        for layer in range(LAYERS):
            done = self.group.wait(op, layer, 30_000)
            self.assertEqual((done.ok, done.failed_keys), (True, 0))
            self.assertEqual(self.layer(self.memory, layer), self.layer(self.stored, layer))
        self.assertTrue(self.group.wait(op, -1, 30_000).ok)
        self.assertEqual(self.loaded_by(), [10, 10, 11])
        self.assertGreater(self.group.wait(op).seconds, 0)
        self.assertEqual(self.ended(op).code, "ok")         # poll() tells of it as well
        self.group.release(op)

    def test_what_is_missing_ends_the_prefix(self):
        self.store()
        ns = self.clients[0].open_namespace("default", b"group", GROUPS)
        for block in (25, 13):
            removal = self.clients[0].remove(ns, KEYS[8 * block:][:8], 8, total_ms=30_000)
            self.assertTrue(self.clients[0].wait(removal, timeout_ms=30_000).ok)
            self.clients[0].release(removal)
        op = self.load()
        done = self.ended(op)
        self.assertEqual((done.code, done.first_failed()), ("ok", 13))
        for layer in range(LAYERS):
            self.assertEqual(self.layer(self.memory, layer)[:13 * SLAB], self.layer(self.stored, layer)[:13 * SLAB])
        self.group.release(op)

    def test_a_layer_that_a_slow_client_lacks_is_not_there(self):
        self.store("written")
        self.slow_down(2)
        op = self.load()
        self.assertIsNone(self.group.wait(op, LAYERS - 1, 1))
        for layer in range(LAYERS):
            self.assertTrue(self.group.wait(op, layer, 30_000).ok)
            self.assertEqual(self.layer(self.memory, layer), self.layer(self.stored, layer))
        self.group.release(op)

    def test_a_depot_killed_in_mid_load_ends_it_and_is_found_again(self):
        self.store("written")
        self.slow_down(3)
        op = self.load()
        self.assertTrue(self.group.wait(op, 0, 30_000).ok)
        self.depot.kill()
        done = self.group.wait(op, LAYERS - 1, 30_000)
        self.assertEqual((done.code, done.first_failed()), ("unavailable", 0))
        self.group.release(op)
        self.until("all know", lambda: not self.group.stats()["connected"])
        with self.assertRaises(kvdepot.KvdepotError) as caught:
            self.load()
        self.assertEqual(caught.exception.code, "unavailable")
        self.depot._extra = []
        self.depot.start()
        self.group.reconnect(10_000)
        self.until_connected()
        op = self.load()
        self.assertEqual(self.ended(op).first_failed(), BLOCKS)
        self.assertEqual(bytes(self.memory), self.stored)
        self.group.release(op)

    def test_a_depot_that_hangs_is_found_out_by_one_for_all(self):
        self.store("written")
        self.slow_down(3)
        op = self.load(progress_ms=100)
        self.assertTrue(self.group.wait(op, 0, 30_000).ok)
        self.depot.stop()
        done = self.group.wait(op, LAYERS - 1, 30_000)
        self.assertEqual((done.code, done.first_failed()), ("timeout", 0))
        self.group.release(op)
        self.assertEqual([client.stats()["breaker_open"] for client in self.clients], [True] * CLIENTS)
        self.depot.cont()
        self.until_connected()
        op = self.load()
        self.assertEqual(self.ended(op).code, "ok")
        self.group.release(op)

    def test_nothing_lands_behind_a_cancelled_load(self):
        self.store("written")
        self.slow_down(3)
        op = self.load()
        self.assertTrue(self.group.wait(op, 0, 30_000).ok)
        self.group.cancel(op)
        landed = bytes(self.memory)
        self.assertEqual(self.ended(op).code, "cancelled")
        self.group.release(op)
        time.sleep(0.5)
        self.assertEqual(bytes(self.memory), landed)
        self.assertNotEqual(landed, self.stored)


class OverTcp(ClientGroupTest):
    shared_memory = False


if __name__ == "__main__":
    unittest.main(verbosity=2)
