"""KV of a prefix from a depot into this GPU's memory, layer by layer, against computing it there.

    python3 -m bench.gpu_load data/h100/llama-3-8b.json --out loads.csv [--kvdepot build/release/bin/kvdepot] [--quick]

Needs PyTorch with CUDA, the package kvdepot (pip install .) and 80 GB of memory. A depot of its own holds the KV of
32,768 tokens in DRAM, in blocks of 16 and of 64 tokens. Prefixes of it are loaded by one or more clients (each takes a
share of the blocks): depot -> pinned host buffer -> GPU, where a kernel puts each layer's blocks to their places. Each
load is compared with what was stored, byte by byte, on the GPU. A line of the CSV: what was done, the first run's
seconds, median, 10th and 90th percentile of the others, then what kept the machine busy meanwhile.

    kind        seconds until
    match       the depot has said which blocks it has
    load        all layers are in GPU memory
    serial      the next token is known: all layers loaded, then the suffix computed
    pipeline    the next token is known: layer l+1 loads while layer l of the suffix computes
    suffix      the next token is known when the prefix is in GPU memory already
    prefill     the prefix is computed, in passes of 8,192 tokens
    store       the depot has what comes from pinned memory
    copy        all layers are in GPU memory, when they are in pinned memory already
    memcpy      one thread has copied 1 GiB into pinned memory

Transports: `shm` and `tcp` fill the pinned buffer, from the depot's memory or through loopback TCP. `view` borrows the
depot's memory (docs/client.md, Views), verifies there, and has the driver copy whole records from it, a thread for each
client; layers are sorted out on the GPU, so nothing can be computed before all is there.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import depot as depot_arm

COLUMNS = ("kind", "transport", "clients", "block_tokens", "tokens", "bytes", "first", "median", "low", "high", "runs",
           "host", "depot_cpu", "client_cpu")
PREFIXES = (1024, 4096, 16384, 32768)
SUFFIX = 64             # tokens behind the prefix that are computed
CHUNK = 8192            # tokens of a prefill pass
BLOCKS = (16, 64)       # tokens
ARMS = (("shm", 1), ("shm", 4), ("shm", 2), ("shm", 8), ("tcp", 1), ("tcp", 4), ("view", 1), ("view", 4))
SERIAL = ARMS[:2]       # also one after the other
POOL_BYTES = 48 << 30   # one connection may be lent 3/16 of it, in views half of that
RUNS = {16384: 4, 32768: 4}     # 7 of shorter ones
DEADLINE_MS = 60_000
QUICK = dict(prefixes=(64, 192), blocks=(16, 64), arms=(("shm", 1), ("tcp", 2), ("view", 2)), pool=1 << 30)


class Lane:
    """What the GPU does: copies on one stream, compute on another. Without a GPU both are the caller's thread."""

    def __init__(self, device: str, layers: int) -> None:
        import torch

        self.torch = torch
        self.gpu = device != "cpu"
        if self.gpu:
            self.copies, self.compute = torch.cuda.Stream(), torch.cuda.Stream()
            self.arrived = [torch.cuda.Event() for _ in range(layers)]

    @contextlib.contextmanager
    def copying(self, layer: int) -> Iterator[None]:
        if not self.gpu:
            yield
            return
        with self.torch.cuda.stream(self.copies):
            yield
            self.arrived[layer].record(self.copies)

    @contextlib.contextmanager
    def computing(self, layer: int = -1) -> Iterator[None]:
        """Behind the copy of a layer, if one is named."""
        if not self.gpu:
            yield
            return
        if layer >= 0:
            self.compute.wait_event(self.arrived[layer])
        with self.torch.cuda.stream(self.compute):
            yield

    def finish(self) -> None:
        if self.gpu:
            self.torch.cuda.synchronize()

    def graph(self, run: Callable[[], None]) -> Callable[[], None]:
        if not self.gpu:
            return run
        from bench.gpu_model import captured

        return captured(run)


