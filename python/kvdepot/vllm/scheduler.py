"""The connector's half in vLLM's engine core: what to load, how, and what to store. It never waits for the depot.

One object per engine, used by the scheduler's thread only. vLLM's requests and scheduler outputs are used by their
attributes, so that tests need no vLLM. Block b of a request covers its tokens from b * block_tokens on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvdepot._kvdepot import KvdepotError
from kvdepot.vllm import counters
from kvdepot.vllm.config import Settings
from kvdepot.vllm.fingerprint import with_epoch
from kvdepot.vllm.load_deadlines import LoadDeadlines
from kvdepot.vllm.lookup import Lookup, LookupDesk
from kvdepot.vllm.messages import Evict, Load, LoadReport, StepPlan, Store, WorkerIdentity, WorkerReport
from kvdepot.vllm.notices import Notices
from kvdepot.vllm.tracked import LoadPlan, Step, Tracked
from kvdepot.vllm.transfers import LAYERWISE_MAX

# Of requests whose hit is left alone (computing is predicted to beat it, or its deadline to cut it off), one in so many
# is loaded all the same, before its pass: without loads nothing would ever correct a prediction that is wrong. At a
# deadline of half of what it saves, it costs 3 %.
PROBE_EVERY = 16

# Nothing is stored for so long after a store failed for one of these reasons; twice as long after each that a full
# depot refused, its bytes were sent in vain, or that one left to its deadline, its blocks were held as long.
PAUSE_CODES = frozenset(("timeout", "unavailable", "no_space", "busy"))
LONG_PAUSE_CODES = frozenset(("timeout", "no_space"))
STORE_PAUSE_S, STORE_PAUSE_S_MAX = 1.0, 64.0
# Blocks whose store failed and that are stored when a request finds them in vLLM's own cache: 6 MB of hashes.
UNSTORED_MAX = 65_536


class SchedulerHalf:
    """Decides. `choice` is a kvdepot LoadChoice; `local_blocks(request)` counts the blocks that vLLM itself has."""

    def __init__(self, settings: Settings, client: Any, choice_of: Callable[[WorkerIdentity], Any], *,
                 pass_tokens_max: int, may_load: bool = True, may_store: bool = True,
                 local_blocks: Callable[[Any], int] = lambda _request: 0,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._client, self._choice_of = settings, client, choice_of
        self._pass_tokens_max = pass_tokens_max
        self._may_load, self._may_store = may_load, may_store
        self._local_blocks, self._clock = local_blocks, clock
        self.notices = Notices(settings.depot, settings.warn_every_s, clock, self._why)
        self.counts: dict[str, Any] = counters.empty()
        self._identities: list[WorkerIdentity] = []
        self._desk: LookupDesk | None = None
        self._choice: Any = None
        self._block_tokens = 0
        self._token_bytes = 0
        self._epoch = b""
        self._epoch_used = True                    # something may have been stored in it
        self._outdated = False                     # vLLM's own cache may hold blocks of an epoch that is over
        self._tracked: dict[str, Tracked] = {}
        self._arriving: dict[bytes, str] = {}      # block hash -> request that loads it asynchronously
        self._loads: list[Load] = []
        self._cancel: list[str] = []
        self._void: list[str] = []
        self._hold: list[str] = []
        self._unstored: dict[bytes, None] = {}     # hashes of blocks whose store failed, oldest first
        self._store_pause_s = 0.0                  # the last pause that grows, if no store went well since
        self._store_at = 0.0                       # no store before that
        self._declined = 0                         # requests since the last load
        self._deadlines = LoadDeadlines(settings)
        self._undecided = 0                        # lookups that this step's requests still wait for
        self._decoding = (0, 0)                    # tokens and pairs of the last step's decoding requests
        self._step: Step | None = None

    # ---- start ---------------------------------------------------------------------------------------------------

    def bind(self, identities: Iterable[WorkerIdentity]) -> None:
        """Takes what the workers said about themselves; from here on the half works. Raises ValueError."""
        identities = sorted(identities, key=lambda identity: identity.shard)
        first = identities[0]
        for other in identities[1:]:
            if (other.fingerprint, other.group()) != (first.fingerprint, first.group()):
                raise ValueError("kvdepot: the workers of this engine differ in fingerprint or KV geometry; pipeline "
                                 "stages of different depth are not supported")
        self._identities = identities
        self._block_tokens = first.block_tokens
        self._token_bytes = first.block_bytes // first.block_tokens
        self._choice = self._choice_of(first)
        self._desk = LookupDesk(self._client, [i.shard for i in identities], lease_ms=self._settings.lease_ms,
                                progress_ms=self._settings.progress_ms, wait_us=self._settings.lookup_wait_us,
                                clock=self._clock)
        self._open_namespace()

    def _open_namespace(self) -> None:
        """Opens the epoch's namespace and gives the last one back."""
        first, last = self._identities[0], self._desk.namespace
        self._desk.namespace = self._client.open_namespace(self._settings.tenant,
                                                           with_epoch(first.fingerprint, self._epoch), [first.group()])
        if last:
            self._client.close_namespace(last)

    # ---- lookups and loads ---------------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        """A request has arrived: ask the depot now, so that the answer is there when it is scheduled."""
        if self._desk is None:
            return
        tracked = self._track(request)
        if not self._wants_load(tracked):
            return
        first = self._local_blocks(request)
        if first < self._full_blocks(request) and request.block_hashes[first] not in self._arriving:
            self._ask(tracked, first)

    def num_new_matched_tokens(self, request: Any, num_computed: int) -> tuple[int | None, bool]:
        """vLLM's question how many tokens behind `num_computed` can be loaded. None = ask again in the next step."""
        if self._desk is None:
            return 0, False
        tracked = self._track(request)
        tracked.no_store |= self._outdated and num_computed > 0    # what is computed behind such blocks is of none
        tracked.plan, tracked.declined = None, False
        first, last = num_computed // self._block_tokens, self._full_blocks(request)
        if not self._wants_load(tracked) or first >= last:
            return 0, False
        if self._arriving.get(request.block_hashes[first], request.request_id) != request.request_id:
            return None, False     # another request is loading this very block: it will be in vLLM's own cache
        lookup = tracked.lookup
        if lookup is None or lookup.first > first or self._stale(lookup):
            lookup = self._ask(tracked, first)
        if lookup is None:
            return (None, False) if self._waits_for_place(tracked) else (0, False)
        if not self._desk.poll(lookup):
            self._undecided += 1
            return None, False
        tracked.plan = self._plan(tracked, first, min(lookup.end, last))
        if tracked.plan is None:
            return 0, False
        return tracked.plan.tokens, not tracked.plan.layerwise

    def _ask(self, tracked: Tracked, first: int) -> Lookup | None:
        self._desk.drop(tracked.lookup)
        request = tracked.request
        keys = request.block_hashes[first:self._full_blocks(request)]
        cold_s = self._choice.prompt_seconds(tokens=request.num_tokens - first * self._block_tokens,
                                             context=first * self._block_tokens, pass_tokens_max=self._pass_tokens_max)
        tracked.lookup = self._desk.submit(keys, first, cold_s * self._settings.deadline_share)
        if tracked.lookup is None:
            tracked.no_load = not self._desk.full   # asking again for the same request would only cost time
        else:
            tracked.full_since = 0.0
            counters.add(self.counts, "lookups")
            counters.add(self.counts, "blocks_asked", len(keys))
        return tracked.lookup

    def _waits_for_place(self, tracked: Tracked) -> bool:
        """After a question that was not sent: whether to try again in the next step. For as long as for an answer."""
        if tracked.no_load:
            return False
        tracked.full_since = tracked.full_since or self._clock()
        tracked.no_load = self._clock() - tracked.full_since > self._settings.progress_ms / 1e3
        self._undecided += not tracked.no_load
        return not tracked.no_load

    def _stale(self, lookup: Lookup) -> bool:
        """What it found may be gone, and what it missed may have come: the request has waited for long."""
        return lookup.op == 0 and self._clock() - lookup.answered > max(self._settings.lease_ms, 1000) / 1e3

    def _plan(self, tracked: Tracked, first: int, end: int) -> LoadPlan | None:
        """How blocks [first, end) of a request are loaded, or None when computing them is better."""
        if end <= first:
            return None
        request, size = tracked.request, self._block_tokens
        others = len(self._tracked) - 1
        hit = (end - first) * size
        flash = min(tracked.lookup.on_flash, end - first)
        answer = self._choice.choose(
            prompt_tokens=request.num_tokens, local_tokens=first * size, hit_tokens=hit, flash_tokens=flash * size,
            token_bytes=self._token_bytes, pass_tokens_max=self._pass_tokens_max, others=others,
            others_tokens=self._decoding[0], others_pairs=self._decoding[1])
        mode, deadline_s = self._deadlines.decide(answer, hit * self._token_bytes, flash=2 * flash * size > hit,
                                                  shared=others > 0, full=self._pass_is_full())
        tracked.declined = mode == "none"
        if tracked.declined:
            if self._declined < PROBE_EVERY:
                return None
            mode = "async"
        total_ms = max(1, int(deadline_s * 1e3))
        # A pass must compute something; vLLM takes the last token of an asynchronous load back by itself.
        tokens = min(hit, request.num_tokens - 1 - first * size) if mode == "layerwise" else hit
        if tokens <= 0:
            return None
        return LoadPlan(first, end - first, tokens, mode == "layerwise", flash, total_ms, tracked.declined)

    def _pass_is_full(self) -> bool:
        return sum(load.layerwise for load in self._loads) >= LAYERWISE_MAX

    def after_alloc(self, request: Any, block_ids: Sequence[int], num_external_tokens: int) -> None:
        """vLLM has given the request its blocks; with `num_external_tokens` > 0 the promised load becomes a job."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.loading is not None:
            return
        plan, tracked.plan = tracked.plan, None
        if plan is None or num_external_tokens <= 0:
            self._declined += tracked.declined
            if tracked.declined and tracked.next_store < 0:
                counters.add(self.counts, "requests_left_alone")
            self._unpin(tracked)
            return
        self._declined = 0
        blocks = min(plan.blocks, -(-num_external_tokens // self._block_tokens))
        hashes = request.block_hashes[plan.first:plan.first + blocks]
        self._loads.append(Load(
            request.request_id, b"".join(hashes), list(block_ids[plan.first:plan.first + blocks]), plan.layerwise,
            num_external_tokens % self._block_tokens != 0, plan.flash, plan.total_ms, self._settings.progress_ms))
        counters.add(self.counts, "blocks_found", blocks)
        counters.add(self.counts, "blocks_found_on_flash", min(plan.flash, blocks))
        counters.add(self.counts, "loads_layerwise" if plan.layerwise else "loads_async")
        tracked.loading = plan
        tracked.next_store = plan.first + blocks
        if not plan.layerwise:
            for block_hash in hashes:
                self._arriving.setdefault(block_hash, request.request_id)

    def flash_tokens(self, request: Any, num_external_tokens: int) -> int:
        """How many of the tokens that `request` loads come from flash."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.loading is None:
            return 0
        return min(tracked.loading.flash * self._block_tokens, num_external_tokens)

    # ---- steps ---------------------------------------------------------------------------------------------------

    def build_plan(self, output: Any) -> StepPlan:
        """The worker's orders for the step that vLLM has just scheduled."""
        plan = StepPlan(self._epoch, self._loads, [], self._cancel, self._void, [], self._hold)
        self._loads, self._cancel, self._void, self._hold = [], [], [], []
        plan.linger = output.total_num_scheduled_tokens == 0 and self._undecided == 0
        self._undecided = 0
        # Also of requests that have ended since: vLLM has freed their blocks when it preempted them.
        plan.drop_stores = list(output.preempted_req_ids or ())
        loading = {i: load.request_id for load in plan.loads if load.layerwise for i in load.block_ids}
        step = Step()
        step.layerwise = {load.request_id: self._tracked[load.request_id].loading
                          for load in plan.loads if load.layerwise}
        decoding_tokens = decoding_pairs = 0
        for request_id, tokens in output.num_scheduled_tokens.items():
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            computed = tracked.request.num_computed_tokens
            pairs = tokens * computed + tokens * (tokens + 1) // 2
            step.tokens += tokens
            step.pairs += pairs
            if tokens == 1:
                decoding_tokens += 1
                decoding_pairs += pairs
            if tracked.next_store < 0:
                # What vLLM's own cache held was stored when it was computed, or is in _unstored; what the depot holds
                # need not be.
                tracked.next_store = max(computed // self._block_tokens, tracked.lookup.end if tracked.lookup else 0)
            if not tracked.no_store and (self._store_at == 0 or self._may_store_again()):
                if self._unstored and not tracked.mended:
                    self._mend(plan, tracked, computed, output.kv_connector_block_state, loading)
                if (computed + tokens) // self._block_tokens > tracked.next_store:
                    self._store(plan, tracked, computed, tokens, output.kv_connector_block_state, loading)
            if loading:
                step.tables[request_id] = output.kv_connector_block_state.get_block_ids(request_id)[0]
        self._decoding = (decoding_tokens, decoding_pairs)
        step.began = self._clock()
        self._step = step
        if self._desk is not None:
            self._desk.start_step()
        return plan

    def _store(self, plan: StepPlan, tracked: Tracked, computed: int, tokens: int, state: Any,
               loading: dict[int, str]) -> None:
        """Adds the blocks that this step completes: full ones, whose tokens are confirmed."""
        request = tracked.request
        end = min((computed + tokens) // self._block_tokens, len(request.block_hashes))
        first = tracked.next_store
        if end <= first:
            return
        if self._add_store(plan, tracked, first, range(first, end), state, loading):
            tracked.next_store = end

    def _mend(self, plan: StepPlan, tracked: Tracked, computed: int, state: Any, loading: dict[int, str]) -> None:
        """Adds blocks that vLLM's own cache held for this request and whose store failed once. Without them nobody else
        could use what comes behind them."""
        lookup, hashes = tracked.lookup, tracked.request.block_hashes
        end = lookup.first if lookup is not None and lookup.found else computed // self._block_tokens
        end = min(end, tracked.next_store)      # what comes behind is stored in any case
        missing = [i for i, block_hash in enumerate(hashes[:end]) if block_hash in self._unstored]
        tracked.mended = not missing or self._add_store(plan, tracked, -1, missing, state, loading)

    def _add_store(self, plan: StepPlan, tracked: Tracked, first: int, blocks: Sequence[int], state: Any,
                   loading: dict[int, str]) -> bool:
        """False when they cannot be stored in this pass, but may be in the next."""
        request = tracked.request
        table, hashes = state.get_block_ids(request.request_id)[0], request.block_hashes
        guards = sorted({loading[i] for i in table if i in loading}) if loading else []
        if guards and len(self._identities) > 1:
            return False    # a load that fails on one worker spoils what the others compute, and they do not know
        if self._unstored:
            for i in blocks:
                self._unstored.pop(hashes[i], None)
        plan.stores.append(Store(request.request_id, first, b"".join([hashes[i] for i in blocks]),
                                 [table[i] for i in blocks], guards))
        tracked.stores_sent += 1
        self._epoch_used = True
        return True

    def _may_store_again(self) -> bool:
        if self._clock() < self._store_at:
            return False
        self._store_at = 0.0
        return True

    def _pause_stores(self, longer: bool) -> None:
        pause = STORE_PAUSE_S
        if longer:
            pause = self._store_pause_s = min(max(2 * self._store_pause_s, STORE_PAUSE_S), STORE_PAUSE_S_MAX)
        self._store_at = max(self._store_at, self._clock() + pause)

    def _remember_unstored(self, hashes: Iterable[bytes]) -> None:
        for block_hash in hashes:
            self._unstored[block_hash] = None
        while len(self._unstored) > UNSTORED_MAX:
            del self._unstored[next(iter(self._unstored))]

    def _remember_rest(self, tracked: Tracked) -> None:
        """The request's blocks are about to go, and a pause may have kept some of them from being stored."""
        if self._store_at and tracked.next_store >= 0 and not tracked.no_store:
            self._remember_unstored(tracked.request.block_hashes[tracked.next_store:])

    def on_output(self, report: WorkerReport | None, received: Iterable[str],
                  evict: Evict) -> None:
        """A step has ended. `evict` is needed after a layer-wise load failed."""
        step, self._step = self._step or Step(), None
        if step.tokens > 0:
            self._learn(step, report)
        self._take_lookups()
        if report is not None:
            self._take_report(report, step, evict)
        for request_id in received:
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                self._end_load(tracked)

    def _take_lookups(self) -> None:
        if self._desk is None:
            return
        failures = self._desk.take_failures()
        for code, count in failures.items():
            counters.add_code(self.counts, "lookup_failures", code, count)
        self.notices.failures("lookups", failures)
        if "unavailable" in failures:
            self._pause_stores(False)
        if self._desk.take_answers() and not failures:
            self.notices.success()
            if self._store_pause_s == 0:
                self._store_at = 0.0        # the depot is back

    def _learn(self, step: Step, report: WorkerReport | None) -> None:
        if self._choice is None:
            return
        seconds = self._clock() - step.began
        if not step.layerwise:
            self._choice.observe_pass(tokens=step.tokens, pairs=step.pairs, seconds=seconds)
        elif report is not None and all(load.code == "ok" for load in report.loads):
            block_bytes = self._token_bytes * self._block_tokens
            blocks = sum(plan.blocks for plan in step.layerwise.values())
            flash = sum(min(plan.flash, plan.blocks) for plan in step.layerwise.values())
            self._choice.observe_overlap(tokens=step.tokens, pairs=step.pairs, seconds=seconds,
                                         pool_bytes=(blocks - flash) * block_bytes, flash_bytes=flash * block_bytes)

    def _take_report(self, report: WorkerReport, step: Step, evict: Evict) -> None:
        if report.depot_away:
            self._client.open_breaker()     # the next lookup need not find out for itself, at the price of a deadline
        for load in report.loads:
            self._take_load(load, step, report.depot_away, evict)
        for request_id, count in report.stores_ended.items():
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                tracked.stores_ended += count
        self._remember_unstored(report.keys_failed)
        for request_id, block in report.stores_failed.items():
            tracked = self._tracked.get(request_id)
            if tracked is not None and tracked.next_store > block:
                tracked.next_store = block
        if not PAUSE_CODES.isdisjoint(report.store_failures):
            # A store of a depot that hangs holds its blocks until the store's deadline.
            self._pause_stores(not LONG_PAUSE_CODES.isdisjoint(report.store_failures))
        elif report.stores_ended:
            self._store_pause_s = 0.0
        self.notices.failures("stores", report.store_failures)
        if report.stores_ended and not report.store_failures:
            self.notices.success()
        if report.weights_changed:
            self.new_epoch("the model's weights were changed in place")

    def _take_load(self, load: LoadReport, step: Step, depot_away: bool, evict: Evict) -> None:
        block_bytes = self._token_bytes * self._block_tokens
        tracked = self._tracked.get(load.request_id)
        flash = min(load.flash_blocks, load.blocks)
        from_flash = 2 * flash > load.blocks
        plan = step.layerwise.get(load.request_id) or (tracked.loading if tracked is not None else None)
        if load.good_blocks == load.blocks:
            self.notices.success()
            self._deadlines.kept(flash=from_flash, layerwise=load.layerwise)
            self._choice.observe_load(pool_bytes=(load.blocks - flash) * block_bytes, flash_bytes=flash * block_bytes,
                                      seconds=load.seconds, contended=load.layerwise)
        else:
            expected = plan is not None and plan.probe and load.code == "timeout" and not depot_away
            if load.code not in ("cancelled", "missing") and not expected:      # evicted meanwhile: nobody's fault
                self.notices.failures("loads", {load.code: 1})
            if load.code == "timeout" and not depot_away and plan is not None and load.seconds * 1e3 >= plan.total_ms:
                self._deadlines.cut_off(load.blocks * block_bytes, load.seconds, flash=from_flash,
                                        layerwise=load.layerwise)
            if load.layerwise and load.request_id in step.layerwise:
                self._poisoned(step, load, evict)
            elif tracked is not None and tracked.loading is not None:
                self._compute_again(tracked, tracked.loading.first + load.good_blocks)
        if load.layerwise and tracked is not None:
            self._end_load(tracked)

    def _compute_again(self, tracked: Tracked, block: int) -> None:
        """Blocks from `block` on are not in place: vLLM computes them, then they are stored again."""
        tracked.no_load = True
        tracked.next_store = min(tracked.next_store, block) if tracked.next_store >= 0 else block
        if self._desk is not None:
            self._desk.drop(tracked.lookup)
        tracked.lookup = None

    def _poisoned(self, step: Step, load: LoadReport, evict: Evict) -> None:
        """A layer-wise load failed. vLLM has put its blocks, and those that this pass computed behind them, into its
        prefix cache already. Until they are computed again they may not be found there, not even when their request
        was aborted meanwhile; and a request that found them before must compute them itself."""
        plan = step.layerwise[load.request_id]
        own = step.tables.get(load.request_id, [])
        bad = set(own[plan.first + load.good_blocks:plan.first + plan.blocks])
        for request_id, table in step.tables.items():
            index = next((i for i, block_id in enumerate(table) if block_id in bad), None)
            if index is None:
                continue
            evict(set(table[index:]))
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                request = tracked.request
                request.num_computed_tokens = min(request.num_computed_tokens, index * self._block_tokens)
                self._compute_again(tracked, index)

    def _end_load(self, tracked: Tracked) -> None:
        plan, tracked.loading = tracked.loading, None
        if plan is not None and not plan.layerwise:
            request = tracked.request
            for block_hash in request.block_hashes[plan.first:plan.first + plan.blocks]:
                if self._arriving.get(block_hash) == request.request_id:
                    del self._arriving[block_hash]
        self._unpin(tracked)

    # ---- the end of requests, and of caches -----------------------------------------------------------------------

    def request_finished(self, request: Any) -> bool:
        """True when the request's blocks must stay: a store still reads them. The worker then reports the request."""
        tracked = self._tracked.pop(request.request_id, None)
        if tracked is None:
            return False
        self._remember_rest(tracked)
        loading = tracked.loading
        self._end_load(tracked)
        if self._desk is not None:
            self._desk.drop(tracked.lookup)
        if loading is not None and not loading.layerwise:
            # vLLM keeps the blocks until the load is reported; ask the worker to end it now. A layer-wise load has
            # ended with its pass, also when its report is yet to come: vLLM ends requests before it hands that over.
            self._cancel.append(request.request_id)
            return False
        if tracked.stores_sent * max(len(self._identities), 1) <= tracked.stores_ended:
            return False
        self._hold.append(request.request_id)
        return True

    def reset(self) -> None:
        """vLLM's caches are reset, and this one with them."""
        # vLLM is often asked again until all blocks are free: that need not open a namespace each time.
        self.new_epoch("the cache was reset", always=False)
        self._outdated = bool(self._tracked)       # their blocks are in use, so vLLM keeps its cache

    def new_epoch(self, reason: str, *, always: bool = True) -> None:
        """Nothing stored so far may be used any more, nor anything computed so far be stored. `always`: also when
        nothing was stored in the present epoch."""
        open_one = always or self._epoch_used
        if open_one:
            self._epoch, self._epoch_used = os.urandom(16), False
        self._unstored.clear()
        self._outdated = True
        for tracked in self._tracked.values():
            tracked.no_load = tracked.no_store = True
            if tracked.loading is not None:
                self._void.append(tracked.request.request_id)
            if self._desk is not None:
                self._desk.drop(tracked.lookup)
            tracked.lookup = tracked.plan = None
        self._arriving.clear()
        if self._desk is not None and open_one:
            try:
                self._open_namespace()
            except KvdepotError as error:
                self._may_load = self._may_store = False
                self.notices.once(f"no further epoch can be opened ({error}): KV is neither loaded nor stored until "
                                  "restart")
        self.notices.once(f"{reason}: KV that was stored before is not used any more, new KV is shared with no other "
                          "engine until restart")

    # ---- small things ---------------------------------------------------------------------------------------------

    def _track(self, request: Any) -> Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            tracked = self._tracked[request.request_id] = Tracked(request, request.num_preemptions)
            if request.lora_request is not None:
                tracked.no_load = tracked.no_store = True
                self.notices.once("requests with a LoRA adapter are left alone: their KV is neither loaded nor stored")
            tracked.no_store |= not self._may_store
        elif tracked.preemptions != request.num_preemptions:
            tracked.preemptions = request.num_preemptions
            self._remember_rest(tracked)
            tracked.restart()
        return tracked

    def _wants_load(self, tracked: Tracked) -> bool:
        return self._may_load and not tracked.no_load and not tracked.request.skip_reading_prefix_cache

    def _full_blocks(self, request: Any) -> int:
        return min(len(request.block_hashes), request.num_tokens // self._block_tokens)

    def _unpin(self, tracked: Tracked) -> None:
        """Lets go of what the lookup pinned; what it found stays known, so that it is not stored again."""
        if self._desk is not None:
            self._desk.drop(tracked.lookup)

    def _why(self) -> str:
        """What the depot, or the way to it, last said to this engine."""
        stats = self._client.stats()
        return stats.get("last_error") or stats.get("last_refusal") or ""

    def take_counts(self) -> dict[str, Any]:
        counts, self.counts = self.counts, counters.empty()
        return counts

    def close(self) -> None:
        for tracked in self._tracked.values():
            if self._desk is not None:
                self._desk.drop(tracked.lookup)
        self._tracked.clear()
