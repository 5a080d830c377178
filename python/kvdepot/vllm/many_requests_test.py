"""Steps with more loads or stores than a client and a depot take at once: what is beyond that waits for its turn."""

from __future__ import annotations

import pytest

from kvdepot.vllm import worker
from kvdepot.vllm.messages import StepPlan
from kvdepot.vllm.testing.engine_double import BLOCK, Engine, Request
from kvdepot.vllm.testing.engines import engine
from kvdepot.vllm.testing.fake_depot import FakeDepot
from kvdepot.vllm.transfers import ASYNC_OPS_MAX, LAYERWISE_MAX, STORE_OPS_MAX

MANY = 300          # more than the 256 operations of a client


def prompts(count: int = MANY, blocks: int = 1) -> list[Request]:
    return [Request([1000 + i] * (blocks * BLOCK)) for i in range(count)]


def computed(e: Engine, requests: list[Request], *, held: bool = False, **step) -> None:
    """One step that computes all of them; with `held` their stores do not end."""
    for request in requests:
        e.admit(e.add(request))
    e.clients[1].depot.held = held
    e.step(*((request, request.num_tokens) for request in requests), **step)


def filled(requests: list[Request], extra: int = 0) -> FakeDepot:
    depot = FakeDepot()
    other = engine(depot)
    for first in range(0, len(requests), 100):
        computed(other, [Request(r.tokens) for r in requests[first:first + 100]])
        other.step()
    assert len(depot.records) == len(requests)
    for request in requests:
        request.tokens += [7] * extra
    return depot


def test_blocks_of_more_requests_than_may_be_stored_at_once_are_all_stored():
    depot = FakeDepot()
    e = engine(depot)
    computed(e, prompts())
    for _ in range(4):
        e.step()
    assert len(depot.records) == MANY
    assert "store_failures" not in e.worker.counts
    assert "stores_cancelled" not in e.worker.counts
    assert e.scheduler._store_at == 0, "nothing is paused"
    assert not e.clients[1].ops


def test_stores_leave_room_for_loads():
    depot = filled(prompts(1))
    e = engine(depot)
    computed(e, prompts()[1:], held=True)
    assert len(e.clients[1].ops) == STORE_OPS_MAX
    depot.held = False
    loaded = e.add(Request(prompts(1)[0].tokens))
    e.admit(loaded)
    e.step()
    assert loaded.request_id in e.received
    assert "load_failures" not in e.worker.counts
    assert e.right(loaded, 0, BLOCK)


def test_blocks_are_held_until_a_store_that_waits_for_its_turn_has_ended():
    depot = FakeDepot()
    e = engine(depot)
    requests = prompts()
    computed(e, requests, held=True, ending=tuple(requests))
    assert all(e.held.values())
    e.clients[1].deliver()
    e.step()
    assert e.sent == {request.request_id for request in requests[:STORE_OPS_MAX]}
    depot.held = False
    e.clients[1].deliver()
    for _ in range(3):
        e.step()
    assert e.sent == {request.request_id for request in requests}
    assert len(depot.records) == MANY


def test_store_that_waits_for_its_turn_ends_with_a_preemption_and_nothing_of_it_is_stored():
    depot = FakeDepot()
    e = engine(depot)
    requests = prompts()
    computed(e, requests, held=True)
    depot.held = False
    last = requests[-1]
    e.step(preempted=(last,))
    e.clients[1].deliver()
    for _ in range(4):
        e.step()
    assert {key for _, _, key in depot.records} == {r.block_hashes[0] for r in requests[:-1]}
    assert e.worker.counts["stores_cancelled"] == 1


def test_stores_that_wait_go_on_when_all_that_were_under_way_are_dropped():
    depot = FakeDepot()
    e = engine(depot)
    requests = prompts(STORE_OPS_MAX + 5)
    computed(e, requests, held=True)
    depot.held = False
    e.step(preempted=tuple(requests[:STORE_OPS_MAX]))
    e.step()
    assert {key for _, _, key in depot.records} == {r.block_hashes[0] for r in requests[STORE_OPS_MAX:]}


def test_stores_beyond_those_that_may_wait_are_made_with_the_next_blocks(monkeypatch):
    monkeypatch.setattr(worker, "STORES_WAITING_MAX", 10)
    depot = FakeDepot()
    e = engine(depot)
    requests = prompts()
    computed(e, requests)
    assert len(depot.records) < MANY
    for request in requests:
        request.tokens += [5] * BLOCK
    for first in range(0, MANY, 100):
        e.step(*((request, BLOCK) for request in requests[first:first + 100]))
    for _ in range(4):
        e.step()
    assert len(depot.records) == 2 * MANY
    assert "store_failures" not in e.worker.counts


