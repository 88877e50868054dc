"""Scores beside what leave-one-out retraining measured of the same records."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from giveaway.attacks.leave_one_out import LeaveOneOut
from giveaway.checks import check_choice, fail
from giveaway.evaluation.ranking import spearman
from giveaway.records import ScoreTable

MEASURES = ("loss_gap", "memorization", "auc")


@dataclass(frozen=True, eq=False)
class RetrainingTable:
    """A row a retrained record: what retraining measured of it, then its scores. Records are row numbers."""

    records: np.ndarray
    measured: Mapping[str, np.ndarray]
    scores: Mapping[str, np.ndarray]

    def spearman(self) -> dict[str, dict[str, float]]:
        """Rank correlation of each score with each of the measures, by score and measure."""
        return {
            score: {measure: spearman(values, truth) for measure, truth in self.measured.items()}
            for score, values in self.scores.items()
        }

    def to_csv(self) -> str:
        """The records as comma-separated text."""
        columns = {"record": self.records, **self.measured, **self.scores}
        return _csv(list(columns), zip(*(values.tolist() for values in columns.values()), strict=True))

    def spearman_csv(self) -> str:
        """The correlations as comma-separated text, a row a score."""
        found = self.spearman()
        return _csv(["score", *self.measured], ([score, *row.values()] for score, row in found.items()))

    def to_markdown(self) -> str:
        """The correlations, then the records."""
        names = {**self.measured, **self.scores}
        rows = zip(*(values.tolist() for values in names.values()), strict=True)
        lines = _markdown(["Spearman with", *self.measured], [[s, *r.values()] for s, r in self.spearman().items()])
        lines += ["", *_markdown(["record", *names], [[str(r), *v] for r, v in zip(self.records, rows, strict=True)])]
        return "\n".join(lines) + "\n"


def beside(
    retrained: LeaveOneOut, table: ScoreTable, *, columns: Sequence[str] | None = None, rows: Any = None
) -> RetrainingTable:
    """The scores of `table` (all of them, or `columns`) for the retrained records.

    `rows` says which row of the table each retrained record is; by default the row of its number.

    >>> retrained = LeaveOneOut(np.array([2, 0]), np.array([0.5, 0.1]), None, np.array([1.0, 0.75]))
    >>> table = beside(retrained, ScoreTable({"newton": [0.2, 0.3, 0.4]}, ids=np.arange(3)))
    >>> print(table.to_markdown())
    | Spearman with | loss_gap | auc |
    |---|---|---|
    | newton | 1 | 1 |
    <BLANKLINE>
    | record | loss_gap | auc | newton |
    |---|---|---|---|
    | 2 | 0.5 | 1 | 0.4 |
    | 0 | 0.1 | 0.75 | 0.2 |
    <BLANKLINE>
    """
    count = len(retrained.records)
    if count < 2:
        raise fail("retrained", "at least two records", str(count), "retrain without more of them")
    places = retrained.records if rows is None else np.asarray(rows)
    if places.shape != (count,) or places.dtype.kind not in "iu" or places.min() < 0 or places.max() >= len(table):
        got = f"{places.dtype} of shape {places.shape}" + (f" up to {places.max()}" if places.size else "")
        raise fail(
            "rows", f"{count} row numbers of the table, 0 to {len(table) - 1}", got, "name the row of each record"
        )
    chosen = table.columns if columns is None else [check_choice("columns", name, table.columns) for name in columns]
    measured = {name: getattr(retrained, name) for name in MEASURES}
    return RetrainingTable(
        retrained.records,
        {name: values for name, values in measured.items() if values is not None},
        {name: table[name][places] for name in chosen},
    )


def _csv(header: list[str], rows: Iterable[Sequence[Any]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return stream.getvalue()


def _markdown(header: list[str], rows: list[list[Any]]) -> list[str]:
    texts = [[cell if isinstance(cell, str) else f"{cell:.3g}" for cell in row] for row in rows]
    rule = "|---" * len(header) + "|"
    return ["| " + " | ".join(header) + " |", rule, *("| " + " | ".join(row) + " |" for row in texts)]
