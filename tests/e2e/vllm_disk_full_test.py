"""No depot yet, no room for its log, a full file system, a log that is too small: the engine answers all the same.

    python -m unittest -v tests.e2e.vllm_disk_full_test

One engine, started before there is a depot; each test gives it another depot at the same address. Its own answers
without a depot are the right ones, in float32: a hit and a cold pass then do not round to other tokens. The engine is
patient with what it loads, but no first token may come later than with the deadline that engines usually have; what the
slowest request of a drill took is kept: see drill_figures. About a minute on two idle cores.
"""

import os
import resource
import shutil
import statistics
import subprocess
import tempfile
import unittest

from bench import machine
from kvdepot.vllm.config import Settings
from tests.e2e.depot_process import DepotError, DepotProcess
from tests.e2e.drill_figures import COLD_FACTOR, DrillFigures
from tests.e2e.engine_rig import BLOCK, PATIENT, SLACK, Rig, connector, wait_stored, wait_until

BLOCKS = 2
TOKENS = BLOCKS * BLOCK + 10
ANSWER = 8
SHARE = Settings.deadline_share                 # the usual deadline, as a share of the compute that is saved
PROMPTS = [f"prompt {i}" for i in range(6)]
POOL = "64MiB"                                  # eleven blocks: some of the twelve must come from flash
CONNECTIONS = 4                                 # two for each role
# A depot that outlives a write behind its limit gets EFBIG for it instead of a signal.
LIMITED = ("sh", "-c", 'trap "" XFSZ; exec "$@"', "sh")


def small_file_system(folder, size):
    """Words before a command that give it a file system of `size` at `folder`, which ends with the command."""
    return ("unshare", "-m" if os.getuid() == 0 else "-rm", "sh", "-c",
            f'mount -t tmpfs -o size={size} none "{folder}" && exec "$@"', "sh")


def can_mount():
    with tempfile.TemporaryDirectory() as folder:
        return shutil.which("unshare") is not None and subprocess.run(
            [*small_file_system(folder, "1m"), "true"], capture_output=True).returncode == 0


class OneEngine(unittest.TestCase):
    """No tests: what both classes below need."""

    @classmethod
    def setUpClass(cls):
        machine.Lost.watch = machine.Watch()
        cls.figures = DrillFigures("vllm_disk_full")
        cls.rig = Rig()
        cls.addClassCleanup(cls.rig.close)
        with DepotProcess(pool=POOL, flash="128MiB") as depot:
            cls.address = depot.address                         # nobody listens there from here on
        cls.engine = cls.rig.engine("early", connector(cls.address, load="async", breaker_probe_ms=200, **PATIENT),
                                    dtype="float32")
        cls.prompts = {name: cls.rig.prompt(name, TOKENS) for name in PROMPTS}
        answers = {name: cls.engine.ask(cls.prompts[name], ANSWER) for name in PROMPTS}
        cls.right = {name: answer.tokens for name, answer in answers.items()}
        cls.cold = [answer.first_s for answer in answers.values()]

    def setUp(self):
        self.asked = []

    def depot(self, flash, **more):
        """A depot at the engine's address on an empty directory; ends with the test."""
        return DepotProcess(pool=POOL, flash=flash, listen=self.address, **more)

    def started(self, flash, **more):
        """The same, running and found by the engine."""
        depot = self.enterContext(self.depot(flash, **more))
        filler = self.rig.prompt("filler", 20)
        def connected():
            self.engine.ask(filler)
            return depot.metrics()["kvdepot_connections"] >= CONNECTIONS
        wait_until(connected, "the engine has found the depot")
        self.engine.reset_prefix_cache()
        return depot

    def ask(self, name):
        """Asks, checks every token of the answer, and returns how many blocks were not computed."""
        answer = self.engine.ask(self.prompts[name], ANSWER)
        self.assertEqual(answer.tokens, self.right[name], name)
        self.asked.append(answer)
        return answer.cached // BLOCK

    def ask_all(self):
        """Of each prompt the blocks that came from the depot."""
        self.engine.reset_prefix_cache()
        return [self.ask(name) for name in PROMPTS]

    def store_all(self, depot):
        self.assertEqual(self.ask_all(), [0] * len(PROMPTS))
        wait_stored(depot, BLOCKS * len(PROMPTS))

    def assert_in_time(self, drill):
        """The first token of every request of this test: 1.1 times cold and the usual deadline, times three for a busy
        machine, and the time in which it stood still."""
        slowest = max(self.asked, key=lambda answer: answer.first_s - answer.lost_s)
        cold_s = statistics.median(self.cold)
        self.figures.add(drill, self.engine.spec.name, slowest.first_s, cold_s, SHARE * cold_s, slowest.lost_s)
        limit = (COLD_FACTOR + SHARE) * max(self.cold)
        self.assertLess(slowest.first_s, SLACK * limit + slowest.lost_s, machine.pressure())


