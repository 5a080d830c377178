"""What the connector stores of a request, how long blocks are held for it, and what becomes of stores that fail."""

from __future__ import annotations

from kvdepot.vllm.scheduler import STORE_PAUSE_S
from kvdepot.vllm.testing.engine_double import LAYERS, Request
from kvdepot.vllm.testing.engines import PROMPT, engine, warmed
from kvdepot.vllm.testing.fake_depot import FakeDepot


def test_only_full_blocks_are_stored_chunk_by_chunk():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT + [1]))
    e.admit(request)
    firsts = []
    for chunk in (10, 10, 21):
        firsts += [(s.first_block, len(s.block_ids)) for s in e.step((request, chunk)).stores]
    assert firsts == [(0, 2), (2, 3), (5, 5)]
    e.step()
    assert len(depot.records) == 10


def test_blocks_made_while_decoding_are_stored_when_their_tokens_are_confirmed():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT[:7]))
    e.admit(request)
    e.step((request, 7))
    for token in range(100, 106):
        request.tokens.append(token)
        e.step((request, 1))
    e.step()
    assert set(request.block_hashes) == {key for _, _, key in depot.records}
    assert len(depot.records) == 3


def test_tokens_that_are_not_confirmed_are_not_stored():
    """A pass over drafts computes more tokens than are known: hashes exist for known ones only."""
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT[:7]))
    e.admit(request)
    plan = e.step((request, 9), compute=False)
    assert [len(store.block_ids) for store in plan.stores] == [1]


def test_what_the_depot_holds_is_not_stored_again():
    depot = warmed()
    e = engine(depot)
    request = e.add(Request(PROMPT + [1, 2, 3, 4, 5]))
    e.admit(request)
    e.step()
    plan = e.step((request, 5))
    assert [(store.first_block, len(store.block_ids)) for store in plan.stores] == [(10, 1)]


def test_blocks_are_held_until_their_store_has_ended_and_reported_once():
    depot = FakeDepot(held=True)
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.now += 0.6
    e.admit(request)
    e.step((request, 40))
    assert e.finish(request) is True
    e.step()
    assert not e.sent
    e.clients[1].deliver()
    e.step()
    assert e.sent == {request.request_id}
    e.sent.clear()
    e.step()
    assert not e.sent


def test_a_request_without_stores_in_flight_frees_its_blocks_at_once():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step((request, 40))
    e.step((request, 1), compute=False)
    assert e.finish(request) is False


def test_request_that_ends_with_its_layerwise_pass_keeps_the_blocks_that_are_being_stored():
    """vLLM ends requests before it hands over the step's report: the load is still believed to be under way then."""
    depot = warmed(PROMPT[:20])
    e = engine(depot, "layerwise")
    request = e.add(Request(PROMPT))
    e.admit(request)
    depot.held = True
    wait = e.clients[1].wait
    e.clients[1].wait = lambda *a, **k: (e.clients[1].deliver(("multiget",)), wait(*a, **k))[1]
    e.step((request, 20), ending=(request,))
    assert e.held == {request.request_id: True}
    e.step()
    assert not e.sent
    e.clients[1].deliver()
    e.step()
    assert e.sent == {request.request_id}
    assert not e.received
    assert len(depot.records) == 10


def test_request_that_ends_with_its_layerwise_pass_and_stores_nothing_is_not_held_for_long():
    e = engine(warmed(), "layerwise")
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step((request, 1), ending=(request,))
    assert e.held == {request.request_id: False}


def test_layers_are_handed_over_as_they_are_computed():
    depot = FakeDepot(held=True)
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.now += 0.6
    e.admit(request)
    seen = []
    put_layer = e.clients[1].put_layer
    e.clients[1].put_layer = lambda op, layer: (seen.append((layer, e.right_layer)), put_layer(op, layer))
    e.right_layer = None
    run_layer = e.run_layer

    def noting(layer, scheduled):
        e.right_layer = layer
        run_layer(layer, scheduled)

    e.run_layer = noting
    e.step((request, 40))
    assert seen == [(layer, layer) for layer in range(LAYERS)]


def test_request_that_ends_right_after_it_was_preempted_has_its_stores_cancelled():
    """vLLM frees the blocks of what it preempts when it resets its cache, and tells the next step."""
    depot = FakeDepot(held=True)
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.now += 0.6
    e.admit(request)
    e.step((request, 40))
    e.finish(request)
    plan = e.step(preempted=(request,))
    assert plan.drop_stores == [request.request_id]
    e.clients[1].deliver()
    assert not depot.records


def test_preempted_request_has_its_stores_cancelled_before_its_blocks_are_used_again():
    depot = FakeDepot(held=True)
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.now += 0.6
    e.admit(request)
    e.step((request, 40))
    e.step(preempted=(request,))
    assert "cancel" in e.clients[1].calls
    assert not e.clients[1].ops
    depot.held = False
    request.num_preemptions, request.num_computed_tokens = 1, 0
    del e.tables[request.request_id]
    e.admit(request)
    plan = e.step((request, 40))
    assert [store.first_block for store in plan.stores] == [0]
    e.step()
    assert len(depot.records) == 10


def test_full_depot_is_not_an_error_of_the_request():
    depot = FakeDepot(full=True)
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step((request, 40))
    e.step()
    assert not e.finish(request)
    assert e.worker.counts["store_failures"] == {"no_space": 1}


