"""Both halves of the connector over a depot in this process: what is loaded, given back, given up, and when."""

from __future__ import annotations

import pytest

from kvdepot.vllm.testing.engine_double import BLOCK, Request
from kvdepot.vllm.testing.engines import PROMPT, engine, warmed
from kvdepot.vllm.testing.fake_depot import FakeDepot


# ---- loading -------------------------------------------------------------------------------------------------------


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


def test_lookup_is_given_up_at_its_deadline():
    depot = warmed()
    depot.held = True
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.now += 0.2
    assert e.ask(request) == (0, False)
    e.step()
    assert e.scheduler.counts["lookup_failures"] == {"timeout": 1}


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


# ---- failures ------------------------------------------------------------------------------------------------------


def test_damaged_block_cuts_an_asynchronous_load():
    depot = warmed()
    depot.damaged.add(Request(PROMPT).block_hashes[6])
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step()
    assert e.received == {request.request_id}
    assert e.errors == set(e.tables[request.request_id][6:10])
    assert request.num_computed_tokens == 24
    assert e.right(request, 0, 24)
    assert e.worker.counts["load_failures"] == {"corrupt": 1}


def test_blocks_that_failed_to_load_are_stored_again_after_they_were_computed():
    depot = warmed()
    key = Request(PROMPT).block_hashes[6]
    depot.damaged.add(key)
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step()
    plan = e.step((request, 16))
    assert [store.first_block for store in plan.stores] == [6]
    assert key in plan.stores[0].keys
    assert e.right(request, 0, 40)


@pytest.mark.parametrize("code", ["timeout", "unavailable"])
def test_layerwise_load_that_breaks_off_fails_all_its_blocks(code):
    depot = warmed()
    e = engine(depot, "layerwise")
    depot.held = True
    request = e.add(Request(PROMPT + [1, 2]))
    e.clients[0].deliver()
    e.admit(request)
    client = e.clients[1]
    wait = client.wait

    def waiting(op, layer=-1, timeout_ms=0):
        if layer == 0:
            client.deliver(("multiget",), layers=1)
        else:
            client.fail(code, ("multiget",))
        return wait(op, layer, timeout_ms)

    client.wait = waiting
    e.step((request, 2))
    assert e.errors == set(e.tables[request.request_id][:10])
    assert request.num_computed_tokens == 0
    assert not client.ops


def test_what_was_computed_on_a_failed_load_is_neither_stored_nor_found():
    depot = warmed()
    depot.damaged.add(Request(PROMPT).block_hashes[6])
    stored = set(depot.records)
    e = engine(depot, "layerwise")
    request = e.add(Request(PROMPT + list(range(100, 110))))
    e.admit(request)
    e.step((request, 10))
    assert set(depot.records) == stored
    assert set(e.tables[request.request_id][6:]) <= e.evicted
    assert request.num_computed_tokens == 24
    plan = e.step((request, 26))
    assert [store.first_block for store in plan.stores] == [6]
    assert e.right(request, 0, 50)
    e.step()
    assert len(depot.records) == len(stored) + 2


def test_failed_load_is_told_in_its_own_step_with_speculative_decoding():
    depot = warmed()
    depot.damaged.add(Request(PROMPT).block_hashes[6])
    e = engine(depot, "layerwise")
    e.speculative = True
    request = e.add(Request(PROMPT + [1, 2]))
    e.admit(request)
    e.step((request, 2))
    assert e.errors == set(e.tables[request.request_id][6:10])
    assert set(e.tables[request.request_id][6:]) <= e.evicted
    assert request.num_computed_tokens == 24


def test_with_several_workers_nothing_that_rests_on_a_load_is_stored_in_its_pass():
    depot = warmed()
    depot.records |= {(fingerprint, 1, key): value for (fingerprint, _, key), value in depot.records.items()}
    e = engine(depot, "layerwise", workers=2)
    request = e.add(Request(PROMPT + list(range(100, 110))))
    assert e.admit(request) == (40, False)
    assert e.step((request, 10)).stores == []
    assert [store.first_block for store in e.step((request, 1)).stores] == [10]


