"""The loss of a record as a function of the network's outputs: its gradient g and its curvature W.

Outputs f are (b, m), targets what `prepare` makes of the user's. Vectors u are (…, b, m). S with
S Sᵀ = W is the root that a sketch needs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from giveaway.checks import check_choice, fail

PerRecord = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
NAMES = ("squared", "cross_entropy", "binary_cross_entropy")


class OutputLoss(ABC):
    """What every loss answers."""

    sensitivity = 1.0  # −∂g/∂y: what multiplies B in logit-space GLS
    convex = True  # in the outputs

    @abstractmethod
    def prepare(self, y: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        """All targets as the other functions take them, checked against the outputs f of a few records."""

    @abstractmethod
    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """ℓ (b,)."""

    @abstractmethod
    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """g = ∂ℓ/∂f (b, m)."""

    @abstractmethod
    def curved(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """W u."""

    @abstractmethod
    def rooted(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """S u."""

    def curvature(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """W (b, m, m)."""
        return self.curved(f, y, units(f)).permute(1, 2, 0)

    def basis(self, m: int) -> torch.Tensor:
        """Orthonormal columns (m, r): the directions of an output that the loss can see."""
        return torch.eye(m, dtype=torch.float64)


class Squared(OutputLoss):
    """‖f − y‖², without ½."""

    sensitivity = 2.0

    def prepare(self, y: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        return _columns(y, f)

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (f - y).square().sum(-1)

    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2.0 * (f - y)

    def curved(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return 2.0 * u

    def rooted(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return math.sqrt(2.0) * u


class Logistic(OutputLoss):
    """m independent binary cross-entropies on logits; targets in [0, 1]."""

    def prepare(self, y: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        y = _columns(y, f)
        if bool((y < 0).any()) or bool((y > 1).any()):
            raise fail("targets", "labels 0 or 1, or probabilities", "others", "encode the labels")
        return y

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y * _softplus(-f) + (1 - y) * _softplus(f)).sum(-1)

    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (1 - y) * torch.sigmoid(f) - y * torch.sigmoid(-f)

    def curved(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(f) * torch.sigmoid(-f) * u

    def rooted(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return (torch.sigmoid(f) * torch.sigmoid(-f)).sqrt() * u


class Softmax(OutputLoss):
    """Cross-entropy over m ≥ 2 classes; targets become rows of probabilities."""

    def prepare(self, y: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        m = f.shape[1]
        if y.ndim == 1 and not y.is_floating_point():
            if bool((y < 0).any()) or bool((y >= m).any()):
                raise fail("targets", f"classes 0 to {m - 1}", "others", "number the classes as the outputs")
            return y.to(torch.int64)
        y = _columns(y, f)
        if bool((y < 0).any()) or bool(((y.sum(1) - 1).abs() > 1e-4).any()):
            raise fail("targets", "class numbers, or rows of probabilities", "others", "encode the labels")
        return y

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if y.ndim == 2:
            return (torch.logsumexp(f, -1, keepdim=True) - f).mul(y).sum(-1)
        return torch.logsumexp(f, -1) - f.gather(-1, y.unsqueeze(-1)).squeeze(-1)

    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(f, -1)
        if y.ndim == 2:
            return p - y
        # 1 − p of a confident record is the sum of the others' probabilities
        others = p.scatter(-1, y.unsqueeze(-1), 0.0)
        return others.scatter(-1, y.unsqueeze(-1), -others.sum(-1, keepdim=True))

    def curved(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(f, -1)
        return p * (u - (p * u).sum(-1, keepdim=True))

    def rooted(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        p = torch.softmax(f, -1)
        return p.sqrt() * u - p * (p.sqrt() * u).sum(-1, keepdim=True)

    def basis(self, m: int) -> torch.Tensor:
        """Helmert's: softmax is blind to a constant that is added to all logits."""
        columns = torch.tril(torch.ones(m, m, dtype=torch.float64)).T[:, : m - 1]
        k = torch.arange(1, m, dtype=torch.float64)
        columns = columns - torch.diag(k + 0.0, -1)[:, : m - 1]
        return columns / (k * (k + 1)).sqrt()


class Given(OutputLoss):
    """A loss of the user's: (outputs (b, m), targets) → (b,); g and W by differentiation."""

    convex = False  # for all that is known

    def __init__(self, function: PerRecord) -> None:
        self.function = function

    def prepare(self, y: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        found = self.function(f, y[: len(f)].to(f.device, f.dtype if y.is_floating_point() else None))
        if not isinstance(found, torch.Tensor) or found.shape != f.shape[:1]:
            got = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
            raise fail("loss", "one value a record, shape (records,)", got, 'do not sum or average: reduction="none"')
        return y

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.function(f, y)

    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda outputs: self.function(outputs, y).sum())(f)

    def curved(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return (self.curvature(f, y) @ u.unsqueeze(-1)).squeeze(-1)

    def rooted(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        values, vectors = torch.linalg.eigh(self.curvature(f, y))
        if bool((values[:, 0] < -1e-5 * values.abs().amax(1)).any()):
            remedy = "score chosen records instead of a sketch of all"
            raise fail("loss", "a loss that is convex in the outputs", "negative curvature in them", remedy)
        root = vectors * values.clamp_min(0).sqrt().unsqueeze(1)
        return (root @ u.unsqueeze(-1)).squeeze(-1)

    def curvature(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        # the gradient's backward, output by output: rows of W, since records do not mix
        backward = torch.func.vjp(lambda outputs: self.gradient(outputs, y), f)[1]
        return torch.func.vmap(lambda unit: backward(unit)[0])(units(f)).permute(1, 0, 2)


def loss_of(loss: str | PerRecord | OutputLoss, m: int) -> OutputLoss:
    """The loss by its name, or from a function of the user's."""
    if isinstance(loss, OutputLoss):
        return loss
    if callable(loss):
        return Given(loss)
    check_choice("loss", loss, NAMES)
    if loss == "squared":
        return Squared()
    return Logistic() if loss == "binary_cross_entropy" or m == 1 else Softmax()


def units(f: torch.Tensor) -> torch.Tensor:
    """The m unit vectors for every record, (m, b, m)."""
    m = f.shape[-1]
    return torch.eye(m, dtype=f.dtype, device=f.device).unsqueeze(1).expand(m, len(f), m)


def _columns(y: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    y = y.unsqueeze(1) if y.ndim == 1 else y
    if y.ndim != 2 or y.shape[1] != f.shape[1]:
        got = f"targets {tuple(y.shape)} for {f.shape[1]} outputs"
        raise fail("targets", "one number an output", got, "align targets and outputs")
    return y.to(f.dtype)


def _softplus(z: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(z, threshold=40.0)