def test_what_a_depot_did_not_take_of_a_store_is_stored_again():
    depot = FakeDepot(takes=2)
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step((request, 12))                            # of three blocks, one is refused
    e.step()
    assert e.worker.counts["store_failures"] == {"busy": 1}
    assert e.worker.counts["blocks_stored"] == len(depot.records) == 2
    depot.takes = 100
    assert not e.step((request, 12)).stores          # nothing is stored behind the gap
    e.now += STORE_PAUSE_S
    assert [(s.first_block, len(s.block_ids)) for s in e.step((request, 16)).stores] == [(2, 8)]
    e.step()
    assert len(depot.records) == 10


# ---- stores that failed --------------------------------------------------------------------------------------------


def test_chunk_whose_store_failed_is_stored_with_a_later_one():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    depot.down = True
    e.step((request, 12))
    depot.down = False
    assert not e.step((request, 12)).stores          # nothing is stored behind the gap
    e.now += STORE_PAUSE_S
    assert [(s.first_block, len(s.block_ids)) for s in e.step((request, 16)).stores] == [(0, 10)]
    e.step()
    assert len(depot.records) == 10


def test_request_that_begins_in_a_pause_is_stored_whole_after_it():
    depot = FakeDepot(down=True)
    e = engine(depot)
    other = e.add(Request([3] * 8))
    e.admit(other)
    e.step((other, 8))
    request = e.add(Request(PROMPT))
    e.admit(request)
    depot.down = False
    assert not e.step((request, 12)).stores
    e.now += STORE_PAUSE_S
    assert [(s.first_block, len(s.block_ids)) for s in e.step((request, 28)).stores] == [(0, 10)]


def test_pause_ends_when_the_depot_answers():
    depot = FakeDepot(down=True)
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step((request, 12))
    depot.down = False
    e.ask(e.add(Request([4] * 8)))
    e.step((request, 12))
    assert [s.first_block for s in e.step((request, 16)).stores] == [0]


def test_blocks_that_were_not_stored_are_when_the_engines_own_cache_gives_them_to_a_request():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    depot.down = True
    e.step((request, 12))
    depot.down = False
    e.step((request, 28), ending=(request,))
    assert not depot.records
    e.now += STORE_PAUSE_S
    again = Request(PROMPT + [1, 2])
    e.local[again.request_id] = 10
    e.tables[again.request_id] = e.tables[request.request_id][:10]
    e.add(again)
    assert e.admit(again, 40) == (0, False)
    plan = e.step((again, 2), ending=(again,))
    assert [(s.first_block, len(s.block_ids)) for s in plan.stores] == [(-1, 10)]
    assert e.held[again.request_id]
    e.step()
    assert again.request_id in e.sent
    assert len(depot.records) == 10
    reader = engine(depot)
    loaded = reader.add(Request(PROMPT))
    assert reader.admit(loaded) == (40, True)
    reader.step()
    assert reader.right(loaded, 0, 40)


def test_only_what_is_missing_is_stored_again_and_only_once():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.step((request, 12))
    depot.held = True
    e.step((request, 8))
    e.clients[1].fail("timeout", ("multiput",))
    depot.held = False
    e.step((request, 20), ending=(request,))
    firsts = []
    for _ in range(2):
        e.now += STORE_PAUSE_S
        again = Request(PROMPT + [1, 2])
        e.local[again.request_id] = 10
        e.tables[again.request_id] = e.tables[request.request_id][:10]
        e.add(again)
        e.admit(again, 40)
        firsts.append([len(s.block_ids) for s in e.step((again, 2)).stores])
        e.step(ending=(again,))
    assert firsts == [[2], []]
    assert len(depot.records) == 10


def test_pauses_grow_while_stores_fail_and_end_with_one_that_works():
    depot = FakeDepot(full=True)
    e = engine(depot)
    pauses = []
    for _ in range(3):
        request = e.add(Request(PROMPT))
        e.admit(request)
        while not (plan := e.step((request, 1), compute=False)).stores or plan.stores[0].first_block > 0:
            request.num_computed_tokens = 39
            e.now += 0.1
        e.step()
        pauses.append(round(e.scheduler._store_at - e.now))
        e.finish(request)
    assert pauses == [1, 2, 4]
    until = e.scheduler._store_at
    e.scheduler._pause_stores(longer=False)
    assert e.scheduler._store_at == until           # a failure of another kind does not end it sooner


def test_what_failed_before_a_reset_is_not_stored_after_it():
    depot = FakeDepot()
    e = engine(depot)
    request = e.add(Request(PROMPT))
    e.admit(request)
    depot.down = True
    e.step((request, 40), ending=(request,))
    depot.down = False
    e.scheduler.new_epoch("test")
    e.now += STORE_PAUSE_S
    again = Request(PROMPT + [1, 2])
    e.local[again.request_id] = 10
    e.tables[again.request_id] = e.tables[request.request_id][:10]
    e.add(again)
    e.admit(again, 40)
    assert not e.step((again, 2)).stores


def test_store_that_is_never_acknowledged_gives_its_blocks_back_at_its_deadline():
    depot = FakeDepot(held=True)
    e = engine(depot, store_deadline_ms=500)
    request = e.add(Request(PROMPT))
    e.now += 0.6
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
