"""A depot that is killed again and again never returns wrong bytes and keeps what it acknowledged as written.

    python -m unittest tests.e2e.kill_test             # 20 kills, for `make test`
    python -m tests.e2e.kill_test --cycles 500         # the soak: 500 kills at random moments; prints a summary

The oracle: the content of a record follows from its key, so any bytes that come back can be judged without keeping
them. Of every record the test knows whether the depot acknowledged it as `written` before the kill; such a record must
be there afterwards (the flash tier is larger than all that is put). A record whose removal was answered must stay
removed.
"""

import argparse
import hashlib
import json
import random
import sys
import threading
import time
import unittest

import kvdepot

from tests.e2e.depot_process import DepotProcess

LAYERS = 6
SLAB_BYTES = 64 * 1024
RECORD_BYTES = LAYERS * SLAB_BYTES
KEY_BYTES = 32
BATCH = 16
GROUP = {"group": 0, "layers": LAYERS, "slab_bytes": SLAB_BYTES, "parts": 2, "block_tokens": 16, "order": "test"}


def key_of(number):
    return hashlib.sha256(f"record {number}".encode()).digest()


def content_of(number):
    """RECORD_BYTES that follow from the number: a digest repeated, with the position mixed in per slab."""
    slabs = [hashlib.sha256(f"{number}/{layer}".encode()).digest() * (SLAB_BYTES // 32) for layer in range(LAYERS)]
    return b"".join(slabs)


class Traffic:
    """One client's puts, gets and removes, with what it may expect of a depot that was killed."""

    def __init__(self, address, seed):
        self.random = random.Random(seed)
        self.buffer = bytearray(BATCH * RECORD_BYTES)
        self.client = kvdepot.Client(address, require_connection=True, connect_timeout_ms=10_000, breaker_probe_ms=50)
        self.region = self.client.register(self.buffer)
        self.ns = self.client.open_namespace("default", b"kill test", [GROUP])
        self.next = 0
        self.written, self.removed = set(), set()
        self.counts = {"puts": 0, "gets": 0, "hits": 0, "removes": 0, "wrong": 0, "lost": 0, "undead": 0, "kills": 0,
                       "judged_written": 0, "judged_removed": 0}

    def close(self):
        self.client.close()

    def _places(self, count):
        return [layer * SLAB_BYTES for layer in range(LAYERS)], [i * RECORD_BYTES for i in range(count)]

    def _finish(self, op):
        done = self.client.wait(op, -1, 20_000)
        code, failed = ("timeout", b"") if done is None else (done.code, bytes(done.failed))
        self.client.release(op)
        return code, failed

    def put(self):
        """Puts a batch of new records; remembers those acknowledged as written."""
        numbers = list(range(self.next, self.next + self.random.randint(1, BATCH)))
        self.next = numbers[-1] + 1
        for i, number in enumerate(numbers):
            self.buffer[i * RECORD_BYTES:(i + 1) * RECORD_BYTES] = content_of(number)
        layers, blocks = self._places(len(numbers))
        level = self.random.choice(["pooled", "written", "synced"])
        op = self.client.multiput(self.ns, b"".join(map(key_of, numbers)), KEY_BYTES, self.region, layers, blocks,
                                  ack=level, total_ms=20_000)
        code, failed = self._finish(op)
        self.counts["puts"] += len(numbers)
        if code == "ok" and level != "pooled":
            self.written |= {n for i, n in enumerate(numbers) if not is_failed(failed, i)}

    def get(self, numbers):
        """Gets records one by one; judges every byte. Returns those that were there."""
        found = set()
        for start in range(0, len(numbers), BATCH):
            batch = numbers[start:start + BATCH]
            self.buffer[:] = bytes(len(self.buffer))
            layers, blocks = self._places(len(batch))
            op = self.client.multiget(self.ns, b"".join(map(key_of, batch)), KEY_BYTES, self.region, layers, blocks,
                                      stop_at_first_failure=False, total_ms=20_000, progress_ms=10_000)
            code, failed = self._finish(op)
            self.counts["gets"] += len(batch)
            if code != "ok":
                continue
            for i, number in enumerate(batch):
                if is_failed(failed, i):
                    continue
                found.add(number)
                if self.buffer[i * RECORD_BYTES:(i + 1) * RECORD_BYTES] != content_of(number):
                    self.counts["wrong"] += 1
        self.counts["hits"] += len(found)
        return found

    def remove(self):
        if not self.written:
            return
        number = self.random.choice(sorted(self.written))
        self.written.discard(number)
        code, _ = self._finish(self.client.remove(self.ns, key_of(number), KEY_BYTES))
        if code == "ok":
            self.removed.add(number)
            self.counts["removes"] += 1

    def step(self):
        choice = self.random.random()
        if choice < 0.55:
            self.put()
        elif choice < 0.95 and self.next:
            self.get([self.random.randrange(self.next) for _ in range(self.random.randint(1, BATCH))])
        else:
            self.remove()

    def judge_after_restart(self, sample=400):
        """What was acknowledged is there, what was removed is not, and no byte is wrong."""
        self.counts["kills"] += 1
        written = self.random.sample(sorted(self.written), min(sample, len(self.written)))
        self.counts["lost"] += len(set(written) - self.get(written))
        removed = self.random.sample(sorted(self.removed), min(sample, len(self.removed)))
        self.counts["undead"] += len(self.get(removed))
        self.counts["judged_written"] += len(written)
        self.counts["judged_removed"] += len(removed)


def is_failed(bitmap, i):
    return bool(bitmap[i // 8] >> (i % 8) & 1) if i // 8 < len(bitmap) else False


def wait_connected(client, seconds=20):
    end = time.monotonic() + seconds
    while not client.stats()["connected"]:
        if time.monotonic() > end:
            raise AssertionError("the client did not reconnect")
        time.sleep(0.01)


def run(seed, kills, seconds, *, flash="4GiB", extra=()):
    """Traffic with a kill at a random moment, `kills` times, for `seconds` or until the store is half full. Returns the
    counts."""
    words = ["--segment", "16MiB", "--demote-after", "1s", *extra]
    with DepotProcess(pool="64MiB", flash=flash, extra=words) as depot:
        traffic = Traffic(depot.address, seed)
        end = time.monotonic() + seconds
        limit = (4 << 30) // RECORD_BYTES // 2  # half of flash: nothing that was written is evicted
        while traffic.counts["kills"] < kills and time.monotonic() < end and traffic.next < limit:
            timer = threading.Timer(traffic.random.uniform(0.05, 1.5), depot.kill)
            timer.start()
            while timer.is_alive():
                try:
                    traffic.step()
                except kvdepot.KvdepotError:
                    break
            timer.join()
            depot.start()
            wait_connected(traffic.client)
            traffic.judge_after_restart()
        traffic.close()
        return traffic.counts


def run_stores(seed, kills, seconds, report=lambda seed, counts: None):
    """As many stores, one after the other, as it takes for so many kills. Returns the counts of all together."""
    totals, end = {"kills": 0}, time.monotonic() + seconds
    while totals["kills"] < kills and time.monotonic() < end:
        counts = run(seed, kills - totals["kills"], end - time.monotonic())
        totals = {name: totals.get(name, 0) + value for name, value in counts.items()}
        report(seed, counts)
        seed += 1
    return totals


class KillTest(unittest.TestCase):
    def test_nothing_wrong_nothing_written_lost_nothing_removed_returns(self):
        seed = random.randrange(1 << 32)
        counts = run_stores(seed, kills=20, seconds=540)
        message = f"seed {seed}: {json.dumps(counts)}"
        self.assertEqual(counts["kills"], 20, message)
        self.assertGreater(counts["hits"], 0, message)
        self.assertGreater(counts["judged_written"], 0, message)
        self.assertGreater(counts["judged_removed"], 0, message)
        self.assertEqual((counts["wrong"], counts["lost"], counts["undead"]), (0, 0, 0), message)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=500, help="kills in all")
    parser.add_argument("--seconds", type=float, default=7200, help="time they may take")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    totals = run_stores(options.seed, options.cycles, options.seconds,
                        lambda seed, counts: print(f"seed {seed}: {json.dumps(counts)}", flush=True))
    print(f"total: {json.dumps(totals)}")
    bad = totals["wrong"] + totals["lost"] + totals["undead"]
    sys.exit(0 if bad == 0 and totals["kills"] == options.cycles else 1)


if __name__ == "__main__":
    main()
