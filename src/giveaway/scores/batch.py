"""Batch: some records, or groups of records, with everything a score may look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from giveaway.curvature.blocks import Blocks, LeftOut
from giveaway.curvature.exact_steps import ExactSteps
from giveaway.curvature.losses import Loss


@dataclass(frozen=True)
class Batch:
    """N groups of s records: outputs (N, s, m), targets, sample weights (N, s).

    `make_x`, `make_row_norms` and `make_blocks` give the design rows, their norms and the leverage blocks when a score
    first asks for them. `drift` (d, m) is H⁻¹G, the step that the whole head still has to take; None where the head is
    taken as converged. `solved` are steps that go before those of the blocks.
    """

    outputs: torch.Tensor
    targets: torch.Tensor
    sample_weight: torch.Tensor
    loss: Loss
    make_row_norms: Callable[[], torch.Tensor]
    make_x: Callable[[], torch.Tensor]
    make_blocks: Callable[[], Blocks]
    drift: torch.Tensor | None = None
    solved: ExactSteps | None = None

    @cached_property
    def x(self) -> torch.Tensor:
        """Design rows (N, s, d)."""
        return self.make_x()

    @cached_property
    def row_norms(self) -> torch.Tensor:
        """Norms of the design rows (N, s)."""
        return self.make_row_norms()

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
    def left_out(self) -> LeftOut:
        """The Newton-step change of the outputs when the group is left out."""
        if self.solved is not None:
            return self.solved.left_out
        if self.drift is None:
            return self.blocks.leave_out(self.image)
        shared = self.x @ self.drift
        found = self.blocks.leave_out(self.image - shared)
        return found._replace(step=found.step + shared)
