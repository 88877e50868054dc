"""Leverage blocks B_i = J_i H⁻¹ J_iᵀ of records, and every score that is a function of them.

Small matrices, in float64: B (k, m, m) in the directions of an output that the loss can see, W and g at the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch

from giveaway.linalg.spectral import top_singular_value
from giveaway.network.losses import OutputLoss

CAP = 1.0 - 1e-8


class RecordBlocks:
    """B of k records with their outputs and targets."""

    def __init__(self, block: torch.Tensor, f: torch.Tensor, y: torch.Tensor, loss: OutputLoss) -> None:
        self.loss = loss
        self.f = f.double()
        self.y = y.double() if y.is_floating_point() else y
        basis = loss.basis(f.shape[1]).to(f.device)
        self.degrees = basis.shape[1]
        project = basis @ basis.T
        self.block = project @ block.double() @ project

    @cached_property
    def curvature(self) -> torch.Tensor:
        """W."""
        return self.loss.curvature(self.f, self.y)

    @cached_property
    def gradient(self) -> torch.Tensor:
        """g."""
        return self.loss.gradient(self.f, self.y)

    @cached_property
    def sensitivity(self) -> torch.Tensor:
        """W B: ∂(probabilities)/∂(targets)."""
        return self.curvature @ self.block

    @cached_property
    def root(self) -> torch.Tensor | None:
        """S with S Sᵀ = W; None where W has negative eigenvalues (a loss of the user's)."""
        values, vectors = torch.linalg.eigh(self.curvature)
        if bool((values[:, 0] < -1e-9 * values.abs().amax(1)).any()):
            return None
        return vectors * values.clamp_min(0).sqrt().unsqueeze(1)

    @cached_property
    def spread(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Eigenvalues and eigenvectors of Sᵀ B S."""
        assert self.root is not None
        values, vectors = torch.linalg.eigh(self.root.mT @ self.block @ self.root)
        return values, vectors

    @cached_property
    def capped(self) -> torch.Tensor:
        """Records whose leverage reaches 1 in some direction, where the Newton step would diverge."""
        if self.root is None:
            return torch.zeros(len(self.f), dtype=torch.bool, device=self.f.device)
        return self.spread[0][:, -1] > CAP

    @cached_property
    def image(self) -> torch.Tensor:
        """B g."""
        return (self.block @ self.gradient.unsqueeze(2)).squeeze(2)


def leverage(blocks: RecordBlocks) -> torch.Tensor:
    """trace(W B)/r."""
    return (gls_trace(blocks) / blocks.degrees).clamp(0.0, 1.0)


def gls_trace(blocks: RecordBlocks) -> torch.Tensor:
    """trace(W B)."""
    return (blocks.curvature * blocks.block).sum((1, 2))


def gls_frobenius(blocks: RecordBlocks) -> torch.Tensor:
    """‖W B‖_F."""
    return blocks.sensitivity.norm(dim=(1, 2))


def gls_spectral(blocks: RecordBlocks) -> torch.Tensor:
    """‖W B‖₂."""
    return top_singular_value(blocks.sensitivity.permute(1, 2, 0).contiguous())


def gls_trace_logit(blocks: RecordBlocks) -> torch.Tensor:
    """trace of ∂f/∂y (of B itself for a loss of the user's)."""
    return blocks.loss.sensitivity * blocks.block.diagonal(dim1=1, dim2=2).sum(1)


def gls_frobenius_logit(blocks: RecordBlocks) -> torch.Tensor:
    """‖∂f/∂y‖_F."""
    return blocks.loss.sensitivity * blocks.block.norm(dim=(1, 2))


def gls_spectral_logit(blocks: RecordBlocks) -> torch.Tensor:
    """‖∂f/∂y‖₂."""
    return blocks.loss.sensitivity * top_singular_value(blocks.block.permute(1, 2, 0).contiguous())


def influence(blocks: RecordBlocks) -> torch.Tensor:
    """gᵀ B g."""
    return (blocks.gradient * blocks.image).sum(1)


def newton(blocks: RecordBlocks) -> torch.Tensor:
    """gᵀ B (I − W B)⁻¹ g, with leverage capped just below 1."""
    if blocks.root is None:
        identity = torch.eye(blocks.f.shape[1], dtype=torch.float64, device=blocks.f.device)
        solved = torch.linalg.solve(identity - blocks.sensitivity, blocks.gradient.unsqueeze(2)).squeeze(2)
        return (blocks.image * solved).sum(1)
    values, vectors = blocks.spread
    along = (vectors.mT @ (blocks.root.mT @ blocks.image.unsqueeze(2))).squeeze(2)
    return influence(blocks) + (along.square() / (1.0 - values.clamp_max(CAP))).sum(1)


SCORES: dict[str, Callable[[RecordBlocks], torch.Tensor]] = {
    function.__name__: function
    for function in (
        leverage,
        gls_trace,
        gls_frobenius,
        gls_spectral,
        gls_trace_logit,
        gls_frobenius_logit,
        gls_spectral_logit,
        influence,
        newton,
    )
}


def scored(blocks: RecordBlocks, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """These scores of every record."""
    return {name: SCORES[name](blocks) for name in names}
