"""Progress: what happens now, how long it has taken, how long the rest should take.

On a terminal one line is rewritten twice a second by a thread of its own; elsewhere a line is written when a step
begins, when it ends, and every ten seconds between. The thread only prints; everything else is the caller's thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from .terminal import Terminal

LIVE_PERIOD_S = 0.5
PLAIN_PERIOD_S = 10.0


@dataclass
class Step:
    """One step of the plan. `expect_s` may be corrected while others run, for the rest to be told better."""

    name: str
    label: str
    expect_s: float
    took_s: float | None = None


@dataclass
class Progress:
    terminal: Terminal
    steps: list[Step] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._now: Step | None = None
        self._now_began = 0.0
        self._detail = ""

    def plan(self, steps: list[Step]) -> None:
        """Replaces the plan, before the first step."""
        self.steps = steps
        self.terminal.line(f"Plan: {len(steps)} steps, about {_duration(sum(s.expect_s for s in steps))}")
        for number, step in enumerate(steps, 1):
            self.terminal.line(f"  {number:2}. {step.label} {self.terminal.paint(f'~{step.expect_s:.0f} s', 'dim')}")

    def expect(self, name: str, seconds: float) -> None:
        for step in self.steps:
            if step.name == name and step.took_s is None:
                step.expect_s = seconds

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def detail(self, text: str) -> None:
        """What exactly the running step does at the moment."""
        with self._lock:
            self._detail = text

    def rest_s(self) -> float:
        """What the running step and those after it should still take."""
        rest = sum(s.expect_s for s in self.steps if s.took_s is None and s is not self._now)
        if self._now:
            rest += max(0.0, self._now.expect_s - (time.monotonic() - self._now_began))
        return rest

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Runs one step of the plan under its name."""
        step = next(s for s in self.steps if s.name == name)
        with self._lock:
            self._now, self._now_began, self._detail = step, time.monotonic(), ""
        stop = threading.Event()
        if not self.terminal.live:
            self.terminal.line(self._line())
        ticker = threading.Thread(target=self._tick, args=(stop,), daemon=True)
        ticker.start()
        outcome = "stopped"
        try:
            yield
            outcome = "done"
        finally:
            stop.set()
            ticker.join()
            step.took_s = time.monotonic() - self._now_began
            with self._lock:
                self._now = None
            self._end_line(step, outcome)

    def note(self, text: str) -> None:
        """A line that stays, between two steps or inside one."""
        if self.terminal.live:
            print("\r\x1b[2K", end="", file=self.terminal.out)
        self.terminal.line(f"        {text}")

    def _end_line(self, step: Step, outcome: str) -> None:
        if self.terminal.live:
            print("\r\x1b[2K", end="", file=self.terminal.out)
        mark = "ok" if outcome == "done" else outcome
        colour = "green" if outcome == "done" else "red"
        self.terminal.line(f"[{self.steps.index(step) + 1:2}/{len(self.steps)}] {step.label}: {step.took_s:.1f} s "
                           f"{self.terminal.paint(mark, colour)}")

    def _line(self) -> str:
        with self._lock:
            step, detail = self._now, self._detail
            if step is None:
                return ""
            running = time.monotonic() - self._now_began
        head = f"[{self.steps.index(step) + 1:2}/{len(self.steps)}] {step.label}"
        tail = f"{running:.0f} of ~{step.expect_s:.0f} s · in all {_duration(self.elapsed())}, " \
               f"~{_duration(self.rest_s())} to go"
        return f"{head}{': ' + detail if detail else ''}  {tail}"

    def _tick(self, stop: threading.Event) -> None:
        period = LIVE_PERIOD_S if self.terminal.live else PLAIN_PERIOD_S
        with contextlib.suppress(BrokenPipeError):      # the main thread will see it, too
            while not stop.wait(period):
                text = self._line()
                if self.terminal.live:
                    print(f"\r\x1b[2K{text[:self.terminal.width - 1]}", end="", file=self.terminal.out, flush=True)
                else:
                    self.terminal.line(text)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
