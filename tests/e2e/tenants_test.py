"""Two tenants on one depot, over real sockets: tokens made by `kvdepot token`, rights, revocation by SIGHUP.

    python -m unittest tests.e2e.tenants_test        # kvdepot is taken from PATH
"""

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import unittest

import kvdepot
from tests.e2e.depot_process import DepotProcess
from tests.e2e.peer import GROUPS, LAYERS, SLAB, WAIT_SECONDS_MAX, Peer
from tests.e2e.silent_flood import FLOOD_SECONDS_MAX, SilentFlood


class TenantsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvd-tenants-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.credentials = os.path.join(self.folder, "credentials")

    def token(self, name, tenant, rights="read,write"):
        """Makes a token; returns its file and its line."""
        path = os.path.join(self.folder, name)
        made = subprocess.run(["kvdepot", "token", "--tenant", tenant, "--rights", rights, "--out", path],
                              capture_output=True, text=True, check=True)
        return path, made.stdout

    def write(self, *lines):
        with open(self.credentials, "w", encoding="ascii") as file:
            file.writelines(lines)

    def test_two_tenants_on_one_depot(self):
        a_file, a_line = self.token("a.token", "a")
        b_file, b_line = self.token("b.token", "b")
        reader_file, reader_line = self.token("reader.token", "a", "read")
        self.write("tenant a requests=64\n", a_line, b_line, reader_line)
        with DepotProcess(pool="64MiB", flash="80MiB", extra=["--credentials", self.credentials],
                          listen="tcp://0.0.0.0:0") as depot:
            address = depot.address.replace("0.0.0.0", "127.0.0.1")
            a, b, reader = (Peer(self, address, tenant, token_file=file)
                            for file, tenant in ((a_file, "a"), (b_file, "b"), (reader_file, "a")))
            stored = a.put(1)
            self.assertEqual((stored.code, stored.failed_keys, stored.why), ("ok", 0, ""))
            self.assertEqual(a.get()[1], 1)
            self.assertEqual(reader.get()[1], 1)
            self.assertIsNone(b.get()[1], "another tenant's record")
            self.assertEqual(b.put(2).failed_keys, 0)
            self.assertEqual((a.get()[1], b.get()[1]), (1, 2))
            refused = reader.put(3)
            self.assertEqual((refused.code, refused.why), ("invalid", "the credential does not allow this"))
            self.assertEqual(a.client.stats()["bytes_shared"], 0, "nobody is lent the pool")

            stranger = Peer(self, address, "a", token_file=b_file)
            self.assertEqual(stranger.get()[0].why, "the credential is of another tenant")
            with self.assertRaises(kvdepot.KvdepotError):
                kvdepot.Client(address, require_connection=True, connect_timeout_ms=500)
            self.assertIn("refused 127.0.0.1: no token", depot.output)

            self.write(a_line)      # b and the reader are revoked
            os.kill(depot.pid, signal.SIGHUP)
            self.until(lambda: not b.client.stats()["connected"])
            self.until(lambda: "unauthorized" in b.client.stats()["last_refusal"])
            self.assertEqual(a.get()[1], 1)
            self.write("nonsense\n")
            os.kill(depot.pid, signal.SIGHUP)
            self.until(lambda: "the credentials stay as they were" in depot.output)
            self.assertEqual(a.get()[1], 1)
            self.write(a_line, b_line)
            os.kill(depot.pid, signal.SIGHUP)
            self.until(lambda: b.client.stats()["connected"])
            self.assertEqual(b.get()[1], 2)
            self.assertGreater(depot.metrics()["kvdepot_unauthorized_total"], 0)
            self.assertGreater(depot.metrics()['kvdepot_tenant_requests_total{tenant="a"}'], 0)
            for path in (a_file, b_file, reader_file):
                with open(path, encoding="ascii") as file:
                    self.assertNotIn(file.read().strip(), depot.output, "no token is ever logged")

    def test_tenants_of_this_host_look_up_and_put_through_memory_of_their_own(self):
        a_file, a_line = self.token("a.token", "a")
        b_file, b_line = self.token("b.token", "b")
        reader_file, reader_line = self.token("reader.token", "a", "read")
        self.write(a_line, b_line, reader_line)
        with DepotProcess(pool="64MiB", flash="80MiB", extra=["--credentials", self.credentials],
                          listen=f"unix://{self.folder}/s") as depot:
            a, b, reader = (Peer(self, depot.address, tenant, token_file=file)
                            for file, tenant in ((a_file, "a"), (b_file, "b"), (reader_file, "a")))
            metrics = depot.metrics()
            self.assertEqual([metrics[f'kvdepot_tenant_{what}{{tenant="{tenant}"}}'] for tenant in "ab"
                              for what in ("rings", "arenas", "windows")], [2, 1, 2, 1, 1, 1])
            self.assertEqual(a.put(1).failed_keys, 0)
            self.assertEqual(depot.metrics()["kvdepot_put_arena_bytes_total"], SLAB * LAYERS, "all of it")
            self.assertEqual((a.found(), reader.found(), b.found()), (True, True, False))
            self.assertEqual((a.get()[1], b.get()[1]), (1, None), "another tenant's record")
            self.assertEqual(b.put(2).failed_keys, 0)
            self.assertEqual(depot.metrics()["kvdepot_put_arena_bytes_total"], 2 * SLAB * LAYERS)
            self.assertEqual((a.get()[1], b.get()[1], reader.get()[1]), (1, 2, 1))
            self.assertEqual(reader.put(3).why, "the credential does not allow this")
            for _ in range(200):
                self.assertTrue(a.found())
            self.assertEqual(depot.metrics()["kvdepot_requests_match_total"], 203)
            self.assertEqual(depot.metrics()["kvdepot_gets_lent_total"], 0, "nobody is lent the pool")
            self.assertEqual(depot.metrics()["kvdepot_get_window_bytes_total"], 4 * SLAB * LAYERS, "but shown its own")
            self.assertEqual(a.client.stats()["bytes_shared"], 2 * SLAB * LAYERS)

            self.write(a_line)      # b and the reader are revoked, and what they had of memory goes
            os.kill(depot.pid, signal.SIGHUP)
            self.until(lambda: depot.metrics()["kvdepot_rings"] == 1)
            self.until(lambda: depot.metrics()["kvdepot_arena_bytes"] == 16 << 20)
            self.until(lambda: depot.metrics()["kvdepot_window_bytes"] == 32 << 20)
            self.until(lambda: "unauthorized" in b.client.stats()["last_refusal"])
            self.assertEqual((a.found(), a.get()[1]), (True, 1))
            self.write(a_line, b_line)
            os.kill(depot.pid, signal.SIGHUP)
            self.until(lambda: b.client.stats()["connected"])
            self.until(lambda: depot.metrics()["kvdepot_rings"] == 2)
            self.assertEqual((b.found(), b.get()[1]), (True, 2))

    def test_a_process_that_has_taken_the_name_beside_the_port_is_shown_no_token(self):
        file, line = self.token("a.token", "a")
        self.write(line)
        with DepotProcess(pool="64MiB", flash="80MiB", extra=["--credentials", self.credentials]) as depot:
            name = "\0kvdepot/" + depot.address.removeprefix("tcp://").replace(":", "/")
            with socket.socket(socket.AF_UNIX) as squatter:
                squatter.bind(name)     # it is free: the depot has no memory for clients of ports
                squatter.listen(8)
                squatter.setblocking(False)
                a = Peer(self, depot.address, "a", token_file=file)
                self.assertEqual(a.put(1).failed_keys, 0)
                self.assertEqual((a.found(), a.get()[1]), (True, 1))
                with self.assertRaises(BlockingIOError):
                    squatter.accept()

    def test_a_tenant_has_its_bounds_and_its_figures(self):
        a_file, a_line = self.token("a.token", "a")
        b_file, b_line = self.token("b.token", "b")
        self.write("tenant a connections=2 namespaces=1 pool=16MiB\n", a_line, b_line)
        with DepotProcess(pool="64MiB", flash="80MiB", extra=["--credentials", self.credentials]) as depot:
            a = Peer(self, depot.address, "a", token_file=a_file)
            self.assertEqual(a.put(1).failed_keys, 0)
            self.assertEqual(a.get()[1], 1)
            other = a.client.open_namespace("a", b"other weights", GROUPS)
            self.until(lambda: "as many namespaces open as it may" in a.client.stats()["last_refusal"])
            a.client.close_namespace(other)
            with self.assertRaisesRegex(kvdepot.KvdepotError, "takes no more connections"):
                kvdepot.Client(depot.address, token_file=a_file, require_connection=True, connect_timeout_ms=500)
            b = Peer(self, depot.address, "b", token_file=b_file)
            self.assertEqual(b.put(2).failed_keys, 0)
            self.assertGreater(depot.metrics()['kvdepot_tenant_connections_refused_total{tenant="a"}'], 0)
            self.assertGreater(depot.metrics()['kvdepot_tenant_namespaces_refused_total{tenant="a"}'], 0)
            tenants = self.top(depot)
            self.assertEqual((tenants["a"]["connections"], tenants["a"]["namespaces"]), (2, 1))
            self.assertEqual(tenants["a"]["pool_quota_bytes"], 16 << 20)
            self.assertGreater(tenants["a"]["pool_bytes"], 0)
            self.assertIsNone(tenants["b"]["pool_quota_bytes"])

            self.write("tenant a connections=4 namespaces=2\n", a_line, b_line)
            os.kill(depot.pid, signal.SIGHUP)
            self.until(lambda: self.top(depot)["a"]["pool_quota_bytes"] is None)
            self.assertEqual(Peer(self, depot.address, "a", token_file=a_file).get()[1], 1)

    def top(self, depot):
        shown = subprocess.run(["kvdepot", "top", depot.http.removeprefix("http://"), "--count", "1", "--interval",
                                "100ms", "--json"], capture_output=True, text=True, check=True, timeout=30)
        return json.loads(shown.stdout)["tenants"]

    def test_a_flood_of_silent_connections_keeps_no_client_out(self):
        file, line = self.token("a.token", "a")
        self.write(line)
        with DepotProcess(pool="64MiB", flash="80MiB", extra=["--credentials", self.credentials]) as depot:
            with SilentFlood(depot.address, 400) as flood:
                seconds = flood.seconds_to_get_in(lambda: Peer(self, depot.address, "a", token_file=file))
                self.assertLess(statistics.median(seconds), FLOOD_SECONDS_MAX)
                self.assertGreater(depot.metrics()["kvdepot_connections_silent_total"], 0)
            self.assertGreater(flood.made, 400)

    def until(self, holds):
        end = time.monotonic() + WAIT_SECONDS_MAX
        while not holds():
            self.assertLess(time.monotonic(), end, "it did not come about")
            time.sleep(0.01)

    def test_a_token_file_that_others_can_read_is_refused(self):
        path, _ = self.token("a.token", "a")
        os.chmod(path, 0o644)
        with self.assertRaisesRegex(kvdepot.KvdepotError, "chmod 600"):
            kvdepot.Client("tcp://127.0.0.1:1", token_file=path)


if __name__ == "__main__":
    unittest.main()
