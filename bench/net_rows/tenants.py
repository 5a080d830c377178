"""Two tenants of one depot, one of them with many connections: what each gets where the depot is what both wait for.

    python -m bench.net_rows.tenants [--quick]        needs the release build

All connections are Redis clients in one process that asks for the next value of 1 MiB whenever one has come, and has
the kernel throw away what comes (MSG_TRUNC): so it costs less than the depot, which copies.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import time

from bench import harness
from bench.depot import Depot, binary
from bench.harness import Bench, BenchError
from bench.service import free_port

MIB = 2**20
MANY = 24               # connections of the one tenant; the other has one
AHEAD = 4               # values that each asks for before it has them
WARM_UP_S = 1.5         # for the first second behind something small bodies have short turns
SHARE = "tenant_of_one_connection_over_24"
ANSWER_SECONDS_MAX = 10


class Puller:
    """One connection. `bytes` of answers that have come."""

    def __init__(self, port: int, token: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX)
        self.bytes = 0
        self.call(f"AUTH {token}\r\n".encode(), b"+OK\r\n")

    def call(self, request: bytes, answer: bytes) -> None:
        self.socket.sendall(request)
        if self.socket.recv(len(answer)) != answer:
            raise BenchError(f"the depot does not answer {answer!r}")

    def ask(self, values: int) -> None:
        self.socket.sendall(b"GET value\r\n" * values)

    def skip(self, place: bytearray) -> None:
        """Takes what has come, and asks for as many values as ended in it."""
        before = self.bytes // MIB
        try:
            got = self.socket.recv_into(place, len(place), socket.MSG_TRUNC)
        except BlockingIOError:
            return
        if not got:
            raise BenchError("the depot has ended a connection")
        self.bytes += got
        self.ask(self.bytes // MIB - before)


def pull(pullers: list[Puller], seconds: float) -> None:
    place = bytearray(4 * MIB)
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as ready:
        for puller in pullers:
            ready.register(puller.socket, selectors.EVENT_READ, puller)
        while time.monotonic() < end:
            for key, _ in ready.select(0.1):
                key.data.skip(place)


def run(bench: Bench) -> None:
    if not (bench.wants(SHARE) and bench.has_time(10, SHARE)):
        return
    with bench.part(SHARE):
        folder = bench.work / "tenants"
        folder.mkdir()
        program = binary(bench.build)
        tokens, credentials = {}, folder / "credentials"
        with credentials.open("w", encoding="ascii") as lines:
            for tenant in ("many", "one"):
                token = folder / f"{tenant}.token"
                made = subprocess.run([program, "token", "--tenant", tenant, "--out", token], capture_output=True,
                                      text=True, check=True)
                lines.write(made.stdout)
                tokens[tenant] = token.read_text().strip()
        port = free_port()
        depot = Depot(program, folder / "depot", 256 * MIB, 0,
                      [f"--credentials={credentials}", f"--resp=127.0.0.1:{port}"])
        try:
            measure(bench, port, tokens)
        finally:
            depot.stop()


def measure(bench: Bench, port: int, tokens: dict[str, str]) -> None:
    many = [Puller(port, tokens["many"]) for _ in range(MANY)]
    one = Puller(port, tokens["one"])
    for puller in (many[0], one):
        puller.call(b"*3\r\n$3\r\nSET\r\n$5\r\nvalue\r\n$%d\r\n" % MIB + b"v" * MIB + b"\r\n", b"+OK\r\n")
    for puller in (*many, one):
        puller.socket.setblocking(False)
        puller.ask(AHEAD)
    pull([*many, one], WARM_UP_S)
    seconds = bench.number(1.0, 0.5)
    figures: dict[str, list[float]] = {"one": [], "many": []}
    for _ in range(bench.rounds(9, 3)):
        before = one.bytes, sum(puller.bytes for puller in many)
        began = time.monotonic()
        pull([*many, one], seconds)
        took = time.monotonic() - began
        figures["one"].append((one.bytes - before[0]) / took / 1e9)
        figures["many"].append((sum(puller.bytes for puller in many) - before[1]) / took / 1e9)
    bench.ratio(SHARE, ours=figures["one"], theirs=figures["many"], unit="GB/s", form="ours/theirs", better="higher",
                goal=0.8, peer=f"another tenant's {MANY} connections in the same seconds",
                command="python -m bench.net_rows.tenants")


if __name__ == "__main__":
    sys.exit(harness.main("tenants", run, __doc__))
