"""The closed form beside what was measured: load, store and compute over the share of the prompt that is reused. Pure.

For reuse a of a prompt of N tokens: load = a x (time to load all), store = (1 - a) x (time to store all), both linear
in bytes. Compute is that of the rest, which attends to all before it: c0 + c1 (1 - a) + c2 (1 - a^2), fitted to the
engine's own prefix cache at the measured points. Overlapped, time to first token is the largest of the three;
one after the other, their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

SAMPLES = 41


def fit_compute(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """Least squares over (reuse, seconds); fewer than three points are joined by straight lines."""
    if len({reuse for reuse, _ in points}) < 3:
        return join(points)
    rows = [(1.0, 1.0 - a, 1.0 - a * a) for a, _ in points]
    matrix = [[sum(r[i] * r[j] for r in rows) for j in range(3)] for i in range(3)]
    right = [sum(r[i] * s for r, (_, s) in zip(rows, points)) for i in range(3)]
    c0, c1, c2 = solve(matrix, right)
    return lambda a: max(0.0, c0 + c1 * (1.0 - a) + c2 * (1.0 - a * a))


def join(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    ordered = sorted(points)

    def value(a: float) -> float:
        for (a0, s0), (a1, s1) in zip(ordered, ordered[1:]):
            if a <= a1:
                return s0 + (s1 - s0) * (a - a0) / (a1 - a0)
        return ordered[-1][1]
    return value


def solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss with pivots; for the 3 x 3 systems above."""
    n = len(right)
    rows = [[*matrix[i], right[i]] for i in range(n)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(n):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i])]
    return [rows[i][n] / rows[i][i] for i in range(n)]


def model(load_full_s: float, store_full_s: float, compute: Callable[[float], float]) -> list[dict]:
    """The curves, sampled."""
    samples = [i / (SAMPLES - 1) for i in range(SAMPLES)]
    return [{"reuse": a, "load_s": a * load_full_s, "store_s": (1 - a) * store_full_s, "compute_s": compute(a)}
            for a in samples]


def overlapped_s(parts: dict) -> float:
    return max(parts["load_s"], parts["store_s"], parts["compute_s"])


def one_by_one_s(parts: dict) -> float:
    return parts["load_s"] + parts["store_s"] + parts["compute_s"]


def crossover(curve: Sequence[dict]) -> float | None:
    """The reuse from which on loading takes longer than computing the rest; None if it never does."""
    before = None
    for now in curve:
        gap = now["load_s"] - now["compute_s"]
        if gap >= 0:
            if before is None:
                return now["reuse"]
            gap_before = before["load_s"] - before["compute_s"]
            return before["reuse"] + (now["reuse"] - before["reuse"]) * gap_before / (gap_before - gap)
        before = now
    return None
