"""A depot that was killed gives hits before it has read again all that it holds, and takes changes when it has.

    python -m unittest tests.e2e.recovery_test        # kvdepot is taken from PATH

So that there is time to look, the test overwrites the footers of all segments but the newest, as damage would
(docs/formats/flash-log.md): the depot then reads and verifies each of their records. No bound in time is asserted; a
recovery that is over before anything was seen is made once more.
"""

import hashlib
import os
import shutil
import signal
import struct
import threading
import time
import unittest
import urllib.error
import urllib.request

import kvdepot

from tests.e2e.depot_process import START_SECONDS_MAX, DepotError, DepotProcess

HEAD_BYTES = 4 << 20
SEGMENT_BYTES = 16 << 20
PAGE_BYTES = 4096
SLAB_BYTES = 64 << 10
GROUP = {"group": 0, "layers": 1, "slab_bytes": SLAB_BYTES, "parts": 2, "block_tokens": 16, "order": "test"}
KEY_BYTES = 16
RECORDS, BATCH = 12_800, 128        # 800 MiB, some 50 segments
KEPT = 3                            # segments whose footers stay
TRIES = 5
DEADLINE_MS = 20_000


def key_of(number):
    return hashlib.sha256(f"record {number}".encode()).digest()[:KEY_BYTES]


