"""Approximate inverses of a head's curvature, for conjugate gradients.

`class blocks` takes the curvature of one output at a time, Σ_j w_jk x_j x_jᵀ + λI, and leaves out what couples outputs.
`shared` gives every output the same weighted Gram matrix, times its own amount of curvature: one matrix of the
features' size in place of one an output.
"""

from __future__ import annotations

from typing import Protocol

import torch

from giveaway.heads.output_curvature import diagonal_curvature
from giveaway.heads.products import HeadProducts
from giveaway.linalg.precision import Precision

HEAVIEST = 16_384  # records that an output's own curvature is summed over


class Preconditioner(Protocol):
    """An approximate inverse, by name."""

    name: str

    def __call__(self, r: torch.Tensor) -> torch.Tensor: ...


def preconditioner_for(products: HeadProducts, precision: Precision, memory: int) -> Preconditioner:
    """The better of the two that fits in `memory` bytes."""
    width, k = products.shape
    held = k * width * width * precision.kept.itemsize + 4 * k * products.head.n // products.team.size
    return ClassBlocks(products, precision) if held <= memory else SharedGram(products, precision)


class ClassBlocks:
    """One inverse an output, from the records that weigh most there; the rest weighs as records do on average."""

    name = "class blocks"

    def __init__(self, products: HeadProducts, precision: Precision) -> None:
        width, k = products.shape
        device, kept = products.head.device, precision.kept
        weights = [torch.empty(k, 0, device=device)]  # a process may have no records of its own
        numbers = [torch.empty(0, dtype=torch.int64, device=device)]
        mean = torch.zeros(width, width, dtype=kept, device=device)
        records = torch.zeros(1, dtype=torch.float64, device=device)
        for window in products.windows(max(1, width // 4)):
            weights.append(
                (diagonal_curvature(products.loss, window) * window.weights.unsqueeze(1)).T.to(torch.float32)
            )
            numbers.append(window.numbers)
            _add_square(mean, window.rows(kept, width), precision)
            records += len(window)
        products.team.sum_(mean)
        mean /= products.team.sum_(records).to(kept)
        blocks = torch.zeros(k, width, width, dtype=kept, device=device)
        own, rows = torch.cat(weights, 1), torch.cat(numbers)
        heaviest = min(len(rows), HEAVIEST // products.team.size)
        for weight, block in zip(own, blocks, strict=True):
            heavy, places = (weight, slice(None)) if heaviest == len(rows) else weight.topk(heaviest)
            scaled = products.head.window(rows[places]).rows(kept, width) * heavy.sqrt().unsqueeze(1)
            _add_square(block, scaled, precision)
            block += float(weight.sum() - heavy.sum()) * mean
        products.team.sum_(blocks)
        for block in blocks:
            block.copy_(_inverse(block, products.penalty.view(-1)))
        self._products, self._inverses = products, blocks

    def __call__(self, r: torch.Tensor) -> torch.Tensor:
        return self._products.projected(torch.bmm(self._inverses, r.transpose(0, 1)).transpose(0, 1))


class SharedGram:
    """One eigenbasis for all outputs."""

    name = "shared"

    def __init__(self, products: HeadProducts, precision: Precision) -> None:
        width, k = products.shape
        gram = torch.zeros(width, width, dtype=precision.kept, device=products.head.device)
        amount = torch.zeros(k, dtype=torch.float64, device=products.head.device)
        for window in products.windows(max(1, width // 4)):
            weight = diagonal_curvature(products.loss, window) * window.weights.unsqueeze(1)
            _add_square(gram, window.rows(precision.kept, width) * weight.sum(1, keepdim=True).sqrt(), precision)
            amount += weight.sum(0)
        products.team.sum_(gram)
        products.team.sum_(amount)
        values, vectors = torch.linalg.eigh(gram.to(torch.float64))
        share = amount / amount.sum().clamp_min(torch.finfo(torch.float64).tiny)
        penalty = products.l2
        floor = width * torch.finfo(precision.kept).eps * float(values[-1].clamp_min(1e-300))
        divisor = values.clamp_min(floor)[:, None] * share + penalty
        self._products = products
        self._vectors, self._over = vectors.to(precision.kept), (1.0 / divisor.clamp_min(1e-300)).to(precision.kept)

    def __call__(self, r: torch.Tensor) -> torch.Tensor:
        width, k, s = r.shape
        turned = (self._vectors.T @ r.reshape(width, -1)).view(width, k, s)
        turned *= self._over.unsqueeze(2)
        return self._products.projected((self._vectors @ turned.view(width, -1)).view(width, k, s))


def _add_square(total: torch.Tensor, x: torch.Tensor, precision: Precision) -> None:
    """total += xᵀ x."""
    factor = precision.parts(x.to(precision.kept))
    precision.add_product(total, tuple(part.T for part in factor), factor)


def _inverse(block: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    """Of block + penalty on the diagonal, with a one where a feature has neither."""
    matrix = block.to(torch.float64)
    matrix = 0.5 * (matrix + matrix.T)
    matrix.diagonal().add_(penalty)
    diagonal = matrix.diagonal().clone()
    scale = torch.where(diagonal > 0, diagonal, 1.0).rsqrt()
    matrix *= scale[:, None] * scale
    matrix.diagonal().add_((diagonal <= 0).to(matrix.dtype))
    ridge = 0.0
    while True:
        factor, info = torch.linalg.cholesky_ex(matrix + ridge * torch.eye(len(matrix), device=matrix.device))
        if int(info) == 0:
            break
        ridge = max(10 * ridge, 1e-7)  # a preconditioner may be regularized: it changes the steps, not the solution
    return torch.cholesky_inverse(factor) * (scale[:, None] * scale)
