"""Random walks of the worker half with few places: what waits for its turn, compared with a model after each step."""

from __future__ import annotations

import ctypes
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from kvdepot.vllm import transfers, worker
from kvdepot.vllm.config import Settings
from kvdepot.vllm.messages import Load, StepPlan, Store
from kvdepot.vllm.testing.engine_double import IDENTITY, LAYERS, SLAB, memory
from kvdepot.vllm.testing.fake_depot import FakeClient, FakeDepot

STORES, LOADS, WAITING, KEYS = 5, 3, 12, 2      # places, those that may wait, blocks of one operation
DEADLINE_S = 2.0
STEPS = 150


@dataclass(eq=False)
class Known:
    """A store as the model knows it."""

    number: int
    store: Store
    final: float = 0.0                  # when its last layer was final
    sent: bool = False
    idle: float = 0.0                   # since then, while it waited and the engine made no step
    ended: bool = False
    sound: bool = True                  # nothing has happened that it may end badly for
    bytes: dict[bytes, bytes] = field(default_factory=dict)     # of each key

    @property
    def operations(self) -> int:
        return -(-len(self.store.block_ids) // KEYS)


class Walk:
    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, *, faults: bool) -> None:
        for module in (worker, transfers):
            monkeypatch.setattr(module, "KEYS_MAX", KEYS)
        monkeypatch.setattr(worker, "STORE_OPS_MAX", STORES)
        monkeypatch.setattr(worker, "ASYNC_OPS_MAX", LOADS)
        monkeypatch.setattr(worker, "STORES_WAITING_MAX", WAITING)
        self.random = random.Random(seed)
        self.faults = faults
        self.depot = FakeDepot()
        self.client = FakeClient(self.depot)
        self.memory = memory(512)
        self.now = 100.0
        settings = Settings("tcp://127.0.0.1:1", linger_ms=0, store_deadline_ms=int(DEADLINE_S * 1e3))
        self.worker = worker.WorkerHalf(settings, self.client, self.memory, IDENTITY, clock=lambda: self.now)
        self.free = set(range(512))
        self.stores: list[Known] = []
        self.loads: dict[str, Load] = {}        # asynchronous ones that have not been received
        self.ended: Counter[str] = Counter()    # stores of each request, as reported
        self.holding: set[str] = set()
        self.epoch = b""
        self.seen = Counter()
        self.puts: list[bytes] = []             # first keys of operations, as they were sent
        self.gets: list[str] = []               # requests, likewise
        self.numbers = self.made = 0
        multiput = self.client.multiput

        def watched(ns: int, keys: bytes, *arguments, **named) -> int:
            self.puts.append(keys[:32])
            return multiput(ns, keys, *arguments, **named)

        multiget = self.client.multiget

        def watched_get(ns: int, keys: bytes, key_bytes: int, region: int, layers: object, blocks: list[int],
                        **named) -> int:
            self.gets += [request_id for request_id, load in self.loads.items() if blocks[0] // SLAB in load.block_ids]
            return multiget(ns, keys, key_bytes, region, layers, blocks, **named)

        self.client.multiput, self.client.multiget = watched, watched_get

    # ---- what there is ---------------------------------------------------------------------------------------------

    def open_stores(self) -> list[Known]:
        return [s for s in self.stores if not s.ended]

    def key(self) -> bytes:
        self.numbers += 1
        return self.numbers.to_bytes(32, "big")

    def take_blocks(self, count: int) -> list[int]:
        taken = self.random.sample(sorted(self.free), count)
        self.free.difference_update(taken)
        return taken

    def scribble(self, block_ids: list[int], byte: int) -> None:
        for block in block_ids:
            for layer in range(LAYERS):
                ctypes.memset(self.memory.address + self.memory.layer_offsets[layer] + block * SLAB, byte, SLAB)

    # ---- a step ----------------------------------------------------------------------------------------------------

    def new_store(self) -> Known:
        count = self.random.randint(1, 2 * KEYS + 1)
        keys = [self.key() for _ in range(count)]
        self.made += 1
        known = Known(self.made - 1, Store(f"r{self.random.randrange(12)}", -1, b"".join(keys),
                                           self.take_blocks(count), []))
        known.bytes = {key: bytes([self.random.randrange(1, 255)]) * SLAB for key in keys}
        return known

    def plan(self) -> tuple[StepPlan, list[Known]]:
        chance = self.random.random
        plan = StepPlan(self.epoch)
        live = {s.store.request_id for s in self.open_stores()}
        if chance() < 0.15 and live:
            plan.drop_stores = [self.random.choice(sorted(live))]
        made = [self.new_store() for _ in range(self.random.choice((0, 0, 1, 2, 9)))] if len(self.free) > 120 else []
        plan.stores = [known.store for known in made]
        if chance() < 0.3:
            held = sorted((live | {s.store.request_id for s in made}) - self.holding - set(plan.drop_stores))
            plan.hold = held[:1]
        for _ in range(self.random.choice((0, 0, 1, 5))):
            request_id = f"l{self.numbers:06}"
            stored = [key for _, _, key in self.depot.records]
            keys = self.random.sample(stored, min(len(stored), self.random.randint(1, 3))) or [self.key()]
            self.key()
            self.loads[request_id] = load = Load(request_id, b"".join(keys), self.take_blocks(len(keys)), False, False,
                                                 0, 500, 100)
            plan.loads.append(load)
        if chance() < 0.2 and self.loads:
            self.random.choice((plan.cancel_loads, plan.void_loads)).append(self.random.choice(sorted(self.loads)))
        return plan, made

    def disturb(self) -> None:
        """Time passes, and the depot does something."""
        pause = 0.001
        if self.random.random() < 0.08:
            pause = self.random.choice((0.4, 3 * DEADLINE_S))       # the engine has nothing to do
            self.seen["pauses"] += 1
        self.now += pause
        for known in self.open_stores():
            known.idle += 0 if known.sent else pause
        if self.random.random() < 0.3:
            self.depot.held = not self.depot.held
        numbers = sorted(self.client.ops)
        for number in self.random.sample(numbers, len(numbers) // 2 if self.depot.held else len(numbers)):
            self.client._run(number)
        if self.faults and self.random.random() < 0.1:
            self.client.fail(self.random.choice(("timeout", "unavailable", "io")), ("multiput", "multiget"))
            self.seen["failures"] += 1
            self.spoil(self.open_stores())
        self.depot.down = self.faults and self.random.random() < 0.1
        if self.depot.down:
            self.spoil(self.open_stores())

    @staticmethod
    def spoil(stores: list[Known]) -> None:
        for known in stores:
            known.sound = False

    def step(self) -> None:
        plan, made = self.plan()
        before = self.open_stores()
        if self.faults and self.random.random() < 0.02:
            plan.epoch = self.epoch = self.random.randbytes(16)
            self.spoil(before)
        self.spoil([s for s in before if s.store.request_id in plan.drop_stores])
        if self.depot.down:
            self.spoil(made)
        self.stores += made
        self.worker.begin_step(plan)
        for layer, name in enumerate(self.memory.layer_names):
            for known in made:
                for block, slab in zip(known.store.block_ids, known.bytes.values(), strict=True):
                    at = self.memory.address + self.memory.layer_offsets[layer] + block * SLAB
                    ctypes.memmove(at, slab, SLAB)
            self.worker.save_layer(name)
        for known in made:
            known.final = self.now
        self.now += self.random.choice((0.001, 0.01, 0.1))
        self.worker.end_pass()
        sent, received = self.worker.finished()
        self.holding.update(plan.hold)
        self.take_report(made)
        self.check(sent, received)

    def take_report(self, made: list[Known]) -> None:
        report = self.worker.take_report()
        waiting = {op.store.keys for op in self.worker._all_stores()}
        ended = [s for s in self.open_stores() if s.store.keys not in waiting]
        assert Counter(s.store.request_id for s in ended) == (report.stores_ended if report else {})
        failed = set(report.keys_failed if report else ())
        for known in ended:
            known.ended = True
            mine = failed & set(known.bytes)
            assert not mine or mine == set(known.bytes), "whole or not"
            self.seen["failed" if mine else "stored"] += 1
            if known.sound and known not in made and not self.late(known):
                assert not mine, f"store {known.number} failed, and nothing had happened"
            self.scribble(known.store.block_ids, 255)       # somebody else has them now
            self.free.update(known.store.block_ids)

    def late(self, known: Known) -> bool:
        """Whether its time is over. While it waits, time in which the engine makes no step does not count."""
        return self.now - known.final - known.idle > DEADLINE_S

    def check(self, sent: set[str], received: set[str]) -> None:
        open_stores = self.open_stores()
        for kind, limit in (("multiput", STORES), ("multiget", LOADS)):
            assert sum(op.kind == kind for op in self.client.ops.values()) <= limit
        # In the order in which they came, each once.
        of_key = {known.store.keys[at:at + 32]: known.number for known in self.stores
                  for at in range(0, len(known.store.keys), 32 * KEYS)}
        order = [of_key[key] for key in self.puts]
        assert order == sorted(order)
        assert self.gets == sorted(self.gets)
        assert len(set(self.puts)) == len(self.puts)
        for number in set(order):
            self.stores[number].sent = True
        assert not any(self.late(known) for known in open_stores)
        # Nobody waits beside a place that is free, and not too many do.
        waiting = [s for s in open_stores if not s.sent]
        self.seen["waited"] += len(waiting)
        used = sum(op.kind == "multiput" for op in self.client.ops.values())
        assert not waiting or used + waiting[0].operations > STORES
        assert len(waiting) <= WAITING
        # Blocks are given back when nothing reads them, and at once.
        pending = {s.store.request_id for s in open_stores}
        assert sent == {request_id for request_id in self.holding if request_id not in pending}
        self.holding -= sent
        for request_id in received:
            load = self.loads.pop(request_id)
            self.scribble(load.block_ids, 254)
            self.free.update(load.block_ids)
        assert len(self.loads) == len(self.worker._all_loads())
        # What the depot has is what was computed.
        slabs = {key: slab for known in self.stores for key, slab in known.bytes.items()}
        assert all(stored == [slabs[key]] * LAYERS for (_, _, key), stored in self.depot.records.items())

    def run(self) -> None:
        for _ in range(STEPS):
            self.disturb()
            self.step()
        self.depot.held = self.depot.down = False
        self.worker.close()
        calls = len(self.client.calls)
        assert not self.client.ops
        assert not self.worker._moving
        self.worker.finished()
        assert len(self.client.calls) == calls, "nothing is begun behind the end"


@pytest.mark.parametrize("seed", range(20))
def test_what_waits_for_its_turn_in_a_random_walk_without_faults(seed, monkeypatch):
    walk = Walk(seed, monkeypatch, faults=False)
    walk.run()
    assert walk.seen["stored"] > 20
    assert walk.seen["waited"] > 20
    assert walk.seen["pauses"] > 2


@pytest.mark.parametrize("seed", range(20))
def test_what_waits_for_its_turn_in_a_random_walk_with_faults(seed, monkeypatch):
    walk = Walk(seed, monkeypatch, faults=True)
    walk.run()
    assert walk.seen["stored"] > 5
    assert walk.seen["failed"] > 5
