"""Both halves of the connector over a depot in this process: what is looked up and loaded, how; what is left alone."""

from __future__ import annotations

import pytest

from kvdepot.vllm.testing.engine_double import BLOCK, Request
from kvdepot.vllm.testing.engines import PROMPT, engine, warmed
from kvdepot.vllm.testing.fake_depot import FakeDepot


def test_whole_prompt_is_loaded_asynchronously_by_another_engine():
    e = engine(warmed())
    request = e.add(Request(PROMPT))
    assert e.admit(request) == (40, True)
    e.step()
    assert e.received == {request.request_id}
    assert not e.errors
    assert e.right(request, 0, 40)


def test_layerwise_load_is_in_place_layer_by_layer_and_leaves_a_token():
    e = engine(warmed(), "layerwise")
    request = e.add(Request(PROMPT))
    assert e.admit(request) == (39, False)
    e.step((request, 1))
    assert not e.errors
    assert not e.received
    assert e.right(request, 0, 40)


def test_pass_that_writes_into_a_loaded_block_waits_one_layer_ahead():
    """The last token of a whole prompt is computed into a block that is loaded: its layer must be in place before the
    model writes, which is before that layer's hook."""
    depot = warmed()
    e = engine(depot, "layerwise")
    request = e.add(Request(PROMPT))
    e.admit(request)
    waits: list[int] = []
    wait = e.clients[1].wait
    e.clients[1].wait = lambda op, layer=-1, timeout_ms=0: (waits.append(layer), wait(op, layer, timeout_ms))[1]
    from types import SimpleNamespace
    plan = e.scheduler.build_plan(SimpleNamespace(
        num_scheduled_tokens={request.request_id: 1}, total_num_scheduled_tokens=1, preempted_req_ids=None,
        kv_connector_block_state=SimpleNamespace(get_block_ids=lambda rid: (e.tables[rid],))))
    e.begin(plan)
    assert waits == [0]
    e.worker.wait_layer("layer.0")
    assert waits == [0]
    e.worker.save_layer("layer.0")
    assert waits == [0, 1]
    e.worker.save_layer("layer.1")
    assert waits == [0, 1, 2]
    e.worker.save_layer("layer.2")
    assert waits == [0, 1, 2]


def test_only_blocks_behind_the_local_ones_are_asked_for_and_loaded():
    e = engine(warmed())
    request = Request(PROMPT)
    e.local[request.request_id] = 6
    e.add(request)
    assert e.scheduler.counts["blocks_asked"] == 4
    assert e.admit(request, 6 * BLOCK) == (4 * BLOCK, True)
    plan = e.step()
    assert len(plan.loads[0].block_ids) == 4
    assert e.right(request, 24, 40)


def test_lookup_that_began_earlier_is_used_for_a_longer_local_prefix():
    e = engine(warmed())
    request = e.add(Request(PROMPT))
    assert e.ask(request, 8) == (32, True)
    assert e.clients[0].calls.count("match") == 1


def test_lookup_that_began_later_is_asked_again():
    e = engine(warmed())
    request = Request(PROMPT)
    e.local[request.request_id] = 6
    e.add(request)
    assert e.ask(request, 0) == (40, True)      # the local blocks were evicted meanwhile
    assert e.clients[0].calls.count("match") == 2


def test_scheduler_is_not_held_up_by_a_lookup_without_an_answer():
    depot = warmed()
    depot.held = True
    e = engine(depot)
    request = e.add(Request(PROMPT))
    assert e.ask(request) == (None, False)
    e.clients[0].deliver()
    assert e.ask(request) == (40, True)


def test_more_requests_than_lookups_the_client_can_hold_all_get_their_hits():
    """They arrive in one step, and nobody looks at those that wait until others have ended."""
    e = engine(warmed())
    e.clients[0].ops_max = 4
    for request in [e.add(Request(PROMPT)) for _ in range(10)]:
        assert e.admit(request) == (40, True)
        e.step()
        e.finish(request)
    assert "lookup_failures" not in e.scheduler.counts


def crowded():
    """An engine whose lookups have no answer and no place left, and a request that waits for one."""
    depot = warmed()
    depot.held = True
    e = engine(depot)
    e.clients[0].ops_max = 4
    requests = [e.add(Request(PROMPT)) for _ in range(6)]
    assert e.ask(requests[5]) == (None, False)
    return e, requests[5]


def test_request_waits_for_a_place_among_lookups_without_an_answer():
    e, request = crowded()
    e.clients[0].deliver()
    e.clients[0].depot.held = False
    assert e.ask(request) == (40, True)
    assert "lookup_failures" not in e.scheduler.counts


