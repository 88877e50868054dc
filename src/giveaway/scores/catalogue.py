"""The only registry of scores: column name → function and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from giveaway.scores import fused, influence, leave_one_out, leverage, lood, pointwise, predicted


@dataclass(frozen=True)
class Score:
    """One column: how to get it from a batch (from both views, a kernel's Lood, or a Prediction), and what it needs."""

    name: str
    function: Callable[[Any], Any]
    curvature: bool = True
    features: bool = True  # of a linear head: what a black box has not
    classes: bool = False  # exists for class targets only
    view: bool = False  # what the other records predict
    lood: bool = False  # of a Gaussian process: there when asked for, or with a kernel
    predicted: bool = False  # an attack's power as theory has it: there when asked for


_SCORES = [
    Score("loss", pointwise.loss, curvature=False, features=False),
    Score("gradient_norm", pointwise.gradient_norm, curvature=False),
    Score("entropy", pointwise.entropy, curvature=False, features=False, classes=True),
    Score("margin", pointwise.margin, curvature=False, features=False, classes=True),
    Score("leverage", leverage.leverage),
    Score("gls_trace", leverage.gls_trace),
    Score("gls_frobenius", leverage.gls_frobenius),
    Score("gls_spectral", leverage.gls_spectral),
    Score("gls_trace_logit", leverage.gls_trace_logit),
    Score("gls_frobenius_logit", leverage.gls_frobenius_logit),
    Score("gls_spectral_logit", leverage.gls_spectral_logit),
    Score("influence", influence.influence),
    Score("newton", influence.newton),
    Score("loo_gap", leave_one_out.loo_gap),
    Score("left_out", fused.left_out, curvature=False, features=False, view=True),
    Score("fused", fused.fused, curvature=False, features=False, view=True),
    Score("predicted_success", predicted.predicted_success, predicted=True),
    Score("predicted_auc", predicted.predicted_auc, predicted=True),
    Score("predicted_tpr", predicted.predicted_tpr, predicted=True),
    Score("predicted_tpr_low", predicted.predicted_tpr_low, predicted=True),
    Score("lood_kl", lood.lood_kl, curvature=False, features=False, lood=True),
    Score("lood_mean", lood.lood_mean, curvature=False, features=False, lood=True),
]

CATALOGUE = {score.name: score for score in _SCORES}
