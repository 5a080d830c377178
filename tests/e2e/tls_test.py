"""A depot behind TLS, over real sockets, with the certificates that docs/security.md says how to make: Python and Redis
clients with certificates, those without, revocation and renewal by SIGHUP.

    python -m unittest tests.e2e.tls_test        # kvdepot is taken from PATH
"""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import kvdepot
import redis
from bench.service import free_port
from tests.e2e.depot_process import DepotProcess
from tests.e2e.peer import WAIT_SECONDS_MAX, Peer
from tests.e2e.silent_flood import FLOOD_SECONDS_MAX, SilentFlood

ROOT = Path(__file__).resolve().parents[2]
FLOOD = 400             # connections that say nothing; there are 128 places
VALUE_BYTES = 12_000_000


def commands_of_the_page():
    """What docs/security.md tells people to type to make certificates."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8").split("## Encryption", 1)[1]
    return re.search(r"```\n(openssl req.*?)```", text, re.S)[1]


class TlsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvd-tls-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.shell(commands_of_the_page())
        self.credentials = self.path("credentials")
        self.write("subject engine-2.example.net tenant=search rights=read,write\n")

    def path(self, name):
        return os.path.join(self.folder, name)

    def shell(self, script):
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=self.folder, capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def write(self, text):
        with open(self.credentials, "w", encoding="ascii") as file:
            file.write(text)

    def own(self, name):
        return {"tls_ca": self.path("ca.pem"), "tls_cert": self.path(name + ".pem"),
                "tls_key": self.path(name + ".key")}

    def sign(self, name, days=365):
        """One more certificate of the authority."""
        function = commands_of_the_page().split("sign() {", 1)[1].split("\n}\n", 1)[0]
        self.shell("sign() {" + function.replace("-days 365", f"-days {days}") + f"\n}}\nsign {name} DNS:{name}")

    def crl(self, *names):
        """The authority's list of what it has taken back."""
        config = ("[ca]\ndefault_ca=a\n[a]\ndatabase=index.txt\ncrlnumber=number\ndefault_md=sha256\n"
                  "default_crl_days=30\ncertificate=ca.pem\nprivate_key=ca.key\n")
        script = f"printf '{config}' > ca.conf; : > index.txt; echo 01 > number\n"
        script += "".join(f"openssl ca -config ca.conf -revoke {name}.pem\n" for name in names)
        self.shell(script + "openssl ca -config ca.conf -gencrl -out crl.pem")

    def make_old(self, name):
        """Puts a certificate that has expired long ago in the place of this one."""
        config = ("[ca]\ndefault_ca=a\n[a]\ndatabase=old.txt\nserial=old.serial\nnew_certs_dir=.\ndefault_md=sha256\n"
                  "policy=p\ncertificate=ca.pem\nprivate_key=ca.key\nx509_extensions=e\n[p]\ncommonName=supplied\n"
                  "[e]\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self.shell(f"printf '{config}' > old.conf; : > old.txt; echo 77 > old.serial\n"
                   f"openssl ca -batch -notext -config old.conf -in {name}.csr -out {name}.pem "
                   "-startdate 20200101000000Z -enddate 20200201000000Z\n"
                   f"chmod 644 {name}.pem")

    def depot(self, *more, listen="tls://127.0.0.1:0"):
        flags = ["--tls-cert", self.path("depot.pem"), "--tls-key", self.path("depot.key"), *more]
        depot = DepotProcess(pool="64MiB", flash="80MiB", extra=flags, listen=listen)
        depot.start()
        self.addCleanup(depot.__exit__)
        return depot

    def until(self, holds):
        end = time.monotonic() + WAIT_SECONDS_MAX
        while not holds():
            self.assertLess(time.monotonic(), end, "it did not come about")
            time.sleep(0.01)

    def refused(self, address, **options):
        with self.assertRaises(kvdepot.KvdepotError) as raised:
            kvdepot.Client(address, require_connection=True, connect_timeout_ms=1500, **options)
        return str(raised.exception)

    def test_certificates_say_who_comes_in_and_are_renewed_and_taken_back(self):
        self.crl()
        self.sign("engine-4")
        depot = self.depot("--credentials", self.credentials, "--tls-client-ca", self.path("ca.pem"), "--tls-crl",
                           self.path("crl.pem"), listen="tls://0.0.0.0:0")
        address = depot.address.replace("0.0.0.0", "127.0.0.1")
        peer = Peer(self, address, "search", **self.own("engine-2"))
        self.assertEqual(peer.put(7).failed_keys, 0)
        self.assertEqual(peer.get()[1], 7)
        self.assertEqual(peer.client.stats()["bytes_shared"], 0)

        self.refused(address, **self.own("engine-4"))
        self.assertIn("its certificate is nobody's", depot.output)
        shown = self.shell("openssl x509 -in engine-4.pem -noout -fingerprint -sha256")
        fingerprint = shown.split("=")[1].strip().replace(":", "").lower()
        self.write("subject engine-2.example.net tenant=search rights=read,write\n"
                   f"certificate four tenant=lab rights=read,write sha256={fingerprint}\n")
        os.kill(depot.pid, signal.SIGHUP)
        self.until(lambda: "credentials read again" in depot.output)
        other = Peer(self, address, "lab", **self.own("engine-4"))
        self.assertIsNone(other.get()[1], "another tenant's record")
        self.refused(address, tls_ca=self.path("ca.pem"))
        self.until(lambda: depot.metrics()["kvdepot_unauthorized_total"] >= 2)

        self.crl("engine-4")
        os.kill(depot.pid, signal.SIGHUP)
        self.until(lambda: not other.client.stats()["connected"])
        self.assertEqual(peer.get()[1], 7)
        self.refused(address, **self.own("engine-4"))

        shutil.copy(self.path("depot.pem"), self.path("depot.old"))
        Path(self.path("depot.pem")).write_text("no certificate\n", encoding="ascii")
        os.kill(depot.pid, signal.SIGHUP)
        self.until(lambda: "the certificates stay as they were: " + self.path("depot.pem") in depot.output)
        Peer(self, address, "search", **self.own("engine-2"))
        shutil.copy(self.path("depot.old"), self.path("depot.pem"))
        os.kill(depot.pid, signal.SIGHUP)
        self.until(lambda: depot.output.count("certificates read again") >= 2)
        self.assertEqual(Peer(self, address, "search", **self.own("engine-2")).get()[1], 7)

    def test_a_reload_that_would_keep_everybody_out_changes_nothing_and_neither_does_a_start(self):
        self.crl()
        shutil.copy(self.path("ca.pem"), self.path("clients.pem"))
        flags = ["--tls-client-ca", self.path("clients.pem"), "--tls-crl", self.path("crl.pem")]
        depot = self.depot(*flags)
        address = depot.address.replace("127.0.0.1", "localhost")

        def still_served(reason):
            os.kill(depot.pid, signal.SIGHUP)
            self.until(lambda: "the certificates stay as they were: " + reason in depot.output)
            Peer(self, address, "default", **self.own("engine-2"))
            refused = subprocess.run(["kvdepot", "serve", "--flash", "0", "--pool", "64MiB", "--http", "off",
                                      "--listen", "tls://127.0.0.1:0", "--tls-cert", self.path("depot.pem"),
                                      "--tls-key", self.path("depot.key"), *flags],
                                     capture_output=True, text=True, timeout=30)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(reason, refused.stderr)

        shutil.copy(self.path("depot.pem"), self.path("good.pem"))
        self.make_old("depot")
        still_served(self.path("depot.pem") + ": holds a certificate that has expired")
        shutil.copy(self.path("good.pem"), self.path("depot.pem"))
        self.shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 30 "
                   "-subj '/CN=second authority' -keyout ca2.key -out ca2.pem; cat ca2.pem >> clients.pem")
        still_served(self.path("crl.pem") + ": holds no revocation list of the authority CN = second authority")
        shutil.copy(self.path("ca.pem"), self.path("clients.pem"))
        os.kill(depot.pid, signal.SIGHUP)
        self.until(lambda: "certificates read again" in depot.output)

    def test_a_flood_of_silent_connections_keeps_no_client_out(self):
        depot = self.depot()
        address = depot.address.replace("127.0.0.1", "localhost")
        with SilentFlood(depot.address, FLOOD) as flood:
            seconds = flood.seconds_to_get_in(lambda: Peer(self, address, "default", tls_ca=self.path("ca.pem")))
            self.assertLess(statistics.median(seconds), FLOOD_SECONDS_MAX)
            cut = depot.metrics()["kvdepot_connections_silent_total"]
        self.assertGreater(flood.made, FLOOD)
        self.assertGreater(cut, 0)

    def slow_reader(self, *commands):
        """(depot, a Redis client's connection that has sent these commands behind a large SET and reads slowly)."""
        port = free_port()
        depot = self.depot("--resp", f"tls://127.0.0.1:{port}")
        value = os.urandom(VALUE_BYTES)
        client = redis.Redis("localhost", port, ssl=True, socket_timeout=30, ssl_ca_certs=self.path("ca.pem"))
        self.assertTrue(client.set("key", value))
        client.close()
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        plain.settimeout(WAIT_SECONDS_MAX)
        plain.connect(("127.0.0.1", port))
        context = ssl.create_default_context(cafile=self.path("ca.pem"))
        reader = context.wrap_socket(plain, server_hostname="localhost")
        self.addCleanup(reader.close)
        reader.sendall("".join(command + "\r\n" for command in commands).encode())
        return depot, reader, b"$%d\r\n%s\r\n" % (VALUE_BYTES, value)

    @staticmethod
    def read_slowly(reader, seconds=3.0):
        """All that comes, in about this time."""
        data, pause = bytearray(), seconds / (VALUE_BYTES / 16384)
        while more := reader.recv(16384):
            data += more
            time.sleep(pause)
        return bytes(data)

    def test_what_was_answered_before_quit_arrives_at_a_slow_reader(self):
        _, reader, expected = self.slow_reader("GET key", "QUIT")
        self.assertTrue(self.read_slowly(reader) == expected + b"+OK\r\n")

    def test_what_was_answered_before_sigterm_arrives_at_a_slow_reader(self):
        depot, reader, expected = self.slow_reader("GET key", "PING")
        first = reader.recv(1000)
        os.kill(depot.pid, signal.SIGTERM)
        self.assertTrue(first + self.read_slowly(reader) == expected + b"+PONG\r\n")
        self.until(lambda: depot.status is not None)
        self.assertEqual(depot.status, 0)

    def test_a_client_knows_the_depot_it_means(self):
        depot = self.depot()
        name = depot.address.replace("127.0.0.1", "localhost")
        self.assertEqual(Peer(self, name, "default", tls_ca=self.path("ca.pem")).put(1).failed_keys, 0)
        Peer(self, depot.address, "default", tls_ca=self.path("ca.pem"), tls_server_name="localhost")
        self.refused(depot.address, tls_ca=self.path("ca.pem"), tls_server_name="other.example.net")
        self.refused(depot.address, tls_ca=self.path("engine-2.pem"))
        self.refused(depot.address.replace("tls://", "tcp://"))
        self.assertIn("tls_ca is missing", self.refused(depot.address))
        self.assertIn("for addresses that begin with tls://",
                      self.refused("tcp://127.0.0.1:1", tls_ca=self.path("ca.pem")))
        bench = subprocess.run(["kvdepot", "bench", "net", name, "--tls-ca", self.path("ca.pem"), "--time", "10ms",
                                "--rounds", "1", "--size", "8MiB", "--json"], capture_output=True, text=True,
                               timeout=60)
        self.assertEqual(bench.returncode, 0, bench.stderr)
        self.assertGreater(len(json.loads(bench.stdout)["rows"]), 3)

    def test_redis_clients_come_in_by_certificate(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        depot = self.depot("--credentials", self.credentials, "--tls-client-ca", self.path("ca.pem"), "--resp",
                           f"tls://127.0.0.1:{port}")
        files = {"ssl_ca_certs": self.path("ca.pem"), "ssl_certfile": self.path("engine-2.pem"),
                 "ssl_keyfile": self.path("engine-2.key")}
        client = redis.Redis("localhost", port, ssl=True, socket_timeout=30, **files)
        value = os.urandom(3_000_000)
        self.assertTrue(client.set("key", value))
        self.assertEqual(client.get("key"), value)
        asked = subprocess.run(["redis-cli", "--tls", "-h", "127.0.0.1", "-p", str(port), "--cacert",
                                self.path("ca.pem"), "--cert", self.path("engine-2.pem"), "--key",
                                self.path("engine-2.key"), "STRLEN", "key"], capture_output=True, text=True, timeout=30)
        self.assertEqual(asked.stdout.strip(), "3000000", asked.stderr)
        with self.assertRaises(redis.exceptions.ConnectionError):
            redis.Redis("localhost", port, ssl=True, ssl_ca_certs=self.path("ca.pem"), socket_timeout=5).get("key")
        with self.assertRaises(redis.exceptions.ConnectionError):
            redis.Redis("localhost", port, socket_timeout=5).get("key")
        self.assertIn("peer did not return a certificate", depot.output)

    def test_what_does_not_belong_together_is_said_before_anything_is_opened(self):
        for flags, words in ((["--tls-cert", "x"], "--tls-key: is missing"),
                             (["--tls-client-ca", "x"], "--tls-client-ca: is for tls:// addresses"),
                             (["--tls-cert", "x", "--tls-key", "y"], "--tls-cert: is for addresses that begin"),
                             (["--listen", "tls://127.0.0.1:0"], "give --tls-cert and --tls-key"),
                             (["--tls-cert", "/nowhere", "--tls-key", "y", "--listen", "tls://127.0.0.1:0"],
                              "/nowhere: cannot be read")):
            done = subprocess.run(["kvdepot", "serve", "--flash", "0", "--pool", "64MiB", "--http", "off", *flags],
                                  capture_output=True, text=True, timeout=30)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
