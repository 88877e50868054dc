"""Means and centred products of features and targets, from one pass over blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from giveaway.checks import check_finite, fail

CONSTANT = 1e-12  # a standard deviation below this part of the column's size is rounding


@dataclass(frozen=True, eq=False)
class Moments:
    """Σ(x − x̄)(x − x̄)ᵀ (d, d) and Σ(x − x̄)yᵀ (d, C) over n records, in float64, and the column means (d,)."""

    n: int
    mean: torch.Tensor
    gram: torch.Tensor
    cross: torch.Tensor

    def scale(self, standardize: bool) -> torch.Tensor:
        """What each centred column is multiplied by: 1 / its standard deviation (or 1), and 0 where it is constant."""
        deviation = (self.gram.diagonal() / self.n).sqrt()
        return column_scale(self.mean, deviation, standardize)


def column_scale(mean: torch.Tensor, deviation: torch.Tensor, standardize: bool = True) -> torch.Tensor:
    """1 / deviation, or 1 if not `standardize`; 0 for columns that are constant up to rounding."""
    varies = deviation > CONSTANT * mean.abs()
    return torch.where(varies, 1.0 / deviation if standardize else torch.ones_like(deviation), 0.0)


def moments(blocks: Iterator[torch.Tensor], targets: torch.Tensor) -> Moments:
    """Blocks are centred on their own means and merged (Chan), so that large column means cost no digits."""
    n = 0
    mean = gram = cross = middle = torch.empty(0)
    for block in blocks:
        rows = len(block)
        check_rows(n + rows, len(targets), at_most=True)
        check_finite("features", block)
        y = targets[n : n + rows].to(block.device)
        own, own_y = block.mean(0), y.mean(0)
        centred = block - own
        if n == 0:
            mean, middle = own, own_y
            gram, cross = centred.T @ centred, centred.T @ (y - own_y)
        else:
            step, step_y = own - mean, own_y - middle
            weight = n * rows / (n + rows)
            gram.addmm_(centred.T, centred).addr_(step, step, alpha=weight)
            cross.addmm_(centred.T, y - own_y).addr_(step, step_y, alpha=weight)
            mean = mean + step * (rows / (n + rows))
            middle = middle + step_y * (rows / (n + rows))
        n += rows
    check_rows(n, len(targets))
    return Moments(n, mean, gram, cross)


def check_rows(rows: int, expected: int, *, at_most: bool = False) -> None:
    """Refuse features that are not as many as the targets."""
    if rows > expected or (rows < expected and not at_most):
        got = f"{'at least ' if at_most else ''}{rows} rows"
        raise fail("features", f"{expected} rows, one a target", got, "align features and targets")
