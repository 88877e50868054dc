"""The best canaries of a training set for an audit of private training: exposed records that are no copies of one
another.

An auditor trains with and without each canary and looks whether it can be told. Two that say the same of the model
are worth hardly more than one, so exposure alone is not enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from giveaway.checks import ROWS_PER_CHECK, check_number, fail
from giveaway.curvature.losses import Softmax, Squared, loss_of, targets_of
from giveaway.findings.feature_map import mean_of_records
from giveaway.findings.removal import row_of_record
from giveaway.records import Head, ScoreTable
from giveaway.records.lazy_rows import LazyRows
from giveaway.views.moments import column_scale

MOST = 500
COPY = 1e-6  # of a candidate left unexplained: less is the rounding of float32


@dataclass(frozen=True, eq=False)
class Candidates:
    """The most exposed rows of a table, how good each is alone, and how alike each two are."""

    rows: np.ndarray  # the most exposed first
    quality: np.ndarray  # in (0, 1]: 1 − (rank − 1)/candidates
    similarity: np.ndarray  # (c, c) float32, positive semidefinite, 1 on the diagonal


def candidates(head: Head, table: ScoreTable, *, most: int = MOST) -> Candidates:
    """The `most` most exposed rows, and their similarity.

    Similarity is exp(−(‖u − u′‖² + ‖t − t′‖²)/2), a Gaussian kernel, hence positive semidefinite: u is the direction
    of a row's features, centred and scaled by all records and with the bias column, so that ‖u − u′‖² = 2 − 2 cosine;
    t is its target, one coordinate a class (or scaled as the features are), so that another class divides the
    similarity by e. The exponential keeps opposite directions apart, which a plain cosine of −1 would call as alike as
    copies, and leaves more independent candidates than there are features. A person counts with the mean of their
    records. A black box has no features: its outputs stand in.
    """
    most = int(check_number("most", most, minimum=1, remedy="ask for at least one candidate"))
    row_of = row_of_record(head, table)
    rows = table.order()[:most]
    direction = _standardized(head.features if head.linear else head.outputs, row_of, rows)
    direction = np.column_stack([direction, np.ones(len(rows))])  # a record at the mean has a direction, too
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    place = np.column_stack([direction, _targets(head, row_of, rows)])
    squares = (place**2).sum(1)
    apart = np.maximum(squares[:, None] + squares - 2.0 * place @ place.T, 0.0)
    np.fill_diagonal(apart, 0.0)
    quality = 1.0 - np.arange(len(rows)) / len(rows)
    return Candidates(rows, quality, np.exp(-0.5 * apart).astype(np.float32))


def choose(found: Candidates, k: int) -> np.ndarray:
    """k rows of the candidates in the order chosen: each adds the most to det(q_i q_j S_ij) over those chosen.

    That is the greedy mode of a determinantal point process: the next row is the one with the largest quality times
    its part that the rows chosen do not explain. The first is the most exposed row. Columns of the Cholesky factor
    are added one a choice, k² c operations in all. Copies of rows chosen come last, by exposure.
    """
    c = len(found.rows)
    k = int(check_number("k", k, minimum=1, remedy="ask for at least one canary"))
    if k > c:
        raise fail("k", f"at most {c}, the number of candidates", f"{k}", "ask for fewer canaries")
    quality = found.quality.astype(np.float64)
    unexplained = np.ones(c)
    factor = np.zeros((k, c))
    free = np.ones(c, dtype=bool)
    chosen: list[int] = []
    for step in range(k):
        gain = np.where(free & (unexplained > COPY), quality**2 * unexplained, -1.0)
        best = int(gain.argmax())
        if gain[best] < 0.0:
            rest = np.flatnonzero(free)  # in the order of exposure
            return found.rows[[*chosen, *rest[: k - step]]]
        row = found.similarity[best] - factor[:step, best] @ factor[:step]
        factor[step] = row / np.sqrt(unexplained[best])
        unexplained -= factor[step] ** 2
        free[best] = False
        chosen.append(best)
    return found.rows[chosen]


def canaries(head: Head, table: ScoreTable, k: int = 10) -> np.ndarray:
    """The rows of the k best canaries, in the order chosen: exposed, and no copies of one another.

    Examples
    --------
    >>> x = np.array([[0.0], [0.1], [5.0], [5.0], [-5.0], [0.2]])
    >>> head = Head(x, outputs=0 * x, targets=np.array([0.0, 0.1, 4.0, 4.0, 3.0, 0.1]), loss="squared")
    >>> table = ScoreTable({"newton": [0.0, 0.1, 4.0, 4.0, 3.0, 0.1]}, np.arange(6))
    >>> canaries(head, table, k=2)
    array([2, 4])
    """
    k = int(check_number("k", k, minimum=1, remedy="ask for at least one canary"))
    return choose(candidates(head, table, most=max(MOST, k)), k)


def _targets(head: Head, row_of: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows' targets, placed so that two classes, or the two answers to one label, are √2 apart."""
    loss = loss_of(head)
    if isinstance(loss, Squared):
        return _standardized(head.targets, row_of, rows)

    def read(which: torch.Tensor) -> torch.Tensor:
        y = targets_of(head, which)
        if not isinstance(loss, Softmax):
            return 2**0.5 * y
        return y if loss.soft else torch.nn.functional.one_hot(y, loss.m)

    return mean_of_records(read, row_of, rows)


def _standardized(values: torch.Tensor | LazyRows, row_of: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Rows' means of `values` (n, d), less the mean and over the standard deviation of all records."""
    n = 0
    mean = squares = torch.zeros(values.shape[1], dtype=torch.float64, device=values.device)
    for start in range(0, len(values), ROWS_PER_CHECK):
        block = values[start : start + ROWS_PER_CHECK].to(torch.float64)
        variance, own = torch.var_mean(block, 0, correction=0)
        share = len(block) / (n + len(block))
        squares = squares + len(block) * variance + n * share * (own - mean).square()
        mean = mean + share * (own - mean)
        n += len(block)
    scale = column_scale(mean, (squares / n).sqrt())
    return mean_of_records(lambda which: (values[which].to(torch.float64) - mean) * scale, row_of, rows)
