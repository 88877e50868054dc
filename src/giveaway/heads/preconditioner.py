"""Approximate inverses of a head's curvature, for conjugate gradients.

`class blocks` takes the curvature of one output at a time, Σ_j w_jk x_j x_jᵀ + λI, and leaves out what couples outputs:
exact where they are separate. `shared` gives every output the same weighted Gram matrix, times its own amount of
curvature: one matrix of the features' size in place of one an output.
"""

from __future__ import annotations

from typing import Protocol

import torch

from giveaway.heads.products import HeadProducts, output_curvature
from giveaway.linalg.precision import Precision

EPS = torch.finfo(torch.float64).eps


class Preconditioner(Protocol):
    """An approximate inverse, by name."""

    name: str

    def __call__(self, r: torch.Tensor) -> torch.Tensor: ...


def preconditioner_for(products: HeadProducts, precision: Precision, memory: int) -> Preconditioner:
    """The better of the two that fits in `memory` bytes."""
    width, k = products.shape
    summed = Precision("float64" if precision.kept == torch.float64 else "float32")
    fits = k * width * width * summed.kept.itemsize <= memory
    return ClassBlocks(products, summed) if fits else SharedGram(products, summed)


class ClassBlocks:
    """One inverse an output."""

    name = "class blocks"

    def __init__(self, products: HeadProducts, precision: Precision) -> None:
        width, k = products.shape
        blocks = torch.zeros(k, width, width, dtype=precision.kept, device=products.head.device)
        for window in products.windows(max(1, width // 4)):
            x = window.rows(precision.kept, width)
            weight = (output_curvature(products.loss, window) * window.weights.unsqueeze(1)).to(x.dtype)
            for of_output, block in zip(weight.T, blocks, strict=True):
                precision.add_product(block, x.T, x * of_output.unsqueeze(1))
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
            x = window.rows(precision.kept, width)
            weight = output_curvature(products.loss, window) * window.weights.unsqueeze(1)
            precision.add_product(gram, x.T, x * weight.sum(1, keepdim=True).to(x.dtype))
            amount += weight.sum(0)
        products.team.sum_(gram)
        products.team.sum_(amount)
        values, vectors = torch.linalg.eigh(gram.to(torch.float64))
        share = amount / amount.sum().clamp_min(torch.finfo(torch.float64).tiny)
        penalty = products.l2
        divisor = values.clamp_min(EPS * float(values[-1].clamp_min(1e-300)))[:, None] * share + penalty
        self._products = products
        self._vectors, self._over = vectors.to(precision.kept), (1.0 / divisor.clamp_min(1e-300)).to(precision.kept)

    def __call__(self, r: torch.Tensor) -> torch.Tensor:
        width, k, s = r.shape
        turned = (self._vectors.T @ r.reshape(width, -1)).view(width, k, s)
        turned *= self._over.unsqueeze(2)
        return self._products.projected((self._vectors @ turned.view(width, -1)).view(width, k, s))


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
