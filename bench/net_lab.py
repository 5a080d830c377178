"""What the net suite runs: a depot and its peers on loopback TCP, each with one client in a process of its own.

All of it is in DRAM. Source and destination of the clients are 128 MiB each, gone through in order, so that neither is
in a cache; the peers hold their values once. A *side* is a server and its client; sides start when a row first asks for
them and stay until the suite ends. iperf3 is a process pair a run.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.depot import Depot, binary
from bench.harness import Bench, BenchError, Unavailable
from bench.net_client import NetClient, Run
from bench.peers.mooncake import VERSION as MOONCAKE_VERSION
from bench.peers import layered_env
from bench.peers.mooncake import Mooncake
from bench.service import Service, free_port

KIB, MIB, GIB = 2**10, 2**20, 2**30
WORKING_BYTES = 128 * MIB       # of records, on each side
STORE_BYTES = GIB               # what a server may hold
IPERF_SECONDS = 1               # its shortest
PROGRAM_S_MAX = 30
MEMCACHED_ITEM_MAX = "8m"       # of which a value may take half: its item must fit into a slab page

WITHOUT_PUTS = ("raw", "tls_loop", "memcpy", "xxh3")     # sides


@dataclass(frozen=True)
class Size:
    """A record size with the batch (records a request) and depth (requests at once) of its rows."""

    name: str
    bytes: int
    batch: int
    depth: int

    @property
    def count(self) -> int:
        return WORKING_BYTES // self.bytes


SIZES = (Size("64KiB", 64 * KIB, 32, 1), Size("256KiB", 256 * KIB, 1, 8), Size("1MiB", MIB, 1, 8),
         Size("4MiB", 4 * MIB, 1, 8))


def cpu_seconds(pid: int) -> float:
    """Time that a process' threads were on a core so far, to the nanosecond; those that have ended are not in it."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / 1e9


class Side:
    """One server (or none, for memcpy) and one client of it."""

    def __init__(self, name: str, title: str, client: NetClient, server_pids: tuple[int, ...]) -> None:
        self.name = name
        self.title = title
        self.client = client
        self.server_pids = server_pids
        self._size: Size | None = None

    def prepare(self, size: Size) -> None:
        """Fresh records of that size, stored."""
        if self._size == size:
            return
        self.client.records(size.bytes, size.count)
        if self.name not in WITHOUT_PUTS:
            self.run("put", size.batch, size.depth, 0)
        self._size = size

    def run(self, *words: object) -> Run:
        """One command of the client; the server's processor time is in what comes back."""
        before = self._server_cpu()
        run = self.client.run(*words)
        run.server_cpu_seconds = self._server_cpu() - before
        return run

    def _server_cpu(self) -> float:
        return sum(map(cpu_seconds, self.server_pids))


class Cpu:
    """An arm that also keeps the processor seconds per GB of its runs, of the client and of the server."""

    def __init__(self, side: Side, *words: object) -> None:
        self.side = side
        self.words = words
        self.client: list[float] = []
        self.server: list[float] = []

    def __call__(self, _index: int) -> float:
        run = self.side.run(*self.words)
        self.client.append(round(run.per_gb(run.cpu_seconds), 4))
        self.server.append(round(run.per_gb(run.server_cpu_seconds), 4))
        return run.gb_per_s


class Iperf:
    """The same of iperf3, one stream from server to client."""

    def __init__(self, lab: NetLab, congestion: str | None = None) -> None:
        self.lab = lab
        self.congestion = congestion
        self.client: list[float] = []
        self.server: list[float] = []

    def __call__(self, _index: int) -> float:
        rate, client, server = self.lab.iperf(self.congestion)
        self.client.append(round(client, 4))
        self.server.append(round(server, 4))
        return rate