def test_store_whose_turn_does_not_come_gives_its_blocks_back_at_its_deadline():
    depot = FakeDepot()
    e = engine(depot, store_deadline_ms=500)
    requests = prompts()
    computed(e, requests, held=True, ending=tuple(requests))
    e.step()
    e.begin(StepPlan())
    e.now += 1
    e.end()
    assert e.sent == {request.request_id for request in requests}
    assert e.worker.counts["store_failures"] == {"timeout": STORE_OPS_MAX}
    assert e.worker.counts["stores_cancelled"] == MANY - STORE_OPS_MAX
    assert not e.clients[1].ops


def test_stores_that_wait_while_the_engine_has_nothing_to_do_are_made_when_it_goes_on():
    depot = FakeDepot()
    e = engine(depot)
    requests = prompts()
    computed(e, requests, held=True, ending=tuple(requests))
    depot.held = False
    e.clients[1].deliver()
    e.now += 3600
    for _ in range(3):
        e.step()
    assert len(depot.records) == MANY
    assert e.sent == {request.request_id for request in requests}
    assert "stores_cancelled" not in e.worker.counts


def test_more_requests_than_may_load_at_once_all_load():
    requests = prompts()
    e = engine(filled(requests))
    for request in requests:
        assert e.admit(e.add(request)) == (BLOCK, True)
    for _ in range(5):
        e.step()
    assert e.received == {request.request_id for request in requests}
    assert "load_failures" not in e.worker.counts
    assert not e.errors
    assert all(e.right(request, 0, BLOCK) for request in requests)
    assert not e.clients[1].ops


@pytest.fixture
def crowd() -> tuple[Engine, list[Request]]:
    """An engine whose loads do not end, and its requests, of which the last wait for their turn."""
    requests = prompts(ASYNC_OPS_MAX + 4)
    e = engine(filled(requests))
    for request in requests:
        e.admit(e.add(request))
    e.clients[1].depot.held = True
    e.step()
    assert len(e.clients[1].ops) == ASYNC_OPS_MAX
    return e, requests


def test_load_that_waits_for_its_turn_has_the_rest_of_its_deadline(crowd):
    e, _ = crowd
    asked = []
    multiget = e.clients[1].multiget
    e.clients[1].multiget = lambda *a, **k: (asked.append(k["total_ms"]), multiget(*a, **k))[1]
    e.now += 0.2
    e.clients[1].deliver()
    e.step()
    assert len(asked) == 4
    assert all(290 <= total_ms <= 300 for total_ms in asked), "of 500"


def test_load_whose_turn_does_not_come_is_given_up_at_its_deadline(crowd):
    e, requests = crowd
    e.now += 0.6
    e.step()
    assert e.received == {request.request_id for request in requests[-4:]}
    assert e.worker.counts["load_failures"] == {"cancelled": 4}


def test_load_that_is_aborted_before_its_turn_comes_is_never_sent(crowd):
    e, requests = crowd
    e.finish(requests[-1])
    e.step()
    assert e.received == {requests[-1].request_id}
    e.clients[1].depot.held = False
    e.clients[1].deliver()
    calls = e.clients[1].calls.count("multiget")
    e.step()
    assert e.clients[1].calls.count("multiget") == calls + 3


def test_what_waits_for_its_turn_ends_with_its_epoch(crowd):
    e, requests = crowd
    e.scheduler.new_epoch("test")
    e.step()
    assert e.received == {request.request_id for request in requests}
    assert not e.clients[1].ops


def test_a_pass_has_so_many_loads_inside_and_the_others_run_before_theirs():
    requests = prompts(LAYERWISE_MAX + 8)
    depot = filled(requests, extra=2)
    e = engine(depot, "layerwise")
    ways = [e.admit(e.add(request))[1] for request in requests]
    assert ways == [False] * LAYERWISE_MAX + [True] * 8
    e.step(*((request, 2) for request in requests[:LAYERWISE_MAX]))
    assert e.received == {request.request_id for request in requests[LAYERWISE_MAX:]}
    assert "load_failures" not in e.worker.counts


def test_a_client_without_a_place_is_no_depot_that_is_busy(caplog):
    e = engine(FakeDepot())
    e.clients[1].ops_max = 0
    computed(e, prompts(3))
    e.step()
    assert e.worker.counts["stores_cancelled"] == 3
    assert "store_failures" not in e.worker.counts
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    e.clients[1].ops_max = 256
    computed(e, prompts(1))
    e.step()
    assert len(e.clients[1].depot.records) == 1, "nothing was paused"
