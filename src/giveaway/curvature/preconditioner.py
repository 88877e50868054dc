"""Approximate inverses of a head's curvature, for conjugate gradients.

`class blocks` takes the curvature of one output at a time, Σ_j w_jk x_j x_jᵀ + λI, and leaves out what couples outputs.
`shared` gives every output the same weighted Gram matrix, times its own amount of curvature: one matrix of the
features' size in place of one an output.
"""

from __future__ import annotations

from typing import Protocol

import torch

from giveaway.curvature.products import HeadProducts
from giveaway.linalg.precision import Precision

WORTH = 4  # features a column, up to which summing every record for every output pays
HEAVIEST = 16_384  # records that are summed beyond, or an eighth of them
WEIGHTS = torch.bfloat16  # what their weights are looked up in


class Preconditioner(Protocol):
    """An approximate inverse, by name."""

    name: str
    dtype: torch.dtype

    def __call__(self, r: torch.Tensor) -> torch.Tensor: ...


def preconditioner_for(
    products: HeadProducts, memory: int, columns: int, precision: Precision | None = None
) -> Preconditioner:
    """The better of the two that fits in `memory` bytes, for solves of so many columns in all."""
    if precision is None:
        precision = Precision("tf32" if products.head.device.type == "cuda" else "float32")
    width, k = products.shape
    every_record = width <= WORTH * columns
    held = k * width * width * precision.dtype.itemsize
    if not every_record:
        held += WEIGHTS.itemsize * k * products.head.n // products.processes.size
    if held > memory:
        return SharedGram(products, precision)
    # rows are looked up once an output: better from memory than from files, where they fit
    looked_up = products.head.n // products.processes.size * width * precision.dtype.itemsize
    return ClassBlocks(products, precision, every_record=every_record, hold_rows=held + looked_up <= memory)


class ClassBlocks:
    """One inverse an output. Where summing every record would cost more than it saves, it is that of the records that
    weigh most for the output; the rest weighs as records do on average."""

    name = "class blocks"

    def __init__(
        self, products: HeadProducts, precision: Precision, *, every_record: bool = True, hold_rows: bool = True
    ) -> None:
        width, k = products.shape
        self.dtype = precision.dtype
        blocks = torch.zeros(k, width, width, dtype=precision.dtype, device=products.head.device)
        if every_record:
            _add_all(blocks, products, precision)
        else:
            _add_heaviest(blocks, products, precision, hold_rows=hold_rows)
        products.processes.sum_(blocks)
        for block in blocks:
            block.copy_(_inverse(block, products.penalty.view(-1)))
        self._products, self._inverses = products, blocks

    def __call__(self, r: torch.Tensor) -> torch.Tensor:
        return self._products.project_(torch.bmm(self._inverses, r.transpose(0, 1)).transpose(0, 1))


def _add_all(blocks: torch.Tensor, products: HeadProducts, precision: Precision) -> None:
    """Every record, window by window."""
    width = products.width
    for window in products.windows(max(1, width // 4)):
        root = products.diagonal(window).sqrt().to(precision.dtype)
        x = window.rows(precision.dtype, width)
        for of_output, block in zip(root.T, blocks, strict=True):
            _add_square(block, x * of_output.unsqueeze(1), precision)


def _add_heaviest(blocks: torch.Tensor, products: HeadProducts, precision: Precision, *, hold_rows: bool) -> None:
    """The heaviest records of each output, and its rest times the mean record."""
    (width, k), device, dtype = products.shape, blocks.device, precision.dtype
    amount = torch.zeros(k, dtype=torch.float64, device=device)
    mean = torch.zeros(width, width, dtype=dtype, device=device)
    slices = products.slices(max(1, width // 4))
    first, records = (slices[0].start, slices[-1].stop - slices[0].start) if slices else (0, 0)
    # in one piece each: parts that are put together at the end would be there twice
    weights = torch.empty(k, records, dtype=WEIGHTS, device=device)
    design = torch.empty(records if hold_rows else 0, width, dtype=dtype, device=device)
    for part in slices:
        window, here = products.head.window(part), slice(part.start - first, part.stop - first)
        weight = products.diagonal(window)
        weights[:, here] = weight.T
        amount += weight.sum(0)
        x = window.rows(dtype, width)
        _add_square(mean, x, precision)
        if hold_rows:
            design[here] = x
    products.processes.sum_(mean)
    mean /= products.head.n
    heaviest = min(HEAVIEST // products.processes.size, max(4 * width, records // 8), records)
    for weight, whole, block in zip(weights, amount.tolist(), blocks, strict=True):
        heavy, places = weight.float().topk(heaviest)
        x = design[places] if hold_rows else products.head.window(first + places).rows(dtype, width)
        _add_square(block, x * heavy.sqrt().unsqueeze(1), precision)
        block += max(0.0, whole - float(heavy.sum())) * mean


class SharedGram:
    """One eigenbasis for all outputs."""

    name = "shared"

    def __init__(self, products: HeadProducts, precision: Precision) -> None:
        width, k = products.shape
        self.dtype = precision.dtype
        gram = torch.zeros(width, width, dtype=precision.dtype, device=products.head.device)
        amount = torch.zeros(k, dtype=torch.float64, device=products.head.device)
        for window in products.windows(max(1, width // 4)):
            weight = products.diagonal(window)
            _add_square(gram, window.rows(precision.dtype, width) * weight.sum(1, keepdim=True).sqrt(), precision)
            amount += weight.sum(0)
        products.processes.sum_(gram)
        products.processes.sum_(amount)
        values, vectors = torch.linalg.eigh(gram.to(torch.float64))
        share = amount / amount.sum().clamp_min(torch.finfo(torch.float64).tiny)
        penalty = products.l2
        floor = width * torch.finfo(precision.dtype).eps * float(values[-1].clamp_min(1e-300))
        divisor = values.clamp_min(floor)[:, None] * share + penalty
        self._products = products
        self._vectors, self._over = vectors.to(precision.dtype), (1.0 / divisor.clamp_min(1e-300)).to(precision.dtype)

    def __call__(self, r: torch.Tensor) -> torch.Tensor:
        width, k, s = r.shape
        turned = (self._vectors.T @ r.reshape(width, -1)).view(width, k, s)
        turned *= self._over.unsqueeze(2)
        return self._products.project_((self._vectors @ turned.view(width, -1)).view(width, k, s))


def _add_square(total: torch.Tensor, x: torch.Tensor, precision: Precision) -> None:
    """total += xᵀ x."""
    factor = precision.parts(x.to(precision.dtype))
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
