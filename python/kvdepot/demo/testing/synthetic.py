"""A made-up result of the demo, for tests of what draws results. Its figures were measured nowhere."""

from __future__ import annotations

from kvdepot.demo import curves, timeline

LAYERS = 30
COLD_S = 7.2


def result() -> dict:
    """A run in which everything went well."""
    return {
        "format": 1, "status": "ok", "version": "0.0.0", "when": "2026-01-31T12:00:00+00:00", "seconds": 171.3,
        "steps": [{"name": "depot", "label": "start the depot", "seconds": 0.3},
                  {"name": "engines", "label": "start engines A and B", "seconds": 44.1}],
        "machine": {"cpu": "Made-up CPU", "cores": 2, "memory_gib": 8.0, "kernel": "6.1"},
        "engine": {"vllm": "0.32.0", "model": "a model", "dtype": "bfloat16", "layers": LAYERS, "block_tokens": 128,
                   "batch_tokens": 8192, "threads": "0-1"},
        "document": {"tokens": 6912, "blocks": 54, "question_tokens": 8, "kv_bytes": 159252480},
        "ttft": [_ttft("cold", "computed (nothing cached)", [COLD_S]),
                 _ttft("prefix_cache", "own prefix cache", [0.061, 0.059, 0.064]),
                 _ttft("depot", "from the depot", [0.101, 0.098, 0.110]),
                 _ttft("depot_after_kill", "from the depot after SIGKILL", [0.141, 0.150, 0.138])],
        "ratios": {"cold_over_depot_6920_shm": 71.3, "cold_over_depot_after_kill_6920_shm": 51.1,
                   "depot_over_prefix_cache_6920_shm": 1.66},
        "lent": {engine: {"bytes": 3 * 159252480, "of": 3 * 159252480} for engine in "BC"},
        "answers": [{"question": "The name of the dog is", "expected": "Bruno", "prefix_cache": "Bruno",
                     "depot": "Bruno", "depot_after_kill": "Bruno", "tokens_identical": True},
                    {"question": "The <bell> hangs on", "expected": "the wall", "prefix_cache": "the & wall",
                     "depot": "the & wall", "depot_after_kill": None, "tokens_identical": True}],
        "crash": {"kills": 3, "dirty_bytes": [0, 0, 0], "exit": ["SIGKILL"] * 3, "restart_s": [0.11, 0.1, 0.1],
                  "recovery_ms": [12.0, 11.0, 11.0], "recovered_records": [54, 54, 54],
                  "flash_bytes_read": [159252480] * 3},
        "sweep": {"tokens": 6656, "kv_bytes_per_token": 23040, "cold_s": COLD_S, "store_full_s": 0.3,
                  "arms": [_arm("unshaped", None, 0.08), _arm("e3", 66e6, COLD_S / 3)]},
        "timeline": {"reuse": 0.75, "e": 3.0, "bandwidth": 66e6, "tokens": 6664, "first_token_s": 2.4,
                     **timeline.summary(events())},
        "checks": [{"name": "engine B got the document from the depot", "ok": True, "detail": "6912 of 6912 tokens"},
                   {"name": "the depot was killed", "ok": True, "detail": "3 times"}],
    }


def failed() -> dict:
    """A run that was cut short and went wrong: nothing but the first figure."""
    whole = result()
    empty = {"answers": [], "ratios": {}, "crash": None, "sweep": None, "timeline": None, "status": "failed"}
    return whole | empty | {"ttft": whole["ttft"][:1],
                            "checks": [{"name": "<b>engine B</b>", "ok": False, "detail": "0 of 6912 tokens"}]}


def events() -> list[timeline.Event]:
    """Thirty layers that load one after the other while those before are computed and stored."""
    found = []
    landed = computed = 0.02
    for layer in range(LAYERS):
        found.append(timeline.Event(layer, "load", landed, landed + 0.06))
        landed += 0.06
        began = max(landed, computed)
        computed = began + 0.075
        found += [timeline.Event(layer, "compute", began, computed),
                  timeline.Event(layer, "store", computed, computed + 0.01)]
    return found


def _ttft(name: str, label: str, runs: list[float]) -> dict:
    return {"name": name, "label": label, "engine": "A", "cached_tokens": 0 if name == "cold" else 6912,
            "median_s": sorted(runs)[len(runs) // 2], "min_s": min(runs), "max_s": max(runs), "runs_s": runs}


def _arm(name: str, bandwidth: float | None, load_full_s: float) -> dict:
    own = {0.0: COLD_S, 0.5: 4.5, 0.75: 2.4, 1.0: 0.06}
    curve = curves.model(load_full_s, 0.3, curves.fit_compute(list(own.items())))
    points = []
    for reuse, compute_s in own.items():
        parts = {"load_s": reuse * load_full_s, "store_s": (1 - reuse) * 0.3, "compute_s": compute_s}
        points.append({"reuse": reuse, "cached_tokens": round(reuse * 6656),
                       "ttft_s": 1.06 * curves.overlapped_s(parts), **parts})
    return {"name": name, "bandwidth": bandwidth, "e": COLD_S / load_full_s, "load_full_s": load_full_s,
            "crossover": curves.crossover(curve), "points": points, "model": curve}
