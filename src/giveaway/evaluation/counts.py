"""How many records are exposed, as far as S shadow models can show it (docs/derivations.md)."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2, norm

from giveaway.checks import check_number, fail
from giveaway.evaluation.boundary import Coins, coin_power, draw_boundary, sides_of
from giveaway.records import Signals

EFFECT = 1.04  # about 70 % balanced success for equal normal φ: Φ(δ/2)
LEAST = 3  # models on a side of a record that is judged
FROM, TO = 0.25, 0.5  # p-values of records near the boundary


@dataclass(frozen=True)
class DefensibleCount:
    """What the models show about effect sizes above `effect`.

    at_least : a lower bound, with `confidence`, on the number of records above it.
    flagged : the records that are named; at most `false_discovery` of them are expected to be wrong.
    judged : the records with at least three models on either side; the others have p = 1.
    power : the chance of flagging a record whose effect size is twice `effect`.
    by_success : a lower bound of the same kind on the number of records with a LiRA success above Φ(effect/2).
    """

    at_least: int
    records: int
    flagged: np.ndarray
    p_values: np.ndarray
    effect: float
    false_discovery: float
    power: float
    confidence: float
    judged: np.ndarray
    by_success: int

    @property
    def gated(self) -> int:
        """The number that a gate holds against its limit: never less than LiRA's own success says."""
        return max(self.at_least, self.by_success)

    def __str__(self) -> str:
        return (
            f"at least {self.at_least} of {self.records} records ({self.at_least / self.records:.1%}) have an effect "
            f"size above {self.effect:g} (confidence {self.confidence:.0%}); {int(self.flagged.sum())} are flagged "
            f"(false discovery rate {self.false_discovery:.0%}; chance to find one of twice that: {self.power:.0%})"
        )


def defensible_count(
    models: Signals, *, effect: float = EFFECT, false_discovery: float = 0.05, confidence: float = 0.95
) -> DefensibleCount:
    """Count the records whose effect size is above `effect`, as far as these models can show it.

    A record with fewer than three models on either side is not judged and never flagged. Several queries are averaged.
    """
    check_number("effect", effect, minimum=0.0, remedy="give an effect size such as 1.04")
    for name, rate in (("false_discovery", false_discovery), ("confidence", confidence)):
        if not 0 < rate < 1:
            raise fail(name, "a rate between 0 and 1", f"{rate}", "give one such as 0.05 or 0.95")
    inside = models.members.sum(axis=0)
    judged = np.minimum(inside, models.models - inside) >= LEAST
    if not judged.any():
        expected = f"records with {LEAST} models or more on either side"
        raise fail("models", expected, f"none in {models.models} models", "train more of them")
    sides = sides_of(models, judged)
    coins = sides.two_valued
    p_values, flagged = np.ones(len(coins)), np.zeros(len(coins), dtype=bool)
    most = power = 0.0
    if coins.any():
        p_values[coins] = Coins.at_effect(effect).p_values(sides.count[:, coins], sides.high[:, coins])
        small = np.where(p_values < 1, p_values, np.inf)[coins]
        possible = max(int(np.isfinite(small).sum()), 1)
        flagged[coins], threshold = benjamini_hochberg(small, false_discovery, possible)
        most, power = possible, coins.mean() * coin_power(sides.count[:, coins], effect, threshold)
    if not coins.all():
        others, gap = ~coins, sides.mean[0] - sides.mean[1]
        boundary = draw_boundary(sides, effect)
        p_values[others] = boundary.p_values(sides.count[:, others], sides.variance[:, others], gap[others])
        between = int(((p_values > FROM) & (p_values <= TO) & others).sum())
        near = (1 + between) / (TO - FROM)
        small = np.where(p_values <= FROM, p_values, np.inf)[others]
        flagged[others], threshold = benjamini_hochberg(small, false_discovery, near)
        most += chi2.isf((1 - confidence) / 2, 2 * between + 2) / 2 / (TO - FROM)
        power += others.mean() * boundary.power(min(threshold, FROM))
    by_success = np.sort(Coins.at_success(norm.cdf(effect / 2)).p_values(sides.count, sides.called))
    above = benjamini_hochberg(by_success, false_discovery, len(by_success))[0]
    shown = np.zeros(models.records, dtype=bool)
    shown[judged] = flagged
    of_all = np.ones(models.records)
    of_all[judged] = p_values
    return DefensibleCount(
        at_least=_surely(np.sort(p_values[flagged]), most, (1 - confidence) / 2),
        records=models.records,
        flagged=shown,
        p_values=of_all,
        effect=effect,
        false_discovery=false_discovery,
        power=power,
        confidence=confidence,
        judged=judged,
        by_success=_surely(by_success[above], len(above), 1 - confidence),
    )


def benjamini_hochberg(p_values: np.ndarray, rate: float, among: float) -> tuple[np.ndarray, float]:
    """Say which hypotheses are rejected while the expected share of false rejections stays below `rate`, and up to
    which p-value; `among` is the number of hypotheses that can be rejected falsely, as a rule all."""
    order = np.argsort(p_values, kind="stable")
    below = np.flatnonzero(p_values[order] <= rate * np.arange(1, len(p_values) + 1) / among)
    rejected = np.zeros(len(p_values), dtype=bool)
    if len(below):
        rejected[order[: below[-1] + 1]] = True
    return rejected, rate * max(int(rejected.sum()), 1) / among


def _surely(p_values: np.ndarray, among: float, alpha: float) -> int:
    """Return a lower bound on the number of true ones among rejected hypotheses, by their sorted p-values."""
    factor = np.log(1 / alpha) / np.log1p(np.log(1 / alpha))
    left = np.arange(1, len(p_values) + 1) - np.floor(factor * (1 + among * p_values))
    return int(left.max(initial=0))
