"""The bindings as their users see them, over an embedded depot (no other process)."""

import array
import ctypes
import gc
import os
import select
import shutil
import socket
import tempfile
import threading
import time
import unittest
import weakref

import kvdepot

LAYERS, BLOCKS, SLAB = 3, 10, 4096
LAYER_OFFSETS = [layer * BLOCKS * SLAB for layer in range(LAYERS)]
BLOCK_OFFSETS = [block * SLAB for block in range(BLOCKS)]
KEYS = b"".join(b"key-%04d" % block for block in range(BLOCKS))
GROUPS = [dict(group=0, layers=LAYERS, slab_bytes=SLAB, parts=2, block_tokens=16, order="LBHNC")]
PATIENT = dict(total_ms=30_000)


class EmbeddedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.parent = tempfile.mkdtemp(prefix="kvd-py-")
        cls.address = f"file://{cls.parent}/kv?pool=64MiB&flash=256MiB"
        cls.owner = kvdepot.Client(cls.address)

    @classmethod
    def tearDownClass(cls):
        cls.owner.close()
        shutil.rmtree(cls.parent)

    def setUp(self):
        self.client = kvdepot.Client(self.address, attach_only=True, require_connection=True,
                                     connect_timeout_ms=10_000)
        self.addCleanup(lambda: self.client.close())
        self.memory = bytearray(LAYERS * BLOCKS * SLAB)
        self.region = self.client.register(self.memory)
        self.ns = self.client.open_namespace("default", self.id().encode(), GROUPS)

    def fill(self):
        self.memory[:] = os.urandom(len(self.memory))
        return bytes(self.memory)

    def finish(self, op):
        done = self.client.wait(op, timeout_ms=30_000)
        self.assertIsNotNone(done)
        self.client.release(op)
        return done

    def put(self, **options):
        return self.client.multiput(self.ns, KEYS, 8, self.region, LAYER_OFFSETS, BLOCK_OFFSETS, **PATIENT, **options)

    def match(self, keys=KEYS, **options):
        return self.client.match(self.ns, keys, 8, **PATIENT, **options)

    def get(self, keys=KEYS, blocks=BLOCK_OFFSETS, **options):
        return self.client.multiget(self.ns, keys, 8, self.region, options.pop("layer_offsets", LAYER_OFFSETS),
                                    blocks, **PATIENT, **options)


