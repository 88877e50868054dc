"""What an attack achieves: record by record over many models, and over all of them together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from giveaway.attacks.lira import moments
from giveaway.attacks.result import AttackScores
from giveaway.checks import fail
from giveaway.records import Signals


@dataclass(frozen=True)
class EffectSizes:
    """Of every record: mean and standard deviation (ddof 0) of φ over models trained with and without it, and
    (μ_in − μ_out) / √((σ_in² + σ_out²)/2)."""

    mean_in: np.ndarray
    mean_out: np.ndarray
    deviation_in: np.ndarray
    deviation_out: np.ndarray
    effect_size: np.ndarray


def effect_sizes(models: Signals) -> EffectSizes:
    """LiRA's signal without the ties of its success rate; the mean over queries."""
    columns = np.empty((5, models.records))
    for part in models.blocks():
        phi, members = models.statistic(part), models.members[:, part]
        inside, outside = moments(phi, members), moments(phi, ~members)
        pooled = np.sqrt((inside.variance + outside.variance) / 2)
        gap = inside.mean - outside.mean
        effect = np.divide(gap, pooled, out=np.zeros_like(gap), where=pooled > 0)
        stacked = (inside.mean, outside.mean, np.sqrt(inside.variance), np.sqrt(outside.variance), effect)
        columns[:, part] = [values.mean(axis=1) for values in stacked]
    return EffectSizes(*columns)


def success_rate(attack: AttackScores, *, threshold: float = 0.0) -> np.ndarray:
    """Share of the target models for which the attack is right on each record."""
    return ((attack.scores > threshold) == attack.members).mean(axis=0)


def success_at(attack: AttackScores, false_positive_rate: float) -> np.ndarray:
    """Each record's true-positive rate over the models, at a threshold of its own that keeps the share of
    non-member models above it at most the rate given; NaN nowhere: a record that no model was trained on is refused."""
    members = attack.members
    if not (members.any(0) & ~members.all(0)).all():
        raise fail("attack", "records in some of the models and not in others", "others", "add models")
    allowed = np.floor(false_positive_rate * (~members).sum(0) + 1e-12).astype(int)
    outside = -np.sort(-np.where(members, -np.inf, attack.scores), axis=0)
    threshold = np.take_along_axis(outside, allowed[None], axis=0)[0]
    return ((attack.scores > threshold) & members).sum(0) / members.sum(0)