class DiskFull(OneEngine):
    def test_1_no_room_for_the_log_is_one_line_and_no_depot(self):
        def refused(flash, **more):
            depot = self.depot(flash, **more)
            with self.assertRaises(DepotError), depot:
                pass
            self.assertNotEqual(depot.status, 0)
            self.assertRegex(depot.output, "(?i)error.*preallocate")
            self.assertFalse(os.path.exists(os.path.join(depot.directory, "flash.kvd")))
        refused("1GiB", prefix=("sh", "-c", 'ulimit -f 65536; trap "" XFSZ; exec "$@"', "sh"))
        if can_mount():
            folder = tempfile.mkdtemp(prefix="kvd-e2e-")
            self.addCleanup(shutil.rmtree, folder)
            refused("1GiB", directory=folder, prefix=small_file_system(folder, "100m"))
        self.assertEqual(self.ask_all(), [0] * len(PROMPTS))
        self.assert_in_time("no room for the log")

    @unittest.skipUnless(can_mount(), "no file system can be mounted here: needs root or user namespaces")
    def test_2_a_file_system_that_runs_full_later_takes_nothing_from_a_running_depot(self):
        folder = tempfile.mkdtemp(prefix="kvd-e2e-")
        self.addCleanup(shutil.rmtree, folder)
        depot = self.started("196MiB", directory=folder, prefix=small_file_system(folder, "200m"),
                             extra=["--segment=16MiB"])
        with open(f"/proc/{depot.pid}/root{folder}/filler", "wb", buffering=0) as filler, \
                self.assertRaisesRegex(OSError, "No space left"):
            for _ in range(1000):
                filler.write(bytes(1 << 20))
        self.store_all(depot)
        self.assertEqual(self.ask_all(), [BLOCKS] * len(PROMPTS))
        metrics = depot.metrics()
        self.assertGreater(metrics["kvdepot_store_flash_bytes_read_total"], 0)
        self.assertEqual(metrics["kvdepot_store_tier_off"], 0)
        self.assert_in_time("file system full")

    def test_3_writes_that_fail_turn_the_flash_tier_off_and_nothing_else(self):
        depot = self.started("512MiB", prefix=LIMITED)
        resource.prlimit(depot.pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        def off():
            self.ask_all()
            return depot.metrics()["kvdepot_store_tier_off"] == 1
        wait_until(off, "the flash tier is off")
        self.assertIn("flash tier turned off", depot.output)
        self.assertTrue(depot.healthy())
        self.engine.reset_prefix_cache()
        self.ask("prompt 0")
        wait_until(lambda: depot.metrics()["kvdepot_unfinished_bytes"] == 0, "the stores have ended")
        self.engine.reset_prefix_cache()
        self.assertEqual(self.ask("prompt 0"), BLOCKS)           # the pool is left
        self.ask_all()
        self.assert_in_time("writes fail")


class OtherDepots(OneEngine):
    """A depot that comes late and one that is too small: `make soak`."""

    def test_1_an_engine_that_began_without_a_depot_finds_it_later(self):
        lookups = self.engine.counter("vllm:kvdepot_lookups")
        self.engine.reset_prefix_cache()
        self.assertEqual(self.ask(PROMPTS[0]), 0)
        self.assertEqual(self.engine.counter("vllm:kvdepot_lookups"), lookups)      # nobody is there to be asked
        depot = self.started("512MiB")
        self.assertEqual(self.ask(PROMPTS[0]), 0)
        wait_stored(depot, BLOCKS)
        self.engine.reset_prefix_cache()
        self.assertEqual(self.ask(PROMPTS[0]), BLOCKS)

    def test_2_more_than_fits_drops_what_is_oldest(self):
        depot = self.started("68MiB", extra=["--segment=16MiB"])         # four segments of two blocks each
        self.assertEqual(self.ask_all(), [0] * len(PROMPTS))
        wait_stored(depot, 1)
        found = self.ask_all()
        self.assertLess(sum(found), BLOCKS * len(PROMPTS))
        self.assertTrue(depot.healthy())
        self.assertGreater(depot.metrics()["kvdepot_store_segments_evicted_total"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
