"""Several clients as one: who gets what, when a layer is there, and what becomes of a load that fails in one part."""

from __future__ import annotations

import ctypes
import itertools
import select

import pytest

from kvdepot._kvdepot import KvdepotError
from kvdepot.vllm.client_group import SHARE_BYTES_MIN, ClientGroup, stretches
from kvdepot.vllm.testing.engine_double import IDENTITY, LAYERS, SLAB, Choice, Engine, Request, memory
from kvdepot.vllm.testing.engines import PROMPT, engine, warmed
from kvdepot.vllm.testing.fake_depot import FakeClient, FakeDepot, error

KEYS = 10
KEY_BYTES = 4


def key(i: int) -> bytes:
    return b"k%03d" % i


def slab(i: int, layer: int) -> bytes:
    return bytes([16 * layer + i]) * SLAB


class Rig:
    """Clients of one depot that holds `KEYS` records, and memory for them."""

    def __init__(self, clients: int = 3, blocks_of_share: int = 2) -> None:
        self.depot = FakeDepot(held=True)
        self.clients = [FakeClient(self.depot) for _ in range(clients)]
        self.group = ClientGroup(self.clients, IDENTITY.block_bytes, blocks_of_share * IDENTITY.block_bytes)
        self.memory = memory(2 * KEYS)
        self.region = self.group.register_address(self.memory.address, self.memory.nbytes, self.memory.owner)
        self.ns = self.group.open_namespace("t", b"f" * 32, [IDENTITY.group()])
        for i in range(KEYS):
            self.depot.records[b"t/" + b"f" * 32, 0, key(i)] = [slab(i, layer) for layer in range(LAYERS)]

    def arguments(self, keys: int, first: int = 0):
        return (self.ns, b"".join(key(first + i) for i in range(keys)), KEY_BYTES, self.region,
                self.memory.layer_offsets, self.memory.block_offsets(range(keys)))

    def load(self, keys: int = KEYS) -> int:
        return self.group.multiget(*self.arguments(keys), total_ms=1000, progress_ms=100)

    def store(self, keys: int = KEYS, first: int = 100) -> int:
        return self.group.multiput(*self.arguments(keys, first), whole=False)

    def in_place(self, keys: int = KEYS, layers: int = LAYERS) -> bool:
        return all(self.bytes_at(i, layer) == slab(i, layer) for i in range(keys) for layer in range(layers))

    def bytes_at(self, i: int, layer: int) -> bytes:
        return ctypes.string_at(self.memory.address + self.memory.layer_offsets[layer] + i * SLAB, SLAB)

    def shares(self, kind: str = "multiget") -> list[list[bytes]]:
        """The keys at each client, as far as its operations are not released."""
        return [[k for op in client.ops.values() if op.kind == kind for k in op.args["keys"]]
                for client in self.clients]

    def busy(self) -> list[int]:
        return [len(client.ops) for client in self.clients]


# ---- who gets what -----------------------------------------------------------------------------------------------


def test_keys_are_shared_out_in_stretches_of_their_order():
    rig = Rig()
    rig.load()
    assert rig.shares() == [[key(i) for i in stretch] for stretch in (range(0, 3), range(3, 6), range(6, 10))]


@pytest.mark.parametrize(("keys", "shares", "sizes"), [
    (10, 3, [3, 3, 4]), (10, 1, [10]), (2, 3, [1, 1]), (1, 16, [1]), (4096, 16, [256] * 16)])
def test_stretches_cover_all_keys_and_differ_by_one_at_most(keys, shares, sizes):
    found = stretches(keys, shares)
    assert sorted(count for _, count in found) == sorted(sizes)
    assert [i for first, count in found for i in range(first, first + count)] == list(range(keys))


@pytest.mark.parametrize(("keys", "clients"), [(1, 1), (3, 1), (4, 2), (5, 2), (6, 3), (10, 3)])
def test_a_client_gets_no_less_than_is_worth_its_while(keys, clients):
    rig = Rig()
    rig.load(keys)
    assert sorted(rig.busy(), reverse=True) == [1] * clients + [0] * (3 - clients)


