"""When each layer of one request was loaded, computed and stored, from the connector's timeline_log.

The log holds one JSON object a line: {"req", "layer", "kind": "load" | "compute" | "store", "start", "end"}, in
seconds of CLOCK_MONOTONIC, which all processes of a machine share. A request is found by its time: the demo asks one at
a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

KINDS = ("load", "compute", "store")


@dataclass(frozen=True)
class Event:
    layer: int
    kind: str
    start: float
    end: float


def read(path: Path, begin: float, end: float) -> list[Event]:
    """Events that began within [begin, end), as seconds since `begin`, in order. No file means none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            row = json.loads(line)
            event = Event(int(row["layer"]), row["kind"], float(row["start"]) - begin, float(row["end"]) - begin)
        except (ValueError, KeyError, TypeError):
            continue        # a line that was cut off by a kill
        if event.kind in KINDS and 0 <= event.start < end - begin:
            events.append(event)
    return sorted(events, key=lambda e: (e.start, e.layer))


def spans(events: Iterable[Event], kind: str) -> list[tuple[float, float]]:
    """Stretches of time in which at least one event of this kind ran."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted((e.start, e.end) for e in events if e.kind == kind):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def busy_s(events: Iterable[Event], kind: str) -> float:
    return sum(end - start for start, end in spans(events, kind))


def overlap_s(events: Sequence[Event], one: str, other: str) -> float:
    """How long both kinds ran at once."""
    return sum(max(0.0, min(e1, e2) - max(s1, s2))
               for s1, e1 in spans(events, one) for s2, e2 in spans(events, other))


def summary(events: Sequence[Event]) -> dict:
    """The timeline's part of the result, without what only the caller knows."""
    return {"load_s": busy_s(events, "load"), "compute_s": busy_s(events, "compute"),
            "store_s": busy_s(events, "store"), "overlap_s": overlap_s(events, "load", "compute"),
            "events": [[e.layer, e.kind, round(e.start, 6), round(e.end, 6)] for e in events]}
