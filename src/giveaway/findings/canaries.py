"""Choose canaries for an audit of private training: records that are exposed and unlike one another.

An auditor trains with and without each canary and checks whether the difference can be detected. Two similar canaries
are worth hardly more than one, so exposure alone is not enough.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import ROWS_PER_CHECK, check_number, fail
from giveaway.curvature.losses import loss_of
from giveaway.records import Head, LazyRows, ScoreTable
from giveaway.records.texts import Texts
from giveaway.views.tables import column_scaling
from giveaway.views.text import text_features

MOST = 500
COPY = 1e-6  # if less of a candidate is unexplained, it is a copy: the rest is float32 rounding


@dataclass(frozen=True, eq=False)
class Candidates:
    """The most exposed rows of a table, how good each is alone, and how similar each two are."""

    rows: np.ndarray  # the most exposed first
    quality: np.ndarray  # in (0, 1]: 1 − (rank − 1)/candidates
    similarity: np.ndarray  # (c, c) float32, positive semidefinite, 1 on the diagonal


def candidates(head: Head | Texts, table: ScoreTable, *, most: int = MOST) -> Candidates:
    """Return the `most` most exposed rows and their similarity, a Gaussian kernel (docs/derivations.md)."""
    row_of = row_of_record(head, table)
    rows = table.order()[:most]
    if isinstance(head, Texts):
        texts = head.by_person() if table.meta.by_person else head
        tokens = np.split(texts.tokens, texts.starts[1:-1])
        strings = [" ".join(map(str, tokens[row].tolist())) for row in rows]
        place = text_features(strings).of(slice(None)).double().numpy()
    else:
        means = standardized_means(head.features if head.linear else head.outputs, row_of, rows)
        direction = np.column_stack([means, np.ones(len(rows))])  # so that a record at the mean has a direction too
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        place = np.column_stack([direction, _targets(head, row_of, rows)])
    squares = (place**2).sum(1)
    apart = np.maximum(squares[:, None] + squares - 2.0 * place @ place.T, 0.0)
    np.fill_diagonal(apart, 0.0)
    return Candidates(rows, 1.0 - np.arange(len(rows)) / len(rows), np.exp(-0.5 * apart).astype(np.float32))


def choose(candidates: Candidates, k: int) -> np.ndarray:
    """Choose k rows, each of which adds the most to det(q_i q_j S_ij) over those chosen before; copies come last."""
    c = len(candidates.rows)
    k = int(check_number("k", k, minimum=1, remedy="ask for at least one canary"))
    if k > c:
        raise fail("k", f"at most {c}, the number of candidates", f"{k}", "ask for fewer canaries")
    unexplained, factor, chosen = np.ones(c), np.zeros((k, c)), list[int]()
    for step in range(k):
        gain = np.where(unexplained > COPY, candidates.quality.astype(np.float64) ** 2 * unexplained, -1.0)
        gain[chosen] = -1.0
        best = int(gain.argmax())
        if gain[best] < 0.0:
            rest = np.setdiff1d(np.arange(c), chosen)  # in the order of exposure
            return candidates.rows[[*chosen, *rest[: k - step]]]
        factor[step] = (candidates.similarity[best] - factor[:step, best] @ factor[:step]) / np.sqrt(unexplained[best])
        unexplained -= factor[step] ** 2
        chosen.append(best)
    return candidates.rows[chosen]


def canaries(head: Head | Texts, table: ScoreTable, k: int = 10) -> np.ndarray:
    """Return the rows of the k best canaries, in the order chosen: exposed records that are unlike one another.

    >>> x = np.array([[0.0], [0.1], [5.0], [5.0], [-5.0], [0.2]])
    >>> head = Head(x, outputs=0 * x, targets=np.array([0.0, 0.1, 4.0, 4.0, 3.0, 0.1]), loss="squared")
    >>> table = ScoreTable({"newton": [0.0, 0.1, 4.0, 4.0, 3.0, 0.1]}, np.arange(6))
    >>> canaries(head, table, k=2)
    array([2, 4])
    """
    return choose(candidates(head, table, most=max(MOST, k)), k)


def row_of_record(head: Head | Texts, table: ScoreTable) -> np.ndarray:
    """Return, for each record of `head`, its row in the audit's `table`: its own, or that of its person."""
    names = np.arange(head.n) if table.meta.unit == "record" else head.groups
    if names is None:
        raise fail("head", "groups, as the table is by person", "none", "pass groups= to Head, as for the audit")
    known, rows = np.unique(names, return_inverse=True)
    if len(known) != len(table):
        raise fail("table", f"{len(known)} rows, as the head has", f"{len(table)}", "pass the whole table of this head")
    return rows


def _targets(head: Head, row_of: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the targets of the rows, scaled so that two classes, or the two answers to one label, are √2 apart."""
    if not (loss := loss_of(head)).classes:
        return standardized_means(head.targets, row_of, rows)

    def read(which: torch.Tensor) -> torch.Tensor:
        y = loss.targets(head.targets[which])
        if not loss.coupled:
            return 2**0.5 * y
        return y if y.ndim == 2 else torch.nn.functional.one_hot(y, loss.m)

    return mean_of_records(read, row_of, rows)


def standardized_means(values: torch.Tensor | LazyRows, row_of: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the rows' means of `values` (n, d), centred and scaled by the mean and deviation of all records."""
    mean, scale = column_scaling(values)
    return mean_of_records(lambda which: (values[which].to(torch.float64) - mean) * scale, row_of, rows)


def mean_of_records(read: Callable[[torch.Tensor], torch.Tensor], row_of: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the mean of `read(record numbers)` over the records of each of `rows`; other records are not read."""
    place = np.full(int(row_of.max()) + 1, -1)
    place[rows] = np.arange(len(rows))
    records = np.flatnonzero(place[row_of] >= 0)
    total: Any = 0.0
    for start in range(0, len(records), ROWS_PER_CHECK):
        block = records[start : start + ROWS_PER_CHECK]
        values = read(torch.from_numpy(block)).to(torch.float64).cpu().numpy()
        part = np.zeros((len(rows), values.shape[1]))
        np.add.at(part, place[row_of[block]], values)
        total = total + part
    return total / np.bincount(place[row_of[records]], minlength=len(rows))[:, None]
