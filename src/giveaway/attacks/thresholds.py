"""Threshold attacks: a record the model fits well is called a member. The threshold's statistic is given (`threshold`)
or learned on reference models (`shokri`). All attacks share the scores and the checks of references that are here."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import entr

from giveaway.checks import check_choice, fail
from giveaway.records import Signals

SMALLEST = np.finfo(np.float64).tiny
MOST_ROWS = 200_000  # that an attack model learns from


@dataclass(frozen=True, eq=False)
class AttackScores:
    """What an attack says: scores (T, N) of N records for T target models, high = member, beside what is true."""

    attack: str
    scores: np.ndarray
    members: np.ndarray
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if count := int(np.isnan(self.scores).sum()):
            raise fail("scores", "a number for every record of every model", f"{count} NaN", "leave those records out")


def threshold(targets: Signals, references: Signals | None = None, *, by: str = "loss") -> AttackScores:
    """Attack every record of every target model.

    `by` is "loss" (log p_y, minus the cross-entropy; Yeom et al. 2018), "confidence" (p_y), "entropy" (minus Shannon's;
    Salem et al. 2019) or, of a regression, "squared_error" (minus it). With references the score is less its mean over
    those that were not trained on the record (Watson et al. 2022). Several queries: the mean of their scores.

    >>> p = np.array([[[0.75, 0.25], [0.5, 0.5]]])
    >>> seen = Signals(p, members=[[True, False]], kind="probabilities", labels=[0, 0])
    >>> threshold(seen, by="confidence").scores
    array([[0.75, 0.5 ]])
    """
    check_choice("by", by, ("loss", "confidence", "entropy", "squared_error"))
    regression = targets.kind == "squared_error"
    if regression != (by == "squared_error"):
        fitting = "by='squared_error'" if regression else "a statistic of classes as by='loss'"
        raise fail("by", f"{fitting} for signals of kind {targets.kind!r}", repr(by), "change by")
    if by == "entropy" and targets.kind == "phi":
        raise fail("signals", "logits or probabilities for the entropy", "phi", "store the whole prediction")
    larger = targets
    if references is not None:
        check_same_records(targets, references)
        check_out_references(references)
        larger = max(targets, references, key=lambda signals: signals.models)
    scores = np.empty(targets.members.shape)
    for part in larger.blocks():
        own = statistic(targets, by, part)
        if references is not None:
            own -= mean_over_out(statistic(references, by, part), references.members[:, part])
        scores[:, part] = own.mean(axis=2)
    return AttackScores("threshold", scores, targets.members, {"by": by, "calibrated": references is not None})


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


def check_out_references(references: Signals, needed: np.ndarray | bool = True) -> None:
    """Refuse references that were all trained on one of the needed records."""
    if (lacking := references.members.all(axis=0) & needed).any():
        got = f"none at row {int(lacking.argmax())} ({int(lacking.sum())} such rows)"
        raise fail("references", "at least 1 model not trained on every record", got, "add models")


def statistic(signals: Signals, by: str, part: slice = slice(None)) -> np.ndarray:
    """Return the statistic of a threshold (M, n, Q), high for a member."""
    if by == "squared_error":
        return -np.asarray(signals.values[:, part], dtype=np.float64)
    if by == "confidence":
        return signals.confidence(part)
    if by == "entropy":
        return -entr(signals.distribution(part)).sum(-1)
    if signals.kind == "probabilities":
        return np.log(np.maximum(signals.confidence(part), SMALLEST))
    return -np.logaddexp(0.0, -signals.statistic(part))


def shokri(targets: Signals, references: Signals, *, classifier: Any = None, seed: int = 0) -> AttackScores:
    """Attack every record of every target model, by reference models that are none of the targets (Shokri et al. 2017).

    A classifier for each class learns on the references, whose training records are known, to tell probabilities of
    members from those of others; scores are its log-odds. `classifier` is any of scikit-learn's with predict_proba, by
    default LogisticRegression(max_iter=1000). One with more than 200,000 rows learns from so many of them, drawn by
    default_rng([seed, class]).

    >>> p = np.array([[0.9, 0.6], [0.6, 0.9]])
    >>> shadow = Signals(np.stack([p, 1 - p], -1), members=p > 0.7, kind="probabilities", labels=[0, 0])
    >>> shokri(shadow, shadow).scores > 0
    array([[ True, False],
           [False,  True]])
    """
    check_same_records(targets, references)
    targets.distribution(slice(0, 1))
    if classifier is None:
        from sklearn.linear_model import LogisticRegression  # half a second, and an audit never needs it

        classifier = LogisticRegression(max_iter=1000)
    if not (hasattr(classifier, "predict_proba") and hasattr(classifier, "get_params")):
        expected = "a scikit-learn classifier with predict_proba"
        raise fail("classifier", expected, type(classifier).__name__, "choose one that gives probabilities")
    assert targets.labels is not None
    scores = np.empty(targets.members.shape)
    for number in np.unique(targets.labels):
        records = np.flatnonzero(targets.labels == number)
        kept = np.ones((references.models, len(records)), dtype=bool)
        if kept.size * references.queries > MOST_ROWS:
            rng = np.random.default_rng([seed, int(number)])
            drawn = rng.choice(kept.size, max(2, MOST_ROWS // references.queries), replace=False, shuffle=False)
            kept = np.isin(np.arange(kept.size), drawn).reshape(kept.shape)
        inputs, membership = [], []
        for part, p in _probability_rows(references, records):
            chosen = kept[:, part]
            inputs.append(p[chosen].reshape(-1, p.shape[-1]))
            membership.append(np.repeat(references.members[:, records[part]][chosen], references.queries))
        is_member = np.concatenate(membership)
        if is_member.all() or not is_member.any():
            got = "only " + ("members" if is_member.all() else "non-members")
            raise fail("references", f"members and non-members in class {int(number)}", got, "add models")
        fitted = copy.deepcopy(classifier).fit(np.concatenate(inputs), is_member)
        for part, p in _probability_rows(targets, records):
            rows = p.reshape(-1, p.shape[-1])
            if type(fitted).__name__ == "LogisticRegression":  # its probabilities round to 1, its log-odds do not
                odds = fitted.decision_function(rows)
            else:
                odds = np.diff(np.log(np.maximum(fitted.predict_proba(rows), SMALLEST)), axis=1)
            scores[:, records[part]] = odds.reshape(p.shape[:3]).mean(axis=2)
    return AttackScores("shokri", scores, targets.members, {"classifier": str(classifier), "seed": seed})


def _probability_rows(signals: Signals, records: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Walk over places in `records` with their probabilities (M, n, Q, C)."""
    size = next(signals.blocks()).stop
    for start in range(0, len(records), size):
        part = slice(start, start + size)
        yield part, signals.distribution(records[part])
