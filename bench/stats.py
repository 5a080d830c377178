"""The little statistics that the benchmarks need: medians, ratios of pairs, and an interval around them.

Pure functions on lists of floats; the random resampling is seeded, so the same figures give the same interval.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

INTERVAL_LEVEL = 0.95
RESAMPLES = 2000    # the interval's ends move by under 1 % of its width from there on
PAIRS_MIN = 3       # fewer pairs give no interval


def summary(values: Sequence[float], unit: str) -> dict:
    """Minimum, median and maximum, as the result files hold them."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values), "unit": unit}


def pair_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """One ratio a pair. Both lists come from the same rounds and so have the same length."""
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError(f"{len(numerators)} and {len(denominators)} values make no pairs")
    return [n / d for n, d in zip(numerators, denominators)]


def median_interval(values: Sequence[float], level: float = INTERVAL_LEVEL,
                    seed: int = 1) -> tuple[float, float] | None:
    """Percentile bootstrap of the median: the interval that holds `level` of the resampled medians.

    None when there are too few values to say anything.
    """
    if len(values) < PAIRS_MIN:
        return None
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    tail = (1.0 - level) / 2.0
    return medians[int(tail * RESAMPLES)], medians[min(RESAMPLES - 1, int((1.0 - tail) * RESAMPLES))]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below `share` (0..1) of all values (nearest rank)."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    rank = -(-int(share * 1_000_000) * len(ordered) // 1_000_000)
    return ordered[max(0, min(len(ordered), rank) - 1)]
