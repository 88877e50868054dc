"""A table of numbers and words as views read it: which columns are categories, and what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from giveaway.checks import ROWS_PER_CHECK


def as_table(inputs: Any) -> tuple[Any, list[int]]:
    """The matrix (n, p) of numbers and its categorical columns, whose levels are numbered in the order of their names.

    Columns of strings, objects or truth values are categories unless every entry reads as a number, as are those that
    a DataFrame calls so. A number that is missing or infinite becomes its column's mean, and a column that says where
    follows at the end. An array of finite numbers is returned as it is.
    """
    if hasattr(inputs, "iloc"):
        columns = [_frame_column(inputs.iloc[:, k]) for k in range(inputs.shape[1])]
    else:
        array = inputs if isinstance(inputs, torch.Tensor) else np.asarray(inputs)
        array = array.reshape(len(array), -1)
        if isinstance(array, torch.Tensor):
            if _all_finite(array):
                return array, []
            array = array.detach().cpu().to(torch.float64).numpy()
        elif array.dtype.kind not in "OUSMm" and _all_finite(array):
            return array, []
        columns = [array[:, k] for k in range(array.shape[1])]
    read = [_number_column(column) for column in columns]
    filled, gaps = [], []
    for column, numbers in zip(columns, read, strict=True):
        if numbers is None:
            filled.append(np.unique(column.astype(str), return_inverse=True)[1].reshape(-1).astype(np.float64))
            continue
        gap = np.isnan(numbers)
        filled.append(np.where(gap, numbers[~gap].mean() if not gap.all() else 0.0, numbers))
        gaps += [gap.astype(np.float64)] if gap.any() else []
    return np.column_stack(filled + gaps), [place for place, numbers in enumerate(read) if numbers is None]


def _all_finite(array: Any) -> bool:
    """Read in blocks, so that a memory map stays one."""
    if isinstance(array, np.ndarray) and array.dtype.kind != "f":
        return True
    finite = torch.isfinite if isinstance(array, torch.Tensor) else np.isfinite
    return all(
        bool(finite(array[start : start + ROWS_PER_CHECK]).all()) for start in range(0, len(array), ROWS_PER_CHECK)
    )


def _frame_column(series: Any) -> np.ndarray:
    """A column of a DataFrame: declared categories as words that are no numbers, nullable numbers with NaN."""
    if str(series.dtype) == "category":
        return np.array([f"level {value}" for value in series], dtype=str)
    if getattr(series.dtype, "kind", "O") in "iuf":
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.asarray(series)


def _number_column(column: np.ndarray) -> np.ndarray | None:
    """The column in float64, NaN where missing; None for categories."""
    if column.dtype.kind == "b":
        return None
    if column.dtype.kind in "Mm":
        return np.where(np.isnat(column), np.nan, column.astype(np.int64))
    try:
        numbers = column.astype(np.float64)
    except (TypeError, ValueError):
        return None
    return np.where(np.isfinite(numbers), numbers, np.nan)
