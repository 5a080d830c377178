"""The demo's result: figures, claims, and the file they are kept in (build/demo/result.json).

    {"format": 1, "status": "ok" | "failed" | "incomplete", "version": "0.1.0", "when": "2026-01-31T12:00:00+00:00",
     "seconds": 181.2, "steps": [{"name": "cold", "label": "...", "seconds": 7.3}],
     "machine": {"cpu": "...", "cores": 2, "memory_gib": 7.8, "kernel": "..."},
     "engine": {"vllm": "0.32.0", "model": "...", "dtype": "...", "layers": 30, "block_tokens": 128,
                "batch_tokens": 8192, "threads": "0-1"},
     "document": {"tokens": 6912, "blocks": 54, "question_tokens": 8, "kv_bytes": 159252480},
     "ttft": [{"name": "cold" | "prefix_cache" | "depot" | "depot_after_kill", "label": "...", "engine": "A",
               "cached_tokens": 0, "median_s": 7.2, "min_s": 7.2, "max_s": 7.2, "runs_s": [7.2]}],
     "ratios": {"cold_over_depot_6920_shm": 90.1, "cold_over_depot_after_kill_6920_shm": 60.2,
                "depot_over_prefix_cache_6920_shm": 1.7},
     "lent": {"B": {"bytes": 637009920, "of": 637009920}},
     "answers": [{"question": "...", "expected": "...", "prefix_cache": "...", "depot": "...",
                  "depot_after_kill": "..." | null, "tokens_identical": true}],
     "crash": {"kills": 3, "dirty_bytes": [0, 0, 0], "exit": ["SIGKILL"], "restart_s": [0.1], "recovery_ms": [12.0],
               "recovered_records": [54], "flash_bytes_read": [159252480]} | null,
     "sweep": {"tokens": 6912, "kv_bytes_per_token": 23040, "cold_s": 7.2, "store_full_s": 0.2, "arms": [
        {"name": "e3" | "unshaped", "bandwidth": 66e6 | null, "e": 3.0, "load_full_s": 2.4, "crossover": 0.71,
         "points": [{"reuse": 0.5, "cached_tokens": 3456, "ttft_s": 4.4, "load_s": 1.2, "store_s": 0.1,
                     "compute_s": 4.3}],
         "model": [{"reuse": 0.0, "load_s": 0, "store_s": 0.2, "compute_s": 7.2}, ...]}]} | null,
     "timeline": {"reuse": 0.75, "e": 3.0, "tokens": 6920, "first_token_s": 2.5, "load_s": 1.8, "compute_s": 2.3,
                  "store_s": 0.1, "overlap_s": 1.7, "bandwidth": 66e6,
                  "events": [[layer, "load" | "compute" | "store", start, end]]} | null,
     "checks": [{"name": "...", "ok": true, "detail": "..."}]}

Times are seconds unless the name says otherwise; events count from the request's submission. A part that was not run
is null (or an empty list). `lent` is what the depot's counter says of engines that read its memory, of the KV that they
got. Ratios have the names of `make bench-engine`: `_shm` where all of it was lent, else `_tcp`. `ttft` is time to first
token of document plus question. `status` is "ok" only when every check is; "incomplete" when the run ended before its
last step. The file is replaced as a whole, never half written.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

from . import machine
from .processes import DemoError

FORMAT = 1
LABELS = {"cold": "computed (nothing cached)", "prefix_cache": "own prefix cache",
          "depot": "from the depot", "depot_after_kill": "from the depot after SIGKILL"}


class Result:
    """Collects one run. `data` is what is written."""

    def __init__(self) -> None:
        self.data: dict = {
            "format": FORMAT, "status": "incomplete", "version": machine.version(),
            "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "seconds": 0.0, "steps": [],
            "machine": machine.facts(), "engine": {}, "document": {}, "ttft": [], "ratios": {}, "lent": {},
            "answers": [], "crash": None, "sweep": None, "timeline": None, "checks": [],
        }

    def check(self, name: str, ok: bool, detail: str = "") -> bool:
        self.data["checks"].append({"name": name, "ok": bool(ok), "detail": detail})
        return bool(ok)

    def add_ttft(self, name: str, engine: str, cached: int, runs_s: Sequence[float]) -> None:
        self.data["ttft"].append({
            "name": name, "label": LABELS[name], "engine": engine, "cached_tokens": cached,
            "median_s": statistics.median(runs_s), "min_s": min(runs_s), "max_s": max(runs_s), "runs_s": list(runs_s)})

    def median_s(self, name: str) -> float | None:
        return next((row["median_s"] for row in self.data["ttft"] if row["name"] == name), None)

    def add_ratios(self) -> None:
        """What can be said from the times to first token that were measured."""
        way = "shm" if all_lent(self.data) else "tcp"
        self.data["ratios"] = {}
        for name, above, below in (("cold_over_depot", "cold", "depot"),
                                   ("cold_over_depot_after_kill", "cold", "depot_after_kill"),
                                   ("depot_over_prefix_cache", "depot", "prefix_cache")):
            over, under = self.median_s(above), self.median_s(below)
            if over and under:
                tokens = self.data["document"]["tokens"] + self.data["document"]["question_tokens"]
                self.data["ratios"][f"{name}_{tokens}_{way}"] = over / under

    def ratio(self, name: str) -> float:
        return next((value for key, value in self.data["ratios"].items() if key.rsplit("_", 2)[0] == name), 0.0)

    def finish(self, seconds: float, steps: Sequence[dict]) -> bool:
        """All steps were made; the status is what the checks say."""
        self.data["seconds"], self.data["steps"] = seconds, list(steps)
        ok = bool(self.data["checks"]) and all(check["ok"] for check in self.data["checks"])
        self.data["status"] = "ok" if ok else "failed"
        return ok


def all_lent(data: dict) -> bool:
    """Whether all that engines got of the depot was read in its memory, by its own counter."""
    lent = data.get("lent", {}).values()
    return bool(lent) and all(engine["bytes"] >= engine["of"] for engine in lent)


def save(data: dict, path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(partial, path)


def load(path: Path) -> dict:
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise DemoError(f"{path} is not there; run the demo first") from None
    except ValueError:
        raise DemoError(f"{path} is not JSON; run the demo again") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise DemoError(f"{path} is not of format {FORMAT}; run the demo again")
    return data
