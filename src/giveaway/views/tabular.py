"""A table as numbers: standardized columns, and one column a level of each category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, check_number, fail
from giveaway.views.blocks import RecordFeatures
from giveaway.views.moments import column_scale

LEVELS = 256  # of a category that get a column; the rarer ones have none


@dataclass(frozen=True, eq=False)
class Columns:
    """A table as numbers: standardized columns that vary, then one column a level; rows are made when asked for."""

    numbers: torch.Tensor
    mean: torch.Tensor
    scale: torch.Tensor
    codes: list[tuple[torch.Tensor, int]]

    def rows(self, which: Any) -> torch.Tensor:
        """(r, columns) in float64."""
        kept = self.scale > 0
        parts = [((self.numbers[which].to(torch.float64) - self.mean) * self.scale)[:, kept]]
        for code, levels in self.codes:
            # 0 and 1 as they are: two levels are √2 apart, as are two records in a standardized column on average
            own = code[which].long()
            parts.append(torch.nn.functional.one_hot(own, levels + 1)[:, :levels].to(torch.float64))
        return torch.cat(parts, dim=1)


def tabular_features(matrix: Any, *, categorical: Sequence[int] = (), block: int = 8192) -> RecordFeatures:
    """The columns (see Columns) in float32, `block` rows at a time.

    `matrix` (n, p) holds numbers, or objects where the columns named in `categorical` hold strings.
    """
    check_number("block", block, minimum=1, remedy="give a positive whole number")
    columns = read_columns(matrix, categorical)
    if columns.rows(slice(0, 1)).shape[1] == 0:
        raise fail("matrix", "at least one column that varies", "constant columns only", "supply features that differ")
    return RecordFeatures(len(columns.numbers), lambda rows: columns.rows(rows).float(), block)


def read_columns(matrix: Any, categorical: Sequence[int]) -> Columns:
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
    return Columns(numbers, mean, column_scale(mean, squares.sqrt()), codes)


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
    """Each record's level, commonest first (ties by name), and how many get a column: none where all are equal."""
    values = column.cpu().numpy() if isinstance(column, torch.Tensor) else np.asarray(column)
    if values.dtype.kind == "O":
        values = values.astype(str)
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    place = np.empty(len(counts), dtype=np.int32)
    place[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    levels = min(len(counts), LEVELS) if len(counts) > 1 else 0
    return torch.from_numpy(np.minimum(place, levels)[inverse.reshape(-1)]), levels
