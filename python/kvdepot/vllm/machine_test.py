"""Which engine a process belongs to, and since when."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from kvdepot.vllm import machine

MARK = ("import sys; sys.path[:] = sys.argv[1:]; from kvdepot.vllm import machine; "
        "sys.stdout.buffer.write(machine.engine_mark())")


def test_threads_start_where_cores_may_not_be_chosen(monkeypatch):
    def refuse(_pid, _cores):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    begun = []
    with machine.on_all_cores():
        begun.append(True)
    assert begun


def mark_of_a_child() -> bytes:
    return subprocess.run([sys.executable, "-c", MARK, *sys.path], stdout=subprocess.PIPE, check=True).stdout


def test_a_process_began_before_now_and_behind_its_parent():
    assert machine.process_began(os.getppid()) - 0.1 <= machine.process_began() <= time.time()
    assert time.time() - machine.process_began() < 3600


def test_processes_that_one_engine_has_started_share_a_mark():
    assert mark_of_a_child() == mark_of_a_child() != machine.engine_mark()
