"""The attack-model attack of Shokri et al. (2017): a classifier learns, on reference ("shadow") models whose training
records are known, to tell predictions on members from predictions on non-members.

per_class   one attack model a class, on the probability vectors of that class's records; otherwise one for all, with
            the label appended one-hot
features    `probabilities` in the order of the classes, or `sorted_probabilities`, largest first

Every (reference, record, query) is one row of training data. Scores are the predicted log-odds of membership, the mean
over several queries.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from giveaway.attacks.thresholds import AttackScores, check_same_records
from giveaway.checks import check_choice, fail
from giveaway.records import Signals

FEATURES = ("probabilities", "sorted_probabilities")
SMALLEST = np.finfo(np.float64).tiny


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
        classifier = _default_classifier(per_class, seed)
    if not (hasattr(classifier, "predict_proba") and hasattr(classifier, "get_params")):
        expected = "a scikit-learn classifier with predict_proba"
        raise fail("classifier", expected, type(classifier).__name__, "choose one that gives probabilities")
    assert targets.labels is not None
    scores = np.empty(targets.members.shape)
    for number in np.unique(targets.labels) if per_class else (None,):
        records = np.flatnonzero(targets.labels == number) if per_class else np.arange(targets.records)
        rng = np.random.default_rng([seed] if number is None else [seed, int(number)])
        inputs, is_member = _training_rows(references, records, features, most_rows, rng, pooled=not per_class)
        if is_member.all() or not is_member.any():
            where = "every class together" if number is None else f"class {int(number)}"
            got = "only " + ("members" if is_member.all() else "non-members")
            raise fail("references", f"members and non-members in {where}", got, "add models, or take per_class=False")
        fitted = copy.deepcopy(classifier).fit(inputs, is_member)
        for some in _chunks(targets, records):
            rows = _features(targets, some, features, pooled=not per_class)
            odds = _log_odds(fitted, rows.reshape(-1, rows.shape[-1]))
            scores[:, some] = odds.reshape(rows.shape[:3]).mean(axis=2)
    options = {"per_class": per_class, "features": features, "classifier": str(classifier), "most_rows": most_rows}
    return AttackScores("shokri", scores, targets.members, options | {"seed": seed})


def _default_classifier(per_class: bool, seed: int) -> Any:
    # scikit-learn takes half a second to import, and an audit never needs it
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    if per_class:
        return LogisticRegression(max_iter=1000)
    return MLPClassifier((64,), max_iter=1000, random_state=seed)


def _chunks(signals: Signals, records: np.ndarray) -> Iterator[np.ndarray]:
    size = next(signals.blocks()).stop
    for start in range(0, len(records), size):
        yield records[start : start + size]


def _training_rows(
    references: Signals,
    records: np.ndarray,
    features: str,
    most_rows: int | None,
    rng: np.random.Generator,
    *,
    pooled: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and membership of the (model, record, query) triples that one attack model learns from."""
    kept = np.ones((references.models, len(records)), dtype=bool)
    if most_rows is not None and kept.size * references.queries > most_rows:
        drawn = rng.choice(kept.size, max(2, most_rows // references.queries), replace=False, shuffle=False)
        kept = np.isin(np.arange(kept.size), drawn).reshape(kept.shape)
    inputs, is_member, start = [], [], 0
    for some in _chunks(references, records):
        chosen = kept[:, start : start + len(some)]
        start += len(some)
        rows = _features(references, some, features, pooled=pooled)[chosen]
        inputs.append(rows.reshape(-1, rows.shape[-1]))
        is_member.append(np.repeat(references.members[:, some][chosen], references.queries))
    return np.concatenate(inputs), np.concatenate(is_member)


def _features(signals: Signals, records: np.ndarray, features: str, *, pooled: bool) -> np.ndarray:
    """Return probabilities (M, n, Q, C), with the label appended one-hot if `pooled`."""
    p = signals.distribution(records)
    if features == "sorted_probabilities":
        p = np.sort(p, axis=-1)[..., ::-1]
    if not pooled:
        return p
    assert signals.labels is not None
    one_hot = np.eye(p.shape[-1])[signals.labels[records]][None, :, None, :]
    return np.concatenate([p, np.broadcast_to(one_hot, p.shape)], axis=-1)


def _log_odds(fitted: Any, inputs: np.ndarray) -> np.ndarray:
    if type(fitted).__name__ == "LogisticRegression":  # its probabilities round to 1 long before its log-odds end
        return fitted.decision_function(inputs)
    non_member, member = np.log(np.maximum(fitted.predict_proba(inputs), SMALLEST)).T
    return member - non_member
