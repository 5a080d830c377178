"""The demo's end of one engine process (worker.py): start, ask, end. Every call has a deadline. One thread."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .processes import Child, Children, DemoError

START_DEADLINE_S = 600.0    # about 35 s alone on two cores; two start at once, and the machine may be busy
ASK_DEADLINE_S = 600.0      # a cold document takes 7 s with AVX-512, five times that without
CALL_DEADLINE_S = 60.0
WAIT_S = 0.5                # how often a wait looks up, so that progress and signals are seen

WORKER = (sys.executable, "-m", "kvdepot.demo.worker")


@dataclass(frozen=True)
class Answer:
    """One request as the engine saw it. Times in seconds since its submission; `at` is that moment's clock."""

    first_s: float
    total_s: float
    at: float
    cached: int
    tokens: tuple[int, ...]
    text: str


class Engine:
    """A started engine process. It ends with the `Children` it was started among, or by `stop()`."""

    def __init__(self, children: Children, name: str, arguments: dict, log: Path, env: dict[str, str],
                 command: Sequence[str] = WORKER) -> None:
        self.name = name
        self.facts: dict = {}
        self._buffer = b""
        self._child: Child = children.start(
            f"engine {name}", [*command, json.dumps({"engine": arguments})], log, env, pipes=True)

    def wait_ready(self, tick: Callable[[], None] = lambda: None) -> None:
        self.facts = self._reply(START_DEADLINE_S, tick)["facts"]

    def ask(self, ids: Sequence[int], max_tokens: int) -> Answer:
        reply = self._call(ASK_DEADLINE_S, op="ask", ids=list(ids), max_tokens=max_tokens)
        return Answer(reply["first_s"], reply["total_s"], reply["at"], reply["cached"], tuple(reply["tokens"]),
                      reply["text"])

    def reset(self) -> None:
        """Empties the engine's own prefix cache."""
        self._call(CALL_DEADLINE_S, op="reset")

    def counter(self, name: str) -> float:
        """One of vLLM's own counters, summed over its labels; 0 when it has not counted yet."""
        return self._call(CALL_DEADLINE_S, op="counters")["counters"].get(name, 0.0)

    def stop(self) -> None:
        if self._child.status() is None:
            try:
                self._child.stdin.write(b'{"op": "quit"}\n')
                self._child.stdin.flush()
                self._child.wait(5.0)
            except OSError:
                pass
        self._child.stop()

    def _call(self, deadline_s: float, **command) -> dict:
        try:
            self._child.stdin.write(json.dumps(command).encode() + b"\n")
            self._child.stdin.flush()
        except OSError:
            raise self._failure("has ended") from None
        return self._reply(deadline_s)

    def _reply(self, deadline_s: float, tick: Callable[[], None] = lambda: None) -> dict:
        end = time.monotonic() + deadline_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._child.stdout], [], [], WAIT_S)
            tick()
            if ready:
                part = os.read(self._child.stdout.fileno(), 1 << 20)
                if not part:
                    raise self._failure("has ended")
                self._buffer += part
            elif self._child.status() is not None:
                raise self._failure("has ended")
            elif time.monotonic() > end:
                self._child.kill()
                raise self._failure(f"did not answer within {deadline_s:.0f} s and was killed")
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply = json.loads(line)
        if not reply["ok"]:
            raise DemoError(f"engine {self.name} refused: {reply['error']} (log: {self._child.log})")
        return reply

    def _failure(self, what: str) -> DemoError:
        return DemoError(f"engine {self.name} {what}{self._child.last_words()} (log: {self._child.log})")
