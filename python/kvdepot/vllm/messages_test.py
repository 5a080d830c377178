"""Joining what several workers of one engine report, and counts of several intervals."""

from __future__ import annotations

import pickle

from kvdepot.vllm import counters
from kvdepot.vllm.messages import LoadReport, StepPlan, WorkerReport


def load(good: int, seconds: float, code: str = "ok") -> LoadReport:
    return LoadReport("r", 10, good, 0, seconds, False, code)


def test_the_worse_load_of_two_workers_counts():
    joined = WorkerReport(loads=[load(10, 0.2)]).aggregate(WorkerReport(loads=[load(4, 0.1, "corrupt")]))
    assert joined.loads == [load(4, 0.2, "corrupt")]


def test_loads_that_only_one_worker_reports_are_kept():
    joined = WorkerReport(loads=[load(10, 0.2)]).aggregate(WorkerReport())
    assert joined.loads == [load(10, 0.2)]


def test_ends_of_stores_add_up_and_the_first_dropped_block_counts():
    joined = WorkerReport(stores_ended={"a": 1, "b": 1}, stores_failed={"a": 5}, store_failures={"busy": 1}).aggregate(
        WorkerReport(stores_ended={"a": 1}, stores_failed={"a": 3}, keys_failed=[b"k"], store_failures={"busy": 1},
                     weights_changed=True, depot_away=True))
    assert joined.stores_ended == {"a": 2, "b": 1}
    assert joined.stores_failed == {"a": 3}
    assert joined.keys_failed == [b"k"]
    assert joined.store_failures == {"busy": 2}
    assert joined.weights_changed
    assert joined.depot_away


def test_plans_travel_between_processes():
    assert pickle.loads(pickle.dumps(StepPlan(b"e", hold=["a"]))).hold == ["a"]
    assert StepPlan().empty and WorkerReport().empty


def test_counts_join_and_reduce():
    a, b = counters.empty(), counters.empty()
    counters.add(a, "bytes_loaded", 5_000_000)
    counters.add_load_seconds(a, 0.010)
    counters.add_code(a, "load_failures", "corrupt")
    counters.add_load_seconds(b, 0.030)
    counters.add_code(b, "load_failures", "corrupt", 2)
    counters.join(a, b)
    assert a["load_failures"] == {"corrupt": 3}
    summary = counters.reduce(a)
    assert summary["Depot MB loaded"] == 5.0
    assert summary["Depot load max ms"] == 30.0
    assert summary["Depot failures"] == 3


def test_single_load_times_are_bounded():
    data = counters.empty()
    for _ in range(1000):
        counters.add_load_seconds(data, 0.001)
    assert len(data["load_seconds"]) == counters.LOAD_SECONDS_MAX
