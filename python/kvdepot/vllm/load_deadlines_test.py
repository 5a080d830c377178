"""How long a load may take, and how it is tried after loads that were given up."""

from __future__ import annotations

from types import SimpleNamespace

from kvdepot.vllm.config import Settings
from kvdepot.vllm.load_deadlines import CUT_OFFS_MIN, RETRY_EVERY, SHARED_PASS_FACTOR, LoadDeadlines
from kvdepot.vllm.testing.engine_double import Request
from kvdepot.vllm.testing.engines import PROMPT, engine, warmed

BYTES = 1 << 20


def deadlines(**settings) -> LoadDeadlines:
    return LoadDeadlines(Settings("tcp://127.0.0.1:1", progress_ms=100, deadline_share=0.5, **settings))


def layerwise(saved_s=10.0, load_s=0.1, pass_s=0.4):
    return SimpleNamespace(mode="layerwise", saved_s=saved_s, load_s=load_s, pass_s=pass_s)


def test_load_alone_in_its_pass_may_take_a_share_of_what_it_saves():
    assert deadlines().decide(layerwise(), BYTES, flash=False, shared=False) == ("layerwise", 5.0)


def test_others_of_a_pass_wait_for_a_load_no_longer_than_a_few_of_their_passes():
    assert deadlines().decide(layerwise(), BYTES, flash=False, shared=True) == ("layerwise", SHARED_PASS_FACTOR * 0.4)


def test_others_of_a_short_pass_wait_long_enough_to_find_out_a_depot_that_stands_still():
    answer = layerwise(load_s=0.001, pass_s=0.002)
    mode, seconds = deadlines().decide(answer, BYTES, flash=False, shared=True)
    assert mode == "layerwise"
    assert 0.1 < seconds <= 0.2


def held_up() -> LoadDeadlines:
    """Loads inside shared passes have been cut off."""
    d = deadlines()
    for _ in range(CUT_OFFS_MIN):
        assert d.decide(layerwise(), BYTES, flash=False, shared=True)[0] == "layerwise"
        d.cut_off(BYTES, 0.8, flash=False, layerwise=True)
    return d


def test_load_that_held_up_others_too_long_runs_before_its_pass():
    d = held_up()
    assert d.decide(layerwise(), BYTES, flash=False, shared=True) == ("async", 5.0)
    assert d.decide(layerwise(), BYTES, flash=True, shared=True)[0] == "layerwise"     # of flash nothing was learnt
    assert d.decide(layerwise(), BYTES, flash=False, shared=False)[0] == "layerwise"   # alone it holds up nobody


def test_loads_that_ran_alone_say_nothing_about_loads_beside_a_pass():
    d = held_up()
    d.kept(flash=False, layerwise=False)
    assert d.decide(layerwise(), BYTES, flash=False, shared=True)[0] == "async"
    d.kept(flash=False, layerwise=True)
    assert d.decide(layerwise(), BYTES, flash=False, shared=True)[0] == "layerwise"


def test_loads_inside_shared_passes_are_tried_again_once_in_a_while():
    d = held_up()
    modes = [d.decide(layerwise(), BYTES, flash=False, shared=True)[0] for _ in range(RETRY_EVERY)]
    assert modes == ["async"] * (RETRY_EVERY - 1) + ["layerwise"]


def test_loads_before_their_pass_that_were_cut_off_are_left_alone():
    d = deadlines()
    answer = SimpleNamespace(mode="async", saved_s=1.0, load_s=0.1, pass_s=0.4)
    for _ in range(CUT_OFFS_MIN):
        assert d.decide(answer, BYTES, flash=False, shared=True) == ("async", 0.5)
        d.cut_off(BYTES, 0.5, flash=False, layerwise=False)
    assert d.decide(answer, BYTES, flash=False, shared=True)[0] == "none"
    d.kept(flash=False, layerwise=True)
    assert d.decide(answer, BYTES, flash=False, shared=True)[0] == "none"
    d.kept(flash=False, layerwise=False)
    assert d.decide(answer, BYTES, flash=False, shared=True)[0] == "async"


def test_forced_way_to_load_is_kept():
    assert deadlines(load="layerwise").decide(layerwise(), BYTES, flash=False, shared=True) == ("layerwise", 5.0)


def test_load_of_a_request_that_is_not_alone_gets_the_deadline_of_its_pass():
    e = engine(warmed(), "layerwise")
    e.choice.saved_s, e.choice.pass_s = 10.0, 0.2
    submitted, begin = [], e.begin
    e.begin = lambda plan: (submitted.extend(load.total_ms for load in plan.loads), begin(plan))
    alone = e.add(Request(PROMPT))
    e.admit(alone)
    e.step((alone, 1))
    second = e.add(Request(PROMPT))
    e.admit(second)
    e.step((alone, 1), (second, 1))
    assert submitted == [5000, int(SHARED_PASS_FACTOR * 200)]
