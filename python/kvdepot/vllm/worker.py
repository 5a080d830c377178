"""The connector's half beside the model: moves KV between the engine's memory and the depot.

One object per worker process, used by the thread that runs the model. Nothing here waits for a store. Only a layer-wise
load is waited for inside a pass, layer by layer and never beyond its deadline.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from kvdepot._kvdepot import KvdepotError
from kvdepot.vllm import counters
from kvdepot.vllm.config import Settings
from kvdepot.vllm.digests import DigestLog
from kvdepot.vllm.fingerprint import with_epoch
from kvdepot.vllm.layout import BlockMemory
from kvdepot.vllm.messages import Load, StepPlan, Store, WorkerIdentity, WorkerReport
from kvdepot.vllm.timeline import NoTimeline
from kvdepot.vllm.transfers import (
    ASYNC_OPS_MAX,
    KEYS_MAX,
    STORE_OPS_MAX,
    STORES_WAITING_MAX,
    LoadOp,
    StoreOp,
    failed_keys,
    own_code,
    parts,
    room,
)

GRACE_S = 0.2               # the client ends an operation at its deadline; this covers a thread that gets no core
RECONNECT_MS = 50           # the scheduler half was promised a load by this very depot: it is there, or has just gone
STORE_LINGER_S = 0.001      # a step that only waits for stores polls more often than one that waits for a load


class WorkerHalf:
    """Carries out the plans of the scheduler half."""

    def __init__(self, settings: Settings, client: Any, memory: BlockMemory, identity: WorkerIdentity, *,
                 digests: DigestLog | None = None, timeline: NoTimeline | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._client = client
        self._memory = memory
        self._identity = identity
        self._digests = digests
        self._timeline = timeline or NoTimeline()
        self._clock = clock
        self._layers = len(memory.layer_names)
        self._index = {name: i for i, name in enumerate(memory.layer_names)}
        self._region = client.register_address(memory.address, memory.nbytes, memory.owner)
        self._epoch = b""
        self._namespace = self._open_namespace()
        self._void = False                              # weights changed: nothing may move until a new epoch
        self._plan: StepPlan | None = None
        self._may_reconnect = True                      # in this step
        self._stopped = clock()                         # when the last step ended
        self._loads: dict[int, LoadOp] = {}             # operation -> asynchronous load in flight
        self._stores: dict[int, StoreOp] = {}           # operation -> store in flight
        self._loads_waiting: dict[LoadOp, None] = {}    # for their turn, oldest first
        self._stores_waiting: dict[StoreOp, None] = {}
        self._pending: dict[str, int] = {}              # request -> its stores in flight
        self._hold: set[str] = set()                    # finished requests to report when they have none
        self._received: set[str] = set()
        self._errors: set[int] = set()
        self._report = WorkerReport()
        self._damaged = 0                               # slabs that failed verification so far
        self.counts: dict[str, Any] = counters.empty()
        # The two lists below are what the hooks of each layer look at: empty in a step with nothing to do.
        self.waiting: list[LoadOp] = []                 # layer-wise loads of this step
        self.storing: list[StoreOp] = []                # stores of this step

    def _open_namespace(self) -> int:
        fingerprint = with_epoch(self._identity.fingerprint, self._epoch)
        return self._client.open_namespace(self._settings.tenant, fingerprint, [self._identity.group()])

    # ---- a step --------------------------------------------------------------------------------------------------

    def begin_step(self, plan: StepPlan) -> None:
        """Before the pass: gives up what must be given up, submits asynchronous loads, opens stores."""
        if self._plan is plan:
            return
        self._plan = plan
        self._may_reconnect = True
        self._go_on()
        if plan.epoch != self._epoch:
            self._enter_epoch(plan.epoch)
        if plan.empty:
            return
        for request_id in plan.drop_stores:
            self._drop_stores(lambda s, r=request_id: s.store.request_id == r, "cancelled")
        for request_id in plan.void_loads:
            self._cancel_load(request_id)
        for load in plan.loads:
            if not load.layerwise:
                self._submit_load(load)
        for request_id in plan.cancel_loads:
            self._cancel_load(request_id)
        self.storing = [op for store in plan.stores if (op := self._submit_store(store)) is not None]
        self._hold.update(plan.hold)
        if self.storing or any(load.layerwise for load in plan.loads):
            self._timeline.pass_started(self.storing)

    def start_layerwise(self) -> None:
        """Right before a pass that needs them: submits the layer-wise loads of this step."""
        plan = self._plan
        if plan is None or self.waiting:
            return
        for load in plan.loads:
            if load.layerwise:
                self.waiting.append(self._submit_load(load))
        plan.loads = []
        # Where the pass writes into a loaded block, a layer must be in place before the model touches it, which is
        # before its hook. It is awaited one layer ahead; only the first is awaited without anything to hide it.
        for op in self.waiting:
            if op.load.tail_computed:
                self._await_layer(op, 0)

    def wait_layer(self, name: str) -> None:
        """Before the attention of a layer: its KV must be in place."""
        layer = self._index.get(name)
        if layer is None:
            return
        self._timeline.layer_reached(layer)
        for op in self.waiting:
            if not op.load.tail_computed:
                self._await_layer(op, layer)

    def save_layer(self, name: str) -> None:
        """After the attention of a layer: its KV is final. Hands it over; never waits for a store."""
        layer = self._index.get(name)
        if layer is None:
            return
        for store in self.storing:
            self._release_layers(store, layer + 1)
        self._timeline.layer_released(layer)
        for op in self.waiting:
            if op.load.tail_computed and layer + 1 < self._layers:
                self._await_layer(op, layer + 1)

    def end_pass(self) -> None:
        """After the pass: every layer is final. Ends layer-wise loads."""
        if not self.storing and not self.waiting:
            return
        for store in self.storing:
            self._release_layers(store, self._layers)
            if self._digests is not None and not store.ended:
                self._digests.stored(store.store)
        for op in self.waiting:
            self._finish_layerwise(op)
        self.storing, self.waiting = [], []
        self._collect()
        self._timeline.pass_ended()

    def finished(self) -> tuple[set[str], set[str]]:
        """(requests whose blocks are free to go, requests whose asynchronous load has ended), each told once. Ends the
        pass, if end_pass() was not called: with speculative decoding vLLM asks for errors and report before that."""
        self.end_pass()
        if self._moving:
            self._collect()
            if self._plan is not None and self._plan.linger:
                self._linger()
        self._stopped = self._clock()
        received, self._received = self._received, set()
        if not self._hold:
            return set(), received
        sent = {request_id for request_id in self._hold if not self._pending.get(request_id)}
        self._hold -= sent
        return sent, received

    def _go_on(self) -> None:
        """Nothing of what waits can begin while vLLM makes no step, and nobody needs its blocks then: that time is not
        of its deadline."""
        now = self._clock()
        for op in self._stores_waiting:
            op.expires += now - self._stopped
        self._stopped = now

    @property
    def _moving(self) -> bool:
        return bool(self._loads or self._stores or self._loads_waiting or self._stores_waiting)

    def take_errors(self) -> set[int]:
        errors, self._errors = self._errors, set()
        return errors

    def take_report(self) -> WorkerReport | None:
        if self._report.empty:
            return None
        report, self._report = self._report, WorkerReport()
        return report

    def take_counts(self) -> dict[str, Any]:
        counts, self.counts = self.counts, counters.empty()
        return counts

    # ---- loads ---------------------------------------------------------------------------------------------------

    def _submit_load(self, load: Load) -> LoadOp:
        now = self._clock()
        op = LoadOp(load, now, now + load.total_ms / 1e3 + GRACE_S)
        if self._void:
            op.fail(0, "cancelled")
            self._abandon(op)
        elif load.layerwise or (not self._loads_waiting and room(len(self._loads), op.blocks, ASYNC_OPS_MAX)):
            self._start_load(op)
        else:
            self._loads_waiting[op] = None
        return op

    def _start_load(self, op: LoadOp) -> None:
        try:
            try:
                self._submit_gets(op)
            except KvdepotError as error:
                if op.ops or not self._reconnects(error):
                    raise
                self._submit_gets(op)
        except KvdepotError as error:
            op.fail(0, own_code(error))
            self._drop_guarded(op)
            self._abandon(op)
        self._timeline.load_submitted(op)

    def _submit_gets(self, op: LoadOp) -> None:
        load = op.load
        key_bytes = len(load.keys) // len(load.block_ids)
        offsets = self._memory.block_offsets(load.block_ids)
        for first, count in parts(op.blocks):
            number = self._client.multiget(
                self._namespace, load.keys[first * key_bytes:(first + count) * key_bytes], key_bytes, self._region,
                self._memory.layer_offsets, offsets[first:first + count], shard=self._identity.shard,
                stop_at_first_failure=True, total_ms=max(load.total_ms - op.waited_ms, 1),  # 0 would be none
                progress_ms=load.progress_ms)
            op.ops[number] = first
            op.open.add(number)
            if not load.layerwise:
                self._loads[number] = op

    def _reconnects(self, error: KvdepotError) -> bool:
        """After a load could not be submitted: whether that was for want of a connection, and there is one now. The
        engine's processes notice a restarted depot each for itself; a depot that has gone is waited for once a step."""
        if error.code != "unavailable" or not self._may_reconnect or self._client.stats()["connected"]:
            return False
        try:
            self._client.reconnect(RECONNECT_MS)
        except KvdepotError:
            self._may_reconnect = False
        return self._may_reconnect

    def _abandon(self, op: LoadOp) -> None:
        """Ends a load now: afterwards no byte of it can land."""
        self._loads_waiting.pop(op, None)
        for number in op.ops:
            self._loads.pop(number, None)
            if number in op.open:
                self._client.cancel(number)
            self._client.release(number)
        op.open.clear()
        op.ops.clear()
        self._load_ended(op)

    def _cancel_load(self, request_id: str) -> None:
        """Ends a request's asynchronous load, if it has not ended by itself. Its blocks count as not loaded."""
        for op in self._all_loads():
            if op.load.request_id == request_id:
                op.fail(0, "cancelled")
                self._abandon(op)

    def _all_loads(self) -> list[LoadOp]:
        """Asynchronous ones, that wait or are in flight."""
        return list(dict.fromkeys((*self._loads.values(), *self._loads_waiting)))

    def _await_layer(self, op: LoadOp, layer: int) -> None:
        self._timeline.wait_began()
        for number, first in list(op.ops.items()):
            if number not in op.open:
                continue
            left_ms = max(int((op.expires - self._clock()) * 1e3), 0) + 1
            completion = self._client.wait(number, layer=layer, timeout_ms=left_ms)
            if completion is None:
                op.fail(0, "timeout")
            else:
                self._take_completion(op, first, completion)
            if op.code != "ok":
                self._drop_guarded(op)
                if op.good_blocks == 0:
                    self._abandon(op)
                    break
        if self._digests is not None and not op.ended:
            self._digests.loaded_layer(op, layer)
        self._timeline.wait_ended()

    def _take_completion(self, op: LoadOp, first: int, completion: Any) -> None:
        if not completion.ok:
            # Bytes of all its blocks may be missing in any layer; of several clients' shares, of those from one on.
            op.fail(first + completion.first_failed(), completion.code)
        elif completion.failed_keys:
            damaged = self._client.stats()["corrupt_slabs"]
            op.fail(first + completion.first_failed(), "corrupt" if damaged > self._damaged else "missing")
            self._damaged = damaged
        if completion.layer < 0:
            op.took = max(op.took, completion.seconds)

    def _finish_layerwise(self, op: LoadOp) -> None:
        for number, first in list(op.ops.items()):
            left_ms = max(int((op.expires - self._clock()) * 1e3), 0) + 1
            completion = self._client.wait(number, layer=-1, timeout_ms=left_ms)
            if completion is None:
                op.fail(first, "timeout")
                continue
            op.open.discard(number)
            self._take_completion(op, first, completion)
        if op.code != "ok":
            self._drop_guarded(op)
        if not op.ended:
            self._abandon(op)

    def _load_ended(self, op: LoadOp) -> None:
        if op.ended:
            return
        op.ended = self._clock()
        load = op.load
        self._errors.update(op.bad_block_ids())
        self._report.loads.append(op.report())
        if not load.layerwise:
            self._received.add(load.request_id)
            if self._digests is not None:
                self._digests.loaded(op)
        counters.add(self.counts, "blocks_loaded", op.good_blocks)
        counters.add(self.counts, "bytes_loaded", op.good_blocks * self._identity.block_bytes)
        counters.add_load_seconds(self.counts, op.seconds)
        if op.code != "ok":
            counters.add(self.counts, "blocks_failed", op.blocks - op.good_blocks)
            counters.add_code(self.counts, "load_failures", op.code)
        if op.code in ("timeout", "unavailable"):
            stats = self._client.stats()
            self._report.depot_away |= stats["breaker_open"] or not stats["connected"]

    # ---- stores --------------------------------------------------------------------------------------------------

    def _submit_store(self, store: Store) -> StoreOp | None:
        op = StoreOp(store)
        self._pending[store.request_id] = self._pending.get(store.request_id, 0) + 1
        if self._void:
            self._end_store(op, "cancelled", again=False)
        elif not self._stores_waiting and room(len(self._stores), len(store.block_ids), STORE_OPS_MAX):
            self._start_store(op)
        elif len(self._stores_waiting) < STORES_WAITING_MAX:
            self._stores_waiting[op] = None
        else:
            self._end_store(op, "cancelled")
        return None if op.ended else op

    def _start_store(self, op: StoreOp) -> None:
        store, count = op.store, len(op.store.block_ids)
        key_bytes = len(store.keys) // count
        offsets = self._memory.block_offsets(store.block_ids)
        try:
            for first, n in parts(count):
                number = self._client.multiput(
                    self._namespace, store.keys[first * key_bytes:(first + n) * key_bytes], key_bytes, self._region,
                    self._memory.layer_offsets, offsets[first:first + n], shard=self._identity.shard,
                    ack=self._settings.ack, whole=False, total_ms=0, progress_ms=0)
                op.ops.append(number)
                op.open.add(number)
                self._stores[number] = op
        except KvdepotError as error:
            self._end_store(op, own_code(error))

    def _release_layers(self, op: StoreOp, end: int) -> None:
        """The layers before `end` are final and may be read from now on."""
        if op.ended:
            return
        op.final = end
        if end == self._layers:
            op.expires = self._clock() + self._settings.store_deadline_ms / 1e3
        if op.ops:
            self._hand_over(op)

    def _hand_over(self, op: StoreOp) -> None:
        try:
            while op.released < op.final:
                for number in op.ops:
                    if number in op.open:
                        self._client.put_layer(number, op.released)
                op.released += 1
        except KvdepotError as error:
            self._end_store(op, error.code)

    def _end_store(self, op: StoreOp, code: str, *, again: bool = True) -> None:
        """Ends a store; what is still in flight of it is cancelled: afterwards its blocks are not read any more.
        `again`: when it failed, its blocks are worth storing later."""
        self._stores_waiting.pop(op, None)
        for number in op.ops:
            self._stores.pop(number, None)
            if number in op.open:
                self._client.cancel(number)
            self._client.release(number)
        op.ops, op.open, op.ended = [], set(), True
        store = op.store
        self._pending[store.request_id] -= 1
        if self._pending[store.request_id] == 0:
            del self._pending[store.request_id]
        self._report.stores_ended[store.request_id] = self._report.stores_ended.get(store.request_id, 0) + 1
        missing = op.refused if code == "ok" else list(range(len(store.block_ids)))
        good = len(store.block_ids) - len(missing)
        if code == "ok" and missing:
            code = "busy" if good else "no_space"
        if again and missing:
            hashes = store.hashes()
            self._report.keys_failed += [hashes[i] for i in missing]
            if store.first_block >= 0:
                failed, block = self._report.stores_failed, store.first_block + min(missing)
                failed[store.request_id] = min(failed.get(store.request_id, block), block)
        if code == "cancelled":
            counters.add(self.counts, "stores_cancelled")
        elif code != "ok":
            failures = self._report.store_failures
            failures[code] = failures.get(code, 0) + 1
            counters.add_code(self.counts, "store_failures", code)
        counters.add(self.counts, "stores")
        counters.add(self.counts, "blocks_stored", good)
        counters.add(self.counts, "bytes_stored", good * self._identity.block_bytes)

    def _drop_stores(self, chosen: Callable[[StoreOp], bool], code: str, *, again: bool = True) -> None:
        for op in self._all_stores():
            if chosen(op):
                self._end_store(op, code, again=again)

    def _all_stores(self) -> list[StoreOp]:
        return list(dict.fromkeys((*self._stores.values(), *self._stores_waiting)))

    def _drop_guarded(self, load: LoadOp) -> None:
        """What this pass computes from the blocks of a load that failed is worthless."""
        stores = {op for op in self.storing if load.load.request_id in op.store.guards}
        self._drop_stores(lambda s: s in stores, "cancelled")

    # ---- collecting ----------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Takes what has ended, without waiting."""
        while completions := self._client.poll(64):
            for completion in completions:
                if completion.layer < 0:
                    self._take_ended(completion)
        self._expire(self._clock())
        self._admit()

    def _expire(self, now: float) -> None:
        """Ends what has reached its deadline. What was never sent says nothing about the depot."""
        for load in self._all_loads():
            if now > load.expires - (0 if load.ops else GRACE_S):
                load.fail(0, "timeout" if load.ops else "cancelled")
                self._abandon(load)
        for store in self._all_stores():
            if now > store.expires:
                self._end_store(store, "timeout" if store.ops else "cancelled")

    def _admit(self) -> None:
        """Begins what has waited for its turn, as far as there is room."""
        while self._loads_waiting and room(len(self._loads), next(iter(self._loads_waiting)).blocks, ASYNC_OPS_MAX):
            load = next(iter(self._loads_waiting))
            del self._loads_waiting[load]
            now = self._clock()
            load.waited_ms, load.began = int((now - load.began) * 1e3), now
            self._start_load(load)
        while self._stores_waiting and room(len(self._stores), len(next(iter(self._stores_waiting)).store.block_ids),
                                            STORE_OPS_MAX):
            store = next(iter(self._stores_waiting))
            del self._stores_waiting[store]
            self._start_store(store)
            self._hand_over(store)

    def _take_ended(self, completion: Any) -> None:
        load = self._loads.get(completion.op)
        if load is not None:
            self._take_completion(load, load.ops[completion.op], completion)
            load.open.discard(completion.op)
            if not load.open or load.good_blocks == 0:
                self._abandon(load)
            return
        store = self._stores.get(completion.op)
        if store is not None:
            store.open.discard(completion.op)
            if not completion.ok:
                self._end_store(store, completion.code)
                return
            first = store.ops.index(completion.op) * KEYS_MAX
            store.refused += [first + i for i in failed_keys(completion)]
            if not store.open:
                self._end_store(store, "ok")

    def _linger(self) -> None:
        """In a step without a pass: waits a little for the first load to end, so that the engine need not poll."""
        until = self._clock() + (self._settings.linger_ms / 1e3 if self._loads else STORE_LINGER_S)
        fd = self._client.event_fd
        ended = len(self._report.stores_ended)
        while self._moving and not self._received and len(self._report.stores_ended) == ended:
            left = until - self._clock()
            if left <= 0:
                return
            if fd < 1024:
                select.select([fd], [], [], left)    # counts in microseconds, unlike poll()
            else:
                time.sleep(min(left, 100e-6))
            self._collect()

    # ---- epochs and the end --------------------------------------------------------------------------------------

    def _enter_epoch(self, epoch: bytes) -> None:
        self._give_up()
        self._epoch, last = epoch, self._namespace
        try:
            self._namespace = self._open_namespace()
            self._client.close_namespace(last)
            self._void = False
        except KvdepotError:        # the scheduler half gets the same answer and says so
            self._void = True

    def weights_changed(self) -> None:
        """The model's weights were changed in place: nothing may be loaded or stored until the next epoch."""
        self._void = True
        self._give_up()
        self._report.weights_changed = True

    def _give_up(self) -> None:
        for request_id in {op.load.request_id for op in self._all_loads()}:
            self._cancel_load(request_id)
        self._drop_stores(lambda _s: True, "cancelled", again=False)     # they belong to an epoch that is over

    def close(self) -> None:
        """Ends everything; afterwards no byte moves and the client may be closed."""
        for op in self.waiting:
            op.fail(0, "cancelled")
            self._abandon(op)
        self.waiting = []
        self._give_up()
        self._timeline.close()
        if self._digests is not None:
            self._digests.close()
