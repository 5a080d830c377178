"""Requests that end, caches that are reset and weights that change while something is on its way."""

from __future__ import annotations

from kvdepot.vllm.testing.engine_double import Request
from kvdepot.vllm.testing.engines import PROMPT, engine, warmed
from kvdepot.vllm.testing.fake_depot import FakeDepot


def in_mid_load():
    """An engine, and its request whose load is in flight."""
    depot = warmed()
    e = engine(depot)
    depot.held = True
    request = e.add(Request(PROMPT))
    e.clients[0].deliver()
    e.admit(request)
    e.step()
    return e, request


def test_abort_in_mid_load_cancels_it_and_reports_the_request_once():
    e, request = in_mid_load()
    assert e.finish(request) is False            # vLLM keeps the blocks of a loading request by itself
    e.step()
    assert e.received == {request.request_id}
    assert not e.clients[1].ops
    e.received.clear()
    e.step()
    assert not e.received


def test_abort_in_the_step_that_ends_its_load_is_reported_once():
    e = engine(warmed())
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step(ending=(request,))
    assert e.held == {request.request_id: False}     # vLLM frees them itself when the load is reported
    assert e.received == {request.request_id}
    e.received.clear()
    e.step()
    assert not e.received
    assert not e.sent


def test_abort_of_a_load_that_has_just_ended_is_not_reported_twice():
    e = engine(warmed())
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step()
    assert e.received == {request.request_id}
    e.received.clear()
    e.finish(request)
    e.step()
    assert not e.received


def test_abort_while_a_lookup_is_open_leaves_nothing_behind():
    depot = warmed()
    depot.held = True
    e = engine(depot)
    request = e.add(Request(PROMPT))
    assert e.ask(request) == (None, False)
    e.finish(request)
    assert not e.clients[0].ops
    assert not e.clients[0].leases


def test_reset_starts_an_epoch_that_nothing_crosses():
    depot = warmed()
    e = engine(depot)
    running = e.add(Request([5] * 20))
    e.admit(running)
    e.step((running, 8))
    e.scheduler.new_epoch("test")
    plan = e.step((running, 12))
    assert not plan.stores                       # computed in part before the reset
    e.finish(running)
    request = e.add(Request(PROMPT))
    assert e.admit(request) == (0, False)
    e.step((request, 40))
    e.finish(request)
    again = e.add(Request(PROMPT))
    assert e.admit(again) == (40, True)
    e.step()
    assert e.right(again, 0, 40)


def test_load_in_flight_at_a_reset_is_computed_instead():
    e, request = in_mid_load()
    e.scheduler.new_epoch("test")
    e.step()
    assert e.received == {request.request_id}
    assert e.errors == set(e.tables[request.request_id][:10])


def test_weights_changed_in_place_stop_everything_until_the_next_epoch():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step((request, 20))
    e.worker.weights_changed()
    stored = len(depot.records)
    e.step((request, 20))                        # the plan still belongs to the old weights
    e.step()
    assert len(depot.records) == stored
    e.finish(request)
    other = e.add(Request(PROMPT))
    assert e.admit(other) == (0, False)
    e.step((other, 40))
    e.step()
    assert len(depot.records) == stored + 10


def test_resets_that_follow_each_other_open_one_epoch():
    e = engine(FakeDepot())
    for _ in range(3):
        e.scheduler.reset()
        e.step()
    assert [len(client.namespaces) for client in e.clients] == [2, 2]
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step((request, 40))
    e.scheduler.reset()
    e.finish(request)
    e.step()
    assert [len(client.namespaces) for client in e.clients] == [3, 3]
    assert [client.open_namespaces for client in e.clients] == [{3}, {3}]      # those of past epochs are given back
    assert e.admit(e.add(Request(PROMPT))) == (0, False)


def test_weights_that_change_right_after_a_reset_still_end_its_epoch():
    depot = FakeDepot()
    e = engine(depot)
    e.scheduler.reset()
    e.step()
    e.worker.weights_changed()
    e.step()
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step((request, 40))
    e.step()
    assert len(depot.records) == 10


def test_without_another_epoch_the_depot_is_left_alone():
    depot = warmed()
    e = engine(depot)
    for client in e.clients:
        client.namespaces_max = 1
    e.scheduler.reset()
    request = e.add(Request(PROMPT))
    assert e.admit(request) == (0, False)
    assert not e.step((request, 40)).stores
    assert e.finish(request) is False
    e.worker.weights_changed()
    e.step()
    e.step()
    assert len(depot.records) == 10


def engine_with_other_weights():
    """An engine whose weights were changed in place; its own cache was not reset. What is stored so far."""
    depot = FakeDepot()
    e = engine(depot)
    old = e.add(Request(PROMPT))
    e.admit(old)
    e.step((old, 40))
    e.step()
    e.worker.weights_changed()
    e.step()
    e.finish(old)
    return e, depot, set(depot.records)


def test_what_is_computed_behind_blocks_of_other_weights_is_not_stored():
    e, depot, stored = engine_with_other_weights()
    request = e.add(Request(PROMPT))
    e.admit(request, 20)                         # five blocks of vLLM's own cache
    e.step((request, 20))
    e.step()
    assert set(depot.records) == stored


def test_when_vllm_has_reset_its_own_cache_all_is_stored_again():
    e, depot, stored = engine_with_other_weights()
    e.scheduler.reset()
    first = e.add(Request(PROMPT))
    e.admit(first)
    e.step((first, 40))
    second = e.add(Request(PROMPT[:20] + [7] * 20))
    e.admit(second, 20)
    e.step((second, 20))
    e.step()
    assert len(set(depot.records) - stored) == 15


def test_a_reset_beside_running_requests_leaves_vllm_its_cache():
    e, depot, _ = engine_with_other_weights()
    running = e.add(Request(PROMPT))
    e.admit(running, 20)
    e.step((running, 20))
    e.scheduler.reset()
    stored = set(depot.records)
    request = e.add(Request(PROMPT))
    e.admit(request, 20)
    e.step((request, 20))
    e.step()
    assert set(depot.records) == stored
