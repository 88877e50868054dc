"""Trade-off curves of LiRA on the records of highest and lowest leverage (Figure 4 of the GLS paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from giveaway.attacks.result import AttackScores
from giveaway.evaluation.roc import AttackSummary, summarize

FALSE_POSITIVES = 0.05
SHARE = 0.02  # of the highest and of the lowest leverage
GRID = tuple(step / 100 for step in range(101))


def tradeoff(leverage: np.ndarray, attack: AttackScores) -> tuple[dict[str, Any], np.ndarray]:
    """β at each α of GRID for the highest and the lowest leverage: mean and 95 % of the models, (2, 3, grid).

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
    """Records that have a leverage, the lowest first."""
    known = np.flatnonzero(~np.isnan(leverage))
    return known[np.argsort(leverage[known], kind="stable")]


def of_model(attack: AttackScores, model: int, rows: slice | np.ndarray = slice(None)) -> AttackSummary:
    """The attack on one model: its AUC, and true positives at each rate of GRID."""
    scores, members = attack.scores[model, rows], attack.members[model, rows]
    return summarize(AttackScores(attack.attack, scores[None], members[None], {}), rates=GRID, resamples=0)


def spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Mean, half the width of the middle 95 %, and of how many."""
    low, high = np.percentile(values, [2.5, 97.5])
    return {
        "mean": round(float(np.mean(values)), 4),
        "half_width": round(float((high - low) / 2), 4),
        "of": len(values),
    }
