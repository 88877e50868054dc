"""What shadow models say of records: LiRA's score, the metrics of the GLS paper's Table 2, how steady they are, and the
trade-off curves of LiRA on the records of highest and lowest leverage (Figure 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from benchmarks.reproduce.gls.training import FOLDS
from giveaway.attacks.lira import FLOOR
from giveaway.attacks.thresholds import AttackScores
from giveaway.evaluation import effect_sizes, spearman
from giveaway.evaluation.success import AttackSummary, EffectSizes, summarize
from giveaway.records import Signals

FALSE_POSITIVES = 0.05
SHARE = 0.02  # of the highest and of the lowest leverage
GAPS = {
    "mean_gap": lambda phi: phi,
    "mean_gap_probability": expit,
    "mean_gap_loss": lambda phi: np.logaddexp(0.0, -phi),
}
METRICS = ("lira", "lira_mean", "deviation_ratio", "tpr", "tpr_fitted", *GAPS, "effect_size", "minus_phi")
MOMENTS = ("mean_in", "mean_out", "deviation_in", "deviation_out")
TINY = 1e-12
NODES = 60  # of Gauss and Hermite
GRID = tuple(step / 100 for step in range(101))


def said_of_target(signals: Signals, attack: AttackScores, number: int) -> dict[str, np.ndarray]:
    """Return for every record LiRA's score and −φ of this model, and what all the others say."""
    others = np.delete(np.arange(signals.models), number)
    rest = AttackScores("lira", attack.scores[others], signals.members[others], {})
    effect = effect_sizes(signals.of_models(others))
    phi, inside = signals.values[:, :, 0].astype(np.float64), rest.members
    return {
        "lira": attack.scores[number],
        "lira_mean": _mean(rest.scores, inside),
        "tpr": success_at(rest, FALSE_POSITIVES),
        **_of_moments(effect),
        **{
            name: np.abs(_mean(seen := statistic(phi[others]), inside) - _mean(seen, ~inside))
            for name, statistic in GAPS.items()
        },
        "minus_phi": -phi[number],
    }


