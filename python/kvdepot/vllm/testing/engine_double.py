"""The little of vLLM that the connector's two halves see: requests, scheduler outputs, KV memory, a choice."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from kvdepot.vllm.config import Settings
from kvdepot.vllm.layout import BlockMemory
from kvdepot.vllm.messages import StepPlan, WorkerIdentity
from kvdepot.vllm.scheduler import SchedulerHalf
from kvdepot.vllm.worker import WorkerHalf

BLOCK = 4          # tokens
LAYERS = 3
SLAB = 64          # bytes
BLOCKS = 2048      # of the engine's memory


def hashes(tokens: list[int]) -> list[bytes]:
    """Chained block hashes of the full blocks, as vLLM makes them."""
    made, parent = [], b""
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        parent = hashlib.sha256(parent + repr(tokens[start:start + BLOCK]).encode()).digest()
        made.append(parent)
    return made


class Request:
    """vLLM's request, as far as it is looked at."""

    _ids = itertools.count()

    def __init__(self, tokens: list[int], **attributes: Any) -> None:
        self.request_id = f"r{next(self._ids)}"
        self.tokens = list(tokens)
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.lora_request = None
        self.skip_reading_prefix_cache = False
        self.__dict__.update(attributes)

    @property
    def block_hashes(self) -> list[bytes]:
        return hashes(self.tokens)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


class Choice:
    """A LoadChoice that says what it is told, and remembers what it was taught."""

    def __init__(self, mode: str = "async") -> None:
        self.mode = mode
        self.saved_s = 1.0
        self.load_s = 0.1
        self.pass_s = 0.2
        self.questions: list[dict[str, Any]] = []
        self.passes: list[dict[str, Any]] = []
        self.loads: list[dict[str, Any]] = []
        self.overlaps: list[dict[str, Any]] = []

    def choose(self, **question: Any) -> Any:
        self.questions.append(question)
        return SimpleNamespace(mode=self.mode, saved_s=self.saved_s, load_s=self.load_s, pass_s=self.pass_s)

    def prompt_seconds(self, **_work: Any) -> float:
        return 1.0

    def observe_pass(self, **work: Any) -> None:
        self.passes.append(work)

    def observe_load(self, **load: Any) -> None:
        self.loads.append(load)

    def observe_overlap(self, **work: Any) -> None:
        self.overlaps.append(work)


def memory(blocks: int = BLOCKS) -> BlockMemory:
    size = blocks * LAYERS * SLAB
    buffer = ctypes.create_string_buffer(size)
    return BlockMemory(tuple(f"layer.{i}" for i in range(LAYERS)), ctypes.addressof(buffer), size,
                       tuple(i * blocks * SLAB for i in range(LAYERS)), SLAB, SLAB, blocks, buffer)


IDENTITY = WorkerIdentity(0, b"f" * 32, LAYERS, SLAB, BLOCK, "LBHNC", (0.01, 0.001, 1e-9), True)


