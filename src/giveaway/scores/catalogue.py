"""The only registry of scores: column name → function and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from giveaway.scores import fused, influence, leave_one_out, leverage, lood, pointwise, predicted


@dataclass(frozen=True)
class Score:
    """One column: the function that computes it, and what it needs.

    The function takes what its `source` gives: a batch of records of the head, the predictions of the other records,
    the divergences of a Gaussian process, or a prediction from theory.
    """

    name: str
    function: Callable[[Any], Any]
    source: str = "head"  # or "others", "process", "theory"
    curvature: bool = True
    features: bool = True  # a linear head, which a black box has not
    classes: bool = False  # exists for class targets only
    ranks: bool = True  # among the default columns wherever its source is


_SCORES = [
    Score("loss", pointwise.loss, curvature=False, features=False),
    Score("gradient_norm", pointwise.gradient_norm, curvature=False),
    Score("entropy", pointwise.entropy, curvature=False, features=False, classes=True),
    Score("margin", pointwise.margin, curvature=False, features=False, classes=True),
    Score("leverage", leverage.leverage),
    Score("gls_trace", leverage.gls_trace),
    Score("gls_frobenius", leverage.gls_frobenius),
    Score("gls_spectral", leverage.gls_spectral),
    Score("gls_trace_logit", leverage.gls_trace_logit, ranks=False),
    Score("gls_frobenius_logit", leverage.gls_frobenius_logit, ranks=False),
    Score("gls_spectral_logit", leverage.gls_spectral_logit, ranks=False),
    Score("influence", influence.influence),
    Score("newton", influence.newton),
    Score("loo_gap", leave_one_out.loo_gap),
    Score("left_out", fused.left_out, curvature=False, features=False, source="others"),
    Score("fused", fused.fused, curvature=False, features=False, source="others"),
    Score("predicted_success", predicted.predicted_success, source="theory"),
    Score("predicted_auc", predicted.predicted_auc, source="theory"),
    Score("predicted_tpr", predicted.predicted_tpr, source="theory"),
    Score("predicted_tpr_low", predicted.predicted_tpr_low, source="theory"),
    Score("lood_kl", lood.lood_kl, curvature=False, features=False, source="process"),
    Score("lood_mean", lood.lood_mean, curvature=False, features=False, source="process"),
]

CATALOGUE = {score.name: score for score in _SCORES}
