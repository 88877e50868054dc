"""What shadow models can count: how many records they show to be exposed, and how many of them a score is worth.

**Defensible count.** A score ranks; it cannot count. With S shadow models each record has a sample of φ from models
trained with it and one from models trained without it. The pooled two-sample t of a record whose effect size is δ
follows a noncentral t with noncentrality δ·√(n_in·n_out/(n_in + n_out)), which tests "the effect size is at most
`effect`" record by record; the Benjamini–Hochberg procedure then keeps the expected share of false ones among those
flagged below `false_discovery`. The flagged are a lower bound: records are missed where the models are few.

**Worth.** A score is worth as many shadow models as LiRA needs to find as much as the score does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import nct

from giveaway.attacks.lira import moments_by_side
from giveaway.checks import check_number, fail
from giveaway.evaluation.ranking import recall_at
from giveaway.evaluation.success import effect_sizes
from giveaway.records import Signals

EFFECT = 1.04  # about 70 % balanced success for equal normal φ: Φ(δ/2)


@dataclass(frozen=True)
class DefensibleCount:
    """`at_least` records have an effect size above `effect`; of those flagged at most `false_discovery` are expected to
    be wrong. `power` is the chance of flagging a record whose effect size is twice `effect`."""

    at_least: int
    records: int
    flagged: np.ndarray
    p_values: np.ndarray
    effect: float
    false_discovery: float
    power: float

    def __str__(self) -> str:
        share = self.at_least / self.records
        return (
            f"at least {self.at_least} of {self.records} records ({share:.1%}) have an effect size above "
            f"{self.effect:g} (false discovery rate {self.false_discovery:.0%}; chance to find one of twice that: "
            f"{self.power:.0%})"
        )


def defensible_count(models: Signals, *, effect: float = EFFECT, false_discovery: float = 0.05) -> DefensibleCount:
    """Count the records whose effect size is above `effect`, as far as these models can show it.

    A record with fewer than two models on either side cannot be tested and is never flagged.
    """
    if models.models < 4:
        raise fail("models", "at least 4 shadow models", f"{models.models}", "train more of them")
    check_number("effect", effect, minimum=0.0, remedy="give an effect size such as 1.04")
    if not 0 < false_discovery < 1:
        raise fail("false_discovery", "a rate between 0 and 1", f"{false_discovery}", "give one such as 0.05")
    p_values = np.ones(models.records)
    noncentrality, freedom = np.zeros(models.records), np.zeros(models.records)
    for rows, inside, outside in moments_by_side(models, merge_queries=True):
        n_in, n_out = inside.count[:, 0], outside.count[:, 0]
        freedom[rows] = np.maximum(n_in + n_out - 2, 1)
        root = np.sqrt(n_in * n_out / (n_in + n_out))
        pooled = np.sqrt((n_in * inside.variance[:, 0] + n_out * outside.variance[:, 0]) / freedom[rows])
        gap = inside.mean[:, 0] - outside.mean[:, 0]
        testable = (np.minimum(n_in, n_out) >= 2) & (pooled > 0)
        t = np.divide(gap * root, pooled, out=np.zeros_like(gap), where=testable)
        noncentrality[rows] = effect * root
        p_values[rows] = np.where(testable, nct.sf(t, freedom[rows], noncentrality[rows]), 1.0)
    flagged = benjamini_hochberg(p_values, false_discovery)
    largest = p_values[flagged].max() if flagged.any() else false_discovery / models.records
    typical = np.median(freedom), np.median(noncentrality)
    power = float(nct.sf(nct.isf(largest, *typical), typical[0], 2 * typical[1]))
    return DefensibleCount(int(flagged.sum()), models.records, flagged, p_values, effect, false_discovery, power)


def benjamini_hochberg(p_values: np.ndarray, rate: float) -> np.ndarray:
    """Say which hypotheses are rejected while the expected share of false rejections stays below `rate`."""
    order = np.argsort(p_values, kind="stable")
    below = np.flatnonzero(p_values[order] <= rate * np.arange(1, len(p_values) + 1) / len(p_values))
    rejected = np.zeros(len(p_values), dtype=bool)
    if len(below):
        rejected[order[: below[-1] + 1]] = True
    return rejected


@dataclass(frozen=True)
class ShadowCurve:
    """The mean recall of LiRA with each number of shadow models, and its standard error over the draws."""

    sizes: tuple[int, ...]
    recall: np.ndarray
    error: np.ndarray

    def worth(self, recall: float) -> float:
        """Return the number of shadow models at which LiRA reaches `recall`, interpolated in its logarithm.

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
    """Measure how many of the truth's top records LiRA finds with S of the models; other models give the truth.

    Each draw takes S models for the attack and `truth_models` others for the effect sizes that are the truth. LiRA
    ranks by the gap of the means over the standard deviation, pooled or each record's own, whichever finds more on
    average. A record that the S models cannot tell (all with it, or all without) ranks last.
    """
    if max(sizes) + truth_models > models.models:
        expected = f"at most {models.models - truth_models} with {truth_models} models for the truth"
        raise fail("sizes", expected, f"{max(sizes)}", "ask for fewer, or train more models")
    generator = np.random.default_rng(seed)
    recalls = np.empty((draws, len(sizes), 2))
    for draw in range(draws):
        order = generator.permutation(models.models)
        truth = effect_sizes(models.of_models(np.sort(order[:truth_models]))).effect_size
        for place, size in enumerate(sizes):
            chosen = models.of_models(np.sort(order[truth_models : truth_models + size]))
            for variance, scores in enumerate(_rankings(chosen)):
                recalls[draw, place, variance] = recall_at(scores, truth, top, keep)
    better = recalls.mean(axis=0).argmax(axis=1)
    each = recalls[:, np.arange(len(sizes)), better]
    error = each.std(axis=0, ddof=1) / np.sqrt(draws) if draws > 1 else np.zeros(len(sizes))
    return ShadowCurve(tuple(sizes), each.mean(axis=0), error)


def _rankings(models: Signals) -> tuple[np.ndarray, np.ndarray]:
    """Return LiRA's order of the records with pooled and with per-record variance."""
    pooled, own = np.empty(models.records), np.empty(models.records)
    for rows, inside, outside in moments_by_side(models, merge_queries=True):
        known = (inside.count > 0) & (outside.count > 0)
        gap = np.where(known, inside.mean - outside.mean, -np.inf)
        deviation = np.sqrt((inside.variance + outside.variance) / 2)
        scaled = np.where(deviation > 0, gap / np.where(deviation > 0, deviation, 1.0), -np.inf)
        pooled[rows], own[rows] = gap[:, 0], scaled[:, 0]
    return pooled, own
