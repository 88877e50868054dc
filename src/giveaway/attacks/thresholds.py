"""Threshold attacks: a record the model fits well is called a member. The threshold's statistic is given (`threshold`)
or learned on reference models (`shokri`). All attacks share the scores and the checks of references that are here.

by              score, high = member
`loss`          log p_y, minus the cross-entropy (Yeom et al. 2018)
`confidence`    p_y
`entropy`       Σ_c p_c log p_c, minus Shannon's entropy (Salem et al. 2019), which does not look at the label;
                modified: (1 − p_y) log p_y + Σ_{c≠y} p_c log(1 − p_c) (Song & Mittal 2021), which does
`squared_error` minus the squared error of a regression

With references, difficulty calibration (Watson et al. 2022): the same score minus its mean over the references that
were not trained on the record. Several queries: the mean of their scores. Logarithms are of at least the smallest
normal float64.

The attack-model attack of Shokri et al. (2017): a classifier learns, on reference ("shadow") models whose training
records are known, to tell predictions on members from predictions on non-members.

per_class   one attack model a class, on the probability vectors of that class's records; otherwise one for all, with
            the label appended one-hot
features    `probabilities` in the order of the classes, or `sorted_probabilities`, largest first

Every (reference, record, query) is one row of training data. Scores are the predicted log-odds of membership.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from giveaway.checks import check_choice, fail
from giveaway.records import Signals

STATISTICS = ("loss", "confidence", "entropy", "squared_error")
FEATURES = ("probabilities", "sorted_probabilities")
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


def shokri(
    targets: Signals,
    references: Signals,
    *,
    per_class: bool = True,
    classifier: Any = None,
    features: str = "probabilities",
    most_rows: int | None = 200_000,
    seed: int = 0,
) -> AttackScores:
    """Attack every record of every target model, by reference models that are none of the targets.

    Parameters
    ----------
    classifier : any scikit-learn classifier with predict_proba, cloned for each attack model. By default
        LogisticRegression(max_iter=1000) a class, and MLPClassifier((64,), max_iter=1000, random_state=seed) where
        there is one for all: what a probability means depends on the label, which a linear model cannot say.
    most_rows : an attack model with more rows than this learns from so many of them, whole pairs of model and record
        drawn without replacement by default_rng([seed, class]), or [seed] where there is one for all; None: all rows.

    >>> p = np.array([[0.9, 0.6], [0.6, 0.9]])
    >>> shadow = Signals(np.stack([p, 1 - p], -1), members=p > 0.7, kind="probabilities", labels=[0, 0])
    >>> shokri(shadow, shadow).scores > 0
    array([[ True, False],
           [False,  True]])
    """
    check_choice("features", features, FEATURES)
    check_same_records(targets, references)
    targets.distribution(slice(0, 1))
    if most_rows is not None and most_rows < 2:
        raise fail("most_rows", "at least 2 or None", repr(most_rows), "allow more rows")
    if classifier is None:
        # scikit-learn takes half a second to import, and an audit never needs it
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier

        network = MLPClassifier((64,), max_iter=1000, random_state=seed)
        classifier = LogisticRegression(max_iter=1000) if per_class else network
    if not (hasattr(classifier, "predict_proba") and hasattr(classifier, "get_params")):
        expected = "a scikit-learn classifier with predict_proba"
        raise fail("classifier", expected, type(classifier).__name__, "choose one that gives probabilities")
    assert targets.labels is not None
    scores = np.empty(targets.members.shape)
    for number in np.unique(targets.labels) if per_class else (None,):
        records = np.flatnonzero(targets.labels == number) if per_class else np.arange(targets.records)
        kept = np.ones((references.models, len(records)), dtype=bool)
        if most_rows is not None and kept.size * references.queries > most_rows:
            rng = np.random.default_rng([seed] if number is None else [seed, int(number)])
            drawn = rng.choice(kept.size, max(2, most_rows // references.queries), replace=False, shuffle=False)
            kept = np.isin(np.arange(kept.size), drawn).reshape(kept.shape)
        inputs, membership = [], []
        for part, p in _probability_rows(references, records, features, pooled=not per_class):
            chosen = kept[:, part]
            inputs.append(p[chosen].reshape(-1, p.shape[-1]))
            membership.append(np.repeat(references.members[:, records[part]][chosen], references.queries))
        is_member = np.concatenate(membership)
        if is_member.all() or not is_member.any():
            where = "every class together" if number is None else f"class {int(number)}"
            got = "only " + ("members" if is_member.all() else "non-members")
            raise fail("references", f"members and non-members in {where}", got, "add models, or take per_class=False")
        fitted = copy.deepcopy(classifier).fit(np.concatenate(inputs), is_member)
        for part, p in _probability_rows(targets, records, features, pooled=not per_class):
            rows = p.reshape(-1, p.shape[-1])
            if (
                type(fitted).__name__ == "LogisticRegression"
            ):  # its probabilities round to 1 long before its log-odds end
                odds = fitted.decision_function(rows)
            else:
                odds = np.diff(np.log(np.maximum(fitted.predict_proba(rows), SMALLEST)), axis=1)
            scores[:, records[part]] = odds.reshape(p.shape[:3]).mean(axis=2)
    options = {"per_class": per_class, "features": features, "classifier": str(classifier), "most_rows": most_rows}
    return AttackScores("shokri", scores, targets.members, options | {"seed": seed})


def _probability_rows(
    signals: Signals, records: np.ndarray, features: str, *, pooled: bool
) -> Iterator[tuple[slice, np.ndarray]]:
    """Walk over places in `records` with their probabilities (M, n, Q, C), the label appended one-hot if `pooled`."""
    size = next(signals.blocks()).stop
    for start in range(0, len(records), size):
        part = slice(start, start + size)
        p = signals.distribution(records[part])
        if features == "sorted_probabilities":
            p = np.sort(p, axis=-1)[..., ::-1]
        if pooled:
            assert signals.labels is not None
            one_hot = np.eye(p.shape[-1])[signals.labels[records[part]]][None, :, None, :]
            p = np.concatenate([p, np.broadcast_to(one_hot, p.shape)], axis=-1)
        yield part, p
