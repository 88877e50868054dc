"""Many one-dimensional equations at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

STEPS = 200


def solve_increasing(
    function: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray,
    *,
    tolerance: float = 1e-14,
) -> np.ndarray:
    """The zero in [low, high] of an increasing function that returns value and slope, elementwise.

    Newton's method, with a bisection wherever it would leave the bracket or does not halve its step.
    """
    low, high, x = np.array(low), np.array(high), np.array(start)
    before = high - low
    open_ = np.ones(x.shape, dtype=bool)
    for _ in range(STEPS):
        value, slope = function(x)
        np.copyto(low, x, where=value <= 0)
        np.copyto(high, x, where=value >= 0)
        with np.errstate(all="ignore"):
            moved = x - value / slope
            step = np.abs(moved - x)
            tiny = step <= tolerance * np.abs(x)
            newton = (moved > low) & (moved < high) & (step < 0.5 * before)
        # at the level of rounding a step need not halve, and a bisection would only lead away
        moved = np.where(newton, moved, np.where(tiny, x, 0.5 * low + 0.5 * high))
        before = np.abs(moved - x)
        x = np.where(open_, moved, x)
        open_ &= ~tiny & (before > tolerance * np.abs(x))
        if not open_.any():
            break
    return x
