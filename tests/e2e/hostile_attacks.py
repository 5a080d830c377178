"""What hostile clients do to a depot: one function an attack, each for as long as it is told.

    python -m tests.e2e.hostile_attacks NAME SECONDS SEED ADDRESS HTTP RESP-PORT TOKEN

runs one in a process of its own and prints what came of it as JSON; tests/e2e/hostile_test.py runs all of them. An
attack keeps what it holds until its time is over, so that the depot is looked at under load, and then goes away without
a word.
"""

import base64
import collections
import hashlib
import itertools
import json
import mmap
import random
import resource
import socket
import struct
import sys
import time

from tests.e2e import hostile_resp
from tests.e2e import hostile_wire as wire
from tests.e2e.hostile_neighbour import FINGERPRINT, GROUP, KEY_BYTES, RECORDS, SLAB_BYTES, key_of

KEYS = b"".join(key_of(number) for number in range(RECORDS))
MANY_KEYS = (KEYS * (4096 // RECORDS))[:4096 * KEY_BYTES]
CROWD_ASKS = b"".join(wire.get(KEYS[:KEY_BYTES], KEY_BYTES, 9 + n) for n in range(8))
BAD_CRC = 0xDEADBEEF
INVALID = 1     # a status


class Attack:
    """Where the depot is, how long to go on, and what is held meanwhile."""

    def __init__(self, seconds, seed, address, http, resp_port, token):
        self.address, self.http, self.resp = address, http, ("127.0.0.1", resp_port)
        self.end = time.monotonic() + seconds
        self.random = random.Random(seed)
        self.token = token  # of tenant "other", where the depot has credentials
        self.held = []
        self.then = None    # done over and over until the process is killed

    @property
    def goes_on(self):
        return time.monotonic() < self.end

    def connect(self, **options):
        raw = wire.Raw(self.address, **options)
        self.held.append(raw)
        return raw

    def opened(self, **options):
        raw = self.connect(**options)
        raw.send(wire.open_namespace(FINGERPRINT, GROUP))
        raw.message()
        return raw

    def rest(self):
        time.sleep(max(0.0, self.end - time.monotonic()))

    def close(self):
        for raw in self.held:
            raw.close()


def slow_loris(attack):
    """Bytes one at a time: of a header before HELLO, of a header, a meta and a payload that never end."""
    whole = wire.hello()
    peers = [(attack.connect(greet=False), whole, 0) for _ in range(20)]
    for begun, rest in ((b"", wire.frame(wire.PING)), (wire.frame(wire.STATS, meta_bytes=4 << 20, body=4 << 20), b"x"),
                        (wire.put(KEYS, KEY_BYTES, 7) + wire.put_data(RECORDS, SLAB_BYTES, 7), b"x")):
        for _ in range(10):
            raw = attack.opened()
            raw.send(begun)
            peers.append((raw, rest * 100_000 if rest == b"x" else rest, 0))
    sent = 0
    while attack.goes_on:
        for raw, data, _ in peers:
            if sent < len(data) - 1:
                raw.offer(data[sent:sent + 1])
        sent += 1
        time.sleep(0.02)
    return {"connections": len(peers)}


def header_bombs(attack):
    """Random bytes, wrong CRCs, giant sizes and counts. Each connection that broke the framing must be ended."""
    u32 = 0xFFFFFFFF
    bombs = [
        lambda: attack.random.randbytes(4000),
        lambda: wire.frame(wire.PING, meta_crc=BAD_CRC),
        lambda: wire.frame(wire.PING)[:60] + b"\0\0\0\0",
        lambda: wire.frame(wire.STATS, meta_bytes=u32, body=u32),
        lambda: wire.frame(wire.STATS, body=1 << 62),
        lambda: wire.frame(wire.STATS, meta_bytes=4 << 20, body=4 << 20, meta_crc=BAD_CRC) + bytes(4 << 20),
        lambda: wire.frame(wire.PUT_DATA, payload=1 << 40, items=u32, layers=65535),
        lambda: wire.frame(wire.MATCH, struct.pack("<IHHHBBII", 0, 65535, 65535, 65535, 0, 0, u32, u32), items=u32),
        lambda: wire.frame(wire.GET, struct.pack("<IHHHBB", 0, 0, 0, 65535, 1, 255), items=u32),
        lambda: wire.frame(wire.RELEASE, b"", items=u32),
        lambda: wire.frame(0x7F), lambda: wire.frame(0x84, b"x" * 100), lambda: wire.frame(wire.HELLO, b"", 0),
    ]
    ended = 0
    count = 0
    while attack.goes_on or count < len(bombs):
        raw = attack.connect(greet=count % 3 > 0)
        raw.send(bombs[count % len(bombs)]())
        assert raw.ended(), f"bomb {count % len(bombs)} did not end its connection"
        ended += 1
        count += 1
        raw.close()
    return {"ended": ended}


def credits_ignored(attack):
    """Far more GETs than ops_max at once, read slowly; those beyond it must be answered `busy`."""
    ids = itertools.count(10)
    statuses = collections.Counter()
    flows = []
    for _ in range(4):
        burst = b"".join(wire.get(KEYS, KEY_BYTES, next(ids)) for _ in range(300))
        flows.append([attack.opened(), burst])
    answered = attack.end + wire.SECONDS_MAX
    while attack.goes_on or (statuses[wire.BUSY] == 0 and time.monotonic() < answered):
        for flow in flows:
            flow[1] = flow[1] or wire.get(MANY_KEYS, KEY_BYTES, next(ids))
            flow[1] = flow[1][max(0, flow[0].offer(flow[1])):]
            statuses.update(flow[0].statuses(1 << 20))
        time.sleep(0.005)
    assert statuses[wire.BUSY] > 0, f"nothing was answered `busy`: {statuses}"
    return {"ok": statuses[0], "busy": statuses[wire.BUSY]}


def endless_lookups(attack):
    """MATCHes and REMOVEs of as many records as one may name, and OPEN and CLOSE, without a pause."""
    burst = b"".join((wire.match(MANY_KEYS, KEY_BYTES, 1, shards=64, blocks=4096),
                      wire.remove(b"".join(key_of(n) for n in range(9000, 13096)), KEY_BYTES, 2, shards=64),
                      *(wire.open_namespace(b"other", GROUP, request_id=3) + wire.frame(
                          wire.CLOSE, struct.pack("<I", 1), 4) for _ in range(50))))
    flows = [[attack.opened(), b""] for _ in range(4)]
    sent = 0
    while attack.goes_on:
        for flow in flows:
            flow[1] = flow[1] or burst
            taken = flow[0].offer(flow[1])
            assert taken >= 0 and flow[0].skip(), "the depot ended a connection that asked much"
            flow[1] = flow[1][taken:]
            sent += taken
        time.sleep(0.001)
    return {"bytes": sent}


def deaf(attack):
    """Asks and asks, for statistics and for records, and never reads."""
    burst = wire.frame(wire.STATS) * 500
    flows = []
    for n in range(24):
        raw = attack.opened()
        flows.append([raw, wire.get(KEYS, KEY_BYTES, 9) if n % 2 else b""])
    sent = 0
    while attack.goes_on:
        for flow in flows:
            flow[1] = flow[1] or burst
            taken = max(0, flow[0].offer(flow[1]))
            flow[1] = flow[1][taken:]
            sent += taken
        time.sleep(0.001)
    return {"bytes": sent}


def deaf_crowd(attack):
    """Many who each ask for little and never read, so that together they pin all there is; who is cut comes again."""
    peers, opened = [], 0
    while attack.goes_on or opened == 0:
        peers = [raw for raw in peers if raw.offer(wire.frame(wire.PING)) >= 0]
        while len(peers) < 100:
            peers.append(attack.opened())
            peers[-1].send(CROWD_ASKS)
            opened += 1
        time.sleep(0.02)
    return {"opened": opened}


def crowd(attack):
    """No attack: the crowd of deaf_crowd, whose members read what they ask for. What fair shares alone cost."""
    peers = [attack.opened() for _ in range(100)]
    for peer in peers:
        peer.send(CROWD_ASKS)
    while attack.goes_on:
        for peer in peers:
            assert peer.skip(), "the depot ended a connection that reads"
        time.sleep(0.001)
    return {"opened": len(peers)}


def control(attack):
    """Does nothing to the depot: computes without a pause, for what sharing the cores with an attacker costs."""
    rounds = 0
    while attack.goes_on:
        hashlib.sha256(bytes(1 << 20))
        rounds += 1
    return {"rounds": rounds}


def replays(attack):
    """The same ids again; leases, views, requests of others. What nobody may do ends the connection."""
    rounds = 0
    while attack.goes_on:
        first, second = attack.opened(), attack.opened()
        first.send(wire.match(KEYS, KEY_BYTES, 5, lease_ms=1000))
        opcode, status, meta = first.message()
        lease, = struct.unpack_from("<Q", meta, 4)
        assert (opcode, status) == (wire.MATCH_REPLY, 0)
        second.send(wire.unpin(lease, 6))
        assert second.message()[1] != 0, "a lease was given back by a stranger"
        for request_id in range(200):
            second.send(wire.frame(wire.CANCEL, request_id=1 + request_id))
        for request_id in (8, 9):
            first.send(wire.unpin(lease, request_id))
        assert (first.message()[1] != 0, first.message()[1] != 0) == (False, True), "a lease ends once"
        first.send(wire.put(key_of(10_000), KEY_BYTES, 7) + wire.put(key_of(10_001), KEY_BYTES, 7))
        assert first.ended(), "a request id was used twice"
        second.send(wire.release([1, 2, 3]))
        assert second.ended(), "views were given back that nobody had"
        rounds += 1
    return {"rounds": rounds}


def namespaces(attack):
    """Thousands of namespaces."""
    opened = 0
    for n in range(12):
        raw = attack.connect()
        requests = [wire.open_namespace(struct.pack("<II", n, i), GROUP, request_id=1 + i) for i in range(1200)]
        raw.send(b"".join(requests))
        refused = sum(raw.message()[1] != 0 for _ in requests)
        assert refused == 1200 - 1024, refused
        opened += 1024
        if not attack.goes_on:
            break
    attack.rest()
    return {"opened": opened}


def leases(attack):
    """Leases of everything, as many as there are, for as long as they may last."""
    granted = 0
    peers = [attack.opened() for _ in range(8)]
    while attack.goes_on:
        for raw in peers:
            raw.send(wire.match(KEYS, KEY_BYTES, 3, lease_ms=0xFFFFFFFF, promote=1) * 50)
            granted += sum(struct.unpack_from("<Q", raw.message()[2], 4)[0] != 0 for _ in range(50))
    return {"granted": granted}


def unfinished_puts(attack):
    """PUTs of everything, none of which is ever finished, with deadlines of weeks."""
    for peer in range(6):
        raw = attack.opened()
        for n in range(40):
            keys = b"".join(key_of(20_000 + peer * 1000 + n * 8 + i) for i in range(8))
            if not raw.send(wire.put(keys, KEY_BYTES, 10 + n, deadline_ms=0xFFFFFFFF)):
                break
        raw.offer(wire.put_data(8, SLAB_BYTES, 10) + bytes(100_000))
    attack.rest()
    return {}


def views(attack):
    """Views of everything, never given back."""
    for peer in range(4):
        raw = attack.opened(local=True, features=wire.SHARED_MEMORY)
        raw.send(b"".join(wire.get(KEYS, KEY_BYTES, 10 + n) for n in range(40)))
        assert peer > 0 or raw.message()[0] == wire.GET_VIEW, "no view was lent"
    attack.rest()
    return {}


def arenas(attack):
    """More arenas than there are, PUTs through them from everywhere in and beyond them, while they are written to."""
    given, taken, cut = [], 0, 0
    for _ in range(80):
        raw = attack.connect(local=True, greet=False)
        raw.send(wire.hello(wire.ARENA_FEATURE))
        if struct.unpack_from("<HQ", raw.message()[2])[1] & wire.ARENA_FEATURE:
            size, = struct.unpack("<Q", raw.message()[2])
            given.append((raw, mmap.mmap(raw.descriptors[0], size)))
        raw.send(wire.open_namespace(FINGERPRINT, GROUP))
        raw.message()
    slabs = 8 * GROUP["layers"]
    for peer in itertools.cycle(range(len(given))):
        if not attack.goes_on:
            break
        raw, memory = given[peer]
        keys = b"".join(key_of(40_000 + attack.random.randrange(1000) * 8 + i) for i in range(8))
        offset = attack.random.randrange(len(memory) - slabs * SLAB_BYTES)
        raw.send(wire.put(keys, KEY_BYTES, 10, deadline_ms=0xFFFFFFFF) + wire.put_arena(8, slabs, 10, offset=offset))
        for at in range(0, len(memory), 1 << 20):
            memory[at:at + 8] = bytes([attack.random.randrange(256)]) * 8
        while (message := raw.message())[0] == wire.TAKEN:
            pass
        assert message[0] == wire.PUT_REPLY and message[1] == 0 and message[2][0] == 0xFF, message
        taken += 1
        if peer % 8 == 0:   # and then one that reaches beyond: another takes its place
            raw.send(wire.put(keys, KEY_BYTES, 11) + wire.put_arena(8, 8, 11, offset=len(memory) - SLAB_BYTES))
            assert raw.ended()
            cut += 1
            raw = attack.opened(local=True, features=wire.ARENA_FEATURE)
            given[peer] = raw, mmap.mmap(raw.descriptors[0], len(memory))
    return {"arenas": len(given), "puts": taken, "cut": cut}


def flood(attack):
    """More connections than there may be, most of them silent; a newcomer that speaks must get in."""
    count = 0
    while attack.goes_on or count < 1200:
        attack.connect(greet=count % 50 == 49)
        count += 1
        if len(attack.held) == 700:     # more than the depot takes, fewer than descriptors are usual for a process
            for raw in attack.held[:300]:
                raw.close()
            del attack.held[:300]
    return {"connections": count}


def http(attack):
    """Headers that never end, headers that are too large, and pipelining; a probe must be answered throughout."""
    host, port = attack.http.removeprefix("http://").rsplit(":", 1)
    connect = lambda: socket.create_connection((host, int(port)), timeout=10)  # noqa: E731
    held = []
    probes = 0
    while attack.goes_on:
        for n in range(20):
            held.append(connect())
            held[-1].sendall((b"GET /metr", b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000,
                              b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 4)[n % 3])
        with connect() as probe:
            probe.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert probe.recv(100).startswith(b"HTTP/1.1 200"), "a probe was not answered"
        probes += 1
        for peer in held[:-200]:
            peer.close()
        del held[:-200]
        time.sleep(0.02)
    return {"probes": probes}


ATTACKS = {attack.__name__: attack for attack in (
    control, crowd, slow_loris, header_bombs, credits_ignored, endless_lookups, deaf, deaf_crowd, replays, namespaces,
    leases, unfinished_puts, views, arenas, flood, http)} | hostile_resp.ATTACKS


# On a depot with credentials, of which the attacker has a token of another tenant than the neighbour's.

def known(attack, token):
    """A connection that has shown this token, and the status of what the depot said."""
    raw = attack.connect(greet=False)
    raw.send(wire.hello(wire.TOKEN))
    raw.message()
    raw.send(wire.frame(wire.AUTH, wire.string(token)))
    return raw, raw.message()[1]


def guess(attack):
    return b"kvd_" + base64.urlsafe_b64encode(attack.random.randbytes(32)).rstrip(b"=")


def guesses(attack):
    """Tokens of the right form that nobody has, 40 at a time, which is below what strangers may have; RESP's, too."""
    refused = 0
    while attack.goes_on or not refused:
        peers = [attack.connect(greet=False) for _ in range(40)]
        for raw in peers:
            raw.send(wire.hello(wire.TOKEN))
            raw.message()
            raw.send(wire.frame(wire.AUTH, wire.string(guess(attack))))
        with socket.create_connection(attack.resp, 10) as resp:
            resp.sendall(b"*2\r\n$4\r\nAUTH\r\n$47\r\n" + guess(attack) + b"\r\n")
            assert resp.recv(100).startswith(b"-"), "a guess was let in"
        for raw in peers:
            assert raw.message()[1] == INVALID, "a guess was not refused"
            assert raw.ended(), "a connection has one guess"
            raw.close()
            refused += 1
        attack.held.clear()
    return {"refused": refused}


def others_keys(attack):
    """Asks for the neighbour's keys, and for its namespace, as another tenant: all misses, and `invalid`."""
    raw, status = known(attack, attack.token)
    assert status == 0, "the attacker's own token is not good"
    raw.send(wire.open_namespace(FINGERPRINT, GROUP))
    assert raw.message()[1] == INVALID, "a namespace of another tenant was opened"
    raw.send(wire.open_namespace(FINGERPRINT, GROUP, b"other"))
    raw.message()
    asked = 0
    while attack.goes_on or not asked:
        raw.send(wire.match(KEYS, KEY_BYTES, 5) + wire.get(KEYS, KEY_BYTES, 6))
        for _ in range(2):
            fields, meta, payload = raw.whole()
            if fields[2] == wire.MATCH_REPLY:
                assert struct.unpack_from("<I", meta)[0] == 0, "keys of another tenant were found"
            else:
                assert not payload, "bytes of another tenant"
        asked += 1
    return {"asked": asked}


KNOWN_ATTACKS = {attack.__name__: attack for attack in (guesses, others_keys)}

# Clients of the depot's memory, to be killed at one step of its protocol: each says that it is there, then goes on.

def shm_attached(attack):
    attack.opened(local=True, features=wire.SHARED_MEMORY)


def shm_asked(attack):
    attack.opened(local=True, features=wire.SHARED_MEMORY).send(wire.get(KEYS, KEY_BYTES, 10))


def shm_lent(attack):
    raw = attack.opened(local=True, features=wire.SHARED_MEMORY)
    raw.send(wire.get(KEYS, KEY_BYTES, 10))
    opcode, _, meta = raw.message()
    assert opcode == wire.GET_VIEW, opcode
    return raw, struct.unpack_from("<Q", meta)[0]


def shm_copying(attack):
    raw, _ = shm_lent(attack)
    memory = mmap.mmap(raw.descriptors[0], 0, prot=mmap.PROT_READ)
    attack.then = lambda: bytes(memory[:64 << 20])


def shm_releasing(attack):
    raw, view = shm_lent(attack)
    raw.send(wire.release([view])[:40])


def arena_given(attack):
    return attack.opened(local=True, features=wire.ARENA_FEATURE)


def arena_put(attack):
    raw = arena_given(attack)
    raw.send(wire.put(b"".join(key_of(50_000 + i) for i in range(8)), KEY_BYTES, 10, deadline_ms=0xFFFFFFFF))
    return raw


def arena_within_a_message(attack):
    arena_put(attack).send(wire.put_arena(8, 8, 10)[:-1])


def arena_written_to(attack):
    raw = arena_put(attack)
    memory = mmap.mmap(raw.descriptors[0], 0)
    raw.send(wire.put_arena(8, 8, 10))

    def write():
        memory[:1 << 20] = attack.random.randbytes(1 << 20)
    attack.then = write


STEPS = {step.__name__: step for step in (shm_attached, shm_asked, shm_lent, shm_copying, shm_releasing,
                                           arena_given, arena_put, arena_within_a_message, arena_written_to)}


def main():
    name, seconds, seed, address, http_address, resp_port, token = sys.argv[1:]
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files_max, 8192), files_max))
    attack = Attack(float(seconds), int(seed), address, http_address, int(resp_port), token.encode())
    if name in STEPS:
        STEPS[name](attack)
        print("{}", flush=True)
        while attack.then:
            attack.then()
    else:
        print(json.dumps((ATTACKS | KNOWN_ATTACKS)[name](attack)), flush=True)
    sys.stdin.read()    # what is held stays held until the depot has been looked at
    attack.close()


if __name__ == "__main__":
    main()
