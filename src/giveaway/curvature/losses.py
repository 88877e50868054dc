"""The losses as functions of a record's outputs: value, gradient g, curvature W, and the root S with S Sᵀ = W.

Outputs f are (..., m). Targets y are class numbers (...) or rows of probabilities (..., m) for softmax, and (..., m)
for every other loss. Values are per record. Heads and networks share these classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from giveaway.checks import check_choice
from giveaway.records import Head
from giveaway.records.examples import LOSSES

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class DiagonalCurvature:
    """W = diag(`weights`), of losses whose outputs do not see each other. `weights` broadcast against tensors of any
    layout; `dim` is the axis of the outputs, counted from the end."""

    weights: torch.Tensor

    def contrast(self, v: torch.Tensor, dim: int, *, in_place: bool = False) -> torch.Tensor:
        """v up to what W does not see, such that products with W keep their digits."""
        return v

    def curve(self, v: torch.Tensor, dim: int) -> torch.Tensor:
        """W v, of v that `contrast` has prepared."""
        return self.weights * v

    def root(self, v: torch.Tensor, dim: int) -> torch.Tensor:
        """S v."""
        return self.weights.sqrt() * v

    root_transposed = root


@dataclass(frozen=True)
class SoftmaxCurvature:
    """W = diag(p) − p pᵀ with `weights` p, and S = diag(√p) − p √pᵀ. W does not see a constant added to all outputs:
    contrasts to the most probable class keep the digits of very sure records, which 1 − p would lose."""

    weights: torch.Tensor

    def contrast(self, v: torch.Tensor, dim: int, *, in_place: bool = False) -> torch.Tensor:
        shape = list(v.shape)
        shape[dim] = 1
        top = v.gather(dim, self.weights.argmax(dim, keepdim=True).expand(shape))
        return v.sub_(top) if in_place else v - top

    def curve(self, v: torch.Tensor, dim: int) -> torch.Tensor:
        """W v, of v that `contrast` has prepared."""
        return self._less_expectation(v, dim).mul_(self.weights)

    def root(self, v: torch.Tensor, dim: int) -> torch.Tensor:
        """S v, with 1 − p of the most probable class as the sum of the other probabilities."""
        p = self.weights
        top = torch.zeros_like(p).scatter(dim, p.argmax(dim, keepdim=True), 1.0)
        scaled = v * p.sqrt()
        own, others = (scaled * top).sum(dim, keepdim=True), (scaled * (1 - top)).sum(dim, keepdim=True)
        rest = (p * (1 - top)).sum(dim, keepdim=True)
        return torch.where(top > 0, own * rest - p * others, scaled - p * (own + others))

    def root_transposed(self, v: torch.Tensor, dim: int) -> torch.Tensor:
        """Sᵀ v, of v that `contrast` has prepared."""
        return self._less_expectation(v, dim).mul_(self.weights.sqrt())

    def _less_expectation(self, v: torch.Tensor, dim: int) -> torch.Tensor:
        return v - (self.weights * v).sum(dim, keepdim=True)


OutputCurvature = DiagonalCurvature | SoftmaxCurvature


class Loss:
    """A loss of m outputs.

    value(f, y), gradient(f, y), curvature(f) : ℓ, g = ∂ℓ/∂f, and W at the outputs f
    sensitivity : −∂g/∂y, which multiplies B in logit-space scores
    coupled : whether W couples the outputs (softmax); otherwise it is diagonal
    shared : whether all outputs and records have the same curvature
    classes : whether outputs are logits of classes; such losses also have
        `entropy(f)`, −Σ p log p of the prediction, summed over labels;
        `margin(f, y)`, how far the best wrong answer leads the right one;
        `log_odds(f, y)`, φ = log p_y − log(1 − p_y) of the true class, and its gradient ∂φ/∂f
    degrees : r, the number of independent directions of an output
    pairs : how many numbers `pair_weights` has for a record
    """

    sensitivity = 1.0
    coupled = False
    shared = False
    classes = False
    value: LossFunction
    gradient: LossFunction
    curvature: Callable[[torch.Tensor], OutputCurvature]
    entropy: Callable[[torch.Tensor], torch.Tensor]
    margin: LossFunction
    log_odds: LossFunction
    log_odds_gradient: LossFunction

    def __init__(self, m: int) -> None:
        self.m = m
        self.degrees = m - 1 if self.coupled else m
        self.pairs = 1 if self.shared else m * (m - 1) // 2 if self.coupled else m

    def gap(self, f: torch.Tensor, y: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """ℓ(f + step) − ℓ(f), without cancellation where the loss has a formula for it."""
        return self.value(f + step, y) - self.value(f, y)

    def residual(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """How wrong the output is, in the units of the target: ‖f − y‖, or the largest |p − y|."""
        return self.gradient(f, y).abs().amax(-1)

    def curve(self, f: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """W u of vectors u (..., b, m)."""
        curvature = self.curvature(f)
        return curvature.curve(curvature.contrast(u, -1), -1)

    def root(self, f: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """S u of vectors u (..., b, m)."""
        return self.curvature(f).root(u, -1)

    def diagonal(self, f: torch.Tensor) -> torch.Tensor:
        """The diagonal of W."""
        return self.curvature(f).weights

    def pair_weights(self, f: torch.Tensor) -> torch.Tensor:
        """The numbers of W (pairs, c) that are summed against products of features, for outputs (c, m): one for each
        separate curvature, or the upper triangle of W in contrast to the last class."""
        return self.diagonal(f).T[: self.pairs]

    def targets(self, y: torch.Tensor) -> torch.Tensor:
        """A head's targets as the other methods take them."""
        return y

    def basis(self) -> torch.Tensor:
        """Orthonormal columns (m, r): the directions of an output that the loss can see."""
        return torch.eye(self.m, dtype=torch.float64)

    def project(self, v: torch.Tensor, dim: int) -> torch.Tensor:
        """v without the directions that the loss cannot see."""
        return v


