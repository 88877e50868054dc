"""Scores from a record's outputs, its target and its leverage block, for heads and for networks: a function each, named
as its column. A score is higher for a more exposed record."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from giveaway.curvature.blocks import Blocks, FactoredBlocks, LeaveOutStep
from giveaway.curvature.losses import Loss, OutputCurvature
from giveaway.curvature.sketch import ExactSteps
from giveaway.linalg.dense import EPS

SAFETY = 10.0  # times the estimated rounding error


@dataclass(frozen=True)
class ScoreBatch:
    """N groups of s records with all that a score may look at; blocks, of their W and weights, and norms (N,) of the
    gradient by the parameters, bias included, are made when asked for. `make_drift` gives the change of the outputs by
    the step that a head still has to take to its optimum, None for one at it. `solved` are exact steps that go before
    those of the blocks."""

    outputs: torch.Tensor
    targets: torch.Tensor
    sample_weight: torch.Tensor
    loss: Loss
    make_blocks: Callable[[OutputCurvature, torch.Tensor], Blocks]
    make_gradient_norm: Callable[[], torch.Tensor]
    make_drift: Callable[[], torch.Tensor] | None = None
    solved: ExactSteps | None = None

    @cached_property
    def blocks(self) -> Blocks:
        return self.make_blocks(self.loss.curvature(self.outputs), self.sample_weight)

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
    def drift(self) -> torch.Tensor:
        """The first-order change of the outputs (N, s, m) on the way to the optimum; 0 at it."""
        return torch.zeros_like(self.gradient) if self.make_drift is None else self.make_drift()

    @cached_property
    def left_out(self) -> LeaveOutStep:
        """The Newton-step change of the outputs when the group is left out."""
        if self.solved is not None:
            return self.solved.left_out
        if self.make_drift is None:
            return self.blocks.leave_out(self.image)
        left_out = self.blocks.leave_out(self.image - self.drift)
        return left_out._replace(step=left_out.step + self.drift)

    @cached_property
    def rounding(self) -> torch.Tensor | None:
        """About how much of `newton`, relatively, rounding may have changed (N,); None of a sketch."""
        if isinstance(self.blocks, FactoredBlocks) or self.blocks.error is None:
            return None
        absolute, relative = self.blocks.error
        step, v, lost = self.left_out.step, self.gradient, torch.zeros_like(absolute)
        if self.blocks.complement is None:
            v = v + self.loss.curve(self.outputs, step)
        else:  # no difference was taken; a matrix of more than one row has rounded what is small beside the large
            if self.blocks.complement.shape[1] > 1:
                amplified = newton(self).abs() / influence(self).abs()  # 1/(1 − h)
                lost = EPS * (self.blocks.curvature_form(step) / newton(self).abs() + amplified)
            step = self.image
        squares = (self.sample_weight.unsqueeze(-1) * v.square()).sum((1, 2))
        change = absolute * squares + relative * (v * step).sum((1, 2)).abs()
        of_newton = change / (self.gradient * step).sum((1, 2)).abs() + lost
        if self.make_drift is not None:  # image and drift, each amplified, may all but cancel
            image = self.blocks.leave_out(self.image).step
            parts = image, image - (self.left_out.step - self.drift)
            sizes = sum((self.gradient * part).sum((1, 2)).abs() for part in parts)
            of_newton = (of_newton + relative) * sizes / newton(self).abs()
        return SAFETY * of_newton.nan_to_num(relative)  # 0 of 0: as all the others


def loss(batch: ScoreBatch) -> torch.Tensor:
    """ℓ, summed over a group's records."""
    return batch.loss.value(batch.outputs, batch.targets).sum(1)


def entropy(batch: ScoreBatch) -> torch.Tensor:
    """−Σ p log p of the prediction, summed over a group's records."""
    return batch.loss.entropy(batch.outputs).sum(1)


def margin(batch: ScoreBatch) -> torch.Tensor:
    """max_{c≠y} f_c − f_y, the worst of a group's records."""
    return batch.loss.margin(batch.outputs, batch.targets).amax(1)


def leverage(batch: ScoreBatch) -> torch.Tensor:
    """trace(W B)/r, in [0, 1] for one record; a group's is summed over its records, and lies in [0, records]."""
    return (batch.blocks.trace() / batch.loss.degrees).clamp(0.0, batch.outputs.shape[1])


def influence(batch: ScoreBatch) -> torch.Tensor:
    """gᵀ B g: the influence function, a first-order estimate of the loss gap of leaving the record out."""
    return (batch.gradient * batch.image).sum(dim=(1, 2))


def newton(batch: ScoreBatch) -> torch.Tensor:
    """gᵀ B (I − W B)⁻¹ g: the same with the record's curvature taken out, one Newton step of leaving it out."""
    return (batch.gradient * batch.left_out.step).sum(dim=(1, 2))


def loo_gap(batch: ScoreBatch) -> torch.Tensor:
    """ℓ(f + step) − ℓ(f): exact for squared loss, at the Newton step otherwise; summed over a group's records."""
    return batch.loss.gap(batch.outputs, batch.targets, batch.left_out.step).sum(1)
