"""What the terminal can show: colour, Unicode, its width. The only module of the demo that reads the environment."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TextIO

EIGHTHS = " ▏▎▍▌▋▊▉█"
COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "blue": "34", "cyan": "36"}


@dataclass(frozen=True)
class Terminal:
    """How to write to one stream."""

    out: TextIO
    colour: bool = False
    unicode: bool = False
    live: bool = False          # lines can be written over
    width: int = 100

    @staticmethod
    def of(out: TextIO) -> Terminal:
        tty = out.isatty()
        dumb = os.environ.get("TERM", "dumb") == "dumb"
        encoding = (getattr(out, "encoding", None) or "ascii").lower().replace("-", "")
        width = min(120, shutil.get_terminal_size((100, 24)).columns)
        return Terminal(out, colour=tty and not dumb and not os.environ.get("NO_COLOR"),
                        unicode=encoding.startswith("utf"), live=tty and not dumb, width=max(60, width))

    def paint(self, text: str, colour: str) -> str:
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.colour else text

    def line(self, text: str = "") -> None:
        if not self.unicode:
            text = text.replace("×", "x").replace("–", "-").replace("…", "...")
            text = text.encode("ascii", "replace").decode()
        print(text, file=self.out, flush=True)

    def bar(self, value: float, full: float, cells: int) -> str:
        """A horizontal bar of at most `cells` characters; anything above zero shows."""
        share = 0.0 if full <= 0 else min(1.0, max(0.0, value / full))
        if not self.unicode:
            return "#" * max(int(value > 0), round(share * cells))
        eighths = max(int(value > 0), round(share * cells * 8))
        return EIGHTHS[8] * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
