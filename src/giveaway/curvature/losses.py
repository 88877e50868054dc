"""The losses of a head as functions of its outputs alone.

Outputs f are (..., m); targets y are class indices (...) for softmax, else (..., m). Values are per record. A loss
also says how its output curvature W is carried by the curvature sums: `pair_weights` gives the numbers of W that are
summed against feature products, either one a *separate* output (W is diagonal) or the upper triangle of W in contrast
to the last class (softmax).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from giveaway.records import Head


class Loss(ABC):
    """What every loss answers."""

    m: int
    sensitivity = 1.0  # −∂g/∂y: what multiplies B in logit-space GLS

    @property
    def degrees(self) -> int:
        """r, the independent directions of an output."""
        return self.m

    @abstractmethod
    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """ℓ."""

    @abstractmethod
    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """g = ∂ℓ/∂f."""

    @abstractmethod
    def gap(self, f: torch.Tensor, y: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """ℓ(f + step) − ℓ(f), without cancellation."""

    @abstractmethod
    def residual(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """How wrong the output is, in the units of the target: ‖f − y‖, or the largest |p − y|."""

    @abstractmethod
    def pair_weights(self, f: torch.Tensor) -> torch.Tensor:
        """(p, c) numbers of W for outputs (c, m)."""


class Squared(Loss):
    """‖f − y‖², without ½."""

    sensitivity = 2.0

    def __init__(self, m: int) -> None:
        self.m = m

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (f - y).square().sum(-1)

    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2.0 * (f - y)

    def gap(self, f: torch.Tensor, y: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return (step * (2.0 * (f - y) + step)).sum(-1)

    def residual(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (f - y).norm(dim=-1)

    def pair_weights(self, f: torch.Tensor) -> torch.Tensor:
        return f.new_full((1, len(f)), 2.0)

    def weights(self, f: torch.Tensor) -> torch.Tensor:
        """The diagonal of W."""
        return torch.full_like(f, 2.0)


class Logistic(Loss):
    """m independent binary cross-entropies on logits; m = 1 is binary classification with one logit."""

    def __init__(self, m: int) -> None:
        self.m = m

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self._each(f, y).sum(-1)

    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (1 - y) * torch.sigmoid(f) - y * torch.sigmoid(-f)

    def gap(self, f: torch.Tensor, y: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        grown = torch.sigmoid(-f) * torch.expm1(-y * step) + torch.sigmoid(f) * torch.expm1((1 - y) * step)
        far = self._each(f + step, y) - self._each(f, y)
        near = grown.isfinite() & (grown > -0.5)
        return torch.where(near, torch.log1p(grown.clamp_min(-0.5)), far).sum(-1)

    def residual(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.gradient(f, y).abs().amax(-1)

    def pair_weights(self, f: torch.Tensor) -> torch.Tensor:
        return self.weights(f).T

    def weights(self, f: torch.Tensor) -> torch.Tensor:
        """The diagonal of W."""
        return torch.sigmoid(f) * torch.sigmoid(-f)

    def entropy(self, f: torch.Tensor) -> torch.Tensor:
        """−Σ p log p, summed over labels."""
        return (torch.sigmoid(f) * _softplus(-f) + torch.sigmoid(-f) * _softplus(f)).sum(-1)

    def margin(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """How far the other answer leads, for the worst label."""
        return torch.where(y >= 0.5, -f, f).amax(-1)

    @staticmethod
    def _each(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y * _softplus(-f) + (1 - y) * _softplus(f)


class Softmax(Loss):
    """Cross-entropy over m ≥ 2 classes; targets are class indices, or rows of probabilities."""

    def __init__(self, m: int, *, soft: bool) -> None:
        self.m = m
        self.soft = soft

    @property
    def degrees(self) -> int:
        return self.m - 1

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.soft:
            return (torch.logsumexp(f, -1, keepdim=True) - f).mul(y).sum(-1)
        # log(1 + Σ_{c≠y} e^{f_c − f_y}) keeps the relative precision of confident records
        others = (f - self._own(f, y)).scatter(-1, y.unsqueeze(-1), -torch.inf)
        return _softplus(torch.logsumexp(others, -1))

    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(f, -1)
        if self.soft:
            return p - y
        return p.scatter(-1, y.unsqueeze(-1), -self.complement(p).gather(-1, y.unsqueeze(-1)))

    def gap(self, f: torch.Tensor, y: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        own = (y * step).sum(-1, keepdim=True) if self.soft else self._own(step, y)
        grown = (torch.softmax(f, -1) * torch.expm1(step - own)).sum(-1)
        far = torch.logsumexp(f + step - own, -1) - torch.logsumexp(f, -1)
        return torch.where(grown.isfinite() & (grown > -0.5), torch.log1p(grown.clamp_min(-0.5)), far)

    def residual(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.gradient(f, y).abs().amax(-1)

    def pair_weights(self, f: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(f, -1)
        curvature = (p * self.complement(p)).T
        p = p.T.contiguous()
        rows, columns = triangle(self.degrees, f.device)
        packed = p.neg()[rows].mul_(p[columns])
        packed[rows == columns] = curvature[:-1]
        return packed

    def entropy(self, f: torch.Tensor) -> torch.Tensor:
        """−Σ p log p."""
        logs = torch.log_softmax(f, -1)
        return -(logs.exp() * logs).sum(-1)

    def margin(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """max_{c≠y} f_c − f_y; a soft label counts as its most probable class."""
        label = y.argmax(-1) if self.soft else y
        others = f.scatter(-1, label.unsqueeze(-1), -torch.inf)
        return others.amax(-1) - self._own(f, label).squeeze(-1)

    @staticmethod
    def complement(p: torch.Tensor) -> torch.Tensor:
        """1 − p, exact to the last digits where p is near 1: there it is the sum of the other probabilities."""
        top, index = p.max(-1, keepdim=True)
        rest = p.scatter(-1, index, 0.0).sum(-1, keepdim=True)
        return (1.0 - p).scatter(-1, index, torch.where(top > 0.5, rest, 1.0 - top))

    @staticmethod
    def _own(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return f.gather(-1, y.unsqueeze(-1))


def _softplus(z: torch.Tensor) -> torch.Tensor:
    """log(1 + e^z); torch by itself stops adding the logarithm above 20, where it is still 2e-9."""
    return torch.nn.functional.softplus(z, threshold=40.0)


def triangle(r: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column numbers of the packed upper triangle."""
    rows, columns = torch.triu_indices(r, r, device=device)
    return rows, columns


def loss_of(head: Head) -> Loss:
    """The loss object of a head."""
    if head.loss == "squared":
        return Squared(head.m)
    if head.loss == "binary_cross_entropy" or head.m == 1:
        return Logistic(head.m)
    return Softmax(head.m, soft=head.targets.ndim == 2)


def targets_of(head: Head, which: slice | torch.Tensor) -> torch.Tensor:
    """Targets as `loss_of(head)` takes them: indices for hard softmax labels, else float64 (c, m)."""
    return as_taken(loss_of(head), head.targets[which])


def as_taken(loss: Loss, targets: torch.Tensor) -> torch.Tensor:
    """Targets of a head's records as its loss takes them: one logit has its labels in a column."""
    return targets.to(torch.float64).unsqueeze(1) if isinstance(loss, Logistic) and targets.ndim == 1 else targets
