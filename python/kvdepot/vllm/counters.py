"""What the connector counts, in one flat dictionary that vLLM carries from its processes to its logs and metrics.

Values are numbers that add up, except `load_seconds` and `store_failures`/`load_failures`: the first is a list of
single load times (for a histogram), the others are dictionaries of code -> operations.
"""

from __future__ import annotations

from typing import Any

LOAD_SECONDS_MAX = 256      # single times kept between two collections; more are dropped

NUMBERS = ("lookups", "blocks_asked", "blocks_found", "blocks_found_on_flash", "requests_left_alone", "loads_layerwise",
           "loads_async", "blocks_loaded", "bytes_loaded", "blocks_failed", "stores", "blocks_stored", "bytes_stored",
           "stores_cancelled")
BY_CODE = ("lookup_failures", "load_failures", "store_failures")


def empty() -> dict[str, Any]:
    return {}


def add(data: dict[str, Any], name: str, value: float = 1) -> None:
    data[name] = data.get(name, 0) + value


def add_code(data: dict[str, Any], name: str, code: str, value: int = 1) -> None:
    codes = data.setdefault(name, {})
    codes[code] = codes.get(code, 0) + value


def add_load_seconds(data: dict[str, Any], seconds: float) -> None:
    times = data.setdefault("load_seconds", [])
    if len(times) < LOAD_SECONDS_MAX:
        times.append(seconds)


def join(data: dict[str, Any], other: dict[str, Any]) -> None:
    """Adds `other` to `data`."""
    for name, value in other.items():
        if name == "load_seconds":
            times = data.setdefault(name, [])
            times.extend(value[:LOAD_SECONDS_MAX - len(times)])
        elif isinstance(value, dict):
            for code, count in value.items():
                add_code(data, name, code, count)
        else:
            add(data, name, value)


def reduce(data: dict[str, Any]) -> dict[str, int | float]:
    """A short summary of an interval for vLLM's log line."""
    loaded, stored = data.get("bytes_loaded", 0), data.get("bytes_stored", 0)
    summary: dict[str, int | float] = {
        "Depot blocks found": data.get("blocks_found", 0),
        "Depot blocks asked": data.get("blocks_asked", 0),
        "Depot MB loaded": round(loaded / 1e6, 1),
        "Depot MB stored": round(stored / 1e6, 1),
    }
    times = sorted(data.get("load_seconds", ()))
    if times:
        summary["Depot load p50 ms"] = round(times[len(times) // 2] * 1e3, 1)
        summary["Depot load max ms"] = round(times[-1] * 1e3, 1)
    failures = sum(sum(data.get(name, {}).values()) for name in BY_CODE)
    if failures:
        summary["Depot failures"] = failures
    return summary


