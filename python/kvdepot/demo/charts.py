"""The report's three pictures as SVG: bars of time to first token, curves of the sweep, layers of one request. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from . import curves, timeline
from .picture import seconds
from .svg import Canvas, Scale, ticks

BAR_CLASSES = {"cold": "compute", "prefix_cache": "own", "depot": "load", "depot_after_kill": "load-deep"}
ZOOM_BELOW = 0.1        # of the longest bar: those are drawn again on a scale of their own
CROSSOVER_SHOWN_MAX = 0.97      # beyond it there is nothing right of the crossover to see


def bars(rows: Sequence[dict]) -> str:
    """Time to first token, to scale; the short ones a second time, enlarged."""
    height, pitch, bar = 22 + 44 * len(rows), 44, 22
    canvas = Canvas(1000, height, "Time to first token as bars")
    longest = max(row["max_s"] for row in rows)
    short = [row for row in rows if row["max_s"] < ZOOM_BELOW * longest]
    whole = Scale((0, longest), (230, 545 if short else 900))
    canvas.text(230, 16, "to scale", "axis")
    for i, row in enumerate(rows):
        y = 30 + i * pitch
        canvas.text(218, y + 16, row["label"], "label", "end")
        _bar(canvas, whole, row, y, bar)
    if short:
        zoom = Scale((0, max(row["max_s"] for row in short)), (650, 900))
        canvas.line(630, 8, 630, height - 8, "grid")
        times = (zoom(1) - zoom(0)) / (whole(1) - whole(0))
        canvas.text(650, 16, f"the short ones, enlarged {times:.0f} times", "axis")
        for i, row in enumerate(rows):
            if row in short:
                _bar(canvas, zoom, row, 30 + i * pitch, bar)
    return canvas.markup()


def _bar(canvas: Canvas, scale: Scale, row: dict, y: float, height: float) -> None:
    title = f"{row['label']}: median {seconds(row['median_s'])} of {len(row['runs_s'])}, " \
            f"{seconds(row['min_s'])} to {seconds(row['max_s'])}"
    end, last = scale(row["median_s"]), scale(row["max_s"])
    canvas.rect(scale(0), y, max(1.5, end - scale(0)), height, f"fill {BAR_CLASSES[row['name']]}", title, 2)
    if len(row["runs_s"]) > 1 and last - scale(row["min_s"]) > 4:
        middle = y + height / 2
        canvas.line(scale(row["min_s"]), middle, last, middle, "whisker")
        for x in (scale(row["min_s"]), last):
            canvas.line(x, middle - 4, x, middle + 4, "whisker")
    canvas.text(max(end, last) + 8, y + 16, seconds(row["median_s"]), "value")


def sweep(arm: dict, title: str) -> str:
    """Measured points beside the closed form's curves."""
    canvas = Canvas(500, 360, title)
    curve, points = arm["model"], arm["points"]
    top = max([curves.one_by_one_s(c) for c in curve] + [p["ttft_s"] for p in points])
    marks = ticks(top)
    x, y = Scale((0, 1), (52, 482)), Scale((0, marks[-1]), (312, 26))
    canvas.text(52, 14, title, "label")
    for mark in marks:
        canvas.line(52, y(mark), 482, y(mark), "grid")
        canvas.text(45, y(mark) + 4, f"{mark:g}", "axis", "end")
    for share in (0, 0.25, 0.5, 0.75, 1):
        canvas.text(x(share), 331, f"{share:.0%}", "axis", "middle")
    canvas.text(267, 352, "share of the document that the depot holds", "axis", "middle")
    canvas.text(14, 169, "seconds", "axis", "middle", rotate=-90)
    if arm["crossover"] is not None and 0 < arm["crossover"] < CROSSOVER_SHOWN_MAX:
        at = x(arm["crossover"])
        canvas.line(at, 26, at, 312, "mark")
        canvas.text(at - 6, 40, f"load = compute at {arm['crossover']:.0%}", "axis", "end")
    for kind in timeline.KINDS:
        canvas.curve([(x(c["reuse"]), y(c[f"{kind}_s"])) for c in curve], f"stroke thin {kind}")
    canvas.curve([(x(c["reuse"]), y(curves.one_by_one_s(c))) for c in curve], "stroke sum")
    canvas.curve([(x(c["reuse"]), y(curves.overlapped_s(c))) for c in curve], "stroke longest")
    for p in points:
        canvas.dot(x(p["reuse"]), y(p["ttft_s"]), 5, "measured",
                   f"reuse {p['reuse']:.0%}: measured {seconds(p['ttft_s'])}; load {seconds(p['load_s'])}, "
                   f"store {seconds(p['store_s'])}, compute {seconds(p['compute_s'])}")
    return canvas.markup()


def layers(request: dict) -> str:
    """One request: when each layer was loaded, computed and stored; above, when each of the three was busy at all."""
    events = [timeline.Event(*event) for event in request["events"]]
    count = 1 + max((event.layer for event in events), default=0)
    row = 13 if count <= 40 else 520 / count
    top = 96
    canvas = Canvas(1000, top + count * row + 46, "Load, compute and store of each layer over time")
    marks = ticks(max([event.end for event in events] + [request["first_token_s"]]), 8)
    x, bottom = Scale((0, marks[-1]), (78, 980)), top + count * row
    for mark in marks:
        canvas.line(x(mark), 22, x(mark), bottom + 4, "grid")
        canvas.text(x(mark), bottom + 20, f"{mark:g}", "axis", "middle")
    canvas.text(529, bottom + 40, "seconds since the request", "axis", "middle")
    for i, kind in enumerate(timeline.KINDS):
        canvas.text(70, 36 + i * 17, kind, "axis", "end")
        for start, end in timeline.spans(events, kind):
            canvas.rect(x(start), 26 + i * 17, max(0.6, x(end) - x(start)), 12, f"fill {kind}",
                        f"{kind} busy from {start:.3f} to {end:.3f} s")
    canvas.text(70, top + 9, "layer 0", "axis", "end")
    for layer in range(5, count, 5):
        canvas.text(70, top + layer * row + 9, str(layer), "axis", "end")
    lane = row / len(timeline.KINDS)
    for event in events:
        canvas.rect(x(event.start), top + event.layer * row + timeline.KINDS.index(event.kind) * lane,
                    max(0.6, x(event.end) - x(event.start)), max(1.5, lane - 0.5), f"fill {event.kind}",
                    f"layer {event.layer}: {event.kind} {event.start:.3f} to {event.end:.3f} s")
    at = x(request["first_token_s"])
    canvas.line(at, 18, at, bottom + 4, "mark")
    canvas.text(at - 6 if at > 500 else at + 6, 14, f"first token {seconds(request['first_token_s'])}", "axis",
                "end" if at > 500 else "start")
    return canvas.markup()
