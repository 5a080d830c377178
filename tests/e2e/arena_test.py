"""Puts of real clients through the arena of a real depot, and what becomes of it when either of them is killed.

    python -m unittest tests.e2e.arena_test        # kvdepot is taken from PATH
"""

import subprocess
import sys
import tempfile
import time
import unittest

import kvdepot
from tests.e2e.depot_process import DepotProcess
from tests.e2e.hostile_neighbour import FINGERPRINT, GROUP, KEY_BYTES, LAYERS, SLAB_BYTES, content_of, key_of

SMALL = {"pool": "256MiB", "flash": "80MiB"}
WAIT_SECONDS_MAX = 20
BATCH = 16              # records of 1 MiB in one put: as much as an arena
RECORD_BYTES = LAYERS * SLAB_BYTES
# Puts new records until it is killed.
PUTTER = """
import itertools, sys
from tests.e2e.arena_test import BATCH, Client
client = Client(sys.argv[1])
for first in itertools.count(int(sys.argv[2]), BATCH):
    client.put(first)
"""


class Client:
    """A client with memory for one batch of records."""

    def __init__(self, address, **options):
        self.client = kvdepot.Client(address, require_connection=True, connect_timeout_ms=WAIT_SECONDS_MAX * 1000,
                                     **options)
        self.memory = bytearray(BATCH * RECORD_BYTES)
        self.region = self.client.register(self.memory)
        self.ns = self.client.open_namespace("default", FINGERPRINT, [GROUP])
        self.layers = [layer * SLAB_BYTES for layer in range(LAYERS)]
        self.blocks = [block * RECORD_BYTES for block in range(BATCH)]

    def _do(self, what, first):
        keys = b"".join(key_of(first + i) for i in range(BATCH))
        try:
            op = what(self.ns, keys, KEY_BYTES, self.region, self.layers, self.blocks, total_ms=WAIT_SECONDS_MAX * 1000,
                      progress_ms=0)
        except kvdepot.KvdepotError as error:
            return str(error)
        done = self.client.wait(op, timeout_ms=WAIT_SECONDS_MAX * 1000)
        self.client.release(op)
        return done

    def put(self, first):
        self.memory[:] = b"".join(content_of(first + i) for i in range(BATCH))
        done = self._do(self.client.multiput, first)
        return isinstance(done, kvdepot.Completion) and done.code == "ok" and done.failed_keys == 0

    def get(self, first):
        """How many of the records are there; each that is has its bytes."""
        self.memory[:] = bytes(len(self.memory))
        self._do(self.client.multiget, first)
        found = 0
        for i in range(BATCH):
            record = bytes(self.memory[i * RECORD_BYTES:][:RECORD_BYTES])
            if record == content_of(first + i):
                found += 1
            elif any(record):
                raise AssertionError("a record has bytes that nobody put")
        return found


class Arena(unittest.TestCase):
    def until(self, holds):
        end = time.monotonic() + WAIT_SECONDS_MAX
        while not holds():
            self.assertLess(time.monotonic(), end, "it did not come about")
            time.sleep(0.01)

    def client(self, depot, **options):
        client = Client(depot.address, **options)
        self.addCleanup(client.client.close)
        return client

    def check(self, depot, through_arena, **options):
        client = self.client(depot, **options)
        self.assertTrue(client.put(0))
        self.assertEqual(client.get(0), BATCH)
        metrics = depot.metrics()
        self.assertEqual(metrics["kvdepot_put_arena_bytes_total"], BATCH * RECORD_BYTES if through_arena else 0)
        self.assertEqual(metrics["kvdepot_arena_bytes"], 16 << 20 if through_arena else 0)
        client.client.close()
        self.until(lambda: depot.metrics()["kvdepot_arena_bytes"] == 0)

    def test_a_client_of_this_host_puts_through_it_unless_told_otherwise(self):
        with DepotProcess(**SMALL) as depot:
            self.check(depot, True)
        with tempfile.TemporaryDirectory() as folder:
            with DepotProcess(**SMALL, listen=f"unix://{folder}/s") as depot:
                self.check(depot, True)
        with DepotProcess(**SMALL) as depot:
            self.check(depot, False, shared_memory=False)
        for flags in (["--put-arena", "0"], ["--put-arenas", "1MiB"], ["--shared-memory", "off"]):
            with self.subTest(flags=flags), DepotProcess(**SMALL, extra=flags) as depot:
                self.check(depot, False)

    def test_puts_of_what_is_there_leave_room_for_others(self):
        with DepotProcess(**SMALL) as depot:
            client = self.client(depot)
            for round in range(20):     # answered while slabs are on their way: they are of no use
                self.assertTrue(client.put(0))
            self.assertTrue(client.put(1000))
            self.assertEqual(client.get(1000), BATCH)
        for size in ("64MiB", "256KiB"):     # much more than a client uses, and one slab at a time
            with DepotProcess(**SMALL, extra=["--put-arena", size]) as depot:
                client = self.client(depot)
                for round in range(3):
                    self.assertTrue(client.put(round * 1000))
                self.assertGreater(depot.metrics()["kvdepot_put_arena_bytes_total"], 0)

    def test_a_client_that_is_killed_gives_it_up(self):
        with DepotProcess(**SMALL) as depot:
            firsts = (100_000, 200_000, 300_000)
            for first in firsts:
                before = depot.metrics()["kvdepot_put_arena_bytes_total"]
                with subprocess.Popen([sys.executable, "-c", PUTTER, depot.address, str(first)]) as putter:
                    self.until(lambda: depot.metrics()["kvdepot_put_arena_bytes_total"] > before + (4 << 20))
                    putter.kill()
                self.until(lambda: not any(depot.metrics()[f"kvdepot_{name}"] for name in (
                    "arena_bytes", "ops", "unfinished_bytes", "store_unfinished_puts")))
            reader = self.client(depot)
            for first in firsts:
                for batch in range(4):
                    reader.get(first + batch * BATCH)
            self.assertTrue(reader.put(5000))

    def test_a_client_goes_on_when_its_depot_is_killed(self):
        with DepotProcess(**SMALL) as depot:
            client = self.client(depot)
            self.assertTrue(client.put(0))
            for round in range(3):
                depot.kill()
                client.put(1000 + round)    # whatever comes of it, it ends
                depot.start()
                self.until(lambda: client.put(2000 + 100 * round))
                self.assertEqual(client.get(2000 + 100 * round), BATCH)
            self.assertGreater(depot.metrics()["kvdepot_put_arena_bytes_total"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
