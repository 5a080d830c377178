"""Which engine a process belongs to, and since when."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

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


@pytest.mark.parametrize(("cores", "workers", "computing", "clients"), [
    (2, 1, 0, 1),
    (7, 1, 0, 1),
    (8, 1, 0, 2),
    (16, 1, 0, 4),          # as docs/results/gpu.md was measured
    (192, 1, 0, 4),
    (192, 8, 0, 4),
    (64, 8, 0, 2),          # 16 of 64
    (16, 8, 0, 1),
    (4, 8, 0, 1),
    (64, 1, 63, 1),         # the model runs on the cores, and leaves one
    (64, 2, 30, 2),
    (64, 1, 64, 1),
])
def test_clients_take_a_quarter_of_the_cores_and_none_that_computes(cores, workers, computing, clients):
    assert machine.clients_for(cores, workers, computing) == clients