class Suffix:
    """Computes SUFFIX tokens behind a prefix of `cached` in `pages`, a graph for each layer."""

    def __init__(self, model, lane: Lane, pages: list, cached: int, attention: str) -> None:
        self.lane = lane
        torch = lane.torch
        ids = model.tokens(1, SUFFIX)
        state = {}

        def begin() -> None:
            state[-1] = (torch.nn.functional.embedding(ids, model.embedding), None)

        def layer(number: int) -> Callable[[], None]:
            def run() -> None:
                state[number] = model.layer(number, *state[number - 1], pages[number], cached, attention)
            return run

        def end() -> None:
            self.token = model.finish(*state[len(pages) - 1])

        # What a graph leaves stays referenced in `state`, where the next one was told to find it.
        self.begin = lane.graph(begin)
        self.layers = [lane.graph(layer(number)) for number in range(len(pages))]
        self.end = lane.graph(end)

    def token_of(self, behind_copies: bool, before_layer: Callable[[int], None] = lambda layer: None) -> int:
        with self.lane.computing():
            self.begin()
        for number, run in enumerate(self.layers):
            before_layer(number)
            with self.lane.computing(number if behind_copies else -1):
                run()
        with self.lane.computing():
            self.end()
            return self.token.item()


class Store:
    """The engine's side: pages on the GPU, a pinned buffer, and clients that share a load's blocks."""

    def __init__(self, shape, lane: Lane, device: str, tokens: int) -> None:
        torch = lane.torch
        self.shape, self.lane, self.tokens = shape, lane, tokens
        self.host = torch.empty(tokens * shape.kv_token_bytes, dtype=torch.uint8, pin_memory=lane.gpu)
        place = (2, 1, tokens + SUFFIX, shape.kv_heads, shape.head_dim)
        self.pages = [torch.zeros(place, device=device, dtype=torch.bfloat16) for _ in range(shape.layers)]
        self.right = [torch.randn(2, 1, tokens, *place[3:], device=device, dtype=torch.bfloat16)
                      for _ in range(shape.layers)]
        self.staging = torch.empty(2, tokens * shape.layer_kv_token_bytes, device=device, dtype=torch.uint8)
        self.places: dict[int, object] = {}
        self.records = None     # for views, made when needed

    def slabs(self, raw, block_tokens: int):
        """Bytes of one layer as blocks: [block, k|v, token, kv_head, dim]."""
        return raw.view(self.lane.torch.bfloat16).view(-1, 2, block_tokens, self.shape.kv_heads, self.shape.head_dim)

    def host_layer(self, layer: int, tokens: int):
        size = tokens * self.shape.layer_kv_token_bytes
        return self.host[layer * size:(layer + 1) * size]

    def fill_host(self, block_tokens: int) -> None:
        """What is to be stored, as the depot's slabs."""
        for layer, right in enumerate(self.right):
            blocks = right.view(2, -1, block_tokens, *right.shape[3:]).transpose(0, 1).contiguous()
            self.slabs(self.host_layer(layer, self.tokens), block_tokens).copy_(blocks)
        self.lane.finish()

    def to_pages(self, layer: int, slabs) -> None:
        """Each block to its page (here in order; by number, as an engine's lie anywhere)."""
        blocks, _, block_tokens = slabs.shape[:3]
        if blocks not in self.places:
            self.places[blocks] = self.lane.torch.arange(blocks, device=self.pages[0].device)
            self.lane.finish()
        for part in (0, 1):
            pages = self.pages[layer][part, 0, :blocks * block_tokens].view(blocks, block_tokens, *slabs.shape[3:])
            pages.index_copy_(0, self.places[blocks], slabs[:, part])

    def to_gpu(self, layer: int, tokens: int, block_tokens: int) -> None:
        """One copy of a layer from the pinned buffer, then a kernel."""
        with self.lane.copying(layer):
            raw = self.staging[layer % 2, :tokens * self.shape.layer_kv_token_bytes]
            raw.copy_(self.host_layer(layer, tokens), non_blocking=True)
            self.to_pages(layer, self.slabs(raw, block_tokens))

    def records_of(self, record_bytes: int):
        """Place on the GPU for whole records: [block, byte]."""
        if self.records is None:
            self.records = self.lane.torch.empty(self.tokens * self.shape.kv_token_bytes, dtype=self.lane.torch.uint8,
                                                 device=self.pages[0].device)
        return self.records.view(-1, record_bytes)

    def clear(self) -> None:
        for pages in self.pages:
            pages.zero_()
        self.lane.finish()

    def wrong_layers(self, tokens: int) -> int:
        equal = [self.lane.torch.equal(pages[:, :, :tokens], right[:, :, :tokens])
                 for pages, right in zip(self.pages, self.right)]
        return equal.count(False)