class ViewTest(EmbeddedTest):
    def borrow(self, client=None, **options):
        client = client or self.client
        op = client.borrow(self.ns, KEYS, 8, **PATIENT, **options)
        done = client.wait(op, timeout_ms=30_000)
        self.assertEqual((done.ok, done.failed_keys), (True, 0))
        view = client.take_view(op)
        client.release(op)
        return view

    def kept(self):
        return self.owner.depot_stats()["node"]["kept_bytes"]

    def assert_nothing_kept(self):
        end = time.monotonic() + 20
        while self.kept() and time.monotonic() < end:
            time.sleep(0.005)
        self.assertEqual(self.kept(), 0)

    def test_slabs_are_read_only_memoryviews(self):
        stored = self.fill()
        self.finish(self.put())
        with self.borrow() as view:
            self.assertTrue(view.borrowed)
            for layer in range(LAYERS):
                for block in range(BLOCKS):
                    at = LAYER_OFFSETS[layer] + BLOCK_OFFSETS[block]
                    self.assertEqual(view.slab(block, layer), stored[at:at + SLAB])
            slab = view.slab(0, 0)
            self.assertTrue(slab.readonly)
            with self.assertRaises(TypeError):
                slab[0] = 1
            with self.assertRaises(TypeError):
                (ctypes.c_char * SLAB).from_buffer(slab)
            self.assertIsNone(view.slab(BLOCKS, 0))
            self.assertIsNone(view.slab(-1, 0))
            self.assertGreater(self.kept(), 0)
            slab.release()
        self.assert_nothing_kept()
        self.assertEqual(self.client.stats()["bytes_borrowed"], len(stored))

    def test_memoryviews_keep_a_view_open_and_alive(self):
        stored = self.fill()
        self.finish(self.put())
        view = self.borrow()
        slab = view.slab(1, 2)
        with self.assertRaises(BufferError):
            view.close()
        self.client.close()
        del view
        gc.collect()
        at = LAYER_OFFSETS[2] + BLOCK_OFFSETS[1]
        self.assertEqual(slab, stored[at:at + SLAB])
        self.assertGreater(self.kept(), 0)
        slab.release()
        gc.collect()
        self.assert_nothing_kept()

    def test_who_reads_a_slab_verifies_it(self):
        self.fill()
        self.finish(self.put())
        for verify in (True, False):
            with self.borrow(verify=verify) as view:
                self.assertTrue(all(view.verify(block, layer) for block in range(BLOCKS) for layer in range(LAYERS)))
                self.assertFalse(view.verify(BLOCKS, 0))
                self.assertFalse(view.verify(-1, 0))

    def test_a_closed_view_is_given_back_whoever_has_its_exporters(self):
        self.fill()
        self.finish(self.put())
        view = self.borrow()
        slab = view.slab(0, 0)
        exporter = slab.obj
        slab.release()
        view.close()
        self.assert_nothing_kept()
        with self.assertRaises(BufferError):
            memoryview(exporter)

    def test_parts_and_copies_of_a_memoryview_keep_the_view_too(self):
        stored = self.fill()
        self.finish(self.put())
        view = self.borrow()
        slab = view.slab(0, 0)
        part = slab[100:200]
        slab.release()
        with self.assertRaises(BufferError):
            view.close()
        del view, slab
        gc.collect()
        self.assertEqual(part, stored[100:200])
        self.assertEqual(bytes(part), bytes(stored[100:200]))
        del part
        gc.collect()
        self.assert_nothing_kept()

    def test_a_closed_view_says_so(self):
        self.fill()
        self.finish(self.put())
        view = self.borrow()
        view.close()
        view.close()
        self.assertFalse(view.borrowed)
        with self.assertRaises(kvdepot.KvdepotError) as error:
            view.slab(0, 0)
        self.assertEqual(error.exception.code, "invalid")

    def test_a_view_whose_time_is_over_is_a_copy(self):
        stored = self.fill()
        self.finish(self.put())
        view = self.borrow(hold_ms=50)
        self.assert_nothing_kept()
        self.assertFalse(view.borrowed)
        self.assertEqual(view.slab(0, 0), stored[:SLAB])
        self.assertEqual(self.client.stats()["views_copied"], 1)

    def test_without_shared_memory_it_is_a_copy(self):
        stored = self.fill()
        self.finish(self.put())
        with kvdepot.Client(self.address, attach_only=True, require_connection=True, shared_memory=False) as other:
            self.assertEqual(other.open_namespace("default", self.id().encode(), GROUPS), self.ns)
            view = self.borrow(other, verify=False)
            self.assertFalse(view.borrowed)
        self.assertEqual(view.slab(0, 0), stored[:SLAB])


