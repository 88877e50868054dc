"""W, the curvature of a record's loss in its outputs, and its root S with S Sᵀ = W, as operations on tensors.

`weights` are the numbers that W is made of, laid out in any way that broadcasts against the tensors; `dim` is the axis
of the outputs, counted from the end.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DiagonalCurvature:
    """W = diag(`weights`), of losses whose outputs do not see each other."""

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