class Squared(Loss):
    """‖f − y‖², without ½."""

    sensitivity = 2.0
    shared = True

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (f - y).square().sum(-1)

    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2.0 * (f - y)

    def gap(self, f: torch.Tensor, y: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return (step * (2.0 * (f - y) + step)).sum(-1)

    def residual(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (f - y).norm(dim=-1)

    def curvature(self, f: torch.Tensor) -> DiagonalCurvature:
        return DiagonalCurvature(torch.full_like(f, 2.0))


class Logistic(Loss):
    """m independent binary cross-entropies on logits; m = 1 is binary classification with one logit."""

    classes = True

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self._each(f, y).sum(-1)

    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (1 - y) * torch.sigmoid(f) - y * torch.sigmoid(-f)

    def gap(self, f: torch.Tensor, y: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        grown = torch.sigmoid(-f) * torch.expm1(-y * step) + torch.sigmoid(f) * torch.expm1((1 - y) * step)
        far = self._each(f + step, y) - self._each(f, y)
        near = grown.isfinite() & (grown > -0.5)
        return torch.where(near, torch.log1p(grown.clamp_min(-0.5)), far).sum(-1)

    def curvature(self, f: torch.Tensor) -> DiagonalCurvature:
        return DiagonalCurvature(_seen(torch.sigmoid(f) * torch.sigmoid(-f)))

    def targets(self, y: torch.Tensor) -> torch.Tensor:
        return y.to(torch.float64).unsqueeze(1) if y.ndim == 1 else y

    def entropy(self, f: torch.Tensor) -> torch.Tensor:
        return (torch.sigmoid(f) * _softplus(-f) + torch.sigmoid(-f) * _softplus(f)).sum(-1)

    def margin(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(y >= 0.5, -f, f).amax(-1)

    def log_odds(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((2 * y - 1) * f).sum(-1)

    def log_odds_gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * y - 1

    @staticmethod
    def _each(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y * _softplus(-f) + (1 - y) * _softplus(f)


class Softmax(Loss):
    """Cross-entropy over m ≥ 2 classes; targets are class numbers, or rows of probabilities."""

    coupled = True
    classes = True

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if y.ndim == f.ndim:
            return (torch.logsumexp(f, -1, keepdim=True) - f).mul(y).sum(-1)
        # log(1 + Σ_{c≠y} e^{f_c − f_y}) keeps the relative precision of confident records
        return _softplus(-self.log_odds(f, y))

    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(f, -1)
        if y.ndim == f.ndim:
            return p - y
        return p.scatter(-1, y.unsqueeze(-1), -self.complement(p).gather(-1, y.unsqueeze(-1)))

    def gap(self, f: torch.Tensor, y: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        own = (y * step).sum(-1, keepdim=True) if y.ndim == f.ndim else step.gather(-1, y.unsqueeze(-1))
        grown = (torch.softmax(f, -1) * torch.expm1(step - own)).sum(-1)
        far = torch.logsumexp(f + step - own, -1) - torch.logsumexp(f, -1)
        return torch.where(grown.isfinite() & (grown > -0.5), torch.log1p(grown.clamp_min(-0.5)), far)

    def curvature(self, f: torch.Tensor) -> SoftmaxCurvature:
        return SoftmaxCurvature(_seen(torch.softmax(f, -1)))

    def diagonal(self, f: torch.Tensor) -> torch.Tensor:
        p = _seen(torch.softmax(f, -1))
        return p * self.complement(p)

    def pair_weights(self, f: torch.Tensor) -> torch.Tensor:
        p = _seen(torch.softmax(f, -1)).T.contiguous()
        rows, columns = torch.triu_indices(self.degrees, self.degrees, device=f.device)
        packed = p.neg()[rows].mul_(p[columns])
        packed[rows == columns] = self.diagonal(f).T[:-1]
        return packed

    def basis(self) -> torch.Tensor:
        # Helmert's
        k = torch.arange(1, self.m, dtype=torch.float64)
        columns = torch.ones(self.m, self.m - 1, dtype=torch.float64).triu() - torch.diag(k, -1)[:, : self.m - 1]
        return columns / (k * (k + 1)).sqrt()

    def project(self, v: torch.Tensor, dim: int) -> torch.Tensor:
        return v - v.mean(dim, keepdim=True)

    def entropy(self, f: torch.Tensor) -> torch.Tensor:
        logs = torch.log_softmax(f, -1)
        return -(logs.exp() * logs).sum(-1)

    def margin(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """max_{c≠y} f_c − f_y; a soft label counts as its most probable class."""
        own = (y.argmax(-1) if y.ndim == f.ndim else y).unsqueeze(-1)
        return f.scatter(-1, own, -torch.inf).amax(-1) - f.gather(-1, own).squeeze(-1)

    def log_odds(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        own = y.unsqueeze(-1)
        return -torch.logsumexp((f - f.gather(-1, own)).scatter(-1, own, -torch.inf), -1)

    def log_odds_gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        own = y.unsqueeze(-1)
        return torch.zeros_like(f).scatter(-1, own, 1.0) - f.scatter(-1, own, -torch.inf).softmax(-1)

    @staticmethod
    def complement(p: torch.Tensor) -> torch.Tensor:
        """1 − p, exact to the last digits where p is near 1: there it is the sum of the other probabilities."""
        top, index = p.max(-1, keepdim=True)
        rest = p.scatter(-1, index, 0.0).sum(-1, keepdim=True)
        return (1.0 - p).scatter(-1, index, torch.where(top > 0.5, rest, 1.0 - top))


def loss_named(loss: str, m: int) -> Loss:
    """The loss of m outputs that a name stands for."""
    check_choice("loss", loss, LOSSES)
    if loss == "squared":
        return Squared(m)
    return Logistic(m) if loss == "binary_cross_entropy" or m == 1 else Softmax(m)


def loss_of(head: Head) -> Loss:
    return loss_named(head.loss, head.m)


def _seen(curvature: torch.Tensor) -> torch.Tensor:
    """Curvature without what is below 1e-200: leverages of it would leave float64."""
    return torch.nn.functional.threshold(curvature, 1e-200, 0.0)


def _softplus(z: torch.Tensor) -> torch.Tensor:
    """log(1 + e^z); torch by itself stops adding the logarithm above 20, where it is still 2e-9."""
    return torch.nn.functional.softplus(z, threshold=40.0)
