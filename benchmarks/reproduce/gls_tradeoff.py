"""Trade-off curves of LiRA on the records of highest and lowest leverage (Figure 4 of the GLS paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from giveaway.attacks.result import AttackScores

FALSE_POSITIVES = 0.05
SHARE = 0.02  # of the highest and of the lowest leverage
GRID = np.linspace(0, 1, 101)


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
        here = [(attack.scores[model, rows], attack.members[model, rows]) for model in models]
        missed = np.stack([missed_at(GRID, *one) for one in here])
        low, high = np.percentile(missed, [2.5, 97.5], axis=0)
        curves.append(np.stack([missed.mean(0), low, high]))
        auc.append(np.array([auc_of(*one) for one in here]))
        told[name] = {"auc": spread(auc[-1]), "tpr_at_5": spread([1 - missed_at_5(*one) for one in here])}
    told["share_of_models_higher"] = round(float((auc[0] > auc[1]).mean()), 4)
    return told, np.stack(curves)


def ascending(leverage: np.ndarray) -> np.ndarray:
    """Records that have a leverage, the lowest first."""
    known = np.flatnonzero(~np.isnan(leverage))
    return known[np.argsort(leverage[known], kind="stable")]


def missed_at(false_positives: np.ndarray, scores: np.ndarray, members: np.ndarray) -> np.ndarray:
    """β at each α: members not above the threshold that accuses no more than a share α of the others."""
    outside, inside = np.sort(scores[~members])[::-1], np.sort(scores[members])
    beta = np.searchsorted(inside, outside, side="right") / len(inside)  # accuse what is above the k-th non-member
    accused = np.floor(np.asarray(false_positives) * len(outside) + 1e-9).astype(int)
    return np.append(beta, 0.0)[np.minimum(accused, len(outside))]


def missed_at_5(scores: np.ndarray, members: np.ndarray) -> float:
    return float(missed_at(np.array([FALSE_POSITIVES]), scores, members)[0])


def auc_of(scores: np.ndarray, members: np.ndarray) -> float:
    """How often a member is above a non-member, ties half."""
    inside, outside = np.sort(scores[members]), scores[~members]
    below = np.searchsorted(inside, outside, side="left") + np.searchsorted(inside, outside, side="right")
    return float(1 - below.mean() / (2 * len(inside)))


def spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Mean, half the width of the middle 95 %, and of how many."""
    low, high = np.percentile(values, [2.5, 97.5])
    return {
        "mean": round(float(np.mean(values)), 4),
        "half_width": round(float((high - low) / 2), 4),
        "of": len(values),
    }
