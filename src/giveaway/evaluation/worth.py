"""What a score is worth in shadow models: how many of them LiRA needs to find as much as the score does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from giveaway.attacks.lira import moments
from giveaway.checks import fail
from giveaway.evaluation.attack_success import effect_sizes
from giveaway.evaluation.ranking import recall_at
from giveaway.records import Signals


@dataclass(frozen=True)
class ShadowCurve:
    """Mean recall of LiRA with each number of shadow models, and its standard error over the draws."""

    sizes: tuple[int, ...]
    recall: np.ndarray
    error: np.ndarray

    def worth(self, recall: float) -> float:
        """The number of shadow models at which LiRA reaches `recall`, interpolated in its logarithm.

        0 where two models already find more, infinity where all of the sizes find less.
        """
        risen = np.maximum.accumulate(self.recall)
        if recall < risen[0]:
            return 0.0
        if recall > risen[-1]:
            return float("inf")
        after = int(np.searchsorted(risen, recall))
        if after == 0 or risen[after] == recall:
            return float(self.sizes[after])
        low, high = np.log(self.sizes[after - 1]), np.log(self.sizes[after])
        part = (recall - risen[after - 1]) / (risen[after] - risen[after - 1])
        return float(np.exp(low + part * (high - low)))


def shadow_curve(
    models: Signals,
    *,
    sizes: Sequence[int] = (2, 4, 8, 16, 32, 64),
    top: float = 0.01,
    keep: float = 0.05,
    truth_models: int = 100,
    draws: int = 20,
    seed: int = 0,
) -> ShadowCurve:
    """Recall of the truth's top records by LiRA with S of the models; the truth is the effect size over others.

    Each draw takes S models for the attack and `truth_models` others for the truth. LiRA ranks by the gap of the means
    over the standard deviation, pooled or each record's own, whichever finds more on average. A record that the S
    models cannot tell (all with it, or all without) ranks last.
    """
    if max(sizes) + truth_models > models.models:
        expected = f"at most {models.models - truth_models} with {truth_models} models for the truth"
        raise fail("sizes", expected, f"{max(sizes)}", "ask for fewer, or train more models")
    generator = np.random.default_rng(seed)
    found = np.empty((draws, len(sizes), 2))
    for draw in range(draws):
        order = generator.permutation(models.models)
        truth = effect_sizes(models.of_models(np.sort(order[:truth_models]))).effect_size
        for place, size in enumerate(sizes):
            chosen = models.of_models(np.sort(order[truth_models : truth_models + size]))
            for variance, scores in enumerate(_rankings(chosen)):
                found[draw, place, variance] = recall_at(scores, truth, top, keep)
    mean = found.mean(axis=0)
    better = mean.argmax(axis=1)
    each = found[:, np.arange(len(sizes)), better]
    error = each.std(axis=0, ddof=1) / np.sqrt(draws) if draws > 1 else np.zeros(len(sizes))
    return ShadowCurve(tuple(sizes), each.mean(axis=0), error)


def _rankings(models: Signals) -> tuple[np.ndarray, np.ndarray]:
    """LiRA's order of the records with pooled and with per-record variance."""
    pooled, own = np.empty(models.records), np.empty(models.records)
    for part in models.blocks():
        phi, members = models.statistic(part).mean(axis=2, keepdims=True), models.members[:, part]
        inside, outside = moments(phi, members), moments(phi, ~members)
        known = (inside.count > 0) & (outside.count > 0)
        gap = np.where(known, inside.mean - outside.mean, -np.inf)
        deviation = np.sqrt((inside.variance + outside.variance) / 2)
        scaled = np.where(deviation > 0, gap / np.where(deviation > 0, deviation, 1.0), -np.inf)
        pooled[part], own[part] = gap[:, 0], scaled[:, 0]
    return pooled, own
