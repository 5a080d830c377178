"""Drills with real engines: whatever fails, every request ends with the right answer, late by its deadline at most.

    python -m unittest -v tests.e2e.vllm_faults_test

Three engines: one that loads before the pass, one that loads layer by layer inside it, and one that verifies nothing.
Where an engine loads inside the pass, two requests for the same prompt share the pass, and afterwards its own cache is
looked at: no block in it may be one that did not come. "The right answer" is what the first engine said when nothing
was wrong, in float32: batches of other shapes then do not round to other tokens. Where nobody has said it before the
fault, it is what the engine computes under a salt that no KV was ever stored with.
The depot is slowed down (`--shape-read`) so that "in mid-load" lasts long enough to do something. About four minutes on
two idle cores. What a drill cost is printed beside the cold time, and kept: see drill_figures.
"""

import mmap
import os
import statistics
import time
import unittest

from bench import machine
from bench.engine_process import EngineError
from tests.e2e.depot_process import DepotProcess
from tests.e2e.drill_figures import COLD_FACTOR, DrillFigures
from tests.e2e.engine_rig import (
    BLOCK, SLACK, Asking, Rig, connector, negate_weights, read_digests, wait_stored, wait_until)

BLOCKS = 4
TOKENS = BLOCKS * BLOCK + 10
ANSWER = 8
SHARE = 1.5                                 # deadline: this share of the compute that is saved
SLOWNESS = 0.4                              # a slowed load over the compute that it saves
PAGE = 4096
SLAB_PAGES = 48                             # a block's K and V of one layer in float32
HEAD, SEGMENT = 4 << 20, 64 << 20           # of the depot's log
FOOTER = 1 << 20                            # at a segment's end; it takes less
# Damage is for the drills' own reads to find: scrubbing would find and drop it before them.
FLAGS = [f"--segment={SEGMENT}", "--scrub=0"]


