"""How many records an attack can be said to expose: a count with an error rate, from shadow models.

A score ranks; it cannot count. With S shadow models each record has a sample of φ from models trained with it and one
from models trained without it. The pooled two-sample t of a record whose effect size is δ follows a noncentral t with
noncentrality δ·√(n_in·n_out/(n_in + n_out)), which tests "the effect size is at most `effect`" record by record; the
Benjamini–Hochberg procedure then keeps the expected share of false ones among those flagged below `false_discovery`.
The flagged are a lower bound: records are missed where the models are few.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import nct

from giveaway.attacks.lira import moments
from giveaway.checks import check_number, fail
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
    """The records whose effect size is above `effect`, as far as these models can show it.

    A record with fewer than two models on either side cannot be tested and is never flagged.
    """
    if models.models < 4:
        raise fail("models", "at least 4 shadow models", f"{models.models}", "train more of them")
    check_number("effect", effect, minimum=0.0, remedy="give an effect size such as 1.04")
    if not 0 < false_discovery < 1:
        raise fail("false_discovery", "a rate between 0 and 1", f"{false_discovery}", "give one such as 0.05")
    p_values = np.ones(models.records)
    noncentrality, freedom = np.zeros(models.records), np.zeros(models.records)
    for part in models.blocks():
        phi, members = models.statistic(part).mean(axis=2, keepdims=True), models.members[:, part]
        inside, outside = moments(phi, members), moments(phi, ~members)
        n_in, n_out = inside.count[:, 0], outside.count[:, 0]
        freedom[part] = np.maximum(n_in + n_out - 2, 1)
        root = np.sqrt(n_in * n_out / (n_in + n_out))
        pooled = np.sqrt((n_in * inside.variance[:, 0] + n_out * outside.variance[:, 0]) / freedom[part])
        gap = inside.mean[:, 0] - outside.mean[:, 0]
        testable = (np.minimum(n_in, n_out) >= 2) & (pooled > 0)
        t = np.divide(gap * root, pooled, out=np.zeros_like(gap), where=testable)
        noncentrality[part] = effect * root
        p_values[part] = np.where(testable, nct.sf(t, freedom[part], noncentrality[part]), 1.0)
    flagged = benjamini_hochberg(p_values, false_discovery)
    largest = p_values[flagged].max() if flagged.any() else false_discovery / models.records
    typical = np.median(freedom), np.median(noncentrality)
    power = float(nct.sf(nct.isf(largest, *typical), typical[0], 2 * typical[1]))
    return DefensibleCount(int(flagged.sum()), models.records, flagged, p_values, effect, false_discovery, power)


def benjamini_hochberg(p_values: np.ndarray, rate: float) -> np.ndarray:
    """Which hypotheses are rejected while the expected share of false rejections stays below `rate`."""
    order = np.argsort(p_values, kind="stable")
    below = np.flatnonzero(p_values[order] <= rate * np.arange(1, len(p_values) + 1) / len(p_values))
    rejected = np.zeros(len(p_values), dtype=bool)
    if len(below):
        rejected[order[: below[-1] + 1]] = True
    return rejected
