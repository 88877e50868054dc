"""An attack over all records and target models together: ROC, AUC, true positives at low false-positive rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from giveaway.attacks.result import AttackScores
from giveaway.checks import fail

RATES = (0.1, 0.01, 0.001, 0.0001)


@dataclass(frozen=True)
class Interval:
    """A value and its bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class AttackSummary:
    """`nonmembers` limits what can be said: a false-positive rate below 1/nonmembers allows none at all."""

    attack: str
    auc: Interval
    balanced_accuracy: Interval
    true_positive_rate: dict[float, Interval]
    members: int
    nonmembers: int
    confidence: float
    false_positives: np.ndarray  # the curve: rates at every threshold, from the strictest on
    true_positives: np.ndarray


def summarize(
    attack: AttackScores,
    *,
    rates: Sequence[float] = RATES,
    confidence: float = 0.95,
    resamples: int = 200,
    seed: int = 0,
) -> AttackSummary:
    """Figures of the attack on all records of all target models, with bootstrap intervals.

    The true-positive rate at a false-positive rate is the largest that a threshold reaches while its false-positive
    rate is at most the one given. Intervals are percentiles over resampled records (each with all of its models) and,
    where there are several, resampled target models.
    """
    inside, outside = int(attack.members.sum()), int((~attack.members).sum())
    if not inside or not outside:
        raise fail("attack", "members and non-members", f"{inside} and {outside}", "take targets that left records out")
    # thresholds from the strictest: entries with the same score pass together
    _, place = np.unique(-attack.scores, return_inverse=True)
    place = place.reshape(-1)
    steps = int(place.max()) + 1
    members = attack.members.reshape(-1)
    generator = np.random.default_rng(seed)
    targets, records = attack.scores.shape

    def figures(weight: np.ndarray) -> np.ndarray:
        false_positives, true_positives = _curve(place, members, weight, steps)
        return _figures(false_positives, true_positives, rates)

    every = np.ones(place.shape)
    false_positives, true_positives = _curve(place, members, every, steps)
    values = _figures(false_positives, true_positives, rates)
    drawn = []
    for _ in range(resamples):
        by_record = generator.multinomial(records, np.full(records, 1 / records))
        by_target = generator.multinomial(targets, np.full(targets, 1 / targets)) if targets > 1 else np.ones(1)
        drawn.append(figures(np.outer(by_target, by_record).reshape(-1).astype(np.float64)))
    tail = 50 * (1 - confidence)
    low, high = np.nanpercentile(drawn, [tail, 100 - tail], axis=0) if resamples else (values, values)
    intervals = [Interval(float(v), float(a), float(b)) for v, a, b in zip(values, low, high, strict=True)]
    return AttackSummary(
        attack=attack.attack,
        auc=intervals[0],
        balanced_accuracy=intervals[1],
        true_positive_rate=dict(zip(rates, intervals[2:], strict=True)),
        members=inside,
        nonmembers=outside,
        confidence=confidence,
        false_positives=false_positives,
        true_positives=true_positives,
    )


def _curve(place: np.ndarray, members: np.ndarray, weight: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """False- and true-positive rates at every threshold, starting from (0, 0)."""
    passed = [np.bincount(place, weights=weight * side, minlength=steps).cumsum() for side in (~members, members)]
    false_positives, true_positives = (np.concatenate([[0.0], p / p[-1] if p[-1] > 0 else p * np.nan]) for p in passed)
    return false_positives, true_positives


def _figures(false_positives: np.ndarray, true_positives: np.ndarray, rates: Sequence[float]) -> np.ndarray:
    auc = (np.diff(false_positives) * (true_positives[1:] + true_positives[:-1]) / 2).sum()
    accuracy = (1 + (true_positives - false_positives).max()) / 2
    allowed = [np.searchsorted(false_positives, rate + 1e-12, side="right") - 1 for rate in rates]
    return np.array([auc, accuracy, *true_positives[allowed]])