def _mean(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return (values * mask).sum(0) / mask.sum(0)


def success_at(attack: AttackScores, false_positive_rate: float) -> np.ndarray:
    """Return each record's true-positive rate over the models, at a threshold of its own that keeps the share of
    non-member models above it at most the rate given."""
    members = attack.members
    allowed = np.floor(false_positive_rate * (~members).sum(0) + 1e-12).astype(int)
    outside = -np.sort(-np.where(members, -np.inf, attack.scores), axis=0)
    threshold = np.take_along_axis(outside, allowed[None], axis=0)[0]
    return ((attack.scores > threshold) & members).sum(0) / members.sum(0)


def said_by_summaries(phi: np.ndarray, summaries: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the same for a model that is none of those whose means and deviations were kept, from them and its own φ;
    without `tpr`, which needs every model's answer."""
    moments = {name: summaries[name].astype(np.float64) for name in MOMENTS}
    phi = phi.astype(np.float64)
    inside, outside = (norm.logpdf(phi, moments[f"mean_{k}"], moments[f"deviation_{k}"] + FLOOR) for k in ("in", "out"))
    pooled = np.sqrt((moments["deviation_in"] ** 2 + moments["deviation_out"] ** 2) / 2)
    gap = moments["mean_in"] - moments["mean_out"]
    effect_size = np.divide(gap, pooled, out=np.zeros_like(gap), where=pooled > 0)
    effect = EffectSizes(**moments, effect_size=effect_size)
    return {
        "lira": inside - outside,
        "lira_mean": mean_ratio(effect),
        **_of_moments(effect),
        **{name: normal_gap(effect, statistic) for name, statistic in GAPS.items()},
        "minus_phi": -phi,
    }


def mean_ratio(effect: EffectSizes) -> np.ndarray:
    """Return the mean of LiRA's score over the models with the record, each among its own references: the divergence of
    the two normal laws."""
    outside = effect.deviation_out + FLOOR
    squares = effect.deviation_in**2 + (effect.mean_in - effect.mean_out) ** 2
    return np.log(outside / (effect.deviation_in + FLOOR)) + squares / (2 * outside**2) - 0.5


def normal_gap(effect: EffectSizes, statistic: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the distance between the means of a statistic of φ under the normal laws with and without the record."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    sides = ((effect.mean_in, effect.deviation_in), (effect.mean_out, effect.deviation_out))
    inside, outside = (statistic(mean[:, None] + sd[:, None] * nodes) @ weights for mean, sd in sides)
    return np.abs(inside - outside) / weights.sum()


def _of_moments(effect: EffectSizes) -> dict[str, np.ndarray]:
    threshold = effect.mean_out + norm.isf(FALSE_POSITIVES) * effect.deviation_out
    return {
        "deviation_ratio": effect.deviation_out / np.maximum(effect.deviation_in, TINY),
        "tpr_fitted": norm.sf((threshold - effect.mean_in) / np.maximum(effect.deviation_in, TINY)),
        "effect_size": effect.effect_size,
    }


def strength(attack: AttackScores) -> dict[str, dict[str, float]]:
    """Return how strong the attack is on all records of a model, over models."""
    each = [of_model(attack, model) for model in range(len(attack.scores))]
    return {
        "auc": spread([found.auc.value for found in each]),
        "tpr_at_5": spread([found.true_positive_rate[FALSE_POSITIVES].value for found in each]),
    }


def between_targets(attack: AttackScores, targets: int) -> dict[str, float] | None:
    """Correlate (Spearman) two targets' LiRA scores of the records that both were trained on, over all pairs."""
    found = []
    for one, other in combinations(range(targets), 2):
        both = attack.members[one] & attack.members[other]
        found.append(spearman(attack.scores[one, both], attack.scores[other, both]))
    return spread(found) if found else None


def between_halves(signals: Signals) -> dict[str, float]:
    """Return the Spearman correlation of what every other group of models says with what the rest says."""
    groups = np.arange(signals.models) // FOLDS
    effects = [effect_sizes(signals.of_models(np.flatnonzero(groups % 2 == k))) for k in (0, 1)]
    one, other = (
        {**_of_moments(e), "mean_gap": np.abs(e.mean_out - e.mean_in), "lira_mean": mean_ratio(e)} for e in effects
    )
    names = ("deviation_ratio", "mean_gap", "lira_mean", "effect_size")
    return {name: round(spearman(one[name], other[name]), 4) for name in names}


def tradeoff(leverage: np.ndarray, attack: AttackScores) -> tuple[dict[str, Any], np.ndarray]:
    """Return β at each α of GRID for the highest and lowest leverage: mean and 95 % of the models, (2, 3, grid).

    A model whose training set holds all or none of a group's records cannot be attacked there, and is left out.
    """
    order = ascending(leverage)
    count = max(1, round(SHARE * len(order)))
    groups = {"highest": order[-count:], "lowest": order[:count]}
    mixed = [attack.members[:, rows].sum(1) > 0 for rows in groups.values()]
    mixed += [attack.members[:, rows].sum(1) < count for rows in groups.values()]
    models = np.flatnonzero(np.all(mixed, axis=0))
    told: dict[str, Any] = {"records": count, "attacks": len(models)}
    curves, auc = [], []
    for name, rows in groups.items():
        here = [of_model(attack, model, rows) for model in models]
        missed = 1 - np.array([[found.true_positive_rate[alpha].value for alpha in GRID] for found in here])
        low, high = np.percentile(missed, [2.5, 97.5], axis=0)
        curves.append(np.stack([missed.mean(0), low, high]))
        auc.append(np.array([found.auc.value for found in here]))
        told[name] = {"auc": spread(auc[-1]), "tpr_at_5": spread(1 - missed[:, GRID.index(FALSE_POSITIVES)])}
    told["share_of_models_higher"] = round(float((auc[0] > auc[1]).mean()), 4)
    return told, np.stack(curves)


def ascending(leverage: np.ndarray) -> np.ndarray:
    """Return the records that have a leverage, the lowest first."""
    known = np.flatnonzero(~np.isnan(leverage))
    return known[np.argsort(leverage[known], kind="stable")]


def of_model(attack: AttackScores, model: int, rows: slice | np.ndarray = slice(None)) -> AttackSummary:
    """Summarize the attack on one model: its AUC, and true positives at each rate of GRID."""
    scores, members = attack.scores[model, rows], attack.members[model, rows]
    return summarize(AttackScores(attack.attack, scores[None], members[None], {}), rates=GRID, resamples=0)


def spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Return the mean, half the width of the middle 95 %, and the number of values."""
    low, high = np.percentile(values, [2.5, 97.5])
    width = round(float((high - low) / 2), 4)
    return {"mean": round(float(np.mean(values)), 4), "half_width": width, "of": len(values)}
