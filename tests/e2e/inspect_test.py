"""`kvdepot inspect` and `kvdepot verify` on the store of a real depot: running, killed, damaged."""

import json
import os
import subprocess
import tempfile
import unittest

from tests.e2e.depot_process import DepotProcess
from tests.e2e.kill_test import SLAB_BYTES, Traffic, content_of, key_of


def run(*words):
    return subprocess.run(["kvdepot", *words], capture_output=True, text=True, timeout=60)


class Inspect(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "record.bin")

    def test_a_depot_running_then_killed_then_damaged(self):
        with DepotProcess(flash="68MiB", pool="64MiB") as depot:
            traffic = Traffic(depot.address, seed=1)
            while len(traffic.written) < 20:
                traffic.put()
            traffic.close()
            busy = run("verify", depot.directory)
            self.assertEqual(busy.returncode, 2)
            self.assertIn(f"is in use by process {depot.pid}", busy.stderr)
            running = json.loads(run("inspect", depot.directory, "--json").stdout)
            self.assertTrue(running["in_use"])
            depot.kill()
            verified = run("verify", depot.directory)
            self.assertEqual(verified.returncode, 0, verified.stdout)
            found = json.loads(run("inspect", depot.directory, "--json").stdout)
            self.assertFalse(found["in_use"])
            self.assertGreaterEqual(found["live"]["records"], len(traffic.written))
            self.assertEqual(found["namespaces"][0]["fingerprint"], "kill test")
            self.assertEqual(found["namespaces"][0]["groups"][0]["slab_bytes"], SLAB_BYTES)
            number = min(traffic.written)
            self.extract(depot.directory, number)
            self.damage(depot.directory, number)

    def extract(self, directory, number):
        done = run("inspect", directory, "--foreign", key_of(number).hex(), "--out", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.out, "rb") as file:
            self.assertEqual(file.read(), content_of(number))

    def damage(self, directory, number):
        where = json.loads(run("inspect", directory, "--foreign", key_of(number).hex(), "--json").stdout)
        geometry = json.loads(run("inspect", directory, "--json").stdout)
        at = (4 << 20) + where["segment"] * geometry["segment_bytes"] + (where["page"] + 3) * 4096
        with open(os.path.join(directory, "flash.kvd"), "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
        done = run("verify", directory)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"record {where['key']}", done.stdout)
        self.assertIn("1 records lost", done.stdout)
        self.assertEqual(len(json.loads(run("verify", directory, "--json").stdout)["damages"]), 1)

    def test_bad_input_is_one_line(self):
        for words, said in {("verify", "/nonexistent"): "give the directory of a store",
                            ("inspect", os.path.dirname(self.out)): "holds no flash.kvd",
                            ("inspect",): "see kvdepot inspect --help",
                            ("bench", "store", "--dir", "/nonexistent"): "no such directory",
                            ("bench", "store", "--dir", "/", "--size", "x"): "a size like"}.items():
            done = run(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(said, done.stderr)

    def test_help_has_examples(self):
        for verb in (["inspect"], ["verify"], ["bench", "store"]):
            done = run(*verb, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("Examples:\n  kvdepot " + " ".join(verb), done.stdout)


if __name__ == "__main__":
    unittest.main()