class OperationsTest(EmbeddedTest):
    def test_what_is_stored_is_loaded(self):
        stored = self.fill()
        done = self.finish(self.put())
        self.assertTrue(done.ok)
        self.assertEqual((done.layer, done.code, done.keys, done.failed_keys), (-1, "ok", BLOCKS, 0))
        self.memory[:] = bytes(len(self.memory))
        done = self.finish(self.get())
        self.assertEqual((done.first_failed(), done.failed), (BLOCKS, b"\0\0"))
        self.assertEqual(self.memory, stored)

    def test_offsets_from_buffers_are_those_from_sequences(self):
        stored = self.fill()
        self.finish(self.put())
        for kind in "Qq":
            self.memory[:] = bytes(len(self.memory))
            done = self.finish(self.get(layer_offsets=array.array(kind, LAYER_OFFSETS),
                                        blocks=memoryview(array.array(kind, BLOCK_OFFSETS))))
            self.assertEqual(done.first_failed(), BLOCKS)
            self.assertEqual(self.memory, stored)

    def test_layers_one_by_one(self):
        stored = self.fill()
        put = self.put(whole=False)
        for layer in (2, 0, 1):
            self.client.put_layer(put, layer)
        self.assertTrue(self.finish(put).ok)
        self.memory[:] = bytes(len(self.memory))
        get = self.get()
        for layer in range(LAYERS):
            done = self.client.wait(get, layer, 30_000)
            self.assertEqual((done.layer, done.ok), (layer, True))
            end = LAYER_OFFSETS[layer] + BLOCKS * SLAB
            self.assertEqual(self.memory[LAYER_OFFSETS[layer]:end], stored[LAYER_OFFSETS[layer]:end])
        self.finish(get)

    def test_runs_spread_a_slab(self):
        stored = self.fill()
        self.finish(self.put())
        # K and V of a slab lie apart: halves of 2,048 bytes, the second one a whole layer further.
        spread = bytearray(2 * BLOCKS * SLAB)
        region = self.client.register(spread)
        op = self.client.multiget(self.ns, KEYS, 8, region, [0], BLOCK_OFFSETS, layer_first=1, layer_count=1,
                                  runs=[(0, 0, 1, 2048), (BLOCKS * SLAB, 0, 1, 2048)], **PATIENT)
        self.assertEqual(self.finish(op).first_failed(), BLOCKS)
        slab = stored[LAYER_OFFSETS[1]:LAYER_OFFSETS[1] + SLAB]
        self.assertEqual(spread[:2048], slab[:2048])
        self.assertEqual(spread[BLOCKS * SLAB:BLOCKS * SLAB + 2048], slab[2048:])

    def test_a_miss_is_data_and_no_error(self):
        done = self.finish(self.get())
        self.assertTrue(done.ok)
        self.assertEqual((done.first_failed(), done.failed_keys, done.failed), (0, BLOCKS, b"\xff\x03"))
        self.fill()
        self.finish(self.put())
        keys = KEYS[:24] + b"unknown!" + KEYS[32:]
        self.assertEqual(self.finish(self.get(keys)).first_failed(), 3)
        done = self.finish(self.get(keys, stop_at_first_failure=False))
        self.assertEqual((done.first_failed(), done.failed_keys, done.failed), (3, 1, b"\x08\0"))

    def test_match_remove_and_leases(self):
        self.fill()
        self.finish(self.put())
        done = self.finish(self.match(lease_ms=1000))
        self.assertEqual((done.prefix_blocks, done.flash_blocks), (BLOCKS, 0))
        self.assertNotEqual(done.lease, 0)
        self.client.unpin(done.lease)
        done = self.finish(self.client.remove(self.ns, KEYS[:16], 8, **PATIENT))
        self.assertEqual(done.removed, 2)
        self.assertEqual(self.finish(self.match()).prefix_blocks, 0)

    def test_an_operation_says_how_long_it_took(self):
        self.fill()
        op = self.put()
        done = self.finish(op)
        self.assertGreater(done.seconds, 0)
        self.assertLess(done.seconds, 5)

    def test_a_breaker_opened_by_hand_stops_the_very_next_submission(self):
        self.client.open_breaker()
        with self.assertRaises(kvdepot.KvdepotError) as caught:
            self.client.match(self.ns, KEYS, 8)
        self.assertEqual(caught.exception.code, "unavailable")
        self.assertTrue(self.client.stats()["breaker_open"])

    def test_connecting_now_costs_nothing_while_connected(self):
        before = self.client.stats()
        self.client.reconnect(0)
        self.assertEqual(self.client.stats()["reconnects"], before["reconnects"])

    def test_polling_by_the_descriptor(self):
        self.fill()
        self.finish(self.put())
        fd = self.client.event_fd
        while self.client.poll():
            pass
        op = self.get()
        seen = []
        while not seen or seen[-1].layer != -1:
            self.assertTrue(select.select([fd], [], [], 30)[0])
            seen += self.client.poll()
        self.assertEqual([done.layer for done in seen], [0, 1, 2, -1])
        self.assertTrue(all(done.op == op for done in seen))
        self.client.release(op)
        self.assertEqual(self.client.poll(), [])

    def test_cancel_and_release(self):
        put = self.put(whole=False)
        self.client.cancel(put)
        self.assertEqual(self.client.wait(put).code, "cancelled")
        self.client.release(put)
        with self.assertRaises(kvdepot.KvdepotError) as raised:
            self.client.wait(put)
        self.assertEqual(raised.exception.code, "not_found")
        self.client.release(self.put(whole=False))  # cancels it

    def test_waiting_lets_other_threads_run(self):
        put = self.put(whole=False)
        ticks = []
        stop = threading.Event()

        def tick():
            while not stop.is_set():
                ticks.append(time.monotonic())
                time.sleep(0.001)

        thread = threading.Thread(target=tick)
        thread.start()
        before = len(ticks)
        self.assertIsNone(self.client.wait(put, timeout_ms=200))
        self.assertGreater(len(ticks), before)
        stop.set()
        thread.join()
        self.client.release(put)

    def test_statistics(self):
        self.fill()
        self.finish(self.put())
        self.finish(self.get())
        stats = self.client.stats()
        self.assertEqual((stats["connected"], stats["breaker_open"], stats["last_error"]), (True, False, ""))
        self.assertEqual(stats["bytes_loaded"], len(self.memory))
        self.assertEqual(stats["bytes_stored"], len(self.memory))
        self.assertIsInstance(self.client.depot_stats(30_000), dict)


