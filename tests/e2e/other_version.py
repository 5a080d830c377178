"""A depot of another version of kvdepot, in this process: written from docs/formats/wire.md alone, byte by byte.

It keeps records in memory and speaks what is the same in all of them: HELLO, OPEN, MATCH, GET, PUT and PING, and
the messages without an answer. It knows no features (as before AUTH, MEMORY and RINGS), so bits of HELLO have no
effect, and any message that came with one of them ends the connection and is in `strange`.
"""

import socket
import struct
import threading

from tests.e2e import hostile_wire as wire

STALE = 7       # status
LAST = 1        # flag
HELLO_REPLY, OPEN_REPLY, MATCH_REPLY, GET_DATA, PUT_REPLY, PING_REPLY = 0x81, 0x82, 0x83, 0x84, 0x85, 0x8B
UNANSWERED = (wire.CANCEL, wire.CHECK, wire.CLOSE)
KEYS_MAX, OPS_MAX = 4096, 64


class OtherDepot:
    """Speaks the versions from `oldest` to `newest`; `answers`: names this one in its reply, whatever was asked."""

    def __init__(self, oldest=1, newest=1, answers=None, path=None):
        self.oldest, self.newest, self.answers = oldest, newest, answers
        self.hellos = []        # (version_min, version_max, features)
        self.strange = []       # opcodes that nobody had agreed on
        self.records = {}       # key: layer: (checksum, slab)
        self.seen = set()       # opcodes
        self._listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._listener.bind(path or ("127.0.0.1", 0))
        self._listener.listen()
        self.address = f"unix://{path}" if path else f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._peers = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()
        for peer in self._peers:
            peer.close()

    def _accept(self):
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._peers.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer):
        try:
            Connection(self, peer).run()
        except OSError:
            pass
        finally:
            peer.close()


class Connection:
    def __init__(self, depot, peer):
        self.depot, self.peer = depot, peer
        self.group = None       # (layers, slab_bytes) of the one namespace
        self.puts = {}          # request_id: (keys, layers that are in)

    def exactly(self, count):
        data = bytearray()
        while len(data) < count:
            more = self.peer.recv(count - len(data))
            if not more:
                raise ConnectionError
            data += more
        return bytes(data)

    def answer(self, opcode, request_id, meta=b"", payload=b"", **header):
        self.peer.sendall(wire.frame(opcode, meta, request_id, flags=LAST, payload=len(payload), **header) + payload)

    def run(self):
        greeted = False
        while True:
            head = self.exactly(wire.HEADER.size)
            crc, = struct.unpack("<I", self.exactly(4))
            magic, version, opcode, _, request_id, items, first, layers, body, meta_bytes, _, _, _, meta_crc = (
                wire.HEADER.unpack(head))
            if magic != wire.MAGIC or version != 1 or crc != wire.crc32c(head):
                return
            meta, payload = self.exactly(meta_bytes), self.exactly(body - meta_bytes)
            assert meta_crc == wire.crc32c(meta)
            self.depot.seen.add(opcode)
            if not greeted:
                if opcode != wire.HELLO or not self.greet(meta):
                    return
                greeted = True
            elif opcode == wire.OPEN:
                self.open(request_id, meta)
            elif opcode == wire.MATCH:
                self.match(request_id, meta)
            elif opcode == wire.GET:
                self.get(request_id, meta, items, first, layers)
            elif opcode == wire.PUT:
                self.puts[request_id] = self.keys(meta[12:], meta), {}
            elif opcode == wire.PUT_DATA:
                self.put_data(request_id, meta, payload, first, layers)
            elif opcode == wire.PING:
                self.answer(PING_REPLY, request_id)
            elif opcode not in UNANSWERED:
                self.depot.strange.append(opcode)
                return

    def greet(self, meta):
        oldest, newest, features = struct.unpack_from("<HHQ", meta)
        self.depot.hellos.append((oldest, newest, features))
        agreed = self.depot.answers or min(newest, self.depot.newest)
        if not self.depot.answers and agreed < max(oldest, self.depot.oldest):
            why = f"this depot speaks versions {self.depot.oldest} to {self.depot.newest} of the protocol"
            self.answer(HELLO_REPLY, 0, wire.string(why.encode()), status=STALE)
            return False
        self.answer(HELLO_REPLY, 0, struct.pack("<HQ16sQII", agreed, 0, b"u" * 16, 1, KEYS_MAX, OPS_MAX)
                    + wire.string(b"kvdepot of another version"))
        return True

    def open(self, request_id, meta):
        at = 0
        for _ in range(2):      # tenant, fingerprint
            at += 2 + struct.unpack_from("<H", meta, at)[0]
        groups, _, layers, slab_bytes = struct.unpack_from("<HHHI", meta, at)
        assert groups == 1
        self.group = layers, slab_bytes
        self.answer(OPEN_REPLY, request_id, struct.pack("<I", 0))

    @staticmethod
    def keys(data, meta):
        size, = struct.unpack_from("<H", meta, 8)
        return [data[i:i + size] for i in range(0, len(data), size)]

    def match(self, request_id, meta):
        _, shards, groups, size, _, _, _, blocks = struct.unpack_from("<IHHHBBII", meta)
        data = meta[20 + 2 * (shards + groups):]
        keys = [data[i:i + size] for i in range(0, len(data), size)]
        prefix = next((i for i, key in enumerate(keys) if key not in self.depot.records), blocks)
        tiers = bytes([1] * prefix + [0] * (blocks - prefix))
        self.answer(MATCH_REPLY, request_id, struct.pack("<IQ", prefix, 0) + tiers, items=blocks)

    def get(self, request_id, meta, items, first, layers):
        keys = self.keys(meta[12:], meta)
        assert len(keys) == items
        layers = layers or self.group[0] - first
        found = [self.depot.records.get(key) for key in keys]
        failed = bytearray((items + 7) // 8)
        for i, record in enumerate(found):
            if record is None:
                failed[i // 8] |= 1 << i % 8
        slabs = [record[layer] for layer in range(first, first + layers) for record in found if record is not None]
        self.answer(GET_DATA, request_id, bytes(failed) + b"".join(checksum for checksum, _ in slabs),
                    b"".join(slab for _, slab in slabs), items=items, first=first, layers=layers)

    def put_data(self, request_id, meta, payload, first, layers):
        keys, have = self.puts[request_id]
        size = self.group[1]
        for n in range(layers * len(keys)):
            layer, key = first + n // len(keys), keys[n % len(keys)]
            have.setdefault(key, {})[layer] = meta[8 * n:8 * n + 8], payload[n * size:(n + 1) * size]
        if all(len(have.get(key, {})) == self.group[0] for key in keys):
            self.depot.records |= have
            del self.puts[request_id]
            self.answer(PUT_REPLY, request_id, bytes((len(keys) + 7) // 8), items=len(keys))