def test_request_does_not_wait_for_a_place_longer_than_for_an_answer():
    e, request = crowded()
    e.now += e.settings.progress_ms / 1e3 + 0.01
    assert e.ask(request) == (0, False)


def test_what_was_not_there_on_arrival_is_found_after_a_long_wait():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT))
    assert e.ask(request) == (0, False)
    depot.records |= warmed().records
    assert e.ask(request) == (0, False)         # not asked again in each step
    e.now += e.settings.lease_ms / 1e3 + 1.0
    assert e.ask(request) == (40, True)


def test_lookup_is_given_up_at_its_deadline():
    depot = warmed()
    depot.held = True
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.now += 0.49
    assert e.ask(request) == (None, False)
    e.now += 0.03
    assert e.ask(request) == (0, False)
    e.step()
    assert e.scheduler.counts["lookup_failures"] == {"timeout": 1}


def test_machine_that_stood_still_costs_no_lookup():
    """Neither the depot nor this process ran meanwhile; the client goes on with what it has asked."""
    depot = warmed()
    depot.held = True
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.now += 0.15
    assert e.ask(request) == (None, False)
    e.clients[0].deliver()
    assert e.ask(request) == (40, True)
    assert "lookup_failures" not in e.scheduler.counts


def test_lookup_of_a_depot_that_hangs_ends_as_the_client_says():
    depot = warmed()
    depot.held = True
    e = engine(depot)
    request = e.add(Request(PROMPT))
    assert [op.args["progress_ms"] for op in e.clients[0].ops.values()] == [e.settings.progress_ms]
    e.clients[0].fail("timeout", ("match",))
    assert e.ask(request) == (0, False)


def test_cheap_request_gives_its_lookup_up_sooner_than_the_depot_is_judged():
    """The client goes on with it and opens its breaker when nothing moves; an answer that comes late frees its pins."""
    depot = warmed()
    depot.held = True
    e = engine(depot)
    e.choice.prompt_seconds = lambda **_work: 0.02
    request = e.add(Request(PROMPT))
    e.now += 0.03
    assert e.ask(request) == (0, False)
    assert "cancel" not in e.clients[0].calls
    assert [op.args["total_ms"] > op.args["progress_ms"] for op in e.clients[0].ops.values()] == [True]
    e.clients[0].deliver()
    assert e.clients[0].leases
    depot.held = False
    e.ask(e.add(Request([1] * 8)))
    assert not e.clients[0].leases
    assert not e.clients[0].ops
    assert e.scheduler.counts["lookups"] == 2


@pytest.mark.parametrize("away", [True, False])
def test_what_a_load_found_out_no_lookup_pays_for_again(away):
    depot = warmed()
    e = engine(depot)
    request = e.add(Request(PROMPT))
    depot.held = True
    e.admit(request)
    e.step()
    if away:
        e.clients[1].open_breaker()     # as the client does before an operation ends for want of bytes
    e.clients[1].fail("timeout", ("multiget",))
    e.step()
    asked = e.clients[0].calls.count("match")
    depot.held = False
    other = e.add(Request(PROMPT + [7, 8]))
    assert e.ask(other) == ((0, False) if away else (40, True))
    assert e.clients[0].stats()["breaker_open"] is away
    assert e.clients[0].calls.count("match") == asked + 1


def test_what_computing_beats_is_left_alone_and_not_stored_again():
    e = engine(warmed(), "none")
    request = e.add(Request(PROMPT + [1, 2, 3, 4]))
    assert e.admit(request) == (0, False)
    plan = e.step((request, 44))
    assert [store.first_block for store in plan.stores] == [10]
    assert e.scheduler.counts["requests_left_alone"] == 1
    assert not e.clients[0].leases


@pytest.mark.parametrize("looked_at", [True, False])
def test_prefix_that_another_request_has_brought_meanwhile_was_not_left_alone(looked_at):
    e = engine(warmed())
    request = e.add(Request(PROMPT))
    if looked_at:
        e.ask(request)
    assert e.admit(request, 40) == (0, False)
    assert "requests_left_alone" not in e.scheduler.counts
    assert not e.clients[0].leases


def test_engine_that_only_produces_stores_and_asks_for_nothing():
    depot = warmed()
    e = engine(depot, may_load=False)
    request = e.add(Request([*PROMPT[:36], 99, 98, 97, 96]))
    assert e.admit(request) == (0, False)
    e.step((request, 40))
    assert "match" not in e.clients[0].calls
    assert "multiget" not in e.clients[1].calls
    assert request.block_hashes[9] in {key for _, _, key in depot.records}


