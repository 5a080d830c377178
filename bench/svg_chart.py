"""Charts of result pages as SVG: lines over a number, bars with intervals. Pure; no scripts, no fonts from anywhere.

The same figures give the same bytes, so that a chart that is made again differs only where its figures do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, LEFT, TOP, BOTTOM = 860, 64, 40, 48
PLOT, LEGEND = 540, 24          # width of the plot, and of the gap to the legend
LINES_HEIGHT, BAR_PITCH = 400, 24
BARS_LEFT, BARS_WIDTH = 250, 480
# Okabe and Ito's colours, which people with colour blindness can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666", "#000000")
STYLE = 'font-family="sans-serif" font-size="12" fill="#222"'


def ticks(high: float, count: int = 6) -> list[float]:
    """From 0 to `high` or above it, in steps of 1, 2 or 5 times a power of ten."""
    if high <= 0:
        return [0.0, 1.0]
    raw = high / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]


def number(value: float) -> str:
    return f"{value:.10g}"


def text(x: float, y: float, words: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'


def page(height: float, title: str, parts: Sequence[str]) -> str:
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" '
            f'viewBox="0 0 {WIDTH} {height:.0f}" role="img" {STYLE}>\n<title>{escape(title)}</title>\n'
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>\n')
    return head + "\n".join([text(16, 22, title, more='font-weight="bold" font-size="14"'), *parts]) + "\n</svg>\n"


def lines(title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[tuple[float, float]]],
          limit: tuple[str, float] | None = None) -> str:
    """A line for each series over x. `limit` is a dashed level with its name."""
    points = [p for of in series.values() for p in of]
    if not points:
        raise ValueError(f"{title}: nothing to draw")
    x_marks = ticks(max(x for x, _ in points))
    y_marks = ticks(max([y for _, y in points] + ([limit[1]] if limit else [])))
    low, bottom = LEFT, LINES_HEIGHT - BOTTOM

    def x_at(x: float) -> float:
        return low + PLOT * x / x_marks[-1]

    def y_at(y: float) -> float:
        return bottom - (bottom - TOP) * y / y_marks[-1]

    parts = []
    for mark in y_marks:
        parts += [line(low, y_at(mark), low + PLOT, y_at(mark), "#ddd"),
                  text(low - 6, y_at(mark) + 4, number(mark), "end")]
    for mark in x_marks:
        parts += [line(x_at(mark), bottom, x_at(mark), bottom + 4, "#222"),
                  text(x_at(mark), bottom + 18, number(mark), "middle")]
    parts += [text(low + PLOT / 2, LINES_HEIGHT - 10, x_label, "middle"), text(low, TOP - 4, y_label)]
    if limit:
        parts += [line(low, y_at(limit[1]), low + PLOT, y_at(limit[1]), "#d00", 'stroke-dasharray="6 4"'),
                  text(low + PLOT - 4, y_at(limit[1]) - 4, limit[0], "end")]
    for i, (name, of) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        dash = 'stroke-dasharray="7 3"' if i >= len(COLOURS) else ""
        shown = [(x_at(x), y_at(y)) for x, y in sorted(of)]
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in shown)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2" {dash}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in shown]
        y = TOP + 10 + 20 * i
        parts += [line(low + PLOT + LEGEND, y, low + PLOT + LEGEND + 24, y, colour, f'stroke-width="2" {dash}'),
                  text(low + PLOT + LEGEND + 30, y + 4, name)]
    return page(LINES_HEIGHT, title, parts)


def bars(title: str, x_label: str, rows: Sequence[tuple[str, float, float]]) -> str:
    """A bar for each (name, value, half of its interval), from the top down."""
    if not rows:
        raise ValueError(f"{title}: nothing to draw")
    marks = ticks(max(value + half for _, value, half in rows))
    height = TOP + BAR_PITCH * len(rows) + BOTTOM
    bottom = height - BOTTOM

    def x_at(x: float) -> float:
        return BARS_LEFT + BARS_WIDTH * x / marks[-1]

    parts = []
    for mark in marks:
        parts += [line(x_at(mark), TOP, x_at(mark), bottom, "#ddd"),
                  text(x_at(mark), bottom + 16, number(mark), "middle")]
    for i, (name, value, half) in enumerate(rows):
        y = TOP + BAR_PITCH * i
        middle = y + BAR_PITCH / 2
        parts.append(f'<rect x="{x_at(0):.1f}" y="{y + 4:.1f}" width="{x_at(value) - x_at(0):.1f}" '
                     f'height="{BAR_PITCH - 8}" fill="{COLOURS[0]}"/>')
        parts += [line(x_at(max(0, value - half)), middle, x_at(value + half), middle, "#000"),
                  text(BARS_LEFT - 8, middle + 4, name, "end"),
                  text(x_at(value + half) + 6, middle + 4, f"{value:.3f}")]
    parts.append(text(BARS_LEFT + BARS_WIDTH / 2, height - 10, x_label, "middle"))
    return page(height, title, parts)