def content_of(number):
    return hashlib.sha256(f"content {number}".encode()).digest() * (SLAB_BYTES // 32)


def take_footers_away(path):
    """Overwrites the footers of all sealed segments but the newest. Returns how many."""
    with open(path, "r+b") as file:
        sealed = []
        for start in range(HEAD_BYTES, os.fstat(file.fileno()).st_size - SEGMENT_BYTES + 1, SEGMENT_BYTES):
            file.seek(start)
            header = file.read(64)
            file.seek(start + SEGMENT_BYTES - 64)
            trailer = file.read(64)
            generation = struct.unpack_from("<Q", header, 32)[0]
            if trailer[:8] == b"KVDFOOTR" and struct.unpack_from("<Q", trailer, 8)[0] == generation:
                sealed.append((generation, start))
        gone = sorted(sealed)[:-KEPT]
        for _, start in gone:
            file.seek(start + SEGMENT_BYTES - PAGE_BYTES)
            file.write(bytes(PAGE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        return len(gone)


class Beginning:
    """A start of a depot, in a thread, from when clients may come. `error`: it has ended before it was ready."""

    def __init__(self, test, depot):
        self.error = None
        self._depot = depot
        self.thread = threading.Thread(target=self._start)
        before = depot.starts
        self.thread.start()
        test.addCleanup(self.thread.join)
        end = time.monotonic() + START_SECONDS_MAX
        while depot.starts == before or "serving while recovering, on tcp://" not in depot.output:
            test.assertLess(time.monotonic(), end, depot.output)
            test.assertIsNone(self.error)
            time.sleep(0.002)

    def _start(self):
        try:
            self._depot.start()
        except DepotError as error:
            self.error = error


class Recovery(unittest.TestCase):
    def setUp(self):
        self.depot = DepotProcess(pool="256MiB", flash="1GiB",
                                  extra=["--segment", "16MiB", "--demote-after", "1s", "--scrub", "0"])
        self.addCleanup(self.depot.__exit__)
        self.depot.start()
        self.address = self.depot.address       # it keeps its port
        self.memory = bytearray(BATCH * SLAB_BYTES)
        client = self.connect()
        for first in range(0, RECORDS, BATCH):
            done = self.put(client, range(first, first + BATCH))
            self.assertEqual((done.code, done.failed_keys), ("ok", 0), done.why)
        client.close()

    def connect(self):
        client = kvdepot.Client(self.address, require_connection=True, connect_timeout_ms=START_SECONDS_MAX * 1000)
        self.addCleanup(client.close)
        self.region = client.register(self.memory)
        self.ns = client.open_namespace("default", b"recovery test", [GROUP])
        return client

    def finish(self, client, op):
        done = client.wait(op, -1, 2 * DEADLINE_MS)
        self.assertIsNotNone(done)
        client.release(op)
        return done

    def put(self, client, numbers):
        for i, number in enumerate(numbers):
            self.memory[i * SLAB_BYTES:(i + 1) * SLAB_BYTES] = content_of(number)
        keys = b"".join(map(key_of, numbers))
        offsets = [i * SLAB_BYTES for i in range(len(numbers))]
        return self.finish(client, client.multiput(self.ns, keys, KEY_BYTES, self.region, [0], offsets, native=True,
                                                   ack="written", total_ms=DEADLINE_MS))

    def match(self, client, number):
        return self.finish(client, client.match(self.ns, key_of(number), KEY_BYTES, native=True, promote=False,
                                                total_ms=DEADLINE_MS, progress_ms=0))

    def remove(self, client, number):
        return self.finish(client, client.remove(self.ns, key_of(number), KEY_BYTES, native=True,
                                                 total_ms=DEADLINE_MS))

    def get(self, client, number):
        """Whether the record is there; its bytes are then what was put."""
        self.memory[:SLAB_BYTES] = bytes(SLAB_BYTES)
        done = self.finish(client, client.multiget(self.ns, key_of(number), KEY_BYTES, self.region, [0], [0],
                                                   native=True, total_ms=DEADLINE_MS, progress_ms=0))
        if done.code != "ok" or done.failed_keys:
            return False
        self.assertEqual(bytes(self.memory[:SLAB_BYTES]), content_of(number))
        return True

    def start_slowly(self):
        """Kills the depot and starts it on a store that it reads slowly."""
        self.depot.kill()
        self.assertGreater(take_footers_away(os.path.join(self.depot.directory, "flash.kvd")), 0)
        return Beginning(self, self.depot)

    def health(self):
        try:
            with urllib.request.urlopen(self.depot.http + "/healthz", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def watch(self, removed, added):
        """A recovery, and what was seen while it ran, once the newest record was there. Empty: it was too fast."""
        beginning = self.start_slowly()
        client = self.connect()
        recovers = lambda: client.depot_stats()["store"]["recovering"] == 1
        while recovers() and not (self.match(client, RECORDS - 1).prefix_blocks == 1 and self.get(client, RECORDS - 1)):
            pass
        put, remove = self.put(client, [added]), self.remove(client, removed)
        seen = {"put": (put.failed_keys, put.failed_code), "remove": remove.code,
                "old": self.match(client, 0).prefix_blocks, "health": self.health(),
                "announced": "listening on" in self.depot.output}
        in_time = recovers()
        beginning.thread.join()
        self.assertIsNone(beginning.error)
        return client, seen if in_time else {}

    def test_the_newest_is_found_before_the_end_and_changes_are_taken_behind_it(self):
        for attempt in range(TRIES):
            removed, added = RECORDS - 2 - attempt, RECORDS + attempt
            client, seen = self.watch(removed, added)
            if seen:
                break
            client.close()
        self.assertTrue(seen, "nothing was found before the end")
        status, text = seen.pop("health")
        self.assertEqual(status, 503)
        self.assertRegex(text, r"^recovering, \d+ %\n$")
        self.assertEqual(seen, {"remove": "busy", "put": (1, "busy"), "old": 0, "announced": False})
        self.assertEqual(self.health(), (200, "ready\n"))
        metrics = self.depot.metrics()
        self.assertEqual((metrics["kvdepot_ready"], metrics["kvdepot_store_recovering"],
                          metrics["kvdepot_store_recovery_percent"]), (1, 0, 100))
        for number in [*range(0, RECORDS - BATCH, 97), removed]:
            self.assertTrue(self.get(client, number), f"record {number}")
        self.assertFalse(self.get(client, added), "its put was refused")
        self.assertEqual(self.remove(client, removed).removed, 1)
        self.assertEqual(self.put(client, [added]).failed_keys, 0)

    def test_sigterm_ends_it_and_the_next_start_has_everything(self):
        for _ in range(TRIES):
            beginning = self.start_slowly()
            status = self.depot.terminate()
            beginning.thread.join()
            if beginning.error is not None:
                break
        self.assertEqual(status, 0, self.depot.output)
        self.assertIn("drained, goodbye", self.depot.output)
        self.assertNotIn("listening on", self.depot.output)
        self.depot.start()
        client = self.connect()
        for number in range(0, RECORDS, 97):
            self.assertTrue(self.get(client, number), f"record {number}")


class HangingDrive(unittest.TestCase):
    def test_sigterm_ends_a_recovery_whose_drive_answers_nothing(self):
        library = os.path.join(os.path.dirname(shutil.which("kvdepot")), "libkvd_hanging_drive.so")
        if not os.path.exists(library):
            self.skipTest("kvd_hanging_drive was not built")
        depot = DepotProcess(pool="64MiB", flash="80MiB", prefix=["env", f"LD_PRELOAD={library}"])
        self.addCleanup(depot.__exit__)
        os.close(os.open(os.path.join(depot.directory, "hang.lock"), os.O_CREAT))
        beginning = Beginning(self, depot)
        self.assertEqual(depot.terminate(), -signal.SIGALRM)
        beginning.thread.join()
        self.assertNotIn("listening on", depot.output)


if __name__ == "__main__":
    unittest.main()
