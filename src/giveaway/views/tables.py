"""A table as numbers: standardized columns, one column a level of each category, and what is missing filled in."""

from typing import Any

import numpy as np
import torch

from giveaway.checks import ROWS_PER_CHECK, as_tensor, fail, rows_at_a_time
from giveaway.gp.ridge import column_scale
from giveaway.records.rows import Rows
from giveaway.views.left_out import RecordFeatures

LEVELS = 256  # of a category that get a column; the rarer ones have none
BLOCK = 8192  # rows of features made at a time


def table_features(inputs: Any) -> tuple[dict[str, Any], RecordFeatures]:
    """Describe and make the features of a table: standardized columns that vary, then one column a level; float32."""
    numbers, categories = read_table(inputs)
    mean, scale = column_scaling(numbers)
    varies = scale > 0
    if not varies.any() and not any(levels for _, levels in categories):
        raise fail("matrix", "at least one column that varies", "constant columns only", "supply features that differ")

    def of(rows: slice | torch.Tensor) -> torch.Tensor:
        parts = [((numbers[rows].to(torch.float64) - mean) * scale)[:, varies]]
        for level, levels in categories:
            # 0 and 1 as they are: two levels are √2 apart, as are two records in a standardized column on average
            parts.append(torch.nn.functional.one_hot(level[rows].long(), levels + 1)[:, :levels].to(torch.float64))
        return torch.cat(parts, dim=1).float()

    described = {"view": "tabular", "columns": numbers.shape[1] + len(categories), "categorical": len(categories)}
    return described, RecordFeatures(len(numbers), of, BLOCK)


def column_scaling(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the columns' means and 1 / deviation (0 for constant ones) in one pass, blocks merged as Chan does."""
    mean = squares = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    size = rows_at_a_time(rows)
    for n in range(0, len(rows), size):
        block = rows[n : n + size].to(torch.float64)
        centre = block.mean(0)
        variance = (block - centre).square_().mean(0)
        share = len(block) / (n + len(block))
        squares = squares + len(block) * variance + n * share * (centre - mean).square()
        mean = mean + share * (centre - mean)
    return mean, column_scale(mean, (squares / len(rows)).sqrt())


def read_table(inputs: Any) -> tuple[torch.Tensor, list[tuple[torch.Tensor, int]]]:
    """Return the columns of numbers (n, p), and for each category the level of every record, numbered by how common it
    is, with how many levels have a column. Columns are categories unless every entry reads as a number. A number that
    is missing becomes its column's mean, and a column at the end says where."""
    if not hasattr(inputs, "iloc"):
        array = inputs if isinstance(inputs, torch.Tensor) else np.asarray(inputs)
        inputs = array.reshape(len(array), -1)
        if isinstance(inputs, torch.Tensor) or inputs.dtype.kind not in "OUSMm":
            numbers = as_tensor("matrix", inputs).cpu()
            if all(bool(torch.isfinite(block).all()) for block in numbers.split(ROWS_PER_CHECK)):
                return numbers, []
            inputs = numbers.to(torch.float64).numpy()
    filled, gaps, categories = [np.empty((len(inputs), 0))], [], []
    for k in range(inputs.shape[1]):
        if (column := column_of(inputs, k)).dtype.kind == "U":
            _, inverse, counts = np.unique(column, return_inverse=True, return_counts=True)
            place = np.empty(len(counts), dtype=np.int32)
            place[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
            levels = min(len(counts), LEVELS) if len(counts) > 1 else 0
            categories.append((torch.from_numpy(np.minimum(place, levels)[inverse]), levels))
            continue
        gap = np.isnan(column)
        filled.append(np.where(gap, column[~gap].mean() if not gap.all() else 0.0, column))
        gaps += [gap.astype(np.float64)] if gap.any() else []
    return torch.from_numpy(np.column_stack(filled + gaps)), categories


def column_of(inputs: Any, k: int) -> np.ndarray:
    """Return a column of a DataFrame or a matrix: float64 with NaN where missing, or names of levels."""
    column = inputs.iloc[:, k] if hasattr(inputs, "iloc") else inputs[:, k]
    if str(column.dtype) == "category":  # as declared, even if they read as numbers
        return np.asarray(column.astype(str), dtype=str)
    if hasattr(column, "iloc"):
        numeric = getattr(column.dtype, "kind", "O") in "iuf"
        column = column.to_numpy(dtype=np.float64, na_value=np.nan) if numeric else np.asarray(column)
    if column.dtype.kind in "Mm":
        return np.where(np.isnat(column), np.nan, column.astype(np.int64))
    try:
        numbers = None if column.dtype.kind == "b" else column.astype(np.float64)
    except (TypeError, ValueError):
        numbers = None
    return column.astype(str) if numbers is None else np.where(np.isfinite(numbers), numbers, np.nan)
