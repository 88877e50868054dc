"""One function a column, named as it: from a record's outputs, its target and its leverage block, for heads and for
networks; from a Gaussian process; and from two views of a record. A score is higher for a more exposed record.

The two views are what the head did with a record, and what the other records predict for it (docs/fused.md). Both are
noisy, monotone measures of how much of a record the model holds. Training has removed the share
M = 1 − Σ‖error with it‖² / Σ‖error without it‖² of the left-out error. Where M is near 0 the head's Newton step tells
the gap and near 1 what is left of the error tells how hard a record was; in between a large error may be a hard record
or one that was never learned, so that the head's view counts M² + (1 − M)², the chance that two records are of one
kind. The more of the targets a model holds by memory, the more its features were bent toward the records: with
G = (Σ‖error without it‖² − Σ‖error with it‖²) / Σ‖y − ȳ‖² the head's view counts 1 − G of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import rankdata

from giveaway.curvature.blocks import Blocks, LeaveOutStep
from giveaway.curvature.losses import Loss
from giveaway.curvature.sketch import ExactSteps

LEAST = 1e-300


@dataclass(frozen=True)
class ScoreBatch:
    """N groups of s records with all that a score may look at: outputs (N, s, m), targets, sample weights (N, s).

    `make_blocks` gives the leverage blocks and `make_gradient_norm` ‖∇ℓ‖ (N,) when a score first asks for them.
    `make_drift` gives the change of the outputs (N, s, m) by the step that a head still has to take to its optimum;
    None where the head is taken as converged. `solved` are exact steps that go before those of the blocks.
    """

    outputs: torch.Tensor
    targets: torch.Tensor
    sample_weight: torch.Tensor
    loss: Loss
    make_blocks: Callable[[], Blocks]
    make_gradient_norm: Callable[[], torch.Tensor]
    make_drift: Callable[[], torch.Tensor] | None = None
    solved: ExactSteps | None = None

    @cached_property
    def blocks(self) -> Blocks:
        return self.make_blocks()

    @cached_property
    def gradient(self) -> torch.Tensor:
        """g (N, s, m)."""
        return self.loss.gradient(self.outputs, self.targets)

    @cached_property
    def image(self) -> torch.Tensor:
        """B·(s g) (N, s, m): the first-order change of the outputs when the group is left out."""
        if self.solved is not None:
            return self.solved.image
        return self.blocks.image(self.sample_weight.unsqueeze(-1) * self.gradient)

    @cached_property
    def left_out(self) -> LeaveOutStep:
        """The Newton-step change of the outputs when the group is left out."""
        if self.solved is not None:
            return self.solved.left_out
        if self.make_drift is None:
            return self.blocks.leave_out(self.image)
        drift = self.make_drift()
        left_out = self.blocks.leave_out(self.image - drift)
        return left_out._replace(step=left_out.step + drift)


def loss(batch: ScoreBatch) -> torch.Tensor:
    """ℓ, summed over a group's records."""
    return batch.loss.value(batch.outputs, batch.targets).sum(1)


def gradient_norm(batch: ScoreBatch) -> torch.Tensor:
    """‖∇ℓ‖ with respect to the parameters, bias included: ‖x‖·‖g‖ for one record of a head."""
    return batch.make_gradient_norm()


def entropy(batch: ScoreBatch) -> torch.Tensor:
    """−Σ p log p of the prediction, summed over a group's records."""
    return batch.loss.entropy(batch.outputs).sum(1)


def margin(batch: ScoreBatch) -> torch.Tensor:
    """max_{c≠y} f_c − f_y, the worst of a group's records."""
    return batch.loss.margin(batch.outputs, batch.targets).amax(1)


def leverage(batch: ScoreBatch) -> torch.Tensor:
    """trace(W B)/r, in [0, 1] for one record; a group's is summed over its records, and lies in [0, records]."""
    return (gls_trace(batch) / batch.loss.degrees).clamp(0.0, batch.outputs.shape[1])


def gls_trace(batch: ScoreBatch) -> torch.Tensor:
    """trace(W B)."""
    return batch.blocks.trace()


