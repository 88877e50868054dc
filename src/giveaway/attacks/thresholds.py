"""Threshold attacks: a record the model fits well is called a member, without or with reference models.

This file also has what all attacks share: the scores they return and the checks of their reference models.

by              score, high = member
`loss`          log p_y, minus the cross-entropy (Yeom et al. 2018)
`confidence`    p_y
`entropy`       Σ_c p_c log p_c, minus Shannon's entropy (Salem et al. 2019), which does not look at the label;
                modified: (1 − p_y) log p_y + Σ_{c≠y} p_c log(1 − p_c) (Song & Mittal 2021), which does
`squared_error` minus the squared error of a regression

With references, difficulty calibration (Watson et al. 2022): the same score minus its mean over the references that
were not trained on the record. Several queries: the mean of their scores. Logarithms are of at least the smallest
normal float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from giveaway.checks import check_choice, fail
from giveaway.records import Signals

STATISTICS = ("loss", "confidence", "entropy", "squared_error")
SMALLEST = np.finfo(np.float64).tiny


@dataclass(frozen=True, eq=False)
class AttackScores:
    """What an attack says: scores (T, N) of N records for T target models, high = member, beside what is true."""

    attack: str
    scores: np.ndarray
    members: np.ndarray
    options: Mapping[str, Any] = field(default_factory=dict)


def threshold(
    targets: Signals, references: Signals | None = None, *, by: str = "loss", modified: bool = False
) -> AttackScores:
    """Attack every record of every target model; calibrate by the references where there are any.

    `modified` asks for the modified entropy and goes with by="entropy" only.

    >>> p = np.array([[[0.75, 0.25], [0.5, 0.5]]])
    >>> seen = Signals(p, members=[[True, False]], kind="probabilities", labels=[0, 0])
    >>> threshold(seen, by="confidence").scores
    array([[0.75, 0.5 ]])
    """
    check_choice("by", by, STATISTICS)
    if modified and by != "entropy":
        raise fail("modified", "False unless by='entropy'", f"True with by={by!r}", "ask for by='entropy'")
    _check_kind(targets, by)
    larger = targets
    if references is not None:
        check_same_records(targets, references)
        check_out_references(references)
        larger = max(targets, references, key=lambda signals: signals.models)
    scores = np.empty(targets.members.shape)
    for part in larger.blocks():
        statistic = _statistic(targets, part, by, modified)
        if references is not None:
            statistic -= mean_over_out(_statistic(references, part, by, modified), references.members[:, part])
        scores[:, part] = statistic.mean(axis=2)
    options = {"by": by, "modified": modified, "calibrated": references is not None}
    return AttackScores("threshold", scores, targets.members, options)


def check_same_records(targets: Signals, references: Signals) -> None:
    """Refuse references that saw other records than the targets."""
    if targets.kind != references.kind or targets.values.shape[1:] != references.values.shape[1:]:
        raise fail("references", f"signals on the records of {targets!r}", repr(references), "align records and kind")
    if targets.labels is not None and references.labels is not None:
        other = np.flatnonzero(targets.labels != references.labels)
        if len(other):
            got = f"{len(other)} others, first at row {other[0]}"
            raise fail("references", "the labels of the targets' records", got, "align the records")


def mean_over_out(values: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Average values (M, n, Q) over the models that were not trained on the record; (n, Q), 0 where there is none."""
    out = ~members
    return np.einsum("mnq,mn->nq", values, out.astype(np.float64)) / np.maximum(out.sum(0), 1)[:, None]


def check_out_references(references: Signals, needed: np.ndarray | None = None) -> None:
    """Refuse references that were all trained on one of the needed records."""
    lacking = references.members.all(axis=0)
    if needed is not None:
        lacking &= needed
    if lacking.any():
        got = f"none at row {int(lacking.argmax())} ({int(lacking.sum())} such rows)"
        raise fail("references", "at least 1 model not trained on every record", got, "add models")


def _check_kind(signals: Signals, by: str) -> None:
    regression = signals.kind == "squared_error"
    if regression != (by == "squared_error"):
        fitting = "by='squared_error'" if regression else "a statistic of classes as by='loss'"
        raise fail("by", f"{fitting} for signals of kind {signals.kind!r}", repr(by), "change by")
    if by == "entropy" and signals.kind == "phi":
        raise fail("signals", "logits or probabilities for the entropy", "phi", "store the whole prediction")


def _statistic(signals: Signals, part: slice, by: str, modified: bool) -> np.ndarray:
    """Return the statistic (M, n, Q), high for a member."""
    if by == "squared_error":
        return -np.asarray(signals.values[:, part], dtype=np.float64)
    if by == "confidence":
        return signals.confidence(part)
    if by == "entropy":
        return -_entropy(signals.distribution(part), signals.labels[part] if modified else None)  # type: ignore[index]
    if signals.kind == "probabilities":
        return np.log(np.maximum(signals.confidence(part), SMALLEST))
    return -np.logaddexp(0.0, -signals.statistic(part))


def _entropy(p: np.ndarray, labels: np.ndarray | None) -> np.ndarray:
    """Return Shannon's entropy (M, n, Q), or the modified one where labels are given."""
    # 1 − p of the largest class is the sum of the others, which does not cancel where p is nearly 1.
    complement = 1.0 - p
    largest = p.argmax(-1)[..., None]
    others = p.copy()
    np.put_along_axis(others, largest, 0.0, axis=-1)
    np.put_along_axis(complement, largest, others.sum(-1, keepdims=True), axis=-1)
    if labels is None:
        return -(p * _log(p, complement)).sum(-1)
    own = np.arange(p.shape[-1]) == labels[:, None, None]
    weight, event = np.where(own, complement, p), np.where(own, p, complement)
    return -(weight * _log(event, weight)).sum(-1)


def _log(p: np.ndarray, complement: np.ndarray) -> np.ndarray:
    return np.where(p > 0.5, np.log1p(-np.minimum(complement, 0.5)), np.log(np.maximum(p, SMALLEST)))