@dataclass
class Engine:
    """Both halves over fake clients, with a minimal scheduler that gives out fresh blocks and computes known bytes."""

    clients: tuple[Any, Any]
    choice: Choice = field(default_factory=Choice)
    settings: Settings = field(default_factory=lambda: Settings("tcp://127.0.0.1:1", linger_ms=0, lookup_wait_us=0))
    now: float = 100.0
    speculative: bool = False       # vLLM then ends the pass after it has asked for errors and report
    workers: int = 1                # the first one is played; the others store and load what it does
    may_load: bool = True
    may_store: bool = True

    def __post_init__(self) -> None:
        self.memory = memory()
        self.evicted: set[int] = set()
        self.before: dict[str, int] = {}
        self.local: dict[str, int] = {}
        self.tables: dict[str, list[int]] = {}
        self.requests: dict[str, Request] = {}
        self.external: dict[str, tuple[int, bool]] = {}
        self.received: set[str] = set()
        self.sent: set[str] = set()
        self.errors: set[int] = set()
        self.held: dict[str, bool] = {}     # requests that ended with a step -> what request_finished() said
        self._free = iter(range(1, BLOCKS))
        self.scheduler = SchedulerHalf(self.settings, self.clients[0], lambda _identity: self.choice,
                                       pass_tokens_max=4096, clock=self.tick,
                                       may_load=self.may_load, may_store=self.may_store,
                                       local_blocks=lambda r: self.local.get(r.request_id, 0))
        self.scheduler.bind([replace(IDENTITY, shard=shard) for shard in range(self.workers)])
        self.worker = WorkerHalf(self.settings, self.clients[1], self.memory, IDENTITY, clock=self.tick)

    def tick(self) -> float:
        """A clock that moves by itself a little, so that what waits ends."""
        self.now += 1e-5
        return self.now

    # ---- vLLM's scheduler ----------------------------------------------------------------------------------------

    def add(self, request: Request) -> Request:
        self.requests[request.request_id] = request
        self.scheduler.on_new_request(request)
        return request

    def ask(self, request: Request, num_computed: int = 0) -> tuple[int | None, bool]:
        return self.scheduler.num_new_matched_tokens(request, num_computed)

    def admit(self, request: Request, num_computed: int = 0) -> tuple[int | None, bool]:
        """Asks the connector and, when it has an answer, gives the request its blocks."""
        tokens, is_async = self.ask(request, num_computed)
        if tokens is None:
            return tokens, is_async
        need = -(-(request.num_tokens + 8) // BLOCK)
        table = self.tables.setdefault(request.request_id, [])
        table += [next(self._free) for _ in range(need - len(table))]
        self.scheduler.after_alloc(request, table, tokens)
        request.num_computed_tokens = num_computed + tokens
        self.external[request.request_id] = tokens, is_async
        return tokens, is_async

    def step(self, *scheduled: tuple[Request, int], preempted: tuple[Request, ...] = (),
             compute: bool = True, ending: tuple[Request, ...] = ()) -> StepPlan:
        """One step of the engine: plan, pass, report. `scheduled` are requests and their tokens in this pass;
        `ending` are requests that end with its result (a last token, an abort meanwhile)."""
        counts = {request.request_id: tokens for request, tokens in scheduled}
        output = SimpleNamespace(
            num_scheduled_tokens=counts, total_num_scheduled_tokens=sum(counts.values()),
            preempted_req_ids={r.request_id for r in preempted} or None,
            kv_connector_block_state=SimpleNamespace(get_block_ids=lambda rid: (list(self.tables[rid]),)))
        plan = self.scheduler.build_plan(output)
        self.before = {request_id: request.num_computed_tokens for request_id, request in self.requests.items()}
        self.begin(plan)
        for layer in range(LAYERS if counts else 0):
            self.run_layer(layer, scheduled if compute else ())
        for request, tokens in scheduled:
            request.num_computed_tokens += tokens
        self.end(ending)
        return plan

    def begin(self, plan: StepPlan) -> None:
        self.worker.begin_step(plan)
        if any(load.layerwise for load in plan.loads):
            self.worker.start_layerwise()

    def run_layer(self, layer: int, scheduled: tuple[tuple[Request, int], ...]) -> None:
        name = self.memory.layer_names[layer]
        self.worker.wait_layer(name)
        for request, tokens in scheduled:
            for token in range(request.num_computed_tokens, request.num_computed_tokens + tokens):
                self.compute(request, layer, token)
        self.worker.save_layer(name)

    def end(self, ending: tuple[Request, ...] = ()) -> None:
        if not self.speculative:
            self.worker.end_pass()
        sent, received = self.worker.finished()
        errors, report = self.worker.take_errors(), self.worker.take_report()
        self.worker.end_pass()
        self.sent |= sent
        self.received |= received
        self.errors |= errors
        self.truncate(errors)
        for request in ending:      # vLLM's order: requests end before their connector is told what the step did
            self.held[request.request_id] = self.finish(request)
        self.scheduler.on_output(report, received, self.evicted.update)

    def truncate(self, errors: set[int]) -> None:
        """As vLLM does: only the first request that holds a bad block goes back to it. One that shares it goes back to
        where it was before this step, and goes on from blocks that somebody else is expected to compute."""
        marked: set[int] = set()
        for request_id, request in self.requests.items():
            table = self.tables.get(request_id, [])
            bad = [i for i, block in enumerate(table) if block in errors]
            if not bad:
                continue
            mine = [i for i in bad if table[i] not in marked]
            marked.update(table[i] for i in bad)
            request.num_computed_tokens = mine[0] * BLOCK if mine else self.before.get(request_id, 0)

    def finish(self, request: Request) -> bool:
        del self.requests[request.request_id]
        return self.scheduler.request_finished(request)

    # ---- the model -----------------------------------------------------------------------------------------------

    def _place(self, request: Request, layer: int, token: int) -> int:
        block = self.tables[request.request_id][token // BLOCK]
        part = SLAB // BLOCK
        return (self.memory.address + self.memory.layer_offsets[layer] + block * SLAB + token % BLOCK * part)

    def _bytes(self, request: Request, layer: int, token: int) -> bytes:
        text = repr((layer, request.tokens[:token + 1])).encode()
        return hashlib.sha256(text).digest()[:SLAB // BLOCK]

    def compute(self, request: Request, layer: int, token: int) -> None:
        ctypes.memmove(self._place(request, layer, token), self._bytes(request, layer, token), SLAB // BLOCK)

    def right(self, request: Request, first: int, last: int) -> bool:
        """True when the KV of tokens [first, last) is what computing them gives."""
        return all(ctypes.string_at(self._place(request, layer, token), SLAB // BLOCK) ==
                   self._bytes(request, layer, token) for layer in range(LAYERS) for token in range(first, last))