def gls_frobenius(batch: ScoreBatch) -> torch.Tensor:
    """‖W B‖_F."""
    return batch.blocks.frobenius()


def gls_spectral(batch: ScoreBatch) -> torch.Tensor:
    """‖W B‖₂."""
    return batch.blocks.spectral()


def gls_trace_logit(batch: ScoreBatch) -> torch.Tensor:
    """trace of ∂f/∂y."""
    return batch.blocks.trace(logit=True)


def gls_frobenius_logit(batch: ScoreBatch) -> torch.Tensor:
    """‖∂f/∂y‖_F."""
    return batch.blocks.frobenius(logit=True)


def gls_spectral_logit(batch: ScoreBatch) -> torch.Tensor:
    """‖∂f/∂y‖₂."""
    return batch.blocks.spectral(logit=True)


def influence(batch: ScoreBatch) -> torch.Tensor:
    """gᵀ B g: the influence function, a first-order estimate of the loss gap of leaving the record out."""
    return (batch.gradient * batch.image).sum(dim=(1, 2))


def newton(batch: ScoreBatch) -> torch.Tensor:
    """gᵀ B (I − W B)⁻¹ g: the same with the record's curvature taken out, one Newton step of leaving it out."""
    return (batch.gradient * batch.left_out.step).sum(dim=(1, 2))


def loo_gap(batch: ScoreBatch) -> torch.Tensor:
    """ℓ(f + step) − ℓ(f): exact for squared loss, at the Newton step otherwise; summed over a group's records."""
    return batch.loss.gap(batch.outputs, batch.targets, batch.left_out.step).sum(1)


def lood_kl(process: Any) -> torch.Tensor:
    """KL(f without ‖ f with) at the record's own input, under a kernel that has not seen the trained model."""
    return process.kl


def lood_mean(process: Any) -> torch.Tensor:
    """½‖mean without − mean with‖², summed over outputs."""
    return process.mean


@dataclass(frozen=True, eq=False)
class TwoViews:
    """Both views of every row: the head's score (newton, or the loss of a black box), squared errors with and without
    the row, and its leverage on the view. `variation` is Σ‖y − ȳ‖² of the targets; `head_is_exact` says that the
    head's features were not learned, so that there is nothing to add to it."""

    head: np.ndarray
    error_with: np.ndarray
    error_without: np.ndarray
    leverage: np.ndarray
    variation: float
    head_is_exact: bool

    @property
    def memorized(self) -> float:
        """M, the share of the left-out squared error that training has removed, from 0 to 1."""
        left = share_of(math.fsum(self.error_with), math.fsum(self.error_without))  # in any order of rows
        return 1.0 - left if self.error_without.any() else 0.0

    @property
    def held(self) -> float:
        """G, the share of the targets' variation that the model holds by memory, from 0 to 1."""
        gap = math.fsum(self.error_without) - math.fsum(self.error_with)
        return share_of(gap, self.variation) if self.variation > 0 else 0.0

    @property
    def head_weight(self) -> float:
        """What the head's view counts beside 1 for the other."""
        m = self.memorized
        return (1.0 - self.held) * (m * m + (1.0 - m) ** 2)


def left_out(views: TwoViews) -> np.ndarray:
    """‖error without it‖² · leverage^(1 − M): the squared error that the record itself takes away.

    All of it in a model that memorizes; the share h of it that a record takes away by itself in one that does not.
    """
    return views.error_without * np.maximum(views.leverage, LEAST) ** (1.0 - views.memorized)


def fused(views: TwoViews) -> np.ndarray:
    """Φ⁻¹ of the rank by left_out, plus the head's weight times Φ⁻¹ of the rank by the head's score."""
    if views.head_is_exact:
        return normal_scores(views.head)
    return normal_scores(left_out(views)) + views.head_weight * normal_scores(views.head)


def share_of(part: float, whole: float) -> float:
    """part/whole within 0 and 1, without overflow however small the whole is."""
    return 0.0 if part <= 0 else 1.0 if part >= whole else float(part / whole)


def normal_scores(values: np.ndarray) -> np.ndarray:
    """Φ⁻¹((rank − ½)/n), equal values sharing their mean rank."""
    return ndtri((rankdata(values) - 0.5) / len(values))
