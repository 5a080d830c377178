"""A Python client of a depot with one namespace and memory for one record, for tests of who may do what."""

import kvdepot

SLAB = 4096
LAYERS = 2
WAIT_SECONDS_MAX = 20
KEY = b"k" * 16
GROUPS = [{"group": 0, "layers": LAYERS, "slab_bytes": SLAB, "parts": 2, "block_tokens": 16, "order": "LBHNC"}]


class Peer:
    """A client with one namespace and memory for one record."""

    def __init__(self, test, address, tenant, **options):
        self.client = kvdepot.Client(address, require_connection=True, connect_timeout_ms=WAIT_SECONDS_MAX * 1000,
                                     **options)
        test.addCleanup(self.client.close)
        self.memory = bytearray(SLAB * LAYERS)
        self.region = self.client.register(self.memory)
        self.ns = self.client.open_namespace(tenant, b"weights", GROUPS)

    def _done(self, op):
        done = self.client.wait(op, timeout_ms=WAIT_SECONDS_MAX * 1000)
        self.client.release(op)
        return done

    def put(self, fill, **options):
        self.memory[:] = bytes([fill]) * len(self.memory)
        return self._done(self.client.multiput(self.ns, KEY, len(KEY), self.region, [0, SLAB], [0], total_ms=10_000,
                                               **options))

    def found(self):
        """Whether a lookup finds the record."""
        return self._done(self.client.match(self.ns, KEY, len(KEY), total_ms=10_000)).prefix_blocks == 1

    def get(self):
        """The completion, and what came as the first byte; None: nothing."""
        self.memory[:] = bytes(len(self.memory))
        done = self._done(self.client.multiget(self.ns, KEY, len(KEY), self.region, [0, SLAB], [0], total_ms=10_000,
                                               progress_ms=0))
        return done, None if done.failed_keys or done.code != "ok" else self.memory[0]
