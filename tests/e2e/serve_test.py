"""`kvdepot serve` as its users meet it: what it prints, refuses, leaves alone, and how it ends.

    python -m unittest tests.e2e.serve_test        # kvdepot is taken from PATH
"""

import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import kvdepot

START_SECONDS_MAX = 30
DEPLOY = os.path.join(os.path.dirname(__file__), "..", "..", "deploy")
NO_SIZE = ["--pool", "64MiB", "--segment", "16MiB", "--listen", "tcp://127.0.0.1:0", "--http", "127.0.0.1:0"]
SMALL = [*NO_SIZE, "--flash", "80MiB"]


class ServeTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="kvd-serve-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.store = os.path.join(self.folder, "store")

    def start(self, *args):
        """A depot that serves: (process, what it printed). It is killed at the end if the test did not end it."""
        process = subprocess.Popen(["kvdepot", "serve", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(self.end, process)
        lines = []
        while not any("metrics on" in line or '"ready"' in line for line in lines):
            line = process.stdout.readline()
            self.assertTrue(line, f"the depot ended: {process.stderr.read() if not line else ''}")
            lines.append(line)
        return process, "".join(lines)

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.wait(START_SECONDS_MAX)
        process.stdout.close()
        process.stderr.close()

    def refuse(self, *args, status=1):
        """Runs a depot that must not start. Returns its one error line."""
        done = subprocess.run(["kvdepot", *args], capture_output=True, text=True, timeout=START_SECONDS_MAX,
                              check=False)
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(errors), 1, done.stderr)
        self.assertTrue(errors[0].startswith("kvdepot: error: "), errors[0])
        return errors[0]

    def digest(self, path):
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()


def address_of(printed):
    host, port = re.search(r"tcp://([\d.]+):(\d+)", printed).groups()
    return host, int(port)


def http_of(printed):
    return re.search(r"http://[\d.]+:\d+", printed)[0]


def cpu_seconds(pid):
    """Processor time of all threads of a process."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with open(path, encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        fields = file.read().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")  # without the pool, which is shared memory


class Usage(ServeTest):
    def test_mistakes_are_one_line_and_status_2(self):
        for args in (
            [],
            ["sreve"],
            ["serve", "--dir", self.store, "--bogus"],
            ["serve", "--dir", self.store, "--insecure", "--credentials", self.store],
            ["serve", "--dir", self.store, "--credentials", os.path.join(self.folder, "none")],
            ["token", "--tenant", "a b", "--out", self.store],
            ["serve", "--dir"],
            ["serve"],
            ["serve", "--dir", self.store, "--pool", "8 apples"],
            ["serve", "--dir", self.store, "--flash", "-1"],
            ["serve", "--dir", self.store, "--demote-after", "soon"],
            ["serve", "--dir", self.store, "--log-level", "loud"],
            ["serve", "--dir", self.store, "--listen", "here"],
            ["serve", "--dir", self.store, "--resp", "tcp://:x"],
            ["serve", "--dir", self.store, "--http", "nowhere"],
            ["serve", "--config", os.path.join(self.folder, "none.toml")],
        ):
            with self.subTest(args=args):
                self.refuse(*args, status=2)
        self.assertFalse(os.path.exists(self.store))

    def test_impossible_sizes_are_status_1(self):
        for args in (["--pool", "1MiB"], ["--flash", "1MiB"], ["--segment", "5MiB"], ["--segment", "1GiB"],
                     ["--flash", "4000000TiB"], ["--pool", "15TiB"]):
            with self.subTest(args=args):
                self.refuse("serve", "--dir", self.store, *SMALL, *args)

    def test_help_and_version(self):
        run = lambda *args: subprocess.run(["kvdepot", *args], capture_output=True, text=True, check=True).stdout
        self.assertRegex(run("--version"), r"^kvdepot \d+\.\d+\.\d+\n$")
        self.assertIn("kvdepot serve --dir /data/kv --pool 8GiB --flash 200GiB", run("serve", "--help"))
        self.assertIn("serve", run("--help"))
        for verb in ([], ["serve"], ["top"], ["inspect"], ["verify"], ["bench"], ["bench", "store"], ["bench", "net"],
                     ["plan"], ["plan", "talk"],
                     ["plan", "catalogue"], ["sim"], ["sim", "study"], ["sim", "calibrate"], ["sim", "opportunities"],
                     ["sim", "run"], ["sim", "sweep"]):
            self.assertRegex(run(*verb, "--help"), " ".join(["Examples?:\n +kvdepot", *verb]))


class Refusals(ServeTest):
    def test_a_directory_in_use(self):
        self.start("--dir", self.store, *SMALL)
        self.assertIn(f"{self.store}: is in use by process", self.refuse("serve", "--dir", self.store, *SMALL))

    def test_ports_in_use(self):
        _, printed = self.start("--dir", self.store, *SMALL)
        host, port = address_of(printed)
        other = os.path.join(self.folder, "other")
        error = self.refuse("serve", "--dir", other, *SMALL, "--listen", f"{host}:{port}")
        self.assertIn(f"tcp://{host}:{port}: the address is in use", error)
        error = self.refuse("serve", "--dir", other, *SMALL, "--http", http_of(printed).removeprefix("http://"))
        self.assertIn("the HTTP address is in use", error)
        self.assertFalse(os.path.exists(other), "the directory is touched only when the addresses are taken")

    def test_addresses_that_others_reach(self):
        for flag, address in (("--listen", "tcp://0.0.0.0:0"), ("--listen", "[::]:0"), ("--http", "0.0.0.0:0")):
            with self.subTest(address=address):
                error = self.refuse("serve", "--dir", self.store, *SMALL, flag, address)
                self.assertIn("other machines could reach", error)
                self.assertEqual("unix socket" in error, flag == "--listen", error)

    def test_a_foreign_directory_is_left_alone(self):
        os.mkdir(self.store)
        with open(os.path.join(self.store, "thesis.tex"), "w", encoding="ascii") as file:
            file.write("precious")
        for listen in ("127.0.0.1:0", f"unix://{self.store}/kvdepot.sock"):
            error = self.refuse("serve", "--dir", self.store, *SMALL, "--listen", listen)
            self.assertIn("thesis.tex", error)
            self.assertEqual(os.listdir(self.store), ["thesis.tex"])

    def test_a_directory_that_cannot_be_made(self):
        self.assertIn("/proc/kvdepot", self.refuse("serve", "--dir", "/proc/kvdepot", *SMALL))
        path = os.path.join(self.folder, "file")
        with open(path, "w", encoding="ascii") as file:
            file.write("precious")
        self.refuse("serve", "--dir", path, *SMALL)
        self.assertEqual(os.path.getsize(path), 8)

    def test_a_newer_store_is_left_alone(self):
        process, _ = self.start("--dir", self.store, *SMALL)
        process.terminate()
        self.assertEqual(process.wait(START_SECONDS_MAX), 0)
        path = os.path.join(self.store, "flash.kvd")
        with open(path, "r+b") as file:
            for copy in range(4):  # docs/formats/flash-log.md: the version of each superblock copy
                file.seek((copy << 20) + 8)
                file.write(struct.pack("<I", 2))
        before = self.digest(path)
        self.assertIn("newer version", self.refuse("serve", "--dir", self.store, *SMALL))
        self.assertEqual(self.digest(path), before)

    def test_a_path_that_is_no_socket(self):
        path = os.path.join(self.folder, "file")
        with open(path, "w", encoding="ascii") as file:
            file.write("precious")
        error = self.refuse("serve", "--dir", self.store, *SMALL, "--listen", f"unix://{path}")
        self.assertNotIn("loopback", error)
        self.assertEqual(os.path.getsize(path), 8)


class Life(ServeTest):
    def test_sigterm_and_sigint_end_it_well(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process, _ = self.start("--dir", self.store, *SMALL)
            begin = time.monotonic()
            process.send_signal(number)
            self.assertEqual(process.wait(START_SECONDS_MAX), 0)
            self.assertLess(time.monotonic() - begin, 20)

    def test_a_signal_that_comes_twice_at_once_drains_all_the_same(self):
        process, _ = self.start("--dir", self.store, *SMALL)
        process.terminate()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(START_SECONDS_MAX), 0)
        self.assertIn("drained", process.stderr.read())

    def test_a_small_log_gets_small_segments(self):
        self.start("--dir", self.store, "--pool", "64MiB", "--flash", "1GiB", "--listen", "127.0.0.1:0",
                   "--http", "127.0.0.1:0")

    def test_it_starts_again_after_sigkill(self):
        process, printed = self.start("--dir", self.store, *SMALL)
        process.kill()
        process.wait(START_SECONDS_MAX)
        host, port = address_of(printed)
        self.start("--dir", self.store, *SMALL, "--listen", f"{host}:{port}")

    def test_what_it_makes_is_private(self):
        path = os.path.join(self.folder, "depot.sock")
        process, printed = self.start("--dir", self.store, *SMALL, "--listen", f"unix://{path}")
        self.assertIn(f"listening on unix://{path}\n", printed)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(self.store).st_mode), 0o700)
        for name in os.listdir(self.store):
            self.assertEqual(stat.S_IMODE(os.stat(os.path.join(self.store, name)).st_mode), 0o600)
        process.terminate()
        process.wait(START_SECONDS_MAX)
        self.assertFalse(os.path.exists(path))

    def test_a_configuration_file_and_flags_that_win(self):
        config = os.path.join(self.folder, "kvdepot.toml")
        with open(config, "w", encoding="ascii") as file:
            file.write(f'dir = "{self.store}"\npool = "64MiB"\nflash = "1TB"\nsegment = "16MiB"\n'
                       'listen = ["127.0.0.1:0", "tcp://127.0.0.1:0"]\nhttp = "127.0.0.1:0"\n')
        _, printed = self.start("--config", config, "--flash", "80MiB", "--json")
        ready = json.loads(printed)
        self.assertEqual(ready["flash_bytes"], 68 << 20)     # 4 MiB and segments of 16 MiB
        self.assertEqual(len(ready["listening"]), 2)
        with open(config, "a", encoding="ascii") as file:
            file.write("pol = 3\n")
        self.assertIn("line 7: there is no setting 'pol'", self.refuse("serve", "--config", config, status=2))

    def test_a_store_keeps_its_size_unless_told(self):
        path = os.path.join(self.store, "flash.kvd")
        sizes = []
        for args in (["--flash", "148MiB"], [], ["--flash", "80MiB"], []):
            process, printed = self.start("--dir", self.store, *NO_SIZE, *args, "--json")
            sizes.append((os.path.getsize(path) >> 20, json.loads(printed)["flash_bytes"] >> 20))
            process.terminate()
            self.assertEqual(process.wait(START_SECONDS_MAX), 0)
            self.assertEqual("shrinking" in process.stderr.read(), args == ["--flash", "80MiB"])
        self.assertEqual(sizes, [(148, 148), (148, 148), (68, 68), (68, 68)])   # 4 MiB and segments of 16 MiB

    def test_the_example_configuration_is_one(self):
        _, printed = self.start("--config", os.path.join(DEPLOY, "kvdepot.toml"), "--dir", self.store, *SMALL, "--json")
        ready = json.loads(printed)
        self.assertEqual((ready["dir"], ready["flash_bytes"]), (self.store, 68 << 20), "flags win")

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
    def test_systemd_understands_the_unit(self):
        with open(os.path.join(DEPLOY, "kvdepot.service"), encoding="ascii") as file:
            text = file.read()
        installed = "ExecStart=/usr/bin/kvdepot "
        self.assertIn(installed, text)
        unit = os.path.join(self.folder, "kvdepot.service")
        with open(unit, "w", encoding="ascii") as file:
            file.write(text.replace(installed, f"ExecStart={os.path.abspath(shutil.which('kvdepot'))} "))
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True,
                              timeout=START_SECONDS_MAX, check=False)
        self.assertEqual([line for line in done.stderr.splitlines() if "kvdepot.service" in line], [])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_memory_only_needs_no_directory(self):
        _, printed = self.start("--flash", "0", "--pool", "64MiB", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
        with urllib.request.urlopen(http_of(printed) + "/healthz", timeout=5) as answer:
            self.assertEqual(answer.read(), b"ready\n")

    def test_it_says_what_it_checked(self):
        process, _ = self.start("--dir", self.store, *SMALL)
        process.terminate()
        process.wait(START_SECONDS_MAX)
        log = process.stderr.read()
        for what in ("memory: ", "locked memory: ", "open files: ", "disk: "):
            self.assertEqual(log.count(f" {what}"), 2 if what == "memory: " else 1, log)

    def test_idle_it_uses_hardly_any_processor_time(self):
        process, printed = self.start("--dir", self.store, *SMALL)
        with socket.create_connection(address_of(printed)):
            time.sleep(1)  # the pool's pages are touched in the background
            before, begin = cpu_seconds(process.pid), time.monotonic()
            time.sleep(2)
            share = (cpu_seconds(process.pid) - before) / (time.monotonic() - begin)
        self.assertLess(share, 0.01)


class SameHost(ServeTest):
    def shared_bytes(self, port, **options):
        """What of 64 KiB comes through shared memory to a client that is told of a port."""
        stored = os.urandom(64 << 10)
        memory = bytearray(stored)
        client = kvdepot.Client(f"tcp://127.0.0.1:{port}", require_connection=True, connect_timeout_ms=10_000,
                                **options)
        self.addCleanup(client.close)
        region = client.register(memory)
        group = {"group": 0, "layers": 1, "slab_bytes": 64 << 10, "parts": 2, "block_tokens": 16, "order": "LBHNC"}
        place = (client.open_namespace("default", os.urandom(8), [group]), b"one", 3, region, [0], [0])
        for transfer in (client.multiput, client.multiget):
            operation = transfer(*place, total_ms=10_000)
            self.assertTrue(client.wait(operation, timeout_ms=10_000).ok)
            client.release(operation)
            self.assertEqual(memory, stored)
            memory[:] = bytes(len(memory))
        return client.stats()["bytes_shared"]

    def test_a_client_of_a_port_reads_the_depots_memory(self):
        for flag, bytes_max in (("on", 64 << 10), ("off", 0)):
            process, printed = self.start("--dir", self.store, *SMALL, "--shared-memory", flag)
            _, port = address_of(printed)
            self.assertEqual(self.shared_bytes(port), bytes_max)
            self.assertEqual(self.shared_bytes(port, shared_memory=False), 0)
            self.end(process)


class Cores(ServeTest):
    KEYS, SLAB, LAYERS = 4, 512 << 10, 4

    def test_records_come_whole_from_the_threads_beside_the_loop(self):
        process, printed = self.start("--dir", self.store, *SMALL, "--cores", "3", "--shared-memory", "off")
        port, stored = address_of(printed)[1], os.urandom(self.KEYS * self.LAYERS * self.SLAB)
        clients = [self.client(port, stored) for _ in range(3)]
        for transfer in ["multiput", *["multiget"] * 5]:
            operations = [getattr(client, transfer)(*place, total_ms=30_000) for client, _, place in clients]
            for operation, (client, memory, _) in zip(operations, clients, strict=True):
                self.assertTrue(client.wait(operation, timeout_ms=30_000).ok)
                client.release(operation)
                self.assertEqual(memory, stored)
                memory[:] = bytes(len(memory))
        with urllib.request.urlopen(f"{http_of(printed)}/metrics", timeout=5) as page:
            figures = dict(re.findall(r"^(kvdepot_net_moved?\w+) (\S+)", page.read().decode(), re.M))
        self.assertGreater(float(figures["kvdepot_net_moves_total"]), 0, figures)
        self.assertGreater(float(figures["kvdepot_net_moved_bytes_total"]), self.SLAB, figures)
        process.terminate()
        self.assertEqual(process.wait(START_SECONDS_MAX), 0)

    def client(self, port, stored):
        """A client, memory with what it puts, and the place of all records there, in a namespace of its own."""
        client = kvdepot.Client(f"tcp://127.0.0.1:{port}", require_connection=True, connect_timeout_ms=10_000)
        self.addCleanup(client.close)
        memory = bytearray(stored)
        group = {"group": 0, "layers": self.LAYERS, "slab_bytes": self.SLAB, "parts": 2, "block_tokens": 16,
                 "order": "LBHNC"}
        place = (client.open_namespace("default", os.urandom(8), [group]), os.urandom(16 * self.KEYS), 16,
                 client.register(memory), [layer * self.SLAB for layer in range(self.LAYERS)],
                 [key * self.LAYERS * self.SLAB for key in range(self.KEYS)])
        return client, memory, place


class BadPeers(ServeTest):
    def test_another_protocol_is_told_where_it_is(self):
        _, printed = self.start("--dir", self.store, *SMALL)
        host, port = address_of(printed)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5)
        self.assertEqual(caught.exception.code, 400)
        self.assertIn(b"kvdepot port", caught.exception.read())
        caught.exception.close()

    def test_nonsense_ends_connections_and_nothing_else(self):
        process, printed = self.start("--dir", self.store, *SMALL)
        address = address_of(printed)
        before = resident_bytes(process.pid)
        generator = random.Random(5)
        # A header that promises 4 MiB of structure is not believed before HELLO; neither is anything else here.
        header = struct.pack("<IBBHQIHHQIIHHI12x", 0x3144564B, 1, 3, 0, 1, 1, 0, 0, 4 << 20, 4 << 20, 0, 0, 0, 0)
        held = []
        for _ in range(300):
            peer = socket.create_connection(address)
            kind = generator.randrange(4)
            data = generator.randbytes(generator.randrange(1, 4000))
            try:
                peer.sendall(header[:generator.randrange(64)] if kind == 0 else header + data if kind == 1 else data)
            except OSError:
                pass  # cut already
            held.append(peer)
        with urllib.request.urlopen(http_of(printed) + "/healthz", timeout=5) as answer:
            self.assertEqual(answer.status, 200)
        self.assertLess(resident_bytes(process.pid) - before, 32 << 20)
        for peer in held:
            peer.close()
        self.assertIsNone(process.poll())
        process.terminate()
        self.assertEqual(process.wait(START_SECONDS_MAX), 0)


if __name__ == "__main__":
    unittest.main()
