"""A table as numbers: standardized columns, one column a level of each category, and what is missing filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import ROWS_PER_CHECK, as_tensor, check_finite, fail
from giveaway.gp.ridge import column_scale
from giveaway.views.features import RecordFeatures

LEVELS = 256  # of a category that get a column; the rarer ones have none
BLOCK = 8192  # rows of features made at a time


def as_table(inputs: Any) -> tuple[Any, list[int]]:
    """Return the matrix (n, p) of numbers and its categorical columns, whose levels are numbered by their names.

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
    """Look for NaN and infinity in blocks, so that a memory map stays one."""
    if isinstance(array, np.ndarray) and array.dtype.kind != "f":
        return True
    finite = torch.isfinite if isinstance(array, torch.Tensor) else np.isfinite
    return all(
        bool(finite(array[start : start + ROWS_PER_CHECK]).all()) for start in range(0, len(array), ROWS_PER_CHECK)
    )


def _frame_column(series: Any) -> np.ndarray:
    """Read a column of a DataFrame: declared categories as words that are no numbers, nullable numbers with NaN."""
    if str(series.dtype) == "category":
        return np.array([f"level {value}" for value in series], dtype=str)
    if getattr(series.dtype, "kind", "O") in "iuf":
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    return np.asarray(series)


def _number_column(column: np.ndarray) -> np.ndarray | None:
    """Return the column in float64, NaN where missing; None for categories."""
    if column.dtype.kind == "b":
        return None
    if column.dtype.kind in "Mm":
        return np.where(np.isnat(column), np.nan, column.astype(np.int64))
    try:
        numbers = column.astype(np.float64)
    except (TypeError, ValueError):
        return None
    return np.where(np.isfinite(numbers), numbers, np.nan)


@dataclass(frozen=True, eq=False)
class StandardizedColumns:
    """A table's standardized columns that vary, then one column a level; rows are made when needed."""

    numbers: torch.Tensor
    mean: torch.Tensor
    scale: torch.Tensor
    codes: list[tuple[torch.Tensor, int]]

    def rows(self, which: Any) -> torch.Tensor:
        """Return rows (r, columns) in float64."""
        varies = self.scale > 0
        parts = [((self.numbers[which].to(torch.float64) - self.mean) * self.scale)[:, varies]]
        for code, levels in self.codes:
            # 0 and 1 as they are: two levels are √2 apart, as are two records in a standardized column on average
            coded = torch.nn.functional.one_hot(code[which].long(), levels + 1)
            parts.append(coded[:, :levels].to(torch.float64))
        return torch.cat(parts, dim=1)


def tabular_features(matrix: Any, *, categorical: Sequence[int] = ()) -> RecordFeatures:
    """Return the StandardizedColumns of a table in float32.

    `matrix` (n, p) holds numbers, or objects where the columns named in `categorical` hold strings.
    """
    columns = read_columns(matrix, categorical)
    if columns.rows(slice(0, 1)).shape[1] == 0:
        raise fail("matrix", "at least one column that varies", "constant columns only", "supply features that differ")
    return RecordFeatures(len(columns.numbers), lambda rows: columns.rows(rows).float(), BLOCK)


def read_columns(matrix: Any, categorical: Sequence[int]) -> StandardizedColumns:
    """Check the table, find each column's mean and deviation blockwise, and number the levels of the categories."""
    table = matrix if isinstance(matrix, torch.Tensor) else np.asarray(matrix)
    if table.ndim != 2 or 0 in table.shape:
        raise fail("matrix", "shape (n, columns)", f"shape {tuple(table.shape)}", "give one row a record")
    width = table.shape[1]
    chosen = sorted({int(column) for column in categorical})
    if chosen and not 0 <= chosen[0] <= chosen[-1] < width:
        got = str(chosen[0] if chosen[0] < 0 else chosen[-1])
        raise fail("categorical", f"column numbers from 0 to {width - 1}", got, "count the columns from 0")
    others = [column for column in range(width) if column not in set(chosen)]
    codes = [_codes(table[:, column]) for column in chosen]
    numbers = _numbers(table, others)
    check_finite("matrix", numbers)
    n = len(numbers)
    mean = torch.zeros(len(others), dtype=torch.float64)
    squares = torch.zeros_like(mean)
    for part in numbers.split(1 << 16):
        mean += part.sum(0, dtype=torch.float64) / n
    for part in numbers.split(1 << 16):
        squares += (part.to(torch.float64) - mean).square().sum(0) / n
    return StandardizedColumns(numbers, mean, column_scale(mean, squares.sqrt()), codes)


def _numbers(table: Any, columns: list[int]) -> torch.Tensor:
    if len(columns) < table.shape[1]:
        table = table[:, columns]
    if isinstance(table, np.ndarray) and table.dtype.kind in "OUS":
        try:
            table = table.astype(np.float64)
        except (TypeError, ValueError):
            got, remedy = "text", "name the columns that hold text in categorical"
            raise fail("matrix", "numbers outside the categorical columns", got, remedy) from None
    return as_tensor("matrix", table).cpu()


def _codes(column: Any) -> tuple[torch.Tensor, int]:
    """Number each record's level, commonest first (ties by name); say how many get a column, none if all are equal."""
    values = column.cpu().numpy() if isinstance(column, torch.Tensor) else np.asarray(column)
    if values.dtype.kind == "O":
        values = values.astype(str)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    place = np.empty(len(counts), dtype=np.int32)
    place[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    levels = min(len(counts), LEVELS) if len(counts) > 1 else 0
    return torch.from_numpy(np.minimum(place, levels)[inverse.reshape(-1)]), levels
