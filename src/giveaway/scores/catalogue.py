"""The only registry of scores: column name → function and what it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from giveaway.scores import influence, leave_one_out, leverage, lood, pointwise


@dataclass(frozen=True)
class Score:
    """One column: how to get it from a batch (from a kernel's Lood where it needs the inputs), and what it needs."""

    name: str
    function: Callable[[Any], torch.Tensor]
    curvature: bool = True
    classes: bool = False  # exists for class targets only
    inputs: bool = False  # looks at the records themselves


_SCORES = [
    Score("loss", pointwise.loss, curvature=False),
    Score("gradient_norm", pointwise.gradient_norm, curvature=False),
    Score("entropy", pointwise.entropy, curvature=False, classes=True),
    Score("margin", pointwise.margin, curvature=False, classes=True),
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
    Score("lood_kl", lood.lood_kl, curvature=False, inputs=True),
    Score("lood_mean", lood.lood_mean, curvature=False, inputs=True),
]

CATALOGUE = {score.name: score for score in _SCORES}
