"""The native protocol by hand (docs/formats/wire.md), for clients that do not keep to it.

Every function gives bytes; nothing here checks what a peer would refuse. `Raw` is a connection that sends what it is
told and reads only when asked.
"""

import os
import socket
import struct

MAGIC, VERSION, HEADER = 0x3144564B, 1, struct.Struct("<IBBHQIHHQIIHHI12x")
HELLO, OPEN, MATCH, GET, PUT, PUT_DATA, CANCEL, REMOVE = 1, 2, 3, 4, 5, 6, 7, 8
UNPIN, STATS, PING, CHECK, CLOSE, RELEASE, PUT_ARENA = 9, 10, 11, 12, 13, 14, 15
MATCH_REPLY, PUT_REPLY, GET_VIEW, TAKEN = 0x83, 0x85, 0x8F, 0x94
BUSY = 4               # status
SHARED_MEMORY, TOKEN = 1, 2     # features of HELLO
AUTH = 0x10
ARENA_FEATURE = 32
HEADER_BYTES = HEADER.size + 4  # and its CRC
SECONDS_MAX = 10        # for an answer


def _table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_CRC = _table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def frame(opcode, meta=b"", request_id=1, *, items=0, first=0, layers=0, payload=0, deadline_ms=0, body=None,
          meta_bytes=None, meta_crc=None, version=VERSION, flags=0, status=0):
    """A header with right CRCs and its meta; `body`, `meta_bytes` and `meta_crc` replace what would be right."""
    head = HEADER.pack(MAGIC, version, opcode, flags, request_id, items, first, layers,
                       len(meta) + payload if body is None else body, len(meta) if meta_bytes is None else meta_bytes,
                       deadline_ms, status, 0, crc32c(meta) if meta_crc is None else meta_crc)
    return head + struct.pack("<I", crc32c(head)) + meta


def string(data):
    return struct.pack("<H", len(data)) + data


def hello(features=0, name=b"hostile", versions=(1, 1), **header):
    return frame(HELLO, struct.pack("<HHQ", *versions, features) + string(name), 0, **header)


def open_namespace(fingerprint, group, tenant=b"default", request_id=1):
    return frame(OPEN, string(tenant) + string(fingerprint) + struct.pack(
        "<HHHIHIBH", 1, group["group"], group["layers"], group["slab_bytes"], group["parts"], group["block_tokens"],
        0, 0) + string(group["order"].encode()), request_id)


def match(keys, key_bytes, request_id=1, *, shards=1, lease_ms=0, promote=0, ns=0, blocks=None):
    blocks = len(keys) // key_bytes if blocks is None else blocks
    return frame(MATCH, struct.pack("<IHHHBBII", ns, shards, 1, key_bytes, 0, promote, lease_ms, blocks)
                 + struct.pack(f"<{shards}HH", *range(shards), 0) + keys, request_id, items=blocks)


def _keyed(opcode, keys, key_bytes, request_id, flag, ns, **header):
    return frame(opcode, struct.pack("<IHHHBB", ns, 0, 0, key_bytes, 0, flag) + keys, request_id,
                 items=len(keys) // key_bytes, **header)


def get(keys, key_bytes, request_id=1, *, ns=0, deadline_ms=0):
    return _keyed(GET, keys, key_bytes, request_id, 0, ns, deadline_ms=deadline_ms)


def put(keys, key_bytes, request_id=1, *, ns=0, deadline_ms=0):
    return _keyed(PUT, keys, key_bytes, request_id, 0, ns, deadline_ms=deadline_ms)


def put_data(keys, slab_bytes, request_id=1, layer=0):
    """The announcement of one layer of `keys` keys."""
    return frame(PUT_DATA, bytes(8 * keys), request_id, items=keys, first=layer, layers=1, payload=keys * slab_bytes)


def put_arena(keys, slabs, request_id=1, *, layer=0, key_first=0, offset=0):
    """Slabs of a PUT of `keys` keys that lie in the arena, with checksums that are not theirs."""
    return frame(PUT_ARENA, struct.pack("<IQ", key_first, offset) + bytes(8 * slabs), request_id, items=keys,
                 first=layer)


def remove(keys, key_bytes, request_id=1, *, shards=1, ns=0):
    return frame(REMOVE, struct.pack("<IHHHBB", ns, shards, 1, key_bytes, 0, 0)
                 + struct.pack(f"<{shards}HH", *range(shards), 0) + keys, request_id, items=len(keys) // key_bytes)


def unpin(lease, request_id=1):
    return frame(UNPIN, struct.pack("<Q", lease), request_id)


def release(views, request_id=1):
    return frame(RELEASE, struct.pack(f"<{len(views)}Q", *views), request_id, items=len(views))


class Raw:
    """A connection to `address` ("HOST:PORT"), or to the unix socket beside that port."""

    def __init__(self, address, *, local=False, greet=True, features=0):
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        self.socket = socket.socket(socket.AF_UNIX if local else socket.AF_INET)
        self.socket.settimeout(SECONDS_MAX)
        self.socket.connect(f"\0kvdepot/{host}/{port}" if local else (host, int(port)))
        self.descriptors = []
        self._head, self._body_left = b"", 0    # of what statuses() has read in part
        if greet:
            self.socket.sendall(hello(features))
            self.message()
            if features:
                self.message()

    def send(self, data):
        """Sends all of it, waiting as long as it takes; False when the depot has ended the connection."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def offer(self, data):
        """Sends what the socket takes now; -1 when the depot has ended the connection."""
        self.socket.setblocking(False)      # a socket with a timeout waits, whatever the flags say
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return -1
        finally:
            self.socket.settimeout(SECONDS_MAX)

    def skip(self):
        """Throws away what has come; False when the depot has ended the connection."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 20):
                pass
            return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            self.socket.settimeout(SECONDS_MAX)

    def _exactly(self, count):
        data = b""
        while len(data) < count:
            more, descriptors, *_ = socket.recv_fds(self.socket, count - len(data), 1)
            if not more:
                raise ConnectionError("the depot has ended the connection")
            self.descriptors += descriptors
            data += more
        return data

    def message(self):
        """The next message: (opcode, status, meta); payload is thrown away."""
        fields, meta, _ = self.whole()
        return fields[2], fields[11], meta

    def whole(self):
        """The next message: (the fields of its header, meta, payload)."""
        fields = HEADER.unpack(self._exactly(60))
        self._exactly(4)
        body = self._exactly(fields[8])
        return fields, body[:fields[9]], body[fields[9]:]

    def statuses(self, count):
        """Takes what has come, at most so many bytes: the statuses of the messages that began in it."""
        self.socket.setblocking(False)
        try:
            data = self.socket.recv(count)
        except BlockingIOError:
            return []
        finally:
            self.socket.settimeout(SECONDS_MAX)
        if not data:
            raise AssertionError("the depot has ended the connection")
        found = []
        while data:
            passed = min(self._body_left, len(data))
            data, self._body_left = data[passed:], self._body_left - passed
            wanted = HEADER_BYTES - len(self._head)
            self._head, data = self._head + data[:wanted], data[wanted:]
            if len(self._head) == HEADER_BYTES:
                fields = HEADER.unpack(self._head[:HEADER.size])
                self._head, self._body_left = b"", fields[8]
                found.append(fields[11])
        return found

    def ended(self):
        """Waits for the depot to end the connection."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def close(self):
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []
        self.socket.close()