class InOnePass:
    """An engine that is asked for a prompt twice in one pass: both come while it still computes something else."""

    def __init__(self, engine, other):
        self._engine, self._other = engine, other

    def ask(self, ids, max_tokens):
        requests = [{"ids": self._other, "max_tokens": 1}] + [{"ids": ids, "max_tokens": max_tokens}] * 2
        _, (_, first, second) = self._engine.generate(requests)
        if first.tokens != second.tokens:
            raise AssertionError(f"two answers: {first.tokens} and {second.tokens}")
        first.cached = max(0, int(first.cached - self._engine.lost_blocks * BLOCK))
        return first


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        machine.Lost.watch = machine.Watch()
        cls.figures = DrillFigures("vllm_faults")
        cls.rig = Rig()
        cls.addClassCleanup(cls.rig.close)
        cls.depot = cls.enterClassContext(DepotProcess(pool="256MiB", flash="2GiB", extra=FLAGS))
        cls.flipped = {}                                # offset -> the byte that was written there
        cls.model = cls.rig.copy_of_model("model")
        cls.digests = cls.rig.work / "digests.jsonl"
        cls.unverified = cls.rig.work / "unverified.jsonl"
        cls.settings = {"deadline_share": SHARE, "load": "async", "breaker_probe_ms": 300,
                        "digest_log": str(cls.digests)}
        cls.engine = cls.start("before", wait=False)
        cls.inside = cls.start("inside", load="layerwise", wait=False)
        cls.trusting = cls.start("trusting", verify=False, digest_log=str(cls.unverified), wait=False)
        cls.engines = [cls.engine, cls.inside, cls.trusting]
        for engine in cls.engines:
            cls.rig.wait_ready(engine)
        cls.prompts = {}
        cls.right = {}
        cold_s = []
        # Five prompts for the drill of five requests, one for each other; all stored, their answers kept.
        for name in ("kill", "stop 0", "stop 1", "stop 2", "stop 3", "stop 4", "down", "running", "weights"):
            prompt = cls.prompts[name] = cls.rig.prompt(name, TOKENS)
            before = cls.depot.metrics()["kvdepot_store_puts_total"]
            answer = cls.engine.ask(prompt, ANSWER)
            cls.right[name] = answer.tokens
            cold_s.append(answer.first_s)
            wait_stored(cls.depot, before + BLOCKS)
        cls.prompt_bytes = cls.engine.counter("vllm:kvdepot_bytes_stored") / len(cls.prompts)
        cls.first_s = max(cold_s)
        # An engine's first pass takes longer than what it expects of the others, and a load is worth what those take.
        cls.cold_s = statistics.median(cold_s)
        cls.slow = f"--shape-read={int(cls.prompt_bytes / (SLOWNESS * cls.cold_s))}"
        cls.one_pass_s = cls.cold_in_one_pass()
        print("cold:", " ".join(f"{s:.2f}" for s in cold_s), f"s, in one pass {cls.one_pass_s:.2f} s", flush=True)

    @classmethod
    def cold_in_one_pass(cls):
        """Cold time to first token of what InOnePass asks, the second time: the first pass of its kind takes longer."""
        for i in range(2):
            other = cls.rig.prompt(f"beside, cold {i}", 2 * BLOCK)
            answer = InOnePass(cls.inside, other).ask(cls.rig.prompt(f"in one pass, cold {i}", TOKENS), ANSWER)
        wait_stored(cls.depot, 0)
        return answer.first_s

    @classmethod
    def start(cls, name, wait=True, **settings):
        return cls.rig.engine(name, connector(cls.depot.address, **cls.settings | settings), model=cls.model, wait=wait,
                              dtype="float32")

    def on_each(self, drill):
        """The same drill on an engine that loads before the pass and on one that loads inside it."""
        for engine in (self.engine, self.inside):
            with self.subTest(engine=engine.spec.name):
                drill(engine)

    # ---- steps of drills -----------------------------------------------------------------------------------------

    def restart(self, *flags):
        """A new depot process on the same data, and engines that are connected to it again."""
        self.depot.kill()
        self.depot._extra = [*FLAGS, *flags]
        self.depot.start()
        self.reconnect()

    def reconnect(self):
        filler = self.rig.prompt("filler", BLOCK + 2)
        def connected():
            for engine in self.engines:
                engine.ask(filler)
            return self.depot.metrics()["kvdepot_connections"] >= 4 * len(self.engines)     # two for each role
        wait_until(connected, "the engines are connected")
        def used(engine):
            engine.reset_prefix_cache()
            # No breaker is open any more. A second token, so that an engine learns what a pass without a prompt costs.
            return engine.ask(filler, 2).cached > 0
        for engine in self.engines:
            try:
                wait_until(lambda e=engine: used(e), "the depot is used", 60)
            except AssertionError as error:
                raise AssertionError(f"{engine.spec.name}: {error}; {self.counters(engine)}") from None
            engine.reset_prefix_cache()

    def counters(self, engine):
        return {name: n for name, n in engine.call("counters", 60.0)["counters"].items() if "kvdepot" in name and n}

    def bytes_sent(self):
        return self.depot.metrics()["kvdepot_net_bytes_out_total"]

    def in_mid_load(self, engine, name, act):
        """Asks a slowed depot for a prompt, acts when some of its bytes have come and most have not. Returns the answer
        and what the engine had waited for in vain before it was asked."""
        for _ in range(3):
            self.restart(self.slow)
            other = self.rig.prompt(f"beside {time.monotonic()}", 2 * BLOCK)
            waited, before = self.timeouts(engine), self.bytes_sent()
            asking = Asking(InOnePass(engine, other) if engine is self.inside else engine, self.prompts[name], ANSWER)
            wait_until(lambda b=before, a=asking: not a.is_alive() or self.bytes_sent() - b > 1_000_000,
                       "the load has begun", 30)
            acted = asking.is_alive()
            if acted:
                act()
            answer = asking.result()[0]
            self.assert_right(name, answer)
            if not acted:
                print("not in mid-load: its lookup was not answered in time, it has computed", flush=True)
            elif answer.cached == BLOCKS * BLOCK:
                # The machine stood still between the look and the act, for longer than a slowed load takes.
                print(f"not in mid-load: all had come before ({answer.lost_s:.2f} s lost by the machine)", flush=True)
            else:
                return answer, waited
        return self.fail("no request was in the middle of its load")

    def count(self, engine, *names):
        return sum(engine.counter(f"vllm:kvdepot_{name}") for name in names)

    def timeouts(self, engine):
        """Operations of the engine that waited for their deadline: lookups, loads."""
        return [self.count(engine, f'{what}_failures{{reason="timeout"}}') for what in ("lookup", "load")]

    def assert_right(self, name, answer):
        self.assertEqual(answer.tokens, self.right[name], name)

    def assert_in_time(self, drill, engine, answer, *, cold_s=None, deadlines=1):
        """Time to first token: 1.1 times cold and the deadline, times three for a busy machine, and the time in
        which it stood still. Where nothing may be waited for, the counters say so exactly. Kept is how it compares with
        the usual cold time, or with `cold_s`; the limit is made of the longest."""
        self.figures.add(drill, engine.spec.name, answer.first_s, cold_s or self.cold_s,
                         deadlines * SHARE * self.cold_s, answer.lost_s)
        limit = (COLD_FACTOR + deadlines * SHARE) * self.first_s
        self.assertLess(answer.first_s, SLACK * limit + answer.lost_s, machine.pressure())

    def cold_in_mid_load(self, engine):
        """Cold time of what in_mid_load() asks this engine."""
        return self.one_pass_s if engine is self.inside else self.cold_s

    def assert_own_cache_right(self, engine, name):
        """What a failed load has left in the engine's own cache is computed, not the bytes that did not come. After a
        load inside the pass there may be nothing: see kvdepot.vllm.messages.Evict."""
        answer = engine.ask(self.prompts[name], ANSWER)
        self.assert_right(name, answer)
        if engine is not self.inside:
            self.assertGreaterEqual(answer.cached, (BLOCKS - 1) * BLOCK)

    def recover(self, name, engine=None):
        """The depot is well again: the engine finds that out by itself."""
        engine = engine or self.engine
        def hit():
            engine.reset_prefix_cache()
            answer = engine.ask(self.prompts[name], ANSWER)
            self.assert_right(name, answer)
            return answer.cached > 0
        wait_until(hit, "the depot is used again", 60)

    # ---- drills --------------------------------------------------------------------------------------------------

    def test_1_killed_in_mid_load(self):
        def drill(engine):
            answer, _ = self.in_mid_load(engine, "kill", self.depot.kill)
            self.assert_in_time("depot killed in mid-load", engine, answer, cold_s=self.cold_in_mid_load(engine))
            self.assertEqual(answer.cached, 0)
            self.assert_own_cache_right(engine, "kill")
            waited, asked = self.timeouts(engine), self.count(engine, "lookups")
            answer = engine.ask(self.prompts["stop 0"], ANSWER)
            self.assert_right("stop 0", answer)
            # Nobody is there: pays nothing.
            self.assert_in_time("after the kill", engine, answer, deadlines=0)
            self.assertEqual((self.timeouts(engine), self.count(engine, "lookups")), (waited, asked))
            self.depot.start()
            self.recover("kill", engine)
        self.on_each(drill)

    def test_2_stopped_in_mid_load_and_for_five_requests(self):
        def drill(engine):
            answer, (lookups, loads) = self.in_mid_load(engine, "stop 0", self.depot.stop)
            cold_s = self.cold_in_mid_load(engine)
            self.assert_in_time("depot stopped in mid-load", engine, answer, cold_s=cold_s)
            five = [answer]
            self.assert_own_cache_right(engine, "stop 0")
            asked = self.count(engine, "lookups")
            for i in range(1, 5):
                answer = engine.ask(self.prompts[f"stop {i}"], ANSWER)
                self.assert_right(f"stop {i}", answer)
                self.assert_in_time("while it is stopped", engine, answer, deadlines=0)
                five.append(answer)
            self.figures.add("five requests, depot stopped in the first", engine.spec.name,
                             sum(one.first_s for one in five), cold_s + 4 * self.cold_s, SHARE * self.cold_s,
                             sum(one.lost_s for one in five))
            # The first paid the deadline for all of them: these four only compute.
            self.assertEqual((self.timeouts(engine), self.count(engine, "lookups")), ([lookups, loads + 1], asked))
            self.depot.cont()
            self.recover("stop 1", engine)
        self.on_each(drill)

    def test_3_bytes_flipped_while_it_is_down(self):
        self.depot.kill()
        self.flip()
        self.depot._extra = FLAGS
        self.depot.start()
        self.reconnect()
        self.ask_for_found_damage(self.engine, "down")

    def test_4_bytes_flipped_while_it_runs(self):
        def drill(engine):
            self.store_again("running")
            self.restart()                                      # so that they are on flash only
            self.flip()
            self.ask_for_found_damage(engine, "running")
            self.assert_own_cache_right(engine, "running")
        self.on_each(drill)

    def store_again(self, name):
        """Asks until the depot has every block, undamaged and written. A load ends at the first damaged block, so that
        each question may find only one of those that earlier drills have left."""
        for _ in range(2 * BLOCKS + 2):
            self.engine.reset_prefix_cache()
            answer = self.engine.ask(self.prompts[name], ANSWER)
            self.assert_right(name, answer)
            time.sleep(1.5)                                     # the last segment is written when the depot is idle
            wait_stored(self.depot, 0)
            if answer.cached == BLOCKS * BLOCK:
                return
        self.fail(f"{name} is not whole again after {2 * BLOCKS + 2} questions")

    def flip(self):
        """Flips a bit in every slab of every record that has none flipped yet, and in nothing else: a damaged header or
        footer would cost its records before anybody reads them. With direct I/O as the depot's own: the kernel promises
        nothing to who mixes both."""
        page = mmap.mmap(-1, PAGE)
        fd = os.open(os.path.join(self.depot.directory, "flash.kvd"), os.O_RDWR | os.O_DIRECT)
        try:
            for offset in range(HEAD, os.fstat(fd).st_size, (SLAB_PAGES - 4) * PAGE):
                if not PAGE <= (offset - HEAD) % SEGMENT < SEGMENT - FOOTER:
                    continue
                os.preadv(fd, [page], offset)
                # What ends in zeros is a table, or was never written.
                if any(page[-64:]) and page[1234] != self.flipped.get(offset):
                    self.flipped[offset] = page[1234] = page[1234] ^ 0x10
                    os.pwritev(fd, [page], offset)
        finally:
            os.close(fd)

    def ask_for_found_damage(self, engine, name):
        """The same, and the depot must have seen the damage. On a busy machine its answer may be given up before."""
        before = self.depot.metrics()["kvdepot_store_corrupt_total"]
        def seen():
            self.assert_in_time(f"bytes flipped while depot {name}", engine, self.ask_for_damaged(engine, name))
            if self.depot.metrics()["kvdepot_store_corrupt_total"] > before:
                return True
            print("not seen:", self.counters(engine), flush=True)
            return False
        wait_until(seen, "the damage is seen", 60)

    def ask_for_damaged(self, engine, name):
        """No damaged byte may reach the model: all that the engine loads is what was stored, and the answer is right.
        Fails where it does."""
        engine.reset_prefix_cache()
        answer = engine.ask(self.prompts[name], ANSWER)
        logs = [read_digests(log) for log in (self.digests, self.unverified)]
        stored, loaded = [log[0] for log in logs], logs[engine is self.trusting][1]
        for key, digests in loaded.items():
            for digest in digests:
                self.assertTrue(any(digest in s.get(key, ()) for s in stored), "other bytes than were stored")
        self.assert_right(name, answer)
        return answer

    def test_5_without_verification_the_same_test_fails(self):
        """Nobody verifies: wrong bytes reach the model, and the drill above sees them. With the consumer's
        verification alone, none do."""
        self.store_again("running")
        self.restart("--verify=off")
        loaded = self.count(self.trusting, "blocks_loaded")
        def loads():
            self.ask_for_damaged(self.trusting, "running")      # nothing is damaged yet: does not fail
            return self.count(self.trusting, "blocks_loaded") > loaded
        wait_until(loads, "undamaged blocks are loaded", 60)
        self.restart("--verify=off")
        self.flip()
        with self.assertRaisesRegex(AssertionError, "other bytes than were stored"):
            # A load that a busy machine has given up brings none.
            wait_until(lambda: not self.ask_for_damaged(self.trusting, "running"), "wrong bytes are loaded", 60)
        self.assertEqual(self.depot.metrics()["kvdepot_store_corrupt_total"], 0)
        refused = self.count(self.engine, 'load_failures{reason="corrupt"}')
        def refuses():
            self.ask_for_damaged(self.engine, "running")
            return self.count(self.engine, 'load_failures{reason="corrupt"}') > refused
        wait_until(refuses, "wrong bytes are refused", 60)
        # The consumer has told the depot, which has looked for itself and dropped the record.
        wait_until(lambda: self.depot.metrics()["kvdepot_store_corrupt_total"] > 0, "the depot knows of the damage")
        self.trusting.close()
        self.engines.remove(self.trusting)

    def test_6_an_engine_killed_in_mid_store_leaves_nothing_behind(self):
        """The next engine gets the right answer to the prompt that is half stored, and stores what is missing."""
        self.restart()
        name, before = "half-stored", self.depot.metrics()
        prompt = self.prompts[name] = self.rig.prompt(name, TOKENS)
        asking = Asking(self.inside, prompt, ANSWER)
        wait_until(lambda: self.in_mid_store(before), "a store has begun", 60)
        self.inside.kill()
        self.engines.remove(self.inside)
        with self.assertRaises(EngineError):
            asking.result()
        wait_until(lambda: self.depot.metrics()["kvdepot_store_unfinished_puts"] == 0, "its stores are freed", 30)
        after = self.depot.metrics()
        self.assertEqual(after["kvdepot_unfinished_bytes"], 0)
        self.assertTrue(self.depot.healthy())
        published = after["kvdepot_store_puts_total"] - before["kvdepot_store_puts_total"]
        self.assertLess(published, BLOCKS)
        self.right[name] = self.computed(self.engine, name).tokens
        answer = self.engine.ask(prompt, ANSWER)
        self.assert_right(name, answer)
        self.assertLessEqual(answer.cached, published * BLOCK)
        self.assert_in_time("another engine killed in mid-store", self.engine, answer)
        self.store_again(name)

    def in_mid_store(self, before):
        """Whether some bytes of a store have come since these metrics of the depot, and others have not."""
        now = self.depot.metrics()
        ways = ("kvdepot_net_bytes_in_total", "kvdepot_put_arena_bytes_total")
        received = sum(now[way] - before[way] for way in ways)
        return received > 1_000_000 and now["kvdepot_store_unfinished_puts"] > 0

    def computed(self, engine, name):
        """The answer to a prompt under a salt that no KV was ever stored with: all of it is computed."""
        answer = engine.ask(self.prompts[name], ANSWER, salt="nobody's")
        self.assertEqual(answer.cached, 0)
        wait_stored(self.depot, 0)
        return answer

    def test_7_other_weights_under_the_same_name(self):
        self.restart()
        self.store_again("weights")
        self.rig.end_engines()
        file = self.model / "model.safetensors"
        stat = file.stat()
        negate_weights(self.model)
        self.assertEqual((file.stat().st_size, file.stat().st_mtime_ns), (stat.st_size, stat.st_mtime_ns))
        other = self.start("other-weights")
        answer = other.ask(self.prompts["weights"], ANSWER)
        self.assertEqual(answer.cached, 0)
        self.assertGreater(other.counter("vllm:kvdepot_lookups"), 0)
        right = self.computed(other, "weights")
        self.assertEqual(answer.tokens, right.tokens)
        self.assert_in_time("other weights under the same name", other, answer, cold_s=right.first_s)


if __name__ == "__main__":
    unittest.main(verbosity=2)
