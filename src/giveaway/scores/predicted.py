"""Attack power that theory predicts for each record from one trained head, or from the model and the other records:
estimates, none of them measured (docs/derivations.md, and docs/views.md on how far they are off)."""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import expit, logsumexp

from giveaway.records import Head
from giveaway.scores.formulas import ScoreBatch, leverage
from giveaway.theory.random_design import random_design
from giveaway.theory.tradeoff import TradeOff, best_success, two_normals

LARGEST_LEVERAGE = 1.0 - 1e-8
LIKE = 50  # records of like exposure, at least, that are averaged
SUREST = 0.1
TEMPERATURES = (-5.0, 10.0)  # logarithms between which the temperature is sought
LEAST_SPREAD = 1e-150  # of φ, where float64 has lost it: such a record's own gap is nothing either


@dataclass(frozen=True, eq=False)
class Prediction:
    """For every record: success (TPR + 1 − FPR)/2 of the best test, and its curve, read where a column asks for it."""

    success: np.ndarray
    curve: TradeOff


def exists_for(head: Head) -> bool:
    """Squared loss, and one true class a record; all records weighing alike."""
    one_class = head.loss == "cross_entropy" and head.targets.ndim == 1
    return (head.loss == "squared" or one_class) and head.sample_weight is None


def ingredients(batch: ScoreBatch) -> torch.Tensor:
    """What a record's prediction needs of its own, (3, N): leverage and residual norm, or gap and spreads of φ."""
    if not batch.loss.classes:
        residual = (batch.outputs - batch.targets.view_as(batch.outputs)).squeeze(1).norm(dim=1)
        return torch.stack([leverage(batch), residual, torch.zeros_like(residual)])
    inside = batch.outputs
    outside = inside + batch.left_out.step
    loss, y = batch.loss, batch.targets
    gap = (loss.log_odds(inside, y) - loss.log_odds(outside, y)).sum(1)
    now, then = loss.log_odds_gradient(inside, y), loss.log_odds_gradient(outside, y)
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
    freedom = max(head.n - float(h.sum()), 1.0)
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
    return Prediction(best_success(delta * (1 - c), c, 1.0, outputs=head.m), design.tradeoff("signed"))


def phi_of(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """φ (n,) of logits (n, C), or of one logit (n, 1) with labels 0 and 1."""
    if logits.shape[1] == 1:
        return (2 * labels - 1) * logits[:, 0]
    own = np.arange(len(labels)), labels
    others = np.array(logits, dtype=np.float64)
    chosen = others[own]
    others[own] = -np.inf
    return chosen - logsumexp(others, axis=1)


def calibrated_phi(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """φ of left-out scores (n, C), times the temperature under which the labels are likeliest."""

    def surprise(log_temperature: float) -> float:
        return float(-np.log(np.maximum(expit(phi_of(np.exp(log_temperature) * scores, labels)), 1e-300)).mean())

    best = minimize_scalar(surprise, bounds=TEMPERATURES, method="bounded", options={"xatol": 1e-8}).x
    return phi_of(np.exp(best) * scores, labels)


def predict_from_views(model: np.ndarray, view: np.ndarray, exposure: np.ndarray) -> Prediction:
    """From the model's φ, the view's calibrated φ and the fused score, all (n,)."""
    n = len(model)
    order = np.argsort(-exposure, kind="stable")
    parts = np.array_split(order, max(1, n // LIKE))
    middle = np.array([model[part].mean() for part in parts])
    places = np.empty(n)
    places[order] = np.arange(n)
    inside = np.interp(places, [places[part].mean() for part in parts], middle)
    count = max(1, round(SUREST * n))
    sure_model, sure_view = np.sort(model)[-count:].mean(), np.sort(view)[-count:].mean()
    stretch = max(1.0, sure_model / sure_view) if sure_view > 0 else 1.0
    outside = np.empty(n)
    outside[order] = np.sort(stretch * view)
    spread = float(np.sqrt(np.mean([model[part].var() for part in parts])))
    grown = spread * max(1.0, float(outside.std() / max(model.std(), LEAST_SPREAD)))
    gap = np.maximum(inside - outside, 0.0)
    with_, without = (np.full(n, max(value, LEAST_SPREAD)) for value in (spread, grown))
    return Prediction(best_success(gap, with_, without), two_normals(gap, with_, without))
