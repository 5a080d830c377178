"""`kvdepot top` and `kvdepot bench net` beside a real depot: what they show, leave, and say when it goes.

    python -m unittest tests.e2e.tools_test        # kvdepot is taken from PATH
"""

import json
import socket
import subprocess
import tempfile
import unittest

import kvdepot
from tests.e2e.depot_process import DepotProcess

SMALL = {"pool": "64MiB", "flash": "80MiB"}


def run(*words):
    return subprocess.run(["kvdepot", *words], capture_output=True, text=True, timeout=60)


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


class Tools(unittest.TestCase):
    def done(self, *words):
        """Standard output of a command that ends well."""
        ended = run(*words)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        return ended.stdout

    def refused(self, status, *words):
        """The one error line of a command that cannot be done."""
        ended = run(*words)
        self.assertEqual((ended.returncode, ended.stdout), (status, ""), ended.stderr)
        self.assertEqual(len(ended.stderr.splitlines()), 1, ended.stderr)
        self.assertTrue(ended.stderr.startswith("kvdepot: error: "), ended.stderr)
        return ended.stderr


class Top(Tools):
    def test_shows_what_a_depot_does(self):
        with DepotProcess(**SMALL) as depot:
            http = depot.http.removeprefix("http://")
            client = kvdepot.Client(depot.address, require_connection=True, connect_timeout_ms=10_000)
            self.addCleanup(client.close)
            views = self.done("top", http, "--interval", "100ms", "--count", "2").split("\n\nkvdepot ")
            self.assertEqual(len(views), 2)
            for view in views:
                self.assertIn(f"at {http}: serving, up ", view)
                self.assertIn("0 I/O errors since the start", view)
                self.assertLess(max(map(len, view.splitlines())), 101)
            view = json.loads(self.done("top", http, "--interval", "100ms", "--count", "1", "--json"))
            self.assertTrue(view["ready"])
            self.assertGreater(view["seconds"], 0.05)
            self.assertGreater(view["now"]["connections"], 0)

    def test_waits_for_a_depot_that_is_started_again(self):
        http = free_address()
        with DepotProcess(**SMALL, extra=["--http", http]) as depot:
            first = json.loads(self.done("top", http, "--interval", "2s", "--count", "1", "--json"))
            with subprocess.Popen(["kvdepot", "top", http, "--interval", "100ms", "--json"], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as top:
                self.addCleanup(top.kill)
                self.assertGreater(json.loads(top.stdout.readline())["uptime_s"], first["uptime_s"])
                depot.kill()
                self.assertIn(f"{http}: no answer over HTTP: ", top.stderr.readline())
                depot.start()
                views = map(json.loads, top.stdout)
                again = next(view for view in views if view["uptime_s"] < first["uptime_s"])
                self.assertGreater(again["seconds"], 0)
                top.kill()

    def test_says_what_is_wrong(self):
        nobody = free_address()
        self.assertIn("Connection refused: is a depot running", self.refused(1, "top", nobody))
        for words in (["depot"], ["127.0.0.1:x"], [nobody, "--interval", "1ms"], [nobody, "--interval", "soon"],
                      [nobody, "--count", "-1"]):
            self.refused(2, "top", *words)


class BenchNet(Tools):
    def test_measures_a_depot_and_leaves_nothing_in_it(self):
        with tempfile.TemporaryDirectory() as folder:
            unix = f"unix://{folder}/s"
            with DepotProcess(**SMALL, extra=["--listen", unix]) as depot:
                for words in ([depot.address], [unix, "--shared-memory"]):
                    self.check(depot, *words)
                    self.assertEqual(depot.metrics()["kvdepot_bytes_lent_total"] > 0, "--shared-memory" in words)

    def check(self, depot, *words):
        out = json.loads(self.done("bench", "net", *words, "--size", "8MiB", "--time", "10ms", "--rounds", "2",
                                   "--json"))
        rows = {row["name"]: row for row in out["rows"]}
        self.assertEqual(len(rows), 9, rows)
        for name, row in rows.items():
            self.assertGreater(row["p50_s"], 0, name)
            self.assertGreaterEqual(row["p99_s"], row["p50_s"], name)
            if "bytes_per_s" in row:
                self.assertEqual(len(row["rounds"]), 2, name)
                self.assertGreater(row["bytes_per_s"], 0, name)
        after = depot.metrics()
        self.assertEqual((after["kvdepot_store_pool_records"], after["kvdepot_store_flash_records"]), (0, 0))

    def test_says_what_is_wrong(self):
        with DepotProcess(**SMALL) as depot:
            self.assertIn("share of the pool): give a smaller --size",
                          self.refused(1, "bench", "net", depot.address, "--size", "32MiB", "--time", "10ms"))
            for words in ([], ["nonsense://x"], [depot.address, "--size", "1MiB"], [depot.address, "--time", "never"],
                          [depot.address, "--rounds", "0"]):
                self.refused(2, "bench", "net", *words)
            address = depot.address
        self.assertIn("is a depot running there?", self.refused(1, "bench", "net", address))


if __name__ == "__main__":
    unittest.main(verbosity=2)
