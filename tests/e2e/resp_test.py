"""The RESP front door as Redis' own clients meet it: redis-py, redis-cli and hiredis, against a depot that is also
killed; and the answers of a real redis-server beside it, wherever both are asked the same.

    python -m unittest tests.e2e.resp_test      # kvdepot and kvd_hiredis_client are taken from PATH
"""

import hashlib
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import redis

from tests.e2e.depot_process import DepotProcess

MIB = 1 << 20
START_SECONDS_MAX = 30


def content(name, size):
    """`size` bytes that follow from the name, with their position mixed in, so that a part of another value shows."""
    blocks = (hashlib.sha256(f"{name}/{i}".encode()).digest() * 128 for i in range(size // 4096 + 1))
    return b"".join(blocks)[:size]


class RespDepot(DepotProcess):
    """A depot with a RESP front door whose port stays the same over restarts."""

    def __init__(self, *extra, **more):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        super().__init__(extra=["--resp", f"tcp://127.0.0.1:{self.port}", *extra], **more)

    def client(self, **more):
        return redis.Redis(port=self.port, socket_timeout=60, **more)


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.depot = RespDepot()
        cls.depot.start()

    @classmethod
    def tearDownClass(cls):
        cls.depot.__exit__()

    def test_redis_py_round_trips_of_both_protocols(self):
        for protocol in (2, 3):
            client = self.depot.client(protocol=protocol, client_name="tester")
            self.assertTrue(client.ping())
            for size in (0, 1, 100, 4095, 4096, 70_000, MIB, 5 * MIB, 64 * MIB):
                value = content(f"{protocol} {size}", size)
                self.assertTrue(client.set("key", value))
                self.assertEqual(client.strlen("key"), size)
                self.assertTrue(client.get("key") == value, f"{size} bytes")
            self.assertEqual(client.getrange("key", 10, 19), value[10:20])
            self.assertIsNone(client.get("none"))
            self.assertEqual(client.exists("key", "none", "key"), 2)
            self.assertTrue(client.mset({"a": b"1", "b": content("b", 100_000)}))
            self.assertEqual(client.mget("a", "none", "b"), [b"1", None, content("b", 100_000)])
            self.assertIsNone(client.set("a", b"2", nx=True))
            self.assertTrue(client.set("a", b"2", xx=True))
            self.assertEqual(client.delete("a", "b", "none"), 2)
            self.assertEqual(client.unlink("key"), 1)
            self.assertIn(client.client_getname(), (b"tester", "tester"))
            self.assertIn("redis_version", client.info())
            with self.assertRaisesRegex(redis.ResponseError, "64 MiB"):
                client.set("key", bytes(64 * MIB + 1))
            with self.assertRaisesRegex(redis.ResponseError, "unknown command"):
                client.lpush("list", "x")
            self.assertTrue(client.ping())
            client.close()

    def test_redis_py_pipeline_keeps_the_order(self):
        with self.depot.client() as client, client.pipeline(transaction=False) as pipe:
            expected = []
            for i in range(500):
                pipe.set(f"p{i % 10}", content(i, i * 37)).get(f"p{i % 10}")
                expected += [True, content(i, i * 37)]
            self.assertTrue(pipe.execute() == expected)

    def test_many_connections_at_once(self):
        wrong = []

        def work(number):
            with self.depot.client() as client:
                for i in range(20):
                    value = content(f"{number}/{i}", 300_000)
                    client.set(f"c{number}", value)
                    if client.get(f"c{number}") != value:
                        wrong.append(number)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def cli(self, *words, data=None):
        done = subprocess.run(["redis-cli", "-p", str(self.depot.port), *words], input=data, capture_output=True,
                              timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_redis_cli(self):
        self.assertEqual(self.cli("SET", "cli", "a value"), b"OK\n")
        self.assertEqual(self.cli("GET", "cli"), b"a value\n")
        self.assertEqual(self.cli("-3", "GET", "cli"), b"a value\n")
        self.assertEqual(self.cli("-x", "SET", "cli", data=content("cli", 3 * MIB)), b"OK\n")
        self.assertTrue(self.cli("GET", "cli") == content("cli", 3 * MIB) + b"\n")
        self.assertEqual(self.cli(data=b"SET \"a b\" 1\nGET \"a b\"\nSTRLEN cli\n"), f"OK\n1\n{3 * MIB}\n".encode())
        self.assertEqual(self.cli("DEL", "cli"), b"1\n")
        self.assertIn(b"unknown command", self.cli("FLUSHALL"))

    def test_hiredis(self):
        done = subprocess.run(["kvd_hiredis_client", "127.0.0.1", str(self.depot.port)], capture_output=True, text=True,
                              timeout=120, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "all answers were right\n"), done.stderr)


class LikeRedis(unittest.TestCase):
    """What a real redis-server answers, byte for byte."""

    REQUESTS = [
        b"PING\r\n", b"*2\r\n$4\r\nPING\r\n$2\r\nhi\r\n", b"ECHO hi\r\n", b"ECHO\r\n", b"PING a b\r\n",
        b"GET none\r\n", b"SET k v\r\n", b"GET k\r\n", b"SET k\r\n", b"SET k v EX\r\n", b"SET k v NX XX\r\n",
        b"SET k w NX\r\n", b"GET k\r\n", b"SET k w XX\r\n", b"GET k\r\n", b"SET k \"a\\x41 b\"\r\n", b"GET k\r\n",
        b"STRLEN k\r\n", b"STRLEN none\r\n", b"GETRANGE k 1 -2\r\n", b"GETRANGE k -2 -3\r\n", b"GETRANGE k 0 0\r\n",
        b"GETRANGE k 7 9\r\n", b"GETRANGE k -100 1\r\n", b"GETRANGE k x 1\r\n", b"GETRANGE none 0 -1\r\n",
        b"GETRANGE k -5 -100\r\n", b"SUBSTR k 0 1\r\n",
        b"MSET a 1 b 2 a 3\r\n", b"MGET a b none a\r\n", b"MSET a 1 b\r\n", b"MSET a\r\n", b"EXISTS a b a none\r\n",
        b"DEL a none\r\n", b"UNLINK b b\r\n", b"EXISTS a b\r\n", b"DEL\r\n", b"MGET\r\n", b"get k\r\n",
        b"SELECT 0\r\n", b"SELECT 99\r\n", b"SELECT x\r\n", b"AUTH secret\r\n", b"AUTH default x\r\n",
        b"AUTH me x\r\n", b"AUTH a b c\r\n", b"HELLO 4\r\n", b"HELLO x\r\n",
        b"HELLO 3 NONSENSE\r\n", b"HELLO 3 AUTH me x\r\n", b"CLIENT GETNAME\r\n", b"CLIENT SETNAME me\r\n",
        b"CLIENT GETNAME\r\n", b"CLIENT SETNAME \"a b\"\r\n", b"CLIENT NONSENSE\r\n", b"CLIENT\r\n",
        b"CLIENT SETNAME\r\n", b"CLIENT ID x\r\n", b"COMMAND NONSENSE\r\n",
        b"NONSENSE\r\n", b"NONSENSE a \"b c\" d\r\n", b"NONSENSE " + b"x" * 200 + b" y\r\n",
        b"NONSENSE " + b"x" * 100 + b" " + b"y" * 100 + b" z\r\n",
        b"*0\r\nPING\r\n", b"*-1\r\nPING\r\n", b"\r\nPING\r\n", b"QUIT\r\n",
        b"*x\r\n", b"*1\r\n:1\r\n", b"*1\r\n$-1\r\n", b"*1\r\n$x\r\n", b"SET \"a\r\n", b"*1\r\n$999999999999\r\n",
    ]

    def setUp(self):
        self.depot = RespDepot()
        self.depot.start()
        self.addCleanup(self.depot.__exit__)
        folder = tempfile.mkdtemp(prefix="kvd-redis-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        self.path = os.path.join(folder, "socket")
        server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", self.path, "--save", "", "--dir",
                                   folder], stdout=subprocess.DEVNULL)
        self.addCleanup(lambda: (server.kill(), server.wait()))
        end = time.monotonic() + START_SECONDS_MAX
        while not os.path.exists(self.path):
            self.assertLess(time.monotonic(), end, "redis-server does not start")
            time.sleep(0.02)

    @staticmethod
    def ask(connection, request):
        """The answer: all that comes until an ECHO behind it is answered, or the end."""
        marker = b"$12\r\nbehind that.\r\n"
        connection.sendall(request + b"*2\r\n$4\r\nECHO\r\n$12\r\nbehind that.\r\n")
        answer = b""
        while marker not in answer:
            try:
                piece = connection.recv(65536)
            except ConnectionResetError:
                break
            if not piece:
                break
            answer += piece
        return answer

    def connect(self):
        ours = socket.create_connection(("127.0.0.1", self.depot.port), timeout=30)
        theirs = socket.socket(socket.AF_UNIX)
        theirs.settimeout(30)
        theirs.connect(self.path)
        return ours, theirs

    def test_the_same_is_answered(self):
        ours, theirs = self.connect()
        different = []
        for request in self.REQUESTS:
            answers = [self.ask(connection, request) for connection in (ours, theirs)]
            if answers[0] != answers[1]:
                different.append((request, *answers))
            if not answers[0].endswith(b"behind that.\r\n") or not answers[1].endswith(b"behind that.\r\n"):
                ours.close()
                theirs.close()
                ours, theirs = self.connect()
        ours.close()
        theirs.close()
        self.assertEqual(different, [], "\n".join(map(str, different)))


class Kills(unittest.TestCase):
    CYCLES = 8

    def run_cycles(self, ack):
        """Overwrites keys at random from several connections while the depot is killed. Of each key the values that
        were sent, in order, and how many of them had been acknowledged, are known."""
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        sizes = [0, 10, 3000, 4096, 50_000, 300_000, 5 * MIB]
        sent = {f"k{i}": 0 for i in range(24)}     # version sent last
        sure = dict.fromkeys(sent, 0)              # version acknowledged last
        size_of = {}
        wrong, judged, newest = [], 0, 0

        def value(key, version):
            return f"{key} {version} ".encode() + content(f"{key} {version}", size_of[key, version])

        def write(keys, stop):
            client = depot.client(retry=None)
            try:
                while not stop.is_set():
                    key = rng.choice(keys)
                    sent[key] += 1
                    size_of[key, sent[key]] = rng.choice(sizes)
                    client.set(key, value(key, sent[key]))
                    sure[key] = sent[key]
            except redis.RedisError:
                pass
            finally:
                client.close()

        with RespDepot("--resp-ack", ack) as depot:
            for _ in range(self.CYCLES):
                stop = threading.Event()
                keys = list(sent)
                writers = [threading.Thread(target=write, args=(keys[i::3], stop)) for i in range(3)]
                for writer in writers:
                    writer.start()
                time.sleep(rng.uniform(0.1, 1.5))
                depot.kill()
                stop.set()
                for writer in writers:
                    writer.join()
                depot.start()
                client = depot.client()
                for key, last in sent.items():
                    found = client.get(key)
                    version = int(re.match(rb"k\d+ (\d+) ", found)[1]) if found is not None else 0
                    judged += 1
                    newest += version >= sure[key]
                    whole = found is None or (version in range(1, last + 1) and found == value(key, version))
                    if not whole or (ack == "written" and version < sure[key]):
                        wrong.append((key, version, sure[key], last))
                    sure[key] = version     # what was found is on flash, and stays
                client.close()
        print(f"{ack}: {judged} values judged after {self.CYCLES} kills, {newest} the newest acknowledged")
        self.assertEqual(wrong, [], f"seed {seed}")
        return judged, newest

    def test_written_means_that_the_newest_acknowledged_value_survives(self):
        judged, newest = self.run_cycles("written")
        self.assertEqual(judged, newest)

    def test_pooled_means_an_older_value_or_none_but_never_a_mixed_one(self):
        self.run_cycles("pooled")


if __name__ == "__main__":
    unittest.main()
