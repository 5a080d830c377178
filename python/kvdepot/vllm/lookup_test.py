"""Lookups of more blocks than one operation may name: what counts as found, and what is let go."""

from __future__ import annotations

import pytest

from kvdepot.vllm.lookup import Lookup, LookupDesk
from kvdepot.vllm.testing.engine_double import Request
from kvdepot.vllm.testing.engines import engine
from kvdepot.vllm.testing.fake_depot import KEYS_MAX, FakeClient, FakeDepot

BLOCKS = 2 * KEYS_MAX + 100
KEYS = [b"%032d" % i for i in range(BLOCKS)]


class Desk:
    """A desk of one client, and its clock."""

    def __init__(self, present: set[int], flash: int = 0) -> None:
        self.depot = FakeDepot(flash=set(KEYS[:flash]))
        self.client = FakeClient(self.depot)
        self.now = 0.0
        self.desk = LookupDesk(self.client, (0,), lease_ms=1000, progress_ms=100, wait_us=0, clock=lambda: self.now)
        self.desk.namespace = self.client.open_namespace("t", b"f", [{"slab_bytes": 64}])
        for i in present:
            self.depot.records[b"t/f", 0, KEYS[i]] = []

    def ask(self, keys: list[bytes] = KEYS) -> Lookup:
        lookup = self.desk.submit(keys, 7, 1.0)
        assert lookup is not None
        return lookup


@pytest.mark.parametrize(("gap", "leases"), [
    (BLOCKS, 3), (BLOCKS - 1, 3), (2 * KEYS_MAX, 2), (KEYS_MAX + 5, 2), (KEYS_MAX, 1), (3, 1), (0, 0)])
def test_blocks_count_up_to_the_first_gap_and_nothing_behind_it_stays_pinned(gap, leases):
    d = Desk(set(range(BLOCKS)) - {gap}, flash=KEYS_MAX + 50)
    lookup = d.ask()
    assert d.desk.poll(lookup)
    assert (lookup.asked, lookup.found, lookup.end) == (BLOCKS, min(gap, BLOCKS), 7 + min(gap, BLOCKS))
    assert len(d.client.leases) == len(lookup.leases) == leases
    if gap % KEYS_MAX == 0:         # a part that has begun is counted whole
        assert lookup.on_flash == min(gap, KEYS_MAX + 50)
    assert d.desk.take_answers() == 1
    d.desk.drop(lookup)
    assert not d.client.leases
    assert not d.client.ops


def test_a_lookup_ends_when_all_of_its_parts_are_answered():
    d = Desk(set(range(BLOCKS)))
    d.depot.held = True
    lookup = d.ask()
    for op in list(d.client.ops)[::-1]:
        assert not d.desk.poll(lookup)
        assert lookup.op
        d.client._run(op)
    assert d.desk.poll(lookup)
    assert (lookup.op, lookup.found) == (0, BLOCKS)


def test_a_part_without_an_answer_ends_the_lookup_at_its_deadline():
    d = Desk(set(range(BLOCKS)))
    d.depot.held = True
    lookup = d.ask()
    d.client._run(next(iter(d.client.ops)))
    assert not d.desk.poll(lookup)
    d.now = 1.1
    assert d.desk.poll(lookup)
    assert (lookup.code, lookup.found) == ("timeout", 0)
    d.client.deliver()              # too late
    d.desk.poll(lookup)
    assert not d.client.leases
    assert not d.client.ops


def test_a_lookup_that_is_dropped_while_parts_are_open_leaves_nothing_behind():
    d = Desk(set(range(BLOCKS)))
    d.depot.held = True
    lookup = d.ask()
    d.client._run(next(iter(d.client.ops)))
    d.desk.poll(lookup)
    d.desk.drop(lookup)
    assert not d.client.leases
    assert not d.client.ops


def test_a_part_that_fails_leaves_what_lies_before_it():
    d = Desk(set(range(BLOCKS)))
    d.depot.held = True
    lookup = d.ask()
    first, second, third = d.client.ops
    d.client._run(first)
    d.client._run(third)
    d.client.fail("busy", ("match",))
    assert d.desk.poll(lookup)
    assert (lookup.code, lookup.found, len(d.client.leases)) == ("busy", KEYS_MAX, 1)
    assert d.desk.take_failures() == {"busy": 1}
    assert second not in d.client.ops


def test_a_prompt_of_more_blocks_than_one_operation_names_is_found():
    depot = FakeDepot()
    e = engine(depot)
    request = Request([i % 7 for i in range(4 * (KEYS_MAX + 10))])
    hashes = request.block_hashes
    namespace = e.clients[0].namespaces[0][0]
    depot.records |= {(namespace, 0, key): [] for key in hashes}
    request.__class__ = type("Long", (Request,), {"block_hashes": hashes})
    e.add(request)
    assert e.ask(request) == (4 * (KEYS_MAX + 10), True)