def test_default_share_is_in_bytes():
    clients = [FakeClient(FakeDepot(held=True)) for _ in range(2)]
    group = ClientGroup(clients, SHARE_BYTES_MIN // 4)
    group.register_address(0, 1, None)
    ns = group.open_namespace("t", b"f", [IDENTITY.group()])
    group.multiget(ns, b"a" * 7, 1, 0, (0,), list(range(7)))
    assert [len(client.ops) for client in clients] == [1, 0]
    group.multiget(ns, b"a" * 8, 1, 0, (0,), list(range(8)))
    assert [len(client.ops) for client in clients] == [2, 1]


def test_small_loads_go_to_who_has_least_to_do():
    rig = Rig()
    ops = [rig.load(1) for _ in range(5)]
    assert rig.busy() == [2, 2, 1]
    rig.group.release(ops[1])
    rig.load(1)
    assert rig.busy() == [2, 2, 1]
    rig.clients[0].deliver()
    rig.group.poll()                    # ended, though not released
    rig.load(1)
    assert rig.busy() == [3, 2, 1]


def test_a_group_of_one_is_a_client():
    rig = Rig(clients=1)
    op = rig.load()
    assert rig.group.poll() == []
    rig.clients[0].deliver()
    assert [(done.op, done.code, done.first_failed()) for done in rig.group.poll()] == [(op, "ok", KEYS)]
    assert rig.in_place()


# ---- when it is there --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_layer_is_there_when_it_is_there_at_all_clients(order):
    rig = Rig()
    op = rig.load()
    for layer in range(LAYERS):
        for client in order:
            assert rig.group.wait(op, layer, 0) is None
            rig.clients[client].deliver(layers=1)
        done = rig.group.wait(op, layer, 0)
        assert (done.ok, done.layer, done.failed_keys, done.first_failed()) == (True, layer, 0, KEYS)
        assert rig.in_place(layers=layer + 1)
    assert rig.group.wait(op, -1, 0).ok


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_load_ends_once_with_the_last_of_its_shares(order):
    rig = Rig()
    op = rig.load()
    told = []
    for client in order:
        assert told == []
        rig.clients[client].deliver()
        told += rig.group.poll()
    assert [(done.op, done.layer, done.keys, done.ok) for done in told] == [(op, -1, KEYS, True)]
    assert rig.group.poll() == []
    rig.group.release(op)
    assert rig.busy() == [0, 0, 0]
    assert rig.in_place()


def test_the_time_of_a_load_is_that_of_its_slowest_share():
    rig = Rig()
    op = rig.load()
    for seconds, client in zip((0.1, 0.3, 0.2), rig.clients, strict=True):
        rig.depot.load_s = seconds
        client.deliver()
    assert rig.group.poll()[0].seconds == 0.3
    assert rig.group.wait(op).seconds == 0.3


def test_event_fd_tells_of_every_client():
    rig = Rig()
    rig.load()
    fd = rig.group.event_fd
    for client in rig.clients:
        assert not select.select([fd], [], [], 0)[0]
        client.deliver()
        assert select.select([fd], [], [], 0)[0]
        rig.group.poll()


# ---- a part fails ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("bad", [0, 2, 3, 5, 6, 9])
def test_what_lies_before_the_first_missing_block_is_in_place(order, bad):
    rig = Rig()
    del rig.depot.records[b"t/" + b"f" * 32, 0, key(bad)]
    rig.load()
    told = []
    for client in order:
        rig.clients[client].deliver()
        told += rig.group.poll()
    assert [(done.code, done.first_failed(), done.failed_keys) for done in told] == [("ok", bad, KEYS - bad)]
    assert rig.in_place(bad)


def test_what_lies_behind_a_failed_share_is_cancelled_and_not_waited_for():
    rig = Rig()
    rig.depot.damaged.add(key(4))
    rig.load()
    rig.clients[1].deliver()
    assert rig.group.poll() == []
    assert [client.calls.count("cancel") for client in rig.clients] == [0, 0, 1]
    rig.clients[0].deliver()
    assert [done.first_failed() for done in rig.group.poll()] == [4]
    assert rig.group.stats()["corrupt_slabs"] == 1


def test_layers_of_what_lies_before_a_damaged_block_go_on():
    rig = Rig()
    rig.depot.damaged.add(key(4))
    op = rig.load()
    for layer in range(LAYERS):
        for client in rig.clients:
            client.deliver(layers=1)
        done = rig.group.wait(op, layer, 0)
        assert (done.code, done.first_failed()) == ("ok", 4)
    assert rig.group.wait(op).first_failed() == 4
    assert rig.in_place(4)
    assert [client.calls.count("cancel") for client in rig.clients] == [0, 0, 1]


@pytest.mark.parametrize(("failing", "good"), [(0, 0), (1, 3), (2, 6)])
@pytest.mark.parametrize("code", ["timeout", "unavailable"])
def test_client_that_fails_costs_its_share_and_what_lies_behind(failing, good, code):
    rig = Rig()
    op = rig.load()
    rig.clients[failing].fail(code, ("multiget",))
    for client in rig.clients:
        client.deliver()
    assert [(done.code, done.first_failed()) for done in rig.group.poll()] == [(code, good)]
    assert rig.in_place(good)
    waited = rig.group.wait(op)
    assert (waited.code, waited.first_failed()) == (code, good)


def test_a_failure_that_is_known_is_told_for_every_layer():
    """What is behind it was cancelled: a layer that came before is not whole any more."""
    rig = Rig()
    op = rig.load()
    for client in rig.clients:
        client.deliver(layers=1)
    assert rig.group.wait(op, 0, 0).ok
    rig.clients[1].fail("timeout", ("multiget",))
    rig.group.poll()
    done = rig.group.wait(op, 0, 0)
    assert (done.code, done.first_failed()) == ("timeout", 3)


def test_client_that_hangs_is_waited_for_until_it_is_given_up():
    rig = Rig()
    op = rig.load()
    rig.clients[0].deliver()
    rig.clients[2].deliver()
    assert rig.group.poll() == []
    assert rig.group.wait(op, 0, 0) is None
    rig.group.cancel(op)
    assert [(done.code, done.first_failed()) for done in rig.group.poll()] == [("cancelled", 3)]
    rig.group.release(op)
    rig.clients[1].deliver()
    assert rig.bytes_at(3, 0) == bytes(SLAB)        # nothing has landed behind the end
    assert rig.busy() == [0, 0, 0]


def test_released_load_is_not_told_of():
    rig = Rig()
    op = rig.load()
    rig.clients[0].deliver()
    rig.group.release(op)
    assert rig.group.poll() == []
    for call in (rig.group.wait, rig.group.cancel):
        with pytest.raises(KvdepotError) as caught:
            call(op)
        assert caught.value.code == "not_found"


# ---- clients that are not there ----------------------------------------------------------------------------------


def test_what_one_client_has_found_out_holds_for_all():
    rig = Rig()
    rig.load()
    rig.clients[1].open_breaker()       # as a client does before an operation ends for want of bytes
    rig.clients[1].fail("timeout", ("multiget",))
    rig.group.poll()
    with pytest.raises(KvdepotError) as caught:
        rig.load()
    assert caught.value.code == "unavailable"
    assert rig.group.stats()["breaker_open"]


def test_total_that_was_too_short_opens_nobodys_breaker():
    rig = Rig()
    rig.load()
    rig.clients[1].fail("timeout", ("multiget",))
    rig.group.poll()
    assert not rig.group.stats()["breaker_open"]
    rig.load()


def test_share_of_a_client_without_a_connection_goes_to_the_others():
    rig = Rig()
    rig.clients[1].knows["connected"] = False
    rig.load()
    assert rig.shares() == [[key(i) for i in range(5)], [], [key(i) for i in range(5, 10)]]
    for client in rig.clients:
        client.deliver()
    assert len(rig.group.poll()) == 1
    assert rig.in_place()
    assert rig.group.stats()["connected"]
    rig.clients[1].knows["connected"] = True
    rig.load()
    assert [len(keys) > 0 for keys in rig.shares()] == [True] * 3


def test_client_that_refused_is_asked_first_so_that_the_others_need_give_nothing_back():
    rig = Rig()
    rig.load()
    rig.clients[2].knows["connected"] = False
    rig.group.release(rig.load())
    assert rig.busy() == [1, 1, 1]                      # nobody has less to do
    for client in rig.clients:
        client.calls.clear()
    rig.load()
    assert [client.calls for client in rig.clients] == [["multiget"]] * 3


def test_nobody_there_is_unavailable_and_connecting_is_tried_by_all():
    rig = Rig()
    for client in rig.clients:
        client.knows["connected"] = False
    with pytest.raises(KvdepotError) as caught:
        rig.load()
    assert caught.value.code == "unavailable"
    assert not rig.group.stats()["connected"]
    rig.group.reconnect(50)
    assert [client.knows["connected"] for client in rig.clients] == [True] * 3
    rig.load()
    assert rig.busy() == [1, 1, 1]


def test_depot_that_has_gone_is_waited_for_once():
    rig = Rig()
    rig.depot.down = True
    with pytest.raises(KvdepotError):
        rig.group.reconnect(50)
    assert sum(client.waited_ms for client in rig.clients) <= 150
    assert rig.clients[0].waited_ms in (49, 50)


def test_one_connection_is_enough():
    rig = Rig()
    rig.clients[0].reconnect = lambda _ms: (_ for _ in ()).throw(error("unavailable"))
    rig.group.reconnect(50)


@pytest.mark.parametrize("full", range(3))
def test_load_that_finds_no_place_at_one_client_leaves_nothing_at_the_others(full):
    rig = Rig()
    rig.clients[full].ops_max = 0
    with pytest.raises(KvdepotError) as caught:
        rig.load()
    assert caught.value.code == "busy"
    assert rig.busy() == [0, 0, 0]


# ---- stores ------------------------------------------------------------------------------------------------------


def test_store_goes_out_layer_by_layer_over_all_clients():
    rig = Rig()
    op = rig.store()
    for layer in range(LAYERS):
        assert len(rig.depot.records) == KEYS
        rig.group.put_layer(op, layer)
        for client in rig.clients:
            client.deliver()
    assert [(done.op, done.ok, done.failed_keys) for done in rig.group.poll()] == [(op, True, 0)]
    assert len(rig.depot.records) == 2 * KEYS


def test_blocks_that_the_depot_refuses_are_those_of_each_share():
    rig = Rig()
    rig.depot.takes = 2
    op = rig.store()
    for layer in range(LAYERS):
        rig.group.put_layer(op, layer)
    for client in rig.clients:
        client.deliver()
    done, = rig.group.poll()
    assert done.ok
    assert [i for i in range(KEYS) if done.failed[i // 8] >> i % 8 & 1] == [2, 5, 8, 9]
    assert done.failed_keys == 4


def test_store_that_fails_at_one_client_has_ended():
    rig = Rig()
    op = rig.store()
    rig.clients[1].fail("unavailable", ("multiput",))
    assert [(done.op, done.code) for done in rig.group.poll()] == [(op, "unavailable")]
    rig.group.release(op)
    assert rig.busy() == [0, 0, 0]


# ---- the whole group ---------------------------------------------------------------------------------------------


def test_namespace_is_open_at_all_or_at_none():
    rig = Rig()
    rig.clients[2].namespaces_max = 1
    with pytest.raises(KvdepotError):
        rig.group.open_namespace("t", b"g" * 32, [IDENTITY.group()])
    assert [len(client.open_namespaces) for client in rig.clients] == [1, 1, 1]
    rig.group.close_namespace(rig.ns)
    assert [len(client.open_namespaces) for client in rig.clients] == [0, 0, 0]
    with pytest.raises(KvdepotError):
        rig.group.close_namespace(rig.ns)


def test_stats_add_up():
    rig = Rig()
    rig.load()
    for client in rig.clients:
        client.deliver()
    rig.clients[2].knows["last_error"] = "gone"
    for client in rig.clients[:2]:
        client.knows["last_error"] = ""
    stats = rig.group.stats()
    assert stats["bytes_loaded"] == KEYS * LAYERS * SLAB
    assert stats["last_error"] == "gone"


def test_all_are_closed_the_owner_last_whatever_happens():
    rig = Rig()
    closed = []
    for i, client in enumerate(rig.clients):
        client.close = lambda i=i: (closed.append(i), 1 / (i - 1))
    assert rig.group.event_fd >= 0
    with pytest.raises(ZeroDivisionError):
        rig.group.close()
    assert closed == [2, 1, 0]


# ---- in the connector --------------------------------------------------------------------------------------------


def engine_with_group(depot: FakeDepot, mode: str, clients: int = 3, **settings) -> Engine:
    """As testing.engines.engine(), whose worker has several clients. Two blocks are enough for a share."""
    group = ClientGroup([FakeClient(depot) for _ in range(clients)], IDENTITY.block_bytes, 2 * IDENTITY.block_bytes)
    one = engine(depot, mode, **settings)
    return Engine((FakeClient(depot), group), Choice(mode), one.settings)


@pytest.mark.parametrize("mode", ["async", "layerwise"])
def test_engine_loads_and_stores_over_all_clients(mode):
    depot = FakeDepot()
    writer = engine_with_group(depot, mode)
    first = writer.add(Request(PROMPT))
    writer.admit(first)
    writer.step((first, 40))
    writer.step()
    assert len(depot.records) == 10
    assert writer.worker.counts["blocks_stored"] == 10
    e = engine_with_group(depot, mode)
    request = e.add(Request(PROMPT + [1, 2]))
    assert e.admit(request) == (40, mode == "async")
    e.step(*([(request, 2)] if mode == "layerwise" else []))
    assert not e.errors
    assert e.right(request, 0, 40)
    assert [client.calls.count("multiget") for client in e.clients[1]._clients] == [1, 1, 1]
    assert [client.ops for client in e.clients[1]._clients] == [{}, {}, {}]


@pytest.mark.parametrize("mode", ["async", "layerwise"])
@pytest.mark.parametrize("bad", [0, 4, 9])
def test_engine_computes_what_lies_behind_a_damaged_block(mode, bad):
    depot = warmed()
    depot.damaged.add(Request(PROMPT).block_hashes[bad])
    e = engine_with_group(depot, mode)
    request = e.add(Request(PROMPT + [1, 2]))
    e.admit(request)
    e.step(*([(request, 2)] if mode == "layerwise" else []))
    assert e.errors == set(e.tables[request.request_id][bad:10])
    assert request.num_computed_tokens == 4 * bad
    assert e.right(request, 0, 4 * bad)
    assert e.worker.counts["load_failures"] == {"corrupt": 1}


@pytest.mark.parametrize("mode", ["async", "layerwise"])
@pytest.mark.parametrize("code", ["timeout", "unavailable"])
def test_engine_keeps_the_shares_before_one_that_broke_off(mode, code):
    depot = warmed()
    e = engine_with_group(depot, mode)
    request = e.add(Request(PROMPT + [1, 2]))
    e.admit(request)
    depot.held = True
    clients = e.clients[1]._clients
    begin = e.begin

    def beginning(plan):
        begin(plan)
        clients[1].fail(code, ("multiget",))
        for client in clients:
            client.deliver(("multiget",))

    e.begin = beginning
    e.step(*([(request, 2)] if mode == "layerwise" else []))
    assert e.errors == set(e.tables[request.request_id][3:10])
    assert request.num_computed_tokens == 12
    assert e.right(request, 0, 12)
    assert e.worker.counts["load_failures"] == {code: 1}
    assert not any(client.ops for client in clients)


def test_engine_gives_up_a_load_that_hangs_at_one_client():
    depot = warmed()
    e = engine_with_group(depot, "async")
    request = e.add(Request(PROMPT))
    e.admit(request)
    depot.held = True
    e.step()
    clients = e.clients[1]._clients
    for client in clients[:2]:
        client.deliver()
    e.step()
    assert not e.received
    e.now += 60
    e.step()
    assert e.received == {request.request_id}
    assert e.errors == set(e.tables[request.request_id][:10])
    assert not any(client.ops for client in clients)


def test_engine_drops_the_stores_of_a_preempted_request_at_all_clients():
    depot = FakeDepot()
    e = engine_with_group(depot, "async")
    request = e.add(Request(PROMPT))
    e.admit(request)
    depot.held = True
    e.step((request, 40))
    clients = e.clients[1]._clients
    assert [len(client.ops) for client in clients] == [1, 1, 1]
    e.step(preempted=(request,))
    assert not any(client.ops for client in clients)
    assert not depot.records


def test_engine_ends_with_everything_in_flight():
    depot = warmed()
    e = engine_with_group(depot, "async")
    request = e.add(Request(PROMPT))
    e.admit(request)
    depot.held = True
    e.step()
    e.worker.close()
    assert not any(client.ops for client in e.clients[1]._clients)
    e.clients[1].close()
