"""Drawing SVG by hand: a canvas of escaped elements, linear scales, ticks. Colours come from CSS classes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape


class Canvas:
    """Elements in user units, scaled to the width of the page by viewBox."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self.width, self.height, self.label = width, height, label
        self._parts: list[str] = []

    def add(self, name: str, content: str = "", **attributes: object) -> None:
        """`content` is markup; a trailing underscore of an attribute is dropped, others become hyphens."""
        written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
                          for key, value in attributes.items() if value is not None)
        self._parts.append(f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>")

    def rect(self, x: float, y: float, width: float, height: float, class_: str, title: str = "",
             radius: float = 0) -> None:
        self.add("rect", _title(title), x=x, y=y, width=max(0.0, width), height=height, class_=class_,
                 rx=radius or None)

    def line(self, x1: float, y1: float, x2: float, y2: float, class_: str) -> None:
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)

    def curve(self, points: Sequence[tuple[float, float]], class_: str) -> None:
        path = "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        self.add("path", d=path, class_=class_, fill="none")

    def dot(self, x: float, y: float, radius: float, class_: str, title: str = "") -> None:
        self.add("circle", _title(title), cx=x, cy=y, r=radius, class_=class_)

    def text(self, x: float, y: float, text: str, class_: str = "", anchor: str = "start",
             rotate: float | None = None) -> None:
        turn = None if rotate is None else f"rotate({_number(rotate)} {_number(x)} {_number(y)})"
        self.add("text", escape(text), x=x, y=y, class_=class_ or None, text_anchor=anchor, transform=turn)

    def markup(self) -> str:
        return (f'<svg viewBox="0 0 {_number(self.width)} {_number(self.height)}" role="img" '
                f'aria-label="{escape(self.label)}" xmlns="http://www.w3.org/2000/svg">{"".join(self._parts)}</svg>')


class Scale:
    """Values to positions, linear; `pixels` may run backwards."""

    def __init__(self, values: tuple[float, float], pixels: tuple[float, float]) -> None:
        self._from, self._to = values
        self._start, self._end = pixels

    def __call__(self, value: float) -> float:
        share = (value - self._from) / (self._to - self._from) if self._to > self._from else 0.0
        return self._start + share * (self._end - self._start)


def ticks(largest: float, count: int = 5) -> list[float]:
    """Round numbers from 0 to just past `largest`, about `count` steps of them."""
    if largest <= 0:
        return [0.0, 1.0]
    rough = largest / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    return [i * step for i in range(math.ceil(largest / step - 1e-9) + 1)]


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _number(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"
    return str(value)
