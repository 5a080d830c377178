"""Engines of the connector's tests, and a depot that one of them has filled."""

from __future__ import annotations

from kvdepot.vllm.config import Settings
from kvdepot.vllm.testing.engine_double import BLOCK, Choice, Engine, Request
from kvdepot.vllm.testing.fake_depot import FakeClient, FakeDepot

PROMPT = list(range(40))             # ten blocks


def engine(depot: FakeDepot, mode: str = "async", workers: int = 1, may_load: bool = True, may_store: bool = True,
           **settings) -> Engine:
    return Engine((FakeClient(depot), FakeClient(depot)), Choice(mode),
                  Settings("tcp://127.0.0.1:1", linger_ms=0, lookup_wait_us=0, **settings), workers=workers,
                  may_load=may_load, may_store=may_store)


def warmed(tokens: list[int] = PROMPT) -> FakeDepot:
    """A depot that another engine has stored `tokens` in."""
    depot = FakeDepot()
    other = engine(depot)
    request = other.add(Request(tokens))
    assert other.admit(request) == (0, False)
    other.step((request, len(tokens)))
    other.step()
    assert len(depot.records) == len(tokens) // BLOCK
    return depot
