"""Predicted attack success from both views: an estimate of φ = log p_y − log(1 − p_y) with and without each record.

With the record: the model's own φ, averaged over records of like exposure. Without it: the view's left-out predictions,
made calibrated probabilities by one temperature, and stretched until its surest tenth is as sure as the model's, since
what is easy is known without the record; they go to the records in the order of their exposure. The spread over models
is that of φ among records of like exposure and, without the record, grows as φ's own spread does. Nothing here was
measured on an attack: docs/fused.md shows how far the estimate is off.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, logsumexp

from giveaway.scores.predicted import LEAST_SPREAD, Prediction
from giveaway.theory.tradeoff import best_success, two_normals

LIKE = 50  # records of like exposure, at least, that are averaged
SUREST = 0.1
TEMPERATURES = (-5.0, 10.0)  # logarithms between which the temperature is sought


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
