"""Loads that fail, in whole or in part: what is computed again, stored, found, told, and what the next request pays."""

from __future__ import annotations

import pytest

from kvdepot.vllm.testing.engine_double import Request
from kvdepot.vllm.testing.engines import PROMPT, engine, warmed
from kvdepot.vllm.testing.fake_depot import FakeDepot


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


@pytest.mark.parametrize("mode", ["async", "layerwise"])
def test_worker_that_has_not_noticed_that_the_depot_is_back_connects_for_a_load(mode):
    e = engine(warmed(), mode)
    e.clients[1].knows["connected"] = False
    request = e.add(Request(PROMPT + [1, 2]))
    e.admit(request)
    e.step(*([(request, 2)] if mode == "layerwise" else []))
    assert e.clients[1].calls.count("reconnect") == 1
    assert e.right(request, 0, 40)
    assert not e.errors
    assert "load_failures" not in e.worker.counts


def test_depot_that_has_gone_again_is_waited_for_once_a_step():
    depot = warmed()
    e = engine(depot)
    for i in range(3):
        prompt = [90 + i, *PROMPT[1:]]
        depot.records |= warmed(prompt).records
        e.admit(e.add(Request(prompt)))
    e.clients[1].knows["connected"] = False
    depot.down = True
    e.step()
    assert e.clients[1].calls.count("reconnect") == 1
    assert e.worker.counts["load_failures"] == {"unavailable": 3}


def test_worker_whose_breaker_is_open_does_not_connect_anew():
    e = engine(warmed())
    request = e.add(Request(PROMPT))
    e.admit(request)
    e.clients[1].open_breaker()
    e.step()
    assert "reconnect" not in e.clients[1].calls
    assert e.worker.counts["load_failures"] == {"unavailable": 1}


@pytest.mark.parametrize("code", ["busy", "unavailable"])
def test_nothing_is_stored_of_a_pass_whose_layerwise_load_could_not_begin(code):
    """The pass computes its new blocks from blocks that hold nothing: they must not get a valid checksum."""
    depot = warmed()
    stored = set(depot.records)
    e = engine(depot, "layerwise")
    if code == "busy":
        e.clients[1].ops_max = 1                # the store takes the only place
    request = e.add(Request(PROMPT + list(range(100, 110))))
    e.admit(request)
    if code == "unavailable":                   # in between: another request's load has opened the breaker
        submit = e.worker.start_layerwise
        e.worker.start_layerwise = lambda: (e.clients[1].open_breaker(), submit())
    plan = e.step((request, 10))
    assert [len(store.block_ids) for store in plan.stores] == [2]
    assert e.worker.counts["load_failures"] == {"cancelled" if code == "busy" else code: 1}
    assert set(depot.records) == stored
