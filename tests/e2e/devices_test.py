"""A depot over several drives: three folders stand for them. It starts warm whatever order they come in, and stops with
one line, before it has written anything, where one is missing or is not the store's.

    python -m unittest tests.e2e.devices_test         # kvdepot is taken from PATH
"""

import hashlib
import json
import os
import random
import re
import shutil
import struct
import subprocess
import tempfile
import time
import unittest

import kvdepot

from tests.e2e import kill_test
from tests.e2e.depot_process import START_SECONDS_MAX, DepotError, DepotProcess

MIB = 1 << 20
SLAB_BYTES = 64 << 10
RECORDS, BATCH = 640, 128               # 40 MiB: some 7 frames for each of three devices
KEY_BYTES = 16
GROUP = {"group": 0, "layers": 1, "slab_bytes": SLAB_BYTES, "parts": 2, "block_tokens": 16, "order": "test"}
DEADLINE_MS = 30_000
LIST_STRIDE = 64 << 10                  # docs/formats/flash-log.md, "List of devices"


def key_of(number):
    return hashlib.sha256(f"record {number}".encode()).digest()[:KEY_BYTES]


def content_of(number):
    return hashlib.sha256(f"content {number}".encode()).digest() * (SLAB_BYTES // 32)


def content_of_folder(folder):
    """What lies in a folder, byte for byte."""
    found = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = hashlib.sha256(file.read()).hexdigest()
    return found


class Devices(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvd-devices-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.a, self.b, self.c = (os.path.join(self.folder, name) for name in "abc")
        self.depot = None
        self.memory = bytearray(BATCH * SLAB_BYTES)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *devices, flash="128MiB", extra=(), prefix=()):
        """A depot with its directory in `a`, ready; the one before it is killed."""
        if self.depot is not None:
            self.depot.kill()
        words = [word for device in devices for word in ("--device", device)]
        self.depot = DepotProcess(self.a, pool="64MiB", flash=flash,
                                  extra=["--segment", "16MiB", "--scrub", "0", *words, *extra], prefix=prefix)
        self.addCleanup(self.depot.kill)
        self.depot.start()

    def refused(self, *devices, flash="128MiB", extra=(), status=1):
        """The one line that a start ends with."""
        with self.assertRaises(DepotError) as caught:
            self.start(*devices, flash=flash, extra=extra)
        self.assertEqual(self.depot.status, status, caught.exception)
        errors = [line for line in self.depot.output.splitlines() if line.startswith("kvdepot: error: ")]
        self.assertEqual(len(errors), 1, self.depot.output)
        return errors[0]

    def client(self):
        client = kvdepot.Client(self.depot.address, require_connection=True,
                                connect_timeout_ms=START_SECONDS_MAX * 1000)
        self.addCleanup(client.close)
        region = client.register(self.memory)
        return client, region, client.open_namespace("default", b"devices test", [GROUP])

    @staticmethod
    def finish(client, op):
        done = client.wait(op, -1, 2 * DEADLINE_MS)
        client.release(op)
        return done

    def fill(self):
        """Puts all records, acknowledged as written."""
        client, region, ns = self.client()
        for first in range(0, RECORDS, BATCH):
            numbers = range(first, first + BATCH)
            for i, number in enumerate(numbers):
                self.memory[i * SLAB_BYTES:(i + 1) * SLAB_BYTES] = content_of(number)
            places = [i * SLAB_BYTES for i in range(BATCH)]
            done = self.finish(client, client.multiput(ns, b"".join(map(key_of, numbers)), KEY_BYTES, region, [0],
                                                       places, native=True, ack="written", total_ms=DEADLINE_MS))
            self.assertEqual((done.code, done.failed_keys), ("ok", 0), done.why)
        client.close()

    def found(self):
        """The records that are there, each with the bytes that were put."""
        client, region, ns = self.client()
        there = set()
        for first in range(0, RECORDS, BATCH):
            numbers = range(first, first + BATCH)
            self.memory[:] = bytes(len(self.memory))
            places = [i * SLAB_BYTES for i in range(BATCH)]
            done = self.finish(client, client.multiget(ns, b"".join(map(key_of, numbers)), KEY_BYTES, region, [0],
                                                       places, native=True, stop_at_first_failure=False,
                                                       total_ms=DEADLINE_MS, progress_ms=DEADLINE_MS))
            failed = bytes(done.failed)
            for i, number in enumerate(numbers):
                if done.code != "ok" or i // 8 < len(failed) and failed[i // 8] >> (i % 8) & 1:
                    continue
                self.assertEqual(self.memory[i * SLAB_BYTES:(i + 1) * SLAB_BYTES], content_of(number), number)
                there.add(number)
        client.close()
        return there

    def remove(self, numbers):
        client, _, ns = self.client()
        for number in numbers:
            done = self.finish(client, client.remove(ns, key_of(number), KEY_BYTES, native=True,
                                                     total_ms=DEADLINE_MS))
            self.assertEqual(done.code, "ok")
        client.close()

    def sizes(self):
        return [os.path.getsize(os.path.join(folder, "flash.kvd")) // MIB for folder in (self.a, self.b, self.c)]

    # ---- Starts ----

    def test_a_depot_over_three_drives_is_warm_after_a_kill_and_removals_stay(self):
        self.start(self.b, self.c + "=192MiB")
        self.fill()
        self.assertEqual(self.found(), set(range(RECORDS)))
        self.assertEqual(self.sizes(), [116, 116, 180])     # 4 MiB and whole segments
        self.start(self.b, self.c)
        self.assertEqual(self.found(), set(range(RECORDS)))
        self.assertEqual(self.sizes(), [116, 116, 180])     # one that is there keeps its size
        removed = set(range(0, RECORDS, 3))
        self.remove(removed)
        self.start(self.b, self.c)
        self.assertEqual(self.found(), set(range(RECORDS)) - removed)

    def test_of_two_drives_nothing_written_is_lost_by_kills_and_nothing_removed_returns(self):
        seed = random.randrange(1 << 32)
        counts = kill_test.run(seed, kills=5, seconds=120, flash="2GiB", extra=["--device", self.b + "=2GiB"])
        message = f"seed {seed}: {json.dumps(counts)}"
        self.assertGreater(counts["judged_written"], 0, message)
        self.assertEqual((counts["wrong"], counts["lost"], counts["undead"]), (0, 0, 0), message)

    def test_the_ready_line_names_the_devices(self):
        command = ["kvdepot", "serve", "--dir", self.a, "--flash", "0", "--device", self.b + "=80MiB", "--device",
                   self.c + "=96MiB", "--pool", "64MiB", "--http", "off", "--listen", "unix://" + self.path("s"),
                   "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            self.addCleanup(process.kill)
            ready = json.loads(process.stdout.readline())
            process.terminate()
        self.assertEqual(process.returncode, 0)
        self.assertEqual(ready["devices"], [{"dir": self.b, "flash_bytes": 68 * MIB, "state": "on"},
                                            {"dir": self.c, "flash_bytes": 84 * MIB, "state": "on"}])
        self.assertEqual(ready["flash_bytes"], 152 * MIB)     # what the files have
        self.assertEqual(sorted(os.listdir(self.a)), ["LOCK", "devices.kvd"])

    def test_a_store_of_one_drive_gets_others_and_keeps_its_content(self):
        self.start()
        self.fill()
        self.start(self.b, self.c)
        self.assertEqual(self.found(), set(range(RECORDS)))
        self.assertIn(f"(last at {self.b}) is not named: add --device DIR", self.refused(self.c))
        self.assertIn("is not named: add --device DIR", self.refused())

    def test_swapped_folders_are_no_matter(self):
        self.start(self.b, self.c + "=192MiB")
        self.fill()
        self.depot.kill()
        os.rename(self.b, self.path("x"))
        os.rename(self.c, self.b)
        os.rename(self.path("x"), self.c)
        self.start(self.b, self.c)
        self.assertEqual(self.found(), set(range(RECORDS)))
        self.assertEqual(self.sizes(), [116, 180, 116])

    # ---- One is missing ----

    def test_a_missing_drive_stops_the_start_until_it_is_to_be_forgotten(self):
        self.start(self.b, self.c)
        self.fill()
        self.depot.kill()
        os.rename(self.c, self.path("away"))
        error = self.refused(self.b, self.c)
        self.assertIn(f"(last at {self.c}) is missing, {self.c} holds no flash.kvd: attach or mount it, or start once "
                      "with --forget-missing", error)
        self.assertFalse(os.path.exists(self.c))
        os.rename(self.path("away"), self.c)
        self.start(self.b, self.c)
        self.assertEqual(self.found(), set(range(RECORDS)))     # the refused start has cost nothing

        self.depot.kill()
        os.rename(self.c, self.path("away"))
        self.start(self.b, extra=["--forget-missing"])
        self.assertIn("forgotten", self.depot.output)
        rest = self.found()
        self.assertGreater(len(rest), 0)
        self.assertLess(len(rest), RECORDS)
        self.start(self.b)
        self.assertEqual(self.found(), rest)

        self.depot.kill()
        os.rename(self.path("away"), self.c)
        self.start(self.b, self.c)
        self.assertIn("is not in the store's list; begun anew", self.depot.output)
        self.assertEqual(self.found(), rest)

    def test_an_empty_folder_in_the_place_of_a_drive_is_not_filled(self):
        self.start(self.b, self.c)
        self.fill()
        self.depot.kill()
        os.rename(self.c, self.path("away"))
        os.mkdir(self.c)
        self.assertIn("is missing", self.refused(self.b, self.c))
        self.assertEqual(os.listdir(self.c), [])
        os.rmdir(self.c)
        os.rename(self.path("away"), self.c)
        self.start(self.b, self.c)
        self.assertEqual(self.found(), set(range(RECORDS)))

    def test_a_new_drive_takes_the_place_of_one_that_is_forgotten(self):
        self.start(self.b, self.c)
        self.fill()
        self.depot.kill()
        shutil.rmtree(self.c)
        os.mkdir(self.c)
        self.start(self.b, self.c, extra=["--forget-missing"])
        rest = self.found()
        self.assertLess(len(rest), RECORDS)
        self.fill()
        self.start(self.b, self.c)
        self.assertEqual(self.found(), set(range(RECORDS)))

    # ---- One hangs ----

    def test_a_drive_that_hangs_costs_its_own_records_and_comes_back(self):
        library = os.path.join(os.path.dirname(shutil.which("kvdepot")), "libkvd_hanging_drive.so")
        if not os.path.exists(library):
            self.skipTest("kvd_hanging_drive was not built")
        hang = os.path.join(self.b, "hang.lock")
        prefix = ["env", f"LD_PRELOAD={library}"]
        self.start(self.b, prefix=prefix)
        self.fill()
        self.start(self.b, prefix=prefix)
        os.close(os.open(hang, os.O_CREAT))
        rest = self.found()
        self.assertGreater(len(rest), 0)
        self.assertLess(len(rest), RECORDS)
        off = f'kvdepot_device_off{{device="{self.b}"}}'
        self.wait_for(lambda metrics: metrics[off] == 1)
        self.assertEqual(self.depot.metrics()["kvdepot_store_tier_off"], 0)
        self.assertEqual(self.depot.metrics()[f'kvdepot_device_off{{device="{self.a}"}}'], 0)
        # As both are true of it, the first that is looked at is given.
        reasons = "the device completes nothing|no read completes"
        why = re.search(f"store: device {re.escape(self.b)} turned off: ({reasons})", self.depot.output)
        self.assertIsNotNone(why, self.depot.output)
        top = json.loads(subprocess.run(["kvdepot", "top", self.depot.http.removeprefix("http://"), "--count", "1",
                                         "--interval", "100ms", "--json"],
                                        capture_output=True, text=True, timeout=60, check=True).stdout)
        self.assertEqual({name: device["off"] for name, device in top["devices"].items()},
                         {self.a: False, self.b: True})
        client, _, _ = self.client()
        self.assertEqual([(device["dir"], device["why_off"]) for device in client.depot_stats()["devices"]],
                         [(self.a, ""), (self.b, why[1])])
        client.close()
        self.assertGreaterEqual(self.found(), rest)
        os.remove(hang)
        self.wait_for(lambda metrics: metrics[off] == 0)
        self.assertEqual(self.found(), set(range(RECORDS)))

    def wait_for(self, condition):
        end = time.monotonic() + 60
        while not condition(self.depot.metrics()):
            self.assertLess(time.monotonic(), end, self.depot.output)
            time.sleep(0.05)

    # ---- Wrong input: one line, and nothing is lost ----

    def test_what_cannot_be_the_stores_is_refused_and_costs_nothing(self):
        self.start(self.b, flash="96MiB")
        self.fill()
        self.depot.kill()
        other = self.path("other")
        os.makedirs(self.path("one"))
        os.symlink(self.b, self.path("link"))
        stranger = DepotProcess(other, pool="64MiB", flash="80MiB", extra=["--device", self.path("its")])
        with stranger:
            stranger.terminate()
        with open(self.path("one/thesis.tex"), "w", encoding="utf-8") as file:
            file.write("do not lose me")
        its = content_of_folder(self.path("its"))
        for words, says in (
                ([self.b, self.path("its") + "=80MiB"], "holds a device of another store"),
                ([self.b, self.path("one") + "=80MiB"], "holds 'thesis.tex' and is not a kvdepot store"),
                ([self.b, self.path("link")], f"{self.b} and {self.path('link')} are the same directory"),
                ([self.b, self.path("none/below") + "=80MiB"], "create its parent directory first"),
                ([self.b, self.path("small") + "=20MiB"], "is too small"),
                ([self.b, self.path("large") + "=10TB"], "free space or ask for less flash")):
            with self.subTest(says=says):
                self.assertIn(says, self.refused(*words, flash="96MiB"))
        self.assertEqual(content_of_folder(self.path("its")), its)
        self.assertEqual(os.listdir(self.path("one")), ["thesis.tex"])
        for words, says in (([self.b, self.path("x/../b")], "is given twice"),
                            ([self.a + "/"], "is --dir itself"),
                            ([self.b + "=much"], "'much' is not a size"),
                            ([self.path(str(n)) for n in range(16)], "at most 16 devices")):
            with self.subTest(says=says):
                self.assertIn(says, self.refused(*words, flash="96MiB", status=2))
        self.assertIn("name more drives with --device DIR",
                      self.refused(flash="96MiB", extra=["--dir", self.b], status=2))
        self.start(self.b, flash="96MiB")
        self.assertEqual(self.found(), set(range(RECORDS)))

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_a_drive_that_is_read_only_is_refused(self):
        self.start(self.b)
        self.fill()
        self.depot.kill()
        os.chmod(self.b, 0o500)
        os.chmod(os.path.join(self.b, "LOCK"), 0o400)
        self.assertIn(f"{self.b}: is not writable", self.refused(self.b))
        os.chmod(os.path.join(self.b, "LOCK"), 0o600)
        os.chmod(self.b, 0o700)
        self.start(self.b)
        self.assertEqual(self.found(), set(range(RECORDS)))

    def test_a_list_that_is_damaged_newer_or_not_one(self):
        self.start(self.b)
        self.fill()
        self.depot.kill()
        path = os.path.join(self.a, "devices.kvd")
        with open(path, "rb") as file:
            sound = file.read()

        def written(change, copies):
            changed = bytearray(sound)
            for copy in copies:
                change(changed, copy * LIST_STRIDE)
            with open(path, "wb") as file:
                file.write(changed)

        def newer(data, at):
            data[at + 8:at + 12] = struct.pack("<I", 99)

        def foreign(data, at):
            data[at:at + 8] = b"NOT_OURS"

        for change, says in ((newer, "devices.kvd: was written by a newer version of kvdepot"),
                             (foreign, "devices.kvd: is not a kvdepot store")):
            with self.subTest(says=says):
                written(change, range(4))
                self.assertIn(says, self.refused(self.b))
        os.rename(path, self.path("list"))
        self.assertIn("holds a device of another store", self.refused(self.b))
        with open(path, "wb") as file:
            file.write(sound)

        def turn_over(data, at):
            data[at + 70] ^= 1

        written(turn_over, (0, 3))          # two of four copies
        self.start(self.b)
        self.assertEqual(self.found(), set(range(RECORDS)))


if __name__ == "__main__":
    unittest.main()