class RefusalTest(EmbeddedTest):
    def refused(self, call, *args, **options):
        with self.assertRaises(kvdepot.KvdepotError) as raised:
            call(*args, **options)
        self.assertTrue(str(raised.exception))
        return raised.exception.code

    def test_a_refused_namespace_says_why(self):
        self.assertEqual((self.finish(self.get()).why, self.client.stats()["last_refusal"]), ("", ""))
        large = dict(group=0, layers=5, slab_bytes=4 << 20, parts=2, block_tokens=16, order="LBHNC")
        ns = self.client.open_namespace("default", b"large records", [large])
        done = self.finish(self.client.match(ns, KEYS, 8, **PATIENT))
        self.assertEqual(done.code, "invalid")
        self.assertIn("quarter of the pool", done.why)
        self.assertEqual(self.client.stats()["last_refusal"], "invalid: " + done.why)

    def test_namespaces_are_given_back(self):
        for epoch in range(1500):  # more than may be open at once
            self.client.close_namespace(self.client.open_namespace("default", b"epoch %d" % epoch, GROUPS))
        self.fill()
        self.assertTrue(self.finish(self.put()).ok)
        self.client.close_namespace(self.ns)
        self.assertEqual(self.refused(self.get), "invalid")
        self.assertEqual(self.refused(self.client.close_namespace, self.ns), "not_found")
        self.ns = self.client.open_namespace("default", self.id().encode(), GROUPS)
        self.assertEqual(self.finish(self.get()).first_failed(), BLOCKS)

    def test_what_can_never_succeed_is_invalid(self):
        client, submit = self.client, self.get
        self.assertEqual(self.refused(submit, KEYS[:-1]), "invalid")
        self.assertEqual(self.refused(submit, KEYS, BLOCK_OFFSETS[:-1]), "invalid")
        self.assertEqual(self.refused(submit, KEYS, [-1] * BLOCKS), "invalid")
        self.assertEqual(self.refused(submit, KEYS, array.array("q", [-1] * BLOCKS)), "invalid")
        self.assertEqual(self.refused(submit, KEYS, array.array("I", BLOCK_OFFSETS)), "invalid")
        self.assertEqual(self.refused(submit, KEYS, ["a"] * BLOCKS), "invalid")
        self.assertEqual(self.refused(submit, KEYS, [len(self.memory)] * BLOCKS), "invalid")
        self.assertEqual(self.refused(submit, shard=70_000), "invalid")
        self.assertEqual(self.refused(submit, layer_first=LAYERS), "invalid")
        self.assertEqual(self.refused(submit, runs=[(0, 0, 1)]), "invalid")
        self.assertEqual(self.refused(self.put, ack="soon"), "invalid")
        self.assertEqual(self.refused(client.match, self.ns, KEYS, 8, total_ms=-1), "invalid")
        self.assertEqual(self.refused(client.match, 99, KEYS, 8), "invalid")
        self.assertEqual(self.refused(client.put_layer, 12345, 0), "not_found")
        self.assertEqual(self.refused(client.unregister, 12345), "not_found")

    def test_a_schema_says_what_is_missing(self):
        for groups in ([], [dict(layers=1)], ["group"], [dict(GROUPS[0], rule="some")], [dict(GROUPS[0], layers=401)],
                       [dict(GROUPS[0], slab_bytes=-1)], GROUPS * 2):
            self.assertEqual(self.refused(self.client.open_namespace, "t", b"f", groups), "invalid")
        with self.assertRaises(TypeError):
            self.client.open_namespace("t", "text, not bytes", GROUPS)

    def test_another_schema_under_the_same_fingerprint_is_refused(self):
        self.fill()
        self.finish(self.put())
        with kvdepot.Client(self.address, attach_only=True, require_connection=True) as other:
            ns = other.open_namespace("default", self.id().encode(), [dict(GROUPS[0], block_tokens=32)])
            op = other.match(ns, KEYS, 8, total_ms=30_000)
            self.assertEqual(other.wait(op, timeout_ms=30_000).code, "invalid")

    def test_a_second_owner_is_told_about_the_server(self):
        with self.assertRaisesRegex(kvdepot.KvdepotError, "kvdepot serve") as raised:
            kvdepot.Client(self.address)
        self.assertEqual(raised.exception.code, "busy")

    def test_nobody_listens(self):
        with self.assertRaises(kvdepot.KvdepotError) as raised:
            kvdepot.Client("tcp://127.0.0.1:1", require_connection=True, connect_timeout_ms=20)
        self.assertEqual(raised.exception.code, "unavailable")
        with kvdepot.Client("tcp://127.0.0.1:1") as client:
            ns = client.open_namespace("t", b"f", GROUPS)
            self.assertEqual(self.refused(client.match, ns, KEYS, 8), "unavailable")

    def test_a_closed_client_says_so(self):
        self.client.close()
        self.assertEqual(self.refused(self.client.match, self.ns, KEYS, 8), "invalid")
        self.client.close()

    def test_opening_says_what_is_wrong(self):
        with self.assertRaisesRegex(kvdepot.KvdepotError, "parent/dir: cannot be created.*parent") as raised:
            kvdepot.Client("file:///nonexistent/parent/dir")
        self.assertEqual(raised.exception.code, "io")
        with self.assertRaisesRegex(kvdepot.KvdepotError, "at least 64 MiB are needed"):
            kvdepot.Client(f"file://{self.parent}/other?pool=1MiB")

    def test_the_warnings_of_an_embedded_depot(self):
        self.owner.take_warnings()
        with socket.socket(socket.AF_UNIX) as stranger:   # of another protocol: it is cut, with a line in the log
            stranger.connect(f"{self.parent}/kv/kvdepot.sock")
            stranger.sendall(b"hello there")
            while stranger.recv(100):
                pass
        lines, end = [], time.monotonic() + 10
        while not lines and time.monotonic() < end:
            lines = self.owner.take_warnings()
        self.assertIn("protocol", lines[0])
        self.assertEqual(self.owner.take_warnings(), [])

    def test_a_put_says_why_keys_were_refused(self):
        memory = bytearray(24 << 20)                      # a connection may have 16 MiB of the pool under way
        region = self.client.register(memory)
        ns = self.client.open_namespace("default", b"large", [dict(GROUPS[0], layers=1, slab_bytes=1 << 20)])
        done = self.finish(self.client.multiput(ns, os.urandom(8 * 24), 8, region, [0], [i << 20 for i in range(24)],
                                                **PATIENT))
        self.assertTrue(done.ok)
        self.assertTrue(0 < done.failed_keys < 24)
        self.assertEqual(done.failed_code, "busy")
        self.assertIn("share of the pool", done.why)
        self.fill()
        done = self.finish(self.put())
        self.assertEqual((done.failed_keys, done.failed_code, done.why), (0, "ok", ""))

    def test_full_is_busy(self):
        with kvdepot.Client(self.address, attach_only=True, require_connection=True, ops_max=1) as client:
            ns = client.open_namespace("t", b"f", GROUPS)
            client.match(ns, KEYS, 8)
            self.assertEqual(self.refused(client.match, ns, KEYS, 8), "busy")


