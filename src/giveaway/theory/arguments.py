"""Range checks of the theory's arguments, worded as everywhere else."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from giveaway.checks import fail


def in_range(
    argument: str, value: ArrayLike, low: float, high: float, remedy: str, *, closed: bool = True
) -> np.ndarray:
    """`value` as float64 with every entry in [low, high], or in (low, high) where `closed` is False."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise fail(argument, "numbers", f"{type(value).__name__}", remedy) from None
    good = (array >= low) & (array <= high) if closed else (array > low) & (array < high)
    good &= np.isfinite(array)
    if not good.all():
        bad = array[~good]
        left, right = ("[" if closed and np.isfinite(low) else "("), ("]" if closed and np.isfinite(high) else ")")
        more = f" ({bad.size} such values)" if bad.size > 1 else ""
        raise fail(argument, f"finite numbers in {left}{low:g}, {high:g}{right}", f"{bad.flat[0]:g}{more}", remedy)
    return array


def whole(argument: str, value: ArrayLike, low: int, remedy: str) -> np.ndarray:
    """`value` as float64 with every entry a whole number of at least `low`."""
    array = in_range(argument, value, low, np.inf, remedy)
    if (array != np.floor(array)).any():
        raise fail(argument, "whole numbers", f"{array[array != np.floor(array)].flat[0]:g}", remedy)
    return array
