"""What shadow models say of records: LiRA's score, the metrics of the GLS paper's Table 2, and how steady they are."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from scipy.stats import norm

from benchmarks.reproduce.gls_tradeoff import FALSE_POSITIVES, of_model, spread
from benchmarks.reproduce.gls_training import FOLDS
from giveaway.attacks.lira import FLOOR
from giveaway.attacks.result import AttackScores
from giveaway.evaluation import EffectSizes, effect_sizes, spearman, success_at
from giveaway.records import Signals

METRICS = ("lira", "deviation_ratio", "tpr", "tpr_fitted", "mean_gap", "effect_size", "minus_phi")
TINY = 1e-12


def said_of_target(signals: Signals, attack: AttackScores, number: int) -> dict[str, np.ndarray]:
    """Of every record: LiRA's score and −φ of this model, and what all others say."""
    others = np.delete(np.arange(signals.models), number)
    rest = AttackScores("lira", attack.scores[others], signals.members[others], {})
    effect = effect_sizes(signals.of_models(others))
    return {
        "lira": attack.scores[number],
        "tpr": success_at(rest, FALSE_POSITIVES),
        **_of_moments(effect),
        "minus_phi": -signals.values[number, :, 0].astype(np.float64),
    }


def said_by_summaries(phi: np.ndarray, summaries: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same of a model that is none of those whose means and deviations were kept, from them and its own φ; but for
    `tpr`, which takes every model's answer."""
    mean_in, mean_out, deviation_in, deviation_out = (
        summaries[name].astype(np.float64) for name in ("mean_in", "mean_out", "deviation_in", "deviation_out")
    )
    phi = phi.astype(np.float64)
    pooled = np.sqrt((deviation_in**2 + deviation_out**2) / 2)
    gap = mean_in - mean_out
    effect_size = np.divide(gap, pooled, out=np.zeros_like(gap), where=pooled > 0)
    lira = norm.logpdf(phi, mean_in, deviation_in + FLOOR) - norm.logpdf(phi, mean_out, deviation_out + FLOOR)
    effect = EffectSizes(mean_in, mean_out, deviation_in, deviation_out, effect_size)
    return {"lira": lira, **_of_moments(effect), "minus_phi": -phi}


def _of_moments(effect: EffectSizes) -> dict[str, np.ndarray]:
    threshold = effect.mean_out + norm.isf(FALSE_POSITIVES) * effect.deviation_out
    return {
        "deviation_ratio": effect.deviation_out / np.maximum(effect.deviation_in, TINY),
        "tpr_fitted": norm.sf((threshold - effect.mean_in) / np.maximum(effect.deviation_in, TINY)),
        "mean_gap": np.abs(effect.mean_out - effect.mean_in),
        "effect_size": effect.effect_size,
    }


def strength(attack: AttackScores) -> dict[str, dict[str, float]]:
    """Of the attack on all records of a model, over models."""
    each = [of_model(attack, model) for model in range(len(attack.scores))]
    return {
        "auc": spread([found.auc.value for found in each]),
        "tpr_at_5": spread([found.true_positive_rate[FALSE_POSITIVES].value for found in each]),
    }


def between_targets(attack: AttackScores, targets: int) -> dict[str, float] | None:
    """Spearman of two targets' LiRA scores of the records that both were trained on, over all pairs."""
    found = []
    for one, other in combinations(range(targets), 2):
        both = attack.members[one] & attack.members[other]
        found.append(spearman(attack.scores[one, both], attack.scores[other, both]))
    return spread(found) if found else None


def between_halves(signals: Signals) -> dict[str, float]:
    """Spearman of what every other group of models says with what the rest says."""
    groups = np.arange(signals.models) // FOLDS
    parts = [effect_sizes(signals.of_models(np.flatnonzero(groups % 2 == half))) for half in (0, 1)]
    said = {
        "deviation_ratio": [part.deviation_out / np.maximum(part.deviation_in, TINY) for part in parts],
        "mean_gap": [np.abs(part.mean_out - part.mean_in) for part in parts],
        "effect_size": [part.effect_size for part in parts],
    }
    return {name: round(spearman(*both), 4) for name, both in said.items()}
