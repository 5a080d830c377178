"""What the log says about a depot that fails: seldom, but with all that happened."""

from __future__ import annotations

import logging

import pytest

from kvdepot.vllm.notices import Notices


class Told:
    """Notices with a clock of their own, and the lines they gave."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, logger="vllm.kvdepot")
        self._log = caplog
        self.now = 0.0
        self.notices = Notices("tcp://depot:1", 30.0, lambda: self.now)

    def lines(self, level: int) -> list[str]:
        return [record.getMessage() for record in self._log.records if record.levelno == level]

    def fail(self, count: int = 1) -> None:
        self.notices.failures("loads", {"timeout": count})


@pytest.fixture
def told(caplog):
    return Told(caplog)


def test_failures_among_successes_are_told_once_in_a_period_and_none_is_lost(told):
    for _ in range(20):
        told.fail()
        told.notices.success()
        told.now += 1.0
    assert len(told.lines(logging.WARNING)) == 1
    assert len(told.lines(logging.INFO)) == 1       # what followed was not told, so that nothing is to be called off
    told.now = 31.0
    told.fail()
    assert len(told.lines(logging.WARNING)) == 2
    assert "(20 loads: it did not answer in time)" in told.lines(logging.WARNING)[1]


def test_that_it_works_again_is_told_once(told):
    told.notices.success()
    assert told.lines(logging.INFO) == []
    told.fail(3)
    told.notices.success()
    told.notices.success()
    assert told.lines(logging.INFO) == ["kvdepot: depot tcp://depot:1 works again"]


def test_nothing_is_told_of_no_failures(told):
    told.notices.failures("loads", {})
    assert told.lines(logging.WARNING) == []
