"""The connector with the real choice of how to load: what running it teaches."""

from __future__ import annotations

from kvdepot._kvdepot import LoadChoice
from kvdepot.vllm.config import Settings
from kvdepot.vllm.load_deadlines import CUT_OFFS_MIN
from kvdepot.vllm.scheduler import PROBE_EVERY
from kvdepot.vllm.testing.engine_double import LAYERS, Engine, Request
from kvdepot.vllm.testing.engines import PROMPT, warmed
from kvdepot.vllm.testing.fake_depot import FakeClient, FakeDepot


def slow_passes(e: Engine, token_s: float) -> None:
    """From here on a pass takes `token_s` for each of its tokens."""
    run_layer = e.run_layer

    def slowly(layer, scheduled):
        e.now += token_s / LAYERS * sum(tokens for _, tokens in scheduled)
        run_layer(layer, scheduled)

    e.run_layer = slowly


def learning_engine(depot: FakeDepot) -> Engine:
    """With the real choice. A token takes 0.9 s to compute, and that is believed from the start."""
    depot.load_s = 0.001
    e = Engine((FakeClient(depot), FakeClient(depot)), LoadChoice(0.03, 0.9, 0.0, True),
               Settings("tcp://127.0.0.1:1", linger_ms=0, lookup_wait_us=0))
    slow_passes(e, 0.9)
    return e


def test_layerwise_load_teaches_its_own_time_and_not_that_of_its_pass():
    e = learning_engine(warmed(PROMPT[:8]))
    request = e.add(Request(PROMPT))
    assert e.admit(request) == (8, False)
    e.step((request, 32))
    assert e.worker.counts["load_seconds"] == [0.001]
    e.step(ending=(request,))
    assert e.choice.load_bytes_per_s > 1e6
    again = e.add(Request(PROMPT))
    assert e.admit(again) == (39, False)


def test_asynchronous_load_beside_a_pass_teaches_its_own_time():
    e = learning_engine(warmed())
    busy = e.add(Request([3] * 16))
    e.admit(busy)
    request = e.add(Request(PROMPT))
    assert e.admit(request) == (40, True)
    e.step((busy, 16))
    assert e.received == {request.request_id}
    assert e.choice.load_bytes_per_s > 1e6


def test_loads_that_are_cut_off_at_their_deadlines_are_not_tried_any_more():
    depot = warmed()
    e = learning_engine(depot)
    busy = e.add(Request([3] * 64))
    e.admit(busy)

    def asked():
        request = e.add(Request(PROMPT))
        e.clients[0].deliver(("match",))
        return request, e.admit(request)

    depot.held = True
    for _ in range(CUT_OFFS_MIN):                        # the first may be an accident
        request, answer = asked()
        assert answer == (40, True)
        e.step((busy, 1))
        e.now += 40.0                                    # bytes trickle: no limit of progress ends it
        e.clients[1].fail("timeout", ("multiget",))
        e.step((busy, 1))
        e.finish(request)
    for _ in range(PROBE_EVERY):
        request, answer = asked()
        assert answer == (0, False)
        e.step((busy, 1), ending=(request,))
    request, answer = asked()
    assert answer == (40, True)
    e.step((busy, 1))
    e.clients[1].deliver(("multiget",))                  # it is fast again
    e.step((busy, 1))
    assert asked()[1][0] >= 39


def test_loads_that_a_standstill_cut_off_say_nothing_of_how_fast_the_depot_is():
    depot = warmed()
    e = learning_engine(depot)
    busy = e.add(Request([3] * 64))
    e.admit(busy)
    for _ in range(CUT_OFFS_MIN + 1):
        request = e.add(Request(PROMPT))
        assert e.admit(request) == (40, True)
        depot.held = True
        e.step((busy, 1))
        e.now += 40.0
        e.clients[1].open_breaker()                      # as the client does when its total ends it without a byte
        e.clients[1].fail("timeout", ("multiget",))
        e.step((busy, 1))
        e.finish(request)
        depot.held = False
        for client in e.clients[:2]:
            client.knows["breaker_open"] = False


def test_wrong_belief_about_the_depot_is_corrected_by_a_load_once_in_a_while():
    e = learning_engine(warmed())
    e.choice.observe_load(pool_bytes=400, flash_bytes=0, seconds=30.0, contended=False)
    asked = []
    for _ in range(PROBE_EVERY + 1):
        request = e.add(Request(PROMPT))
        asked.append(e.admit(request))
        e.step(ending=(request,))
    assert asked == [(0, False)] * PROBE_EVERY + [(40, True)]
    assert e.admit(e.add(Request(PROMPT))) == (39, False)