class NetLab:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.programs = bench.build / "release" / "bin"
        self.run_s = 0.3 if bench.quick else 0.5
        self._sockets = tempfile.TemporaryDirectory(prefix="kvdepot-bench-")    # their names must be short
        self._sides: dict[str, Side] = {}
        self._services: list[Service | Depot] = []
        self._depots: dict[int, Depot] = {}
        self._redis: int | None = None
        self._mooncake: Mooncake | None = None

    def side(self, name: str) -> Side:
        """The server and client of one of the _start_ methods, e.g. "ours" or "redis". Raises Unavailable."""
        side = self._sides.get(name)
        if side is None or not side.client.alive():
            side = self._sides[name] = getattr(self, f"_start_{name}")()
        return side

    def depot(self, pool_bytes: int = STORE_BYTES) -> Depot:
        """A depot in memory only; one for each size of pool."""
        if pool_bytes not in self._depots:
            depot = Depot(binary(self.bench.build), self.bench.work / f"depot-{pool_bytes}", pool_bytes, 0,
                          [f"--listen={self.unix_address(pool_bytes)}"])
            self._depots[pool_bytes] = depot
            self._services.append(depot)
        return self._depots[pool_bytes]

    def unix_address(self, pool_bytes: int = STORE_BYTES) -> str:
        """The same depot without TCP."""
        return f"unix://{self._sockets.name}/{pool_bytes}"

    def drop_depot(self, pool_bytes: int) -> None:
        depot = self._depots.pop(pool_bytes)
        self._services.remove(depot)
        depot.stop()

    def client(self, name: str, *words: object, program: str = "kvd_net_driver", env: dict | None = None) -> NetClient:
        command = [program if "/" in program else self.programs / program, *map(str, words)]
        return NetClient(name, command, self.bench.work / f"{name}.log", env)

    def close(self) -> None:
        for side in self._sides.values():
            side.client.close()
        if self._mooncake:
            self._mooncake.stop()
        for service in reversed(self._services):
            service.stop()
        self._sockets.cleanup()

    # -- limits ---------------------------------------------------------------------------------------------------

    def iperf_version(self) -> str:
        return version_of(["iperf3", "--version"], "iperf3")

    def iperf(self, congestion: str | None = None) -> tuple[float, float, float]:
        """GB/s, and processor seconds per GB of the receiving and the sending process. -R: the server sends. With the
        system's congestion control, or another one."""
        self.iperf_version()
        port = free_port()
        server = Service("iperf3", ["iperf3", "-s", "-1", "--forceflush", "-p", str(port)],
                         self.bench.work / "iperf3.log")
        try:
            # Not by connecting: a server of one test would take that for it.
            server.wait_for_line("Server listening")
            command = ["iperf3", "-c", "127.0.0.1", "-p", str(port), "-R", "-l", "1M", "-t", str(IPERF_SECONDS), "-J"]
            command += ["-C", congestion] if congestion else []
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX)
        finally:
            server.kill()
        return parse_iperf(done.stdout, congestion)

    def _start_raw(self) -> Side:
        server = Service("raw-server", [self.programs / "kvd_net_driver", "raw-server"], self.bench.work / "raw.log")
        self._services.append(server)
        port = server.wait_for_line(r"listening on port (\d+)").group(1)
        title = "loop of send and recv, cold buffers, verifies puts"
        return Side("raw", title, self.client("raw", "raw", port), (server.pid,))

    def _start_memcpy(self) -> Side:
        return Side("memcpy", "memcpy", self.client("memcpy", "memcpy"), ())

    # -- ours -----------------------------------------------------------------------------------------------------

    def _start_ours(self) -> Side:
        depot = self.depot()
        return Side("ours", "kvdepot", self.client("ours", "depot", depot.address), (depot.pid,))

    def _certificate(self) -> tuple[Path, Path]:
        """A certificate for 127.0.0.1 and its key, made for this run."""
        folder = self.bench.work / "tls"
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = folder / "depot.pem", folder / "depot.key"
        if certificate.exists():
            return certificate, key
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days",
                   "2", "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out",
                   str(certificate)]
        made = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX)
        if made.returncode:
            raise BenchError(f"openssl makes no certificate: {made.stderr.strip()}")
        key.chmod(0o600)
        return certificate, key

    def _start_tls(self) -> Side:
        """A depot of its own with a certificate of its own; the client verifies it."""
        certificate, key = self._certificate()
        depot = Depot(binary(self.bench.build), self.bench.work / "depot-tls", STORE_BYTES, 0,
                      [f"--tls-cert={certificate}", f"--tls-key={key}"], listen="tls://127.0.0.1:0")
        self._services.append(depot)
        return Side("tls", "kvdepot, TLS 1.3", self.client("tls", "depot", depot.address, certificate), (depot.pid,))

    def _start_tls_loop(self) -> Side:
        certificate, key = self._certificate()
        server = Service("tls-loop-server", [self.programs / "kvd_net_driver", "tls-loop-server", certificate, key],
                         self.bench.work / "tls-loop.log")
        self._services.append(server)
        port = server.wait_for_line(r"listening on port (\d+)").group(1)
        return Side("tls_loop", "loop of SSL_write and SSL_read, cold buffers",
                    self.client("tls-loop", "tls-loop", port, certificate), (server.pid,))

    def openssl_speed(self) -> float:
        """GB/s of AES-128-GCM in records of 16 KiB on one core, in this second."""
        done = subprocess.run(["openssl", "speed", "-mr", "-seconds", "1", "-bytes", "16384", "-evp", "aes-128-gcm"],
                              capture_output=True, text=True, timeout=PROGRAM_S_MAX)
        return parse_openssl_speed(done.stdout)

    def _start_shm(self) -> Side:
        depot = self.depot()
        return Side("shm", "kvdepot, shared memory", self.client("shm", "depot-shm", depot.address), (depot.pid,))

    def _start_borrow(self) -> Side:
        depot = self.depot()
        return Side("borrow", "kvdepot, borrowed", self.client("borrow", "borrow", depot.address), (depot.pid,))

    def _start_xxh3(self) -> Side:
        return Side("xxh3", "xxh3", self.client("xxh3", "xxh3"), ())

    def ring_trips(self) -> dict[str, int]:
        """Nanoseconds of round trips through the depot's rings, without a client's threads (kvd_ring_driver)."""
        self.depot()
        program = self.programs / "kvd_ring_driver"
        try:
            done = subprocess.run([str(program), self.unix_address(), "--trips", "20000", "--idle-trips", "200"],
                                  capture_output=True, text=True, timeout=PROGRAM_S_MAX)
        except FileNotFoundError:
            raise BenchError(f"{program} is not there: make build PRESET=release TARGETS=kvd_net_bench") from None
        if done.returncode:
            raise BenchError(f"kvd_ring_driver: {done.stderr.strip()}")
        return json.loads(done.stdout)

    # -- peers ----------------------------------------------------------------------------------------------------

    def _redis_server(self) -> tuple[int, int]:
        """Its port and process: in memory only, as for a cache."""
        title = version_of(["redis-server", "--version"], "redis-server")
        port = free_port()
        server = Service("redis-server", [
            "redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no",
            "--maxmemory", str(STORE_BYTES), "--maxmemory-policy", "allkeys-lru"], self.bench.work / "redis.log")
        self._services.append(server)
        server.wait_for_port(port)
        self.redis_title = title.split(" sha=")[0]
        return port, server.pid

    def _start_redis(self) -> Side:
        port, pid = self._redis_server()
        return Side("redis", f"{self.redis_title}, own client that receives in place",
                    self.client("redis", "redis", port), (pid,))

    def _start_hiredis(self) -> Side:
        if not (self.programs / "kvd_hiredis_driver").exists():
            raise Unavailable("libhiredis-dev is not installed: tools/setup.sh --bench")
        port, pid = self._redis_server()
        return Side("hiredis", f"{self.redis_title}, hiredis",
                    self.client("hiredis", port, program="kvd_hiredis_driver"), (pid,))

    def _start_memcached(self) -> Side:
        title = version_of(["memcached", "--version"], "memcached")
        port = free_port()
        server = Service("memcached", ["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(port), "-m",
                                       str(STORE_BYTES // MIB), "-I", MEMCACHED_ITEM_MAX],
                         self.bench.work / "memcached.log")
        self._services.append(server)
        server.wait_for_port(port)
        return Side("memcached", f"{title}, own client that receives in place",
                    self.client("memcached", "memcached", port), (server.pid,))

    def _start_mooncake(self) -> Side:
        peer = NetMooncake(self.bench.build, self.bench.work / "mooncake", self.bench.build / "venv" / "bin" / "python",
                           STORE_BYTES, self.bench.progress)
        peer.prepare()
        peer.work.mkdir(parents=True, exist_ok=True)
        self._mooncake = peer
        peer.start()
        worker = Path(__file__).parent / "net_mooncake.py"
        client = self.client("mooncake", worker, peer.master_port, program=str(peer.python))
        return Side("mooncake", peer.title, client, tuple(service.pid for service in peer.services))


class NetMooncake(Mooncake):
    """Without an engine: its environment lies over the small one."""

    def prepare(self) -> None:
        self.check_machine()
        self.python = layered_env.ensure(self.build, "mooncake-net",
                                         (f"mooncake-transfer-engine-non-cuda=={MOONCAKE_VERSION}",), self.python,
                                         "mooncake.store", self.progress)


def parse_openssl_speed(text: str) -> float:
    """GB/s from `openssl speed -mr` of one cipher and one size."""
    found = re.search(r"^\+F:\d+:AES-128-GCM:([\d.]+)", text, re.M | re.I)
    if not found or float(found[1]) <= 0:
        raise BenchError("openssl speed printed no figure")
    return float(found[1]) / 1e9


def version_of(command: list[str], package: str) -> str:
    """The first line that a program says of itself."""
    if shutil.which(command[0]) is None:
        raise Unavailable(f"{package} is not installed: tools/setup.sh --bench")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX)
    return (done.stdout or done.stderr).strip().splitlines()[0]


def parse_iperf(text: str, congestion: str | None = None) -> tuple[float, float, float]:
    """From iperf3's JSON of a client that receives: GB/s, processor seconds per GB of client and server. `congestion`:
    what the sender must have had."""
    try:
        report = json.loads(text)
    except json.JSONDecodeError:
        raise BenchError("iperf3 printed no JSON") from None
    if "error" in report:
        raise BenchError(f"iperf3: {report['error']}")
    end = report["end"]
    if congestion and end.get("sender_tcp_congestion") != congestion:
        raise BenchError(f"iperf3 sent with {end.get('sender_tcp_congestion', 'nobody knows what')}, not {congestion}")
    rate = end["sum_received"]["bits_per_second"] / 8e9
    if rate == 0:
        raise BenchError("iperf3 transferred nothing")
    cpu = end["cpu_utilization_percent"]
    return rate, cpu["host_total"] / 100 / rate, cpu["remote_total"] / 100 / rate
