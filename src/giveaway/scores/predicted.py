"""Attack power that theory predicts for each record from one trained head: estimates, none of them measured.

Squared loss: the random design of PSM, section 3, with plug-ins for the record's population leverage, error and the
noise; the attacker sees the residual with its sign. Classes: φ = log p_y − log(1 − p_y) of models trained with and
without the record, taken as two normals. Their means are φ now and after the Newton step that leaves the record out;
their spreads are those of the head's outputs over training sets, B(I − WB)⁻¹ left out and B − BWB trained on, along
the gradient of φ. Only the head varies in this: a network whose features are trained anew varies more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from giveaway.curvature.losses import Logistic, Squared
from giveaway.records import Head
from giveaway.scores.batch import Batch
from giveaway.scores.leverage import leverage
from giveaway.theory.random_design import random_design
from giveaway.theory.tradeoff import TradeOff, best_success, dilated_success, two_normals

FPR = (0.01, 0.001)
LARGEST_LEVERAGE = 1.0 - 1e-8
LEAST_SPREAD = 1e-150  # of φ, where float64 has lost it: such a record's own gap is nothing either


@dataclass(frozen=True, eq=False)
class Prediction:
    """For every record: balanced success of the best test, and its curve, read where a column asks for it."""

    success: np.ndarray
    curve: TradeOff


def predicted_success(found: Prediction) -> np.ndarray:
    """(TPR + 1 − FPR)/2 of the best test of this record."""
    return found.success


def predicted_auc(found: Prediction) -> np.ndarray:
    """Its area under the ROC curve."""
    return found.curve.auc()


def predicted_tpr(found: Prediction) -> np.ndarray:
    """Its true-positive rate at 1 % false positives."""
    return found.curve.tpr(FPR[0])


def predicted_tpr_low(found: Prediction) -> np.ndarray:
    """Its true-positive rate at 0.1 % false positives."""
    return found.curve.tpr(FPR[1])


def exists_for(head: Head) -> bool:
    """Squared loss, and one true class a record; all records weighing alike."""
    one_class = head.loss == "cross_entropy" and head.targets.ndim == 1
    return (head.loss == "squared" or one_class) and head.sample_weight is None


def ingredients(batch: Batch) -> torch.Tensor:
    """What a record's prediction needs of its own, (3, N): leverage and residual norm, or gap and spreads of φ."""
    if isinstance(batch.loss, Squared):
        residual = (batch.outputs - batch.targets.view_as(batch.outputs)).squeeze(1).norm(dim=1)
        return torch.stack([leverage(batch), residual, torch.zeros_like(residual)])
    inside = batch.outputs
    outside = inside + batch.left_out.step
    gap = _phi(batch, inside) - _phi(batch, outside)
    now, then = _phi_gradient(batch, inside), _phi_gradient(batch, outside)
    image = batch.blocks.image(now)
    with_ = (now * image).sum((1, 2)) - batch.blocks.curvature_form(image)
    without = (then * batch.blocks.leave_out(batch.blocks.image(then))[0]).sum((1, 2))
    return torch.stack([gap, with_.clamp_min(0.0).sqrt(), without.clamp_min(0.0).sqrt()])


def predict(head: Head, parts: np.ndarray) -> Prediction:
    """The prediction from every record's `ingredients` (3, n)."""
    if head.loss != "squared":
        gap, inside, outside = parts
        inside, outside = np.maximum(inside, LEAST_SPREAD), np.maximum(outside, LEAST_SPREAD)
        return Prediction(best_success(gap, inside, outside), two_normals(gap, inside, outside))
    h, residual, _ = parts
    used = float(h.sum())
    freedom = max(head.n - used, 1.0)
    variance = max(float(residual @ residual) / (head.m * freedom), np.finfo(np.float64).tiny)
    # h with the intercept's 1/n: the mean of the others is estimated too, and the record moves it as it moves the rest
    own = np.clip(h, 0.0, LARGEST_LEVERAGE)
    odds = own / (1.0 - own)
    population = max(freedom - 2.0, 1.0) * odds
    left_out = residual * (1.0 + odds)
    error = np.sqrt(np.maximum(left_out**2 - head.m * variance * odds, 0.0))
    design = random_design(population, error, freedom, variance=variance, outputs=head.m)
    c = freedom / (freedom + population)
    spread = np.sqrt(variance * population / freedom)
    delta = np.divide(error, spread, out=np.zeros_like(error), where=spread > 0)
    return Prediction(dilated_success(delta, c, outputs=head.m), design.tradeoff("signed"))


def _phi(batch: Batch, outputs: torch.Tensor) -> torch.Tensor:
    """φ of the true class, (N,)."""
    if isinstance(batch.loss, Logistic):
        return ((2 * batch.targets - 1) * outputs).sum((1, 2))
    own = batch.targets.unsqueeze(-1)
    others = outputs.scatter(-1, own, -torch.inf).logsumexp(-1)
    return (outputs.gather(-1, own).squeeze(-1) - others).sum(1)


def _phi_gradient(batch: Batch, outputs: torch.Tensor) -> torch.Tensor:
    """∂φ/∂f (N, 1, m)."""
    if isinstance(batch.loss, Logistic):
        return 2 * batch.targets - 1
    own = batch.targets.unsqueeze(-1)
    others = outputs.scatter(-1, own, -torch.inf).softmax(-1)
    return torch.zeros_like(outputs).scatter(-1, own, 1.0) - others
