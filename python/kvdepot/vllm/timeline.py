"""Times of loads, computation and stores of each layer, for pictures of how they overlap.

With `"timeline_log": PATH` each worker appends JSON lines {"req", "layer", "kind": "load" | "compute" | "store",
"start", "end"} for every pass that loads or stores and every asynchronous load, in seconds of CLOCK_MONOTONIC. A load's
layers end when the client reports them; a store's when the client's count of stored bytes passes them, which is exact
while one store is under way. Costs a thread for each load and each storing pass: for demonstrations, not for service.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any

from kvdepot._kvdepot import KvdepotError
from kvdepot.vllm.notices import log
from kvdepot.vllm.transfers import LoadOp, StoreOp

SAMPLE_S = 0.001
WATCH_S_MAX = 120.0         # of one load or store
SLICE_MS = 100              # how often a watcher looks whether its load was given up


class NoTimeline:
    """Does nothing, at the cost of a call."""

    def load_submitted(self, op: LoadOp) -> None: ...
    def pass_started(self, stores: list[StoreOp]) -> None: ...
    def layer_reached(self, layer: int) -> None: ...
    def wait_began(self) -> None: ...
    def wait_ended(self) -> None: ...
    def layer_released(self, layer: int) -> None: ...
    def pass_ended(self) -> None: ...
    def close(self) -> None: ...


class Timeline(NoTimeline):
    """Used by the thread that runs the model; writes from its watchers as well. A file that cannot be written ends it,
    and nothing else."""

    def __init__(self, path: str, client: Any, layers: int, slab_bytes: int) -> None:
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115: lives as long as the worker
        self._client = client
        self._layers = layers
        self._slab_bytes = slab_bytes
        self._request = ""
        self._layer = -1                       # that is being computed
        self._since = 0.0                      # begin of the stretch of computation under way; 0 = waiting
        self._released: dict[int, float] = {}  # of the stores of this pass
        self._watchers: list[threading.Thread] = []
        self._closed = False
        self._broken = False

    def _write(self, request: str, layer: int, kind: str, start: float, end: float) -> None:
        row = {"req": request, "layer": layer, "kind": kind, "start": round(start, 6), "end": round(end, 6)}
        if self._broken:
            return
        try:
            self._file.write(json.dumps(row) + "\n")
        except (OSError, ValueError) as error:      # ValueError: closed while a watcher was late
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        if not self._closed:
            log.warning("kvdepot: the timeline ends here: %s", error)

    def _watch(self, function: Any, *args: Any) -> None:
        self._watchers = [thread for thread in self._watchers if thread.is_alive()]
        if self._broken:
            return
        thread = threading.Thread(target=function, args=args, name="kvdepot-timeline", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:       # no more threads
            self._give_up(error)
        else:
            self._watchers.append(thread)

    # ---- loads ---------------------------------------------------------------------------------------------------

    def load_submitted(self, op: LoadOp) -> None:
        if op.load.layerwise and not self._request:
            self._request = op.load.request_id
        if op.ops:
            self._watch(self._watch_load, op, min(op.ops))

    def _watch_load(self, op: LoadOp, number: int) -> None:
        start = op.began
        for layer in range(self._layers):
            end = self._layer_end(op, number, layer)
            if end == 0.0:
                return
            self._write(op.load.request_id, layer, "load", start, end)
            start = end

    def _layer_end(self, op: LoadOp, number: int, layer: int) -> float:
        """When the layer was in place; 0 when it never was."""
        while not self._closed and time.monotonic() - op.began < WATCH_S_MAX:
            try:
                completion = self._client.wait(number, layer=layer, timeout_ms=SLICE_MS)
            except KvdepotError:
                return op.ended if op.code == "ok" else 0.0     # released: it has ended
            if completion is not None:
                return time.monotonic() if completion.ok else 0.0
        return 0.0

    # ---- the pass ------------------------------------------------------------------------------------------------

    def pass_started(self, stores: list[StoreOp]) -> None:
        self._request, self._layer, self._since, self._released = "", -1, 0.0, {}
        if stores:
            self._request = stores[0].store.request_id
            blocks = sum(len(op.store.block_ids) for op in stores)
            base = self._client.stats()["bytes_stored"]
            self._watch(self._watch_stores, self._request, stores, blocks * self._slab_bytes, base, self._released)

    def layer_reached(self, layer: int) -> None:
        self._close_stretch()
        self._layer, self._since = layer, time.monotonic()

    def wait_began(self) -> None:
        self._close_stretch()

    def wait_ended(self) -> None:
        self._since = time.monotonic()

    def _close_stretch(self) -> None:
        if self._since and self._layer >= 0:
            self._write(self._request, self._layer, "compute", self._since, time.monotonic())
        self._since = 0.0

    def layer_released(self, layer: int) -> None:
        self._released.setdefault(layer, time.monotonic())

    def pass_ended(self) -> None:
        self._close_stretch()
        self._layer = -1

    # ---- stores --------------------------------------------------------------------------------------------------

    def _watch_stores(self, request: str, stores: list[StoreOp], layer_bytes: int, base: int,
                      released: dict[int, float]) -> None:
        began, layer, last = time.monotonic(), 0, 0.0
        while layer < self._layers and not self._closed and time.monotonic() - began < WATCH_S_MAX:
            try:
                stored = self._client.stats()["bytes_stored"] - base
            except KvdepotError:
                return                      # the client was closed
            now = time.monotonic()
            ended = all(op.ended for op in stores)
            while layer < self._layers and layer in released and (stored >= (layer + 1) * layer_bytes or ended):
                self._write(request, layer, "store", max(released[layer], last), now)
                last, layer = now, layer + 1
            if ended and layer not in released:
                return
            time.sleep(SAMPLE_S)

    def close(self) -> None:
        for last_chance in (True, False):
            for thread in self._watchers:
                thread.join(timeout=0.5 if last_chance else 2 * SLICE_MS / 1e3)
            self._closed = True
        with contextlib.suppress(OSError):
            self._file.close()
