"""Depots and clients of different versions, and a depot that is replaced under a running client.

    python -m unittest tests.e2e.versions_test        # kvdepot is taken from PATH

What is a version ahead or behind is written from docs/formats/wire.md: other_version.py for depots, hostile_wire.py for
clients.
"""

import os
import shutil
import signal
import struct
import tempfile
import threading
import time
import unittest

import kvdepot
from tests.e2e import hostile_wire as wire
from tests.e2e.depot_process import DepotProcess
from tests.e2e.other_version import GET_DATA, HELLO_REPLY, LAST, PUT_REPLY, STALE, OtherDepot
from tests.e2e.peer import GROUPS, KEY, LAYERS, SLAB, WAIT_SECONDS_MAX, Peer

UNKNOWN_FEATURES = 0xFFFF_FFFF_0000_0000
DEADLINE_MS = 300
SLACK_SECONDS = 0.25    # of this machine, beyond a deadline


class OurClient(unittest.TestCase):
    """This version's client at depots of others."""

    def depot(self, *versions, **options):
        depot = OtherDepot(*versions, **options)
        self.addCleanup(depot.close)
        return depot

    def works(self, depot, **options):
        peer = Peer(self, depot.address, "default", **options)
        self.assertIsNone(peer.get()[1], "a miss")
        self.assertEqual(peer.put(7).failed_keys, 0)
        self.assertEqual(peer.get()[1], 7)
        self.assertEqual(depot.strange, [], "messages that this depot does not know")
        self.assertLessEqual({wire.OPEN, wire.GET, wire.PUT, wire.PUT_DATA}, depot.seen)

    def test_works_with_an_older_depot(self):
        depot = self.depot()
        self.works(depot)
        self.assertLessEqual(depot.hellos[0][0], 1, "it speaks this version")

    def test_works_with_an_older_depot_that_knows_none_of_the_features_that_it_asks_for(self):
        folder = tempfile.mkdtemp(prefix="kvd-old-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        token = os.path.join(folder, "token")
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("kvd_" + "a" * 43 + "\n")
        depot = self.depot(path=os.path.join(folder, "socket"))
        self.works(depot, token_file=token)
        self.assertEqual(depot.hellos[0][2] & 2, 2, "a token was offered")
        depot = self.depot(path=os.path.join(folder, "other"))
        self.works(depot)
        self.assertEqual({features for *_, features in depot.hellos}, {57, 4},
                         "memory, kept views and parts for bodies, rings")

    def test_works_with_a_newer_depot_that_speaks_its_version_too(self):
        depot = self.depot(1, 2)
        self.works(depot)
        self.assertEqual(depot.hellos[0][:2], (1, 1))

    def test_is_told_once_that_a_depot_does_not_speak_its_version(self):
        depot = self.depot(2, 3)
        with self.assertRaisesRegex(kvdepot.KvdepotError, "the depot speaks another version of the protocol"):
            Peer(self, depot.address, "default")
        client = kvdepot.Client(depot.address)
        self.addCleanup(client.close)
        self.until(lambda: client.stats()["last_refusal"])
        self.assertEqual(client.stats()["last_refusal"], "stale: this depot speaks versions 2 to 3 of the protocol")
        self.assertFalse(client.stats()["connected"])
        self.assertEqual(depot.seen, {wire.HELLO}, "nothing else is sent to such a depot")

    def test_does_not_take_a_version_that_it_did_not_offer(self):
        depot = self.depot(1, 2, answers=2)
        with self.assertRaisesRegex(kvdepot.KvdepotError, "the depot speaks another version of the protocol"):
            kvdepot.Client(depot.address, require_connection=True, connect_timeout_ms=1000)
        self.assertEqual(depot.seen, {wire.HELLO})

    def until(self, holds):
        end = time.monotonic() + WAIT_SECONDS_MAX
        while not holds():
            self.assertLess(time.monotonic(), end, "it did not come about")
            time.sleep(0.01)


class OurDepot(unittest.TestCase):
    """Clients of other versions at this version's depot."""

    @classmethod
    def setUpClass(cls):
        cls.depot = DepotProcess(pool="64MiB", flash="80MiB")
        cls.depot.start()
        cls.addClassCleanup(cls.depot.__exit__)

    def raw(self):
        raw = wire.Raw(self.depot.address, greet=False)
        self.addCleanup(raw.close)
        return raw

    def greeted(self, versions):
        raw = self.raw()
        raw.send(wire.hello(UNKNOWN_FEATURES, b"newer", versions))
        fields, meta, _ = raw.whole()
        self.assertEqual((fields[1], fields[2], fields[11]), (1, HELLO_REPLY, 0))
        self.assertEqual(struct.unpack_from("<HQ", meta), (1, 0), "the version of both, and no feature that it knows")
        return raw

    def got(self, raw, request_id):
        """What a GET of the record brings: checksums and slabs, layer by layer; None = it is not there."""
        raw.send(wire.get(KEY, len(KEY), request_id))
        checksums, slabs, flags = b"", b"", 0
        while not flags & LAST:
            fields, meta, payload = raw.whole()
            flags = fields[3]
            self.assertEqual((fields[2], fields[11]), (GET_DATA, 0))
            if meta[0]:
                return None
            checksums, slabs = checksums + meta[1:], slabs + payload
        return checksums, slabs

    def test_a_newer_client_that_speaks_this_version_too_works(self):
        peer = Peer(self, self.depot.address, "default", shared_memory=False)
        self.assertEqual(peer.put(9).failed_keys, 0)
        raw = self.greeted((1, 2))
        raw.send(wire.open_namespace(b"weights", GROUPS[0]))
        self.assertEqual(raw.message()[:2], (0x82, 0))
        checksums, slabs = self.got(raw, 2)
        self.assertEqual(slabs, bytes([9]) * SLAB * LAYERS)
        raw.send(wire.remove(KEY, len(KEY), 3))
        self.assertEqual(raw.message()[:2], (0x88, 0))
        self.assertIsNone(self.got(raw, 4))
        raw.send(wire.put(KEY, len(KEY), 5))
        for layer in range(LAYERS):
            raw.send(wire.frame(wire.PUT_DATA, checksums[8 * layer:8 * layer + 8], 5, items=1, first=layer, layers=1,
                                payload=SLAB) + slabs[layer * SLAB:(layer + 1) * SLAB])
        self.assertEqual(raw.message(), (PUT_REPLY, 0, b"\0"))
        self.assertEqual(peer.get()[1], 9, "what it has put is there for others")

    def test_an_unknown_version_gets_one_clear_refusal(self):
        for hello in (wire.hello(versions=(2, 3)), wire.hello(versions=(0, 0)), wire.hello(versions=(2, 2), version=2)):
            raw = self.raw()
            raw.send(hello)
            fields, meta, _ = raw.whole()
            self.assertEqual((fields[1], fields[2], fields[11]), (1, HELLO_REPLY, STALE))
            self.assertEqual(meta, wire.string(b"this depot speaks version 1 of the protocol"))
            self.assertEqual(raw.socket.recv(1), b"", "and then the end")

    def test_what_was_agreed_on_is_kept_to(self):
        raw = self.greeted((1, 2))
        raw.send(wire.frame(wire.PING))
        self.assertEqual(raw.message()[:2], (0x8B, 0))
        raw.send(wire.frame(wire.PING, version=2))
        self.assertTrue(raw.ended())


class Reader(threading.Thread):
    """Gets one record over and over, each time with a deadline, and remembers how each get ended."""

    def __init__(self, test, address):
        super().__init__(daemon=True)
        self.peer = Peer(test, address, "default")
        done = self.peer.put(7, ack="written")
        test.assertEqual((done.code, done.failed_keys), ("ok", 0))
        self.began = None       # of the get that is under way
        self.seen = []          # (when it ended, seconds, hit)
        self.wrong = 0
        self.over = False

    def run(self):
        client, memory = self.peer.client, self.peer.memory
        while not self.over:
            memory[:] = bytes(len(memory))
            self.began = began = time.monotonic()
            hit = self._get(client)
            now = time.monotonic()
            self.began = None
            self.wrong += hit and bytes(memory) != bytes([7]) * len(memory)
            self.seen.append((now, now - began, hit))
            time.sleep(0.002)

    def _get(self, client):
        try:
            op = client.multiget(self.peer.ns, KEY, len(KEY), self.peer.region, [0, SLAB], [0], total_ms=DEADLINE_MS,
                                 progress_ms=0)
        except kvdepot.KvdepotError:    # not connected, or the breaker is open: a miss at once
            return False
        done = client.wait(op, timeout_ms=WAIT_SECONDS_MAX * 1000)
        client.release(op)
        return done.code == "ok" and not done.failed_keys

    def hits_since(self, when):
        return sum(hit for ended, _, hit in self.seen if ended >= when)


class Replaced(unittest.TestCase):
    """A depot whose process is replaced by another one at the same address, under a client that goes on asking."""

    def replaced(self, listen, replace):
        depot = DepotProcess(pool="64MiB", flash="80MiB", listen=listen)
        self.addCleanup(depot.__exit__)
        depot.start()
        reader = Reader(self, depot.address)
        reader.start()
        self.until(lambda: reader.hits_since(0) > 20)
        for _ in range(2):
            first = depot.pid
            began = time.monotonic()
            replace(depot, reader)
            self.assertNotEqual(depot.pid, first)
            up = time.monotonic()
            self.until(lambda up=up: reader.hits_since(up) > 20)
            gone = [entry for entry in reader.seen if entry[0] >= began and not entry[2]]
            self.assertGreater(len(gone), 0, "no get met the gap")
        reader.over = True
        reader.join(WAIT_SECONDS_MAX)
        self.assertEqual(reader.wrong, 0)
        self.assertLess(max(took for _, took, _ in reader.seen), DEADLINE_MS / 1000 + SLACK_SECONDS)

    def until(self, holds):
        end = time.monotonic() + WAIT_SECONDS_MAX
        while not holds():
            self.assertLess(time.monotonic(), end, "it did not come about")
            time.sleep(0.005)

    def orderly(self, depot, _):
        self.assertEqual(depot.terminate(), 0)
        depot.start()

    def killed_within_a_get(self, depot, reader):
        """The depot stands still when a get comes, and dies before it has answered."""
        depot.stop()
        self.until(lambda: reader.began is not None and time.monotonic() - reader.began > 0.05)
        depot.kill(signal.SIGKILL)
        depot.start()

    def socket(self):
        folder = tempfile.mkdtemp(prefix="kvd-new-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return f"unix://{folder}/kvdepot.sock"

    def test_behind_a_port(self):
        self.replaced("tcp://127.0.0.1:0", self.orderly)

    def test_behind_a_port_within_a_get(self):
        self.replaced("tcp://127.0.0.1:0", self.killed_within_a_get)

    def test_behind_the_path_of_a_unix_socket(self):
        self.replaced(self.socket(), self.orderly)

    def test_behind_the_path_of_a_unix_socket_within_a_get(self):
        self.replaced(self.socket(), self.killed_within_a_get)


if __name__ == "__main__":
    unittest.main()