class MemoryTest(EmbeddedTest):
    def test_a_registered_buffer_is_kept_and_cannot_be_resized(self):
        with self.assertRaises(BufferError):
            self.memory.append(0)
        self.client.unregister(self.region)
        self.memory.append(0)

    def test_closing_lets_the_memory_go(self):
        self.client.close()
        self.memory.append(0)

    def test_read_only_memory_is_refused(self):
        with self.assertRaises(BufferError):
            self.client.register(b"read only")

    def test_the_owner_of_an_address_lives_as_long_as_its_region(self):
        class Owner:
            pass

        memory = array.array("B", bytes(100))
        owner = Owner()
        gone = weakref.ref(owner)
        region = self.client.register_address(memory.buffer_info()[0], 100, owner)
        del owner
        gc.collect()
        self.assertIsNotNone(gone())
        self.client.unregister(region)
        gc.collect()
        self.assertIsNone(gone())

    def test_a_region_in_use_stays(self):
        put = self.put(whole=False)
        with self.assertRaises(kvdepot.KvdepotError) as raised:
            self.client.unregister(self.region)
        self.assertEqual(raised.exception.code, "busy")
        self.client.release(put)
        self.client.unregister(self.region)

    def test_closing_while_others_wait(self):
        put = self.put(whole=False)
        codes = []

        def wait():
            try:
                done = self.client.wait(put, timeout_ms=500)
                codes.append(done and done.code)
            except kvdepot.KvdepotError:
                codes.append("closed")

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        self.client.close()
        for thread in threads:
            thread.join()
        # Those that were inside saw the client out; one that came later was told that it is closed.
        self.assertTrue(set(codes) <= {None, "closed"}, codes)
        self.assertEqual(len(codes), 3)
        self.memory.append(0)

    def test_a_forked_child_gets_invalid(self):
        pid = os.fork()
        if pid == 0:
            try:
                self.client.match(self.ns, KEYS, 8)
                os._exit(2)
            except kvdepot.KvdepotError as error:
                os._exit(0 if error.code == "invalid" else 3)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertTrue(self.finish(self.match()).ok)


if __name__ == "__main__":
    unittest.main()