def test_stores_that_do_not_rest_on_a_failed_load_go_on():
    depot = warmed()
    other = [9, *PROMPT]
    writer = engine(depot)
    filled = writer.add(Request(other[:20]))
    writer.admit(filled)
    writer.step((filled, 20))
    writer.step()
    depot.damaged.add(Request(PROMPT).block_hashes[6])
    stored = set(depot.records)
    e = engine(depot, "layerwise")
    earlier = e.add(Request(other[:20] + [1] * 8))
    e.admit(earlier)
    put = e.clients[1]._put
    e.clients[1]._put = lambda *_: None                  # what is stored stays in flight
    e.step((earlier, 8))
    bad, good = e.add(Request(PROMPT + [5] * 8)), e.add(Request(other[:20] + [6] * 8))
    assert e.admit(bad) == (40, False)
    assert e.admit(good) == (20, False)
    e.step((bad, 8), (good, 8))
    e.clients[1]._put = put
    e.clients[1].deliver()
    e.step()
    assert len(depot.records) == len(stored) + 4
    assert e.worker.counts["stores_cancelled"] == 1


def test_a_request_that_shared_a_failed_load_computes_for_itself():
    depot = warmed()
    depot.damaged.add(Request(PROMPT).block_hashes[6])
    stored = set(depot.records)
    e = engine(depot, "layerwise")
    first = e.add(Request(PROMPT + [1, 2]))
    e.admit(first)
    second = e.add(Request(PROMPT + list(range(200, 210))))
    e.tables[second.request_id] = e.tables[first.request_id][:10]     # found in vLLM's own cache
    e.admit(second, 40)
    e.step((first, 2), (second, 10))
    assert second.num_computed_tokens == 24
    assert set(e.tables[second.request_id][6:]) <= e.evicted
    assert set(depot.records) == stored


def test_failed_load_of_an_aborted_request_is_still_evicted():
    depot = warmed()
    depot.damaged.add(Request(PROMPT).block_hashes[0])
    e = engine(depot, "layerwise")
    request = e.add(Request(PROMPT + [1, 2]))
    e.admit(request)
    table = list(e.tables[request.request_id])
    on_output = e.scheduler.on_output

    def aborted_meanwhile(*args):
        e.finish(request)
        on_output(*args)

    e.scheduler.on_output = aborted_meanwhile
    e.step((request, 2))
    assert set(table) <= e.evicted


def test_depot_that_is_away_costs_a_request_nothing():
    depot = FakeDepot(down=True)
    e = engine(depot)
    request = e.add(Request(PROMPT))
    assert e.admit(request) == (0, False)
    e.step((request, 40))
    assert e.clients[0].calls == ["match"]
    assert not e.finish(request)
    assert e.worker.counts["store_failures"] == {"unavailable": 1}


def test_one_warning_in_a_period_and_one_line_when_it_is_over(caplog):
    depot = FakeDepot(down=True)
    e = engine(depot)
    caplog.set_level("INFO", "vllm.kvdepot")
    for _ in range(5):
        request = e.add(Request(PROMPT))
        e.admit(request)
        e.step((request, 40))
        e.finish(request)
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 1
    depot.down = False
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step((request, 40))
    e.step()
    assert any("works again" in record.message for record in caplog.records)
    depot.down = True
    e.now += 60
    e.admit(e.add(Request([9] * 8)))
    e.step()
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 2


def test_warning_says_what_the_client_knows(caplog):
    e = engine(FakeDepot(down=True))
    e.clients[0].knows["last_error"] = "the endpoint does not speak the kvdepot protocol"
    e.add(Request(PROMPT))
    e.step()
    assert "does not speak the kvdepot protocol" in caplog.text


def test_block_that_was_evicted_since_the_lookup_is_counted_and_not_warned_about(caplog):
    depot = warmed()
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    for shard_and_key in list(depot.records)[5:]:
        del depot.records[shard_and_key]
    e.step()
    assert e.worker.counts["load_failures"] == {"missing": 1}
    assert e.received == {request.request_id}
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_store_that_is_never_acknowledged_gives_its_blocks_back_at_its_deadline():
    depot = FakeDepot(held=True)
    e = engine(depot, store_deadline_ms=500)
    e.settings.__class__
    request = e.add(Request(PROMPT))
    e.now += 0.2
    e.admit(request)
    e.step((request, 40))
    assert e.finish(request)
    e.step()
    assert not e.sent
    e.now += 1
    e.step()
    assert e.sent == {request.request_id}
    assert "cancel" in e.clients[1].calls
    assert e.worker.counts["store_failures"] == {"timeout": 1}


# ---- aborts, epochs, settings --------------------------------------------------------------------------------------


def test_abort_in_mid_load_cancels_it_and_reports_the_request_once():
    depot = warmed()
    e = engine(depot)
    depot.held = True
    request = e.add(Request(PROMPT))
    e.clients[0].deliver()
    e.admit(request)
    e.step()
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
    depot = warmed()
    e = engine(depot)
    depot.held = True
    request = e.add(Request(PROMPT))
    e.clients[0].deliver()
    e.admit(request)
    e.step()
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