def test_engine_that_only_consumes_loads_and_stores_nothing():
    e = engine(warmed(), may_store=False)
    request = e.add(Request([*PROMPT, 1, 2, 3, 4]))
    assert e.admit(request) == (40, True)
    e.step()
    e.step((request, 4))
    assert e.right(request, 0, 44)
    assert "multiput" not in e.clients[1].calls


def test_load_that_its_deadline_would_cut_off_is_not_tried():
    depot = warmed()
    e = engine(depot)
    e.choice.saved_s, e.choice.load_s = 1.0, 0.6            # pays by the choice, but its deadline is at 0.5 s
    request = e.add(Request(PROMPT))
    assert e.admit(request) == (0, False)
    assert e.scheduler.counts["requests_left_alone"] == 1
    assert not e.clients[0].leases
    patient = engine(depot, deadline_share=0.7)
    patient.choice.saved_s, patient.choice.load_s = 1.0, 0.6
    assert patient.admit(patient.add(Request(PROMPT))) == (40, True)
    forced = engine(depot, load="async")
    forced.choice.saved_s, forced.choice.load_s = 1.0, 0.6
    assert forced.admit(forced.add(Request(PROMPT))) == (40, True)


def test_leases_end_when_the_load_has():
    e = engine(warmed())
    request = e.add(Request(PROMPT))
    e.admit(request)
    assert e.clients[0].leases
    e.step()
    assert not e.clients[0].leases


def test_requests_with_the_same_prefix_wait_for_one_load():
    depot = warmed()
    e = engine(depot)
    first, second = e.add(Request(PROMPT)), e.add(Request(PROMPT + [7, 8]))
    depot.held = True
    assert e.admit(first) == (40, True)
    assert e.ask(second) == (None, False)
    e.step()
    assert e.ask(second) == (None, False)
    e.clients[1].deliver()
    e.step()
    assert e.received == {first.request_id}
    assert e.ask(second, 40) == (0, False)      # vLLM's own cache has it now
    assert e.clients[1].calls.count("multiget") == 1


def test_a_load_that_failed_is_not_waited_for_by_others():
    depot = warmed()
    e = engine(depot)
    first, second = e.add(Request(PROMPT)), e.add(Request(PROMPT + [7, 8]))
    depot.held = True
    e.admit(first)
    e.step()
    e.clients[1].fail("timeout", ("multiget",))
    e.step()
    assert e.received == {first.request_id}
    assert e.ask(first) == (0, False)
    assert e.ask(second) == (40, True)


# ---- what is left alone, and what the choice is told -----------------------------------------------------------------


def test_lora_requests_are_left_alone():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT, lora_request=object()))
    assert e.admit(request) == (0, False)
    assert not e.step((request, 40)).stores
    assert e.clients[0].calls == []


def test_requests_that_skip_the_prefix_cache_are_not_looked_up_but_stored():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT, skip_reading_prefix_cache=True))
    assert e.admit(request) == (0, False)
    assert e.clients[0].calls == []
    assert e.step((request, 40)).stores


def test_choice_learns_from_passes_loads_and_their_overlap():
    depot = warmed()
    e = engine(depot, "layerwise")
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step((request, 1))
    assert [o["tokens"] for o in e.choice.overlaps] == [1]
    assert not e.choice.passes
    request.tokens.append(1)
    e.step((request, 1))
    assert e.choice.passes[0]["pairs"] == 41
    assert e.choice.loads[0]["contended"] is True


def test_others_and_their_decoding_are_told_to_the_choice():
    depot = warmed()
    e = engine(depot)
    busy = e.add(Request([3] * 9))
    e.admit(busy)
    e.step((busy, 9))
    busy.tokens.append(3)
    e.step((busy, 1))
    e.ask(e.add(Request(PROMPT)))
    question = e.choice.questions[-1]
    assert (question["others"], question["others_tokens"], question["others_pairs"]) == (1, 1, 10)


def test_a_step_with_nothing_to_do_touches_no_client():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT[:6]))
    e.admit(request)
    e.step((request, 6))
    e.step()
    before = list(e.clients[1].calls)
    polled = []
    e.clients[1].poll = lambda n=64: polled.append(n) or []
    request.tokens.append(1)
    e.step((request, 1))
    assert e.clients[1].calls == before
    assert not polled