class Loader:
    """Clients of one depot. Each operation is for a share of the keys, so that a layer is there when all have it."""

    def __init__(self, address: str, store: Store, transport: str, clients: int, block_tokens: int) -> None:
        import kvdepot

        self.store, self.block_tokens = store, block_tokens
        shape = store.shape
        self.slab = block_tokens * shape.layer_kv_token_bytes
        group = dict(group=0, layers=shape.layers, slab_bytes=self.slab, parts=2, block_tokens=block_tokens,
                     order="LBKTHC")
        self.parts = []
        for number in range(clients):
            client = kvdepot.Client(address, require_connection=True, shared_memory=transport != "tcp",
                                    name=f"gpu-load-{number}")
            self.region = client.register_address(store.host.data_ptr(), store.host.numel(), store.host)   # 0 of each
            ns = client.open_namespace("default", f"gpu-load {shape.name} {block_tokens}".encode(), [group])
            self.parts.append((client, ns))
        self.keys = b"".join(hashlib.sha256(b"%d" % block).digest() for block in range(store.tokens // block_tokens))

    def close(self) -> None:
        for client, *_ in self.parts:
            client.close()

    def _finish(self, client, op: int) -> float:
        done = client.wait(op, timeout_ms=DEADLINE_MS)
        client.release(op)
        if done is None or not done.ok or done.failed_keys:
            raise SystemExit(f"an operation ended with {done}: {done.why if done else 'no answer'}")
        return done.seconds

    def _offsets(self, blocks: int) -> list[int]:
        return [layer * blocks * self.slab for layer in range(self.store.shape.layers)]

    def put(self) -> float:
        client, ns = self.parts[0]
        blocks = self.store.tokens // self.block_tokens
        began = time.perf_counter()
        for first in range(0, blocks, 256):
            count = min(256, blocks - first)
            op = client.multiput(ns, self.keys[32 * first:32 * (first + count)], 32, self.region, self._offsets(blocks),
                                 [self.slab * (first + i) for i in range(count)], total_ms=DEADLINE_MS)
            self._finish(client, op)
        return time.perf_counter() - began

    def match(self, tokens: int) -> float:
        client, ns = self.parts[0]
        blocks = tokens // self.block_tokens
        began = time.perf_counter()
        op = client.match(ns, self.keys[:32 * blocks], 32)
        done = client.wait(op, timeout_ms=DEADLINE_MS)
        took = time.perf_counter() - began
        if done is None or done.prefix_blocks != blocks:
            raise SystemExit(f"{blocks} blocks were stored, a lookup says {done}")
        client.release(op)
        return took

    def submit(self, tokens: int) -> list[tuple]:
        blocks, sent = tokens // self.block_tokens, []
        for client, ns, first, last in self.shares(tokens):
            sent.append((client, client.multiget(
                ns, self.keys[32 * first:32 * last], 32, self.region, self._offsets(blocks),
                [self.slab * block for block in range(first, last)], total_ms=DEADLINE_MS, progress_ms=5000)))
        return sent

    def layer(self, sent: list[tuple], layer: int, tokens: int) -> None:
        """Waits for a layer and has it copied to the GPU."""
        for client, op in sent:
            if client.wait(op, layer, DEADLINE_MS) is None:
                raise SystemExit(f"layer {layer} did not come")
        self.store.to_gpu(layer, tokens, self.block_tokens)

    def finish(self, sent: list[tuple]) -> float:
        """Seconds until the last byte was in host memory."""
        return max(self._finish(client, op) for client, op in sent)


    def shares(self, tokens: int) -> Iterator[tuple]:
        """(client, its namespace, first and last block) of those that have something to do."""
        blocks = tokens // self.block_tokens
        for number, (client, ns) in enumerate(self.parts):
            first, last = (blocks * n // len(self.parts) for n in (number, number + 1))
            if first < last:
                yield client, ns, first, last

    def view_share(self, share: tuple) -> None:
        """Copies a client's share from the depot's memory to `records`."""
        client, ns, first, last = share
        torch, layers = self.store.lane.torch, self.store.shape.layers
        size = layers * self.slab
        records = self.store.records_of(size)
        op = client.borrow(ns, self.keys[32 * first:32 * last], 32, total_ms=DEADLINE_MS, progress_ms=5000)
        done = client.wait(op, timeout_ms=DEADLINE_MS)
        if done is None or not done.ok or done.failed_keys:
            raise SystemExit(f"a borrow ended with {done}")
        stream = torch.cuda.Stream() if self.store.lane.gpu else None
        with client.take_view(op) as view, torch.inference_mode(), torch.cuda.stream(stream):
            for block in range(first, last):
                begin, end = (address_of(view.slab(block - first, layer)) for layer in (0, layers - 1))
                if end - begin != size - self.slab:
                    raise SystemExit("a record does not lie in one piece")
                there = torch.frombuffer((ctypes.c_uint8 * size).from_address(begin), dtype=torch.uint8)
                records[block].copy_(there, non_blocking=True)
            if stream:
                stream.synchronize()
        client.release(op)


def address_of(memory: memoryview) -> int:
    """Of read-only memory, which ctypes takes no address of."""
    import numpy

    return numpy.frombuffer(memory, dtype=numpy.uint8).ctypes.data


def view(loader: Loader, tokens: int) -> float:
    """All layers, through `records`."""
    store, shares = loader.store, list(loader.shares(tokens))
    records = store.records_of(store.shape.layers * loader.slab)[:tokens // loader.block_tokens]
    began = time.perf_counter()
    with ThreadPoolExecutor(len(shares)) as threads:
        list(threads.map(loader.view_share, shares))
    took = time.perf_counter() - began
    for layer in range(store.shape.layers):
        raw = records[:, layer * loader.slab:(layer + 1) * loader.slab]
        store.to_pages(layer, raw.view(store.lane.torch.bfloat16).view(
            -1, 2, loader.block_tokens, store.shape.kv_heads, store.shape.head_dim))
    store.lane.finish()
    return took


def load(loader: Loader, tokens: int) -> float:
    sent = loader.submit(tokens)
    for layer in range(loader.store.shape.layers):
        loader.layer(sent, layer, tokens)
    host = loader.finish(sent)
    loader.store.lane.finish()
    return host


def serial(loader: Loader, tokens: int, suffix: Suffix) -> float:
    host = load(loader, tokens)
    suffix.token_of(False)
    return host


def pipeline(loader: Loader, tokens: int, suffix: Suffix) -> float:
    sent = loader.submit(tokens)
    suffix.token_of(True, lambda layer: loader.layer(sent, layer, tokens))
    return loader.finish(sent)


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Of a process so far, and of this one's other threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK"), time.process_time() - time.thread_time()


class Rows:
    """Times things and writes a line of each."""

    def __init__(self, file, shape, store: Store, server) -> None:
        self.writer = csv.writer(file, lineterminator="\n")
        self.writer.writerow(COLUMNS)
        self.file, self.shape, self.store, self.server = file, shape, store, server

    def time(self, kind: str, loader: Loader | None, arm: tuple[str, int], tokens: int, run: Callable[[], float],
             compare: bool = True, runs: int = 0) -> None:
        from bench.gpu_model import Timing

        took, host, busy, wall = [], [], [0.0, 0.0], 0.0
        for number in range((runs or RUNS.get(tokens, 7)) + 1):
            if compare:
                self.store.clear()
            before = cpu_seconds(self.server.pid)
            began = time.perf_counter()
            told = run()
            took.append(time.perf_counter() - began if told >= 0 else -told)
            after = cpu_seconds(self.server.pid)
            if number:
                wall += took[-1]
                busy = [b + y - x for b, x, y in zip(busy, before, after)]
                host.append(told)
            if compare and self.store.wrong_layers(tokens):
                raise SystemExit(f"{kind}, {arm}, {tokens} tokens: wrong bytes on the GPU")
        t = Timing.of(took[1:])
        size = 1 << 30 if kind == "memcpy" else tokens * self.shape.kv_token_bytes
        self.writer.writerow([kind, *arm, loader.block_tokens if loader else 0, tokens, size,
                              *(f"{s:.6g}" for s in (took[0], t.median, t.low, t.high)), t.runs,
                              f"{max(0.0, Timing.of(host).median):.6g}", *(f"{b / wall:.2f}" for b in busy)])
        self.file.flush()
        print(f"{kind:9} {arm[0]:4}{arm[1]:2} blocks of {loader.block_tokens if loader else 0:2}, {tokens:5} tokens: "
              f"{1e3 * t.median:9.3f} ms ({1e3 * t.low:.3f}-{1e3 * t.high:.3f}; first {1e3 * took[0]:.1f}) "
              f"{size / t.median * 1e-9:6.2f} GB/s; cores: depot {busy[0] / wall:.2f}, client {busy[1] / wall:.2f}",
              flush=True)


def copy_rows(rows: Rows, store: Store) -> None:
    torch = store.lane.torch
    size = min(1 << 30, store.host.numel())
    source = torch.ones(size, dtype=torch.uint8)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def run() -> float:
        store.host[:size].copy_(source)
        return 0.0

    rows.time("memcpy", None, ("-", 1), 0, run, False)
    torch.set_num_threads(threads)


def compute_rows(rows: Rows, store: Store, model, usable: dict, tokens: int) -> Suffix:
    """Prefill of the prefix in chunks, and the suffix behind it; the pages hold what comes of it."""
    from bench.gpu_passes import best_attention

    passes = []
    for cached in range(0, tokens, CHUNK):
        count = min(CHUNK, tokens - cached)
        attention = best_attention(model, usable, 1, count, cached)
        passes.append(store.lane.graph(lambda ids=model.tokens(1, count), cached=cached, attention=attention:
                                       model.run(ids, store.pages, cached, attention)))
    suffix = Suffix(model, store.lane, store.pages, tokens, best_attention(model, usable, 1, SUFFIX, tokens))

    def prefill() -> float:
        for run in passes:
            run()
        store.lane.finish()
        return 0.0

    def again() -> float:
        suffix.token_of(False)
        return 0.0

    def copy() -> float:
        for layer in range(store.shape.layers):
            store.to_gpu(layer, tokens, BLOCKS[0])
        store.lane.finish()
        return 0.0

    rows.time("copy", None, ("-", 0), tokens, copy, False)
    rows.time("prefill", None, ("-", 0), tokens, prefill, False, 5)
    rows.time("suffix", None, ("-", 0), tokens, again, False)
    return suffix


def load_rows(rows: Rows, store: Store, address: str, suffixes: dict[int, Suffix], arm: tuple[str, int],
              block_tokens: int) -> None:
    loader = Loader(address, store, *arm, block_tokens)
    try:
        for tokens, suffix in suffixes.items():
            if arm[1] == 1 and arm[0] != "view":
                rows.time("match", loader, arm, tokens, lambda: -loader.match(tokens), False)
            if arm[0] == "view":
                rows.time("load", loader, arm, tokens, lambda: view(loader, tokens))
                continue
            rows.time("load", loader, arm, tokens, lambda: load(loader, tokens))
            if arm in SERIAL:
                rows.time("serial", loader, arm, tokens, lambda: serial(loader, tokens, suffix))
            rows.time("pipeline", loader, arm, tokens, lambda: pipeline(loader, tokens, suffix))
    finally:
        loader.close()


def measure(args: argparse.Namespace, settings: dict, folder: Path) -> None:
    import torch

    from bench import gpu_model

    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = gpu_model.Shape.read(args.config)
    lane = Lane(device, shape.layers)
    model = gpu_model.Model(shape, gpu_model.Pieces(not args.quick), device)
    store = Store(shape, lane, device, max(settings["prefixes"]))
    usable = gpu_model.usable_attentions(shape, device)
    server = depot_arm.Depot(args.kvdepot, folder / "depot", settings["pool"], 0, ["--flash=0"])
    try:
        with open(args.out, "w", encoding="utf-8", newline="") as file:
            rows = Rows(file, shape, store, server)
            copy_rows(rows, store)
            for block_tokens in settings["blocks"]:
                store.fill_host(block_tokens)
                writer = Loader(server.address, store, "shm", 1, block_tokens)
                rows.time("store", writer, ("shm", 1), store.tokens, lambda: -writer.put(), False, 1)
                writer.close()
            suffixes = {tokens: compute_rows(rows, store, model, usable, tokens) for tokens in settings["prefixes"]}
            for arm in settings["arms"]:
                for block_tokens in settings["blocks"]:
                    load_rows(rows, store, server.address, suffixes, arm, block_tokens)
            print(f"records that the depot found damaged: {server.corrupt():.0f}")
    finally:
        server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="a Hugging Face config.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kvdepot", type=Path, default=None, help="the program [that of PATH]")
    parser.add_argument("--arms", nargs="+", metavar="TRANSPORT:CLIENTS", help="only these, as in shm:4 view:1")
    parser.add_argument("--quick", action="store_true", help="short prefixes; also without a GPU, to try it")
    args = parser.parse_args()
    args.kvdepot = args.kvdepot or Path(shutil.which("kvdepot") or "kvdepot")
    settings = QUICK if args.quick else dict(prefixes=PREFIXES, blocks=BLOCKS, arms=ARMS, pool=POOL_BYTES)
    if args.arms:
        settings["arms"] = [(name, int(count)) for name, _, count in (arm.partition(":") for arm in args.arms)]
    import torch

    if not torch.cuda.is_available() and not args.quick:
        parser.error("there is no GPU here: only --quick works")
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        measure(args, settings, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
