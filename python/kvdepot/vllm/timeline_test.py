"""The timeline: every layer's load, computation and store, in an order that can be."""

from __future__ import annotations

import json
import threading
import time

from kvdepot.vllm.testing.engine_double import LAYERS, SLAB, Choice, Engine, Request
from kvdepot.vllm.testing.fake_depot import FakeClient, FakeDepot
from kvdepot.vllm.timeline import Timeline


def rows(path, kind):
    return [r for r in map(json.loads, path.read_text().splitlines()) if r["kind"] == kind]


class RealTime(Engine):
    def tick(self) -> float:
        return time.monotonic()


def watched(depot: FakeDepot, mode: str, path) -> Engine:
    engine = RealTime((FakeClient(depot), FakeClient(depot)), Choice(mode))
    engine.worker._timeline = Timeline(str(path), engine.clients[1], LAYERS, SLAB)
    return engine


def test_a_pass_that_stores_shows_computation_and_store_of_each_layer(tmp_path):
    depot, path = FakeDepot(), tmp_path / "a"
    engine = watched(depot, "async", path)
    request = engine.add(Request(list(range(8))))
    engine.admit(request)
    engine.step((request, 8))
    engine.worker.close()
    assert [r["layer"] for r in rows(path, "compute")] == list(range(LAYERS))
    stores = rows(path, "store")
    assert [r["layer"] for r in stores] == list(range(LAYERS))
    assert all(r["start"] <= r["end"] for r in stores)
    assert {r["req"] for r in stores} == {request.request_id}


def test_loads_of_both_kinds_show_their_layers(tmp_path):
    depot = FakeDepot()
    tokens = list(range(8))
    writer = Engine((FakeClient(depot), FakeClient(depot)))
    request = writer.add(Request(tokens))
    writer.admit(request)
    writer.step((request, 8))
    for mode in ("layerwise", "async"):
        path = tmp_path / mode
        engine = watched(depot, mode, path)
        request = engine.add(Request([*tokens, 1]))
        engine.admit(request)
        engine.step(*[(request, 1)] if mode == "layerwise" else [])
        engine.worker.close()
        loads = rows(path, "load")
        assert [r["layer"] for r in loads] == list(range(LAYERS)), mode
        assert all(a["end"] <= b["end"] for a, b in zip(loads, loads[1:], strict=False))


def test_a_file_that_cannot_be_written_ends_the_timeline_and_not_the_engine(caplog):
    depot = FakeDepot()
    engine = watched(depot, "async", "/dev/full")
    request = engine.add(Request(list(range(8))))
    engine.admit(request)
    engine.step((request, 8))
    engine.step((request, 1), compute=False)
    engine.worker.close()
    assert len(depot.records) == 2
    assert [r.message for r in caplog.records if "timeline" in r.message] == [
        "kvdepot: the timeline ends here: [Errno 28] No space left on device"]


def test_a_machine_without_further_threads_ends_the_timeline_and_not_the_engine(tmp_path, monkeypatch):
    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    depot = FakeDepot()
    engine = watched(depot, "async", tmp_path / "a")
    request = engine.add(Request(list(range(8))))
    engine.admit(request)
    engine.step((request, 8))
    engine.worker.close()
    assert len(depot.records) == 2


def test_a_load_that_fails_ends_its_row(tmp_path):
    depot, path = FakeDepot(held=True), tmp_path / "a"
    depot.lost.update(Request(list(range(8))).block_hashes)
    engine = watched(depot, "async", path)
    request = engine.add(Request(list(range(8))))
    engine.clients[0].deliver()
    engine.admit(request)
    engine.step()
    engine.clients[1].fail("timeout", ("multiget",))
    engine.step()
    engine.worker.close()
    assert rows(path, "load") == []
