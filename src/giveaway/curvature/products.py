"""Products with the curvature of a head that is never formed, and its approximate inverses (docs/derivations.md)."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from giveaway.curvature.losses import SoftmaxCurvature, loss_of
from giveaway.linalg.precision import Parts, Precision, signs
from giveaway.linalg.processes import HERE, Execution, can_compile
from giveaway.records import Head
from giveaway.records.head import Window

ALIGNED = 8  # numbers in a row, on a GPU
HOST_BYTES, GPU_BYTES = 8_000_000, 2_200_000_000  # of one array between two products
LEAST_ROWS, MOST_ROWS = 128, 16_384
FUSED_FROM = 1e8  # records × outputs on a GPU, from which compiling pays
WORTH = 4  # features a column, up to which it pays to sum every record into every output's preconditioner
HEAVIEST = 16_384  # at most so many records, or an eighth of all, are summed otherwise
WEIGHTS = torch.bfloat16  # the type in which their weights are held


class HeadProducts:
    """Products with H of `head` at penalty `l2`; softmax windows of `fused_rows` records go through compiled passes."""

    def __init__(self, head: Head, l2: float, execution: Execution = HERE) -> None:
        self.head, self.l2 = head, l2
        self.processes, self.on_rows = execution.processes, execution.on_rows
        self.loss = loss_of(head)
        self.k = 1 if self.loss.shared else head.m
        on_gpu = head.device.type == "cuda"
        self.width = -(-head.width // ALIGNED) * ALIGNED if on_gpu else head.width
        self._bytes = GPU_BYTES if on_gpu else HOST_BYTES
        large = float(head.n) * self.k >= FUSED_FROM and can_compile(head.device)  # the report says whether it did
        self.fused_rows = MOST_ROWS if large and self.loss.coupled else None
        self._fused: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.penalty = torch.zeros(self.width, 1, 1, dtype=torch.float64, device=head.device)
        self.penalty[: head.penalized] = l2

    @property
    def shape(self) -> tuple[int, int]:
        return self.width, self.k

    def as_vectors(self, parameters: torch.Tensor) -> torch.Tensor:
        """Lay out parameters (d, m) as one vector, or as m vectors where outputs share a curvature."""
        padded = torch.nn.functional.pad(parameters, (0, 0, 0, self.width - len(parameters)))
        return padded.unsqueeze(1 if self.loss.shared else 2)

    def as_parameters(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors.squeeze(1 if self.loss.shared else 2)[: self.head.width]

    def slices(self, columns: int) -> list[slice]:
        """This process's records, in consecutive pieces for products of this many columns."""
        rows = self._bytes // (4 * self.k * columns)
        rows = max(LEAST_ROWS, min(MOST_ROWS, 1 << max(rows, 1).bit_length() - 1))
        return self.processes.share(list(self.head.slices(rows)))

    def windows(self, columns: int) -> Iterator[Window]:
        return map(self.head.window, self.slices(columns))

    def apply(self, v: torch.Tensor, precision: Precision) -> torch.Tensor:
        """H v."""
        s = v.shape[2]
        total = torch.zeros(self.width, self.k * s, dtype=precision.dtype, device=v.device)
        factor = precision.parts(v.reshape(self.width, -1))
        for window in self.windows(s):
            x = precision.parts(window.rows(precision.dtype, self.width))
            u = precision.product(x, factor).view(len(window), self.k, s)
            precision.add_product(total, tuple(part.T for part in x), self._curve(u, window, precision))
            self.on_rows(len(window))
        self.processes.sum_(total)
        return self.project_(total.view_as(v)).addcmul_(v, self.penalty.to(v.dtype))

    def draw(self, seed: int, probes: slice, precision: Precision) -> torch.Tensor:
        """Aᵀ Ω for the signs Ω of these probes."""
        s = probes.stop - probes.start
        total = torch.zeros(self.width, self.k * s, dtype=precision.dtype, device=self.head.device)
        for window in self.windows(s):
            x = precision.parts(window.rows(precision.dtype, self.width))
            rooted = self._rooted_signs(seed, window, probes, precision)
            precision.add_product(total, tuple(part.T for part in x), rooted)
            self.on_rows(len(window))
        self.processes.sum_(total)
        # the penalty's own signs come after those of the records
        features = torch.arange(self.head.n, self.head.n + self.width, device=self.head.device)
        penalty = signs(seed, features, self.k, probes, dtype=precision.dtype) * self.penalty.sqrt().to(precision.dtype)
        return self.project_(total.view(self.width, self.k, s) + penalty)

    def project_(self, v: torch.Tensor) -> torch.Tensor:
        """Take from vectors v, in place, what softmax does not see: rounding puts some of it there."""
        return v.sub_(v.mean(1, keepdim=True)) if self.loss.coupled else v

    def diagonal(self, window: Window) -> torch.Tensor:
        """The diagonal of s_j W_j in float64, (rows, k); for softmax it is not all of W."""
        return self.loss.diagonal(window.outputs[:, : self.k].to(torch.float64)) * window.weights.unsqueeze(1)

    def _curve(self, u: torch.Tensor, window: Window, precision: Precision) -> Parts:
        """s_j W_j u_j for u (rows, k, s), as (rows, k·s) factors of `precision`; u is overwritten."""
        if not self.loss.coupled:
            return precision.parts(u.mul_(self.diagonal(window).to(u.dtype).unsqueeze(2)).flatten(1))
        p, weight = self._probabilities(window, precision)
        if precision.name in ("bf16", "bf16x3"):
            curved = self._compiled(_curve_softmax, window)(u, p, weight, precision.name == "bf16x3")
            return tuple(part.flatten(1) for part in curved)
        u -= u.gather(1, p.argmax(1)[:, None, None].expand(-1, 1, u.shape[2]))
        u -= torch.bmm(p.unsqueeze(1), u)
        return precision.parts(u.mul_((p * weight).unsqueeze(2)).flatten(1))

    def _rooted_signs(self, seed: int, window: Window, probes: slice, precision: Precision) -> Parts:
        """S_j ω_j with S Sᵀ = s_j W_j and the signs ω of these probes, as (rows, k·s) factors of `precision`."""
        if self.loss.coupled:
            passed, given = self._compiled(_root_softmax, window), self._probabilities(window, precision)
            rooted = passed(seed, window.numbers, probes.start, probes.stop, *given)
        else:
            root = self.diagonal(window).sqrt().to(precision.dtype).unsqueeze(2)
            rooted = signs(seed, window.numbers, self.k, probes, dtype=precision.dtype) * root
        return precision.parts(rooted.flatten(1))

    def _probabilities(self, window: Window, precision: Precision) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(window.outputs.to(precision.dtype), 1), window.weights.to(precision.dtype).unsqueeze(1)

    def _compiled(self, plain: Callable[..., Any], window: Window) -> Callable[..., Any]:
        """Compile a pass for windows of the usual size: every other size would be compiled anew."""
        if len(window) != self.fused_rows:
            return plain
        if plain not in self._fused:
            self._fused[plain] = torch.compile(plain, dynamic=False)
        return self._fused[plain]


def _curve_softmax(u: torch.Tensor, p: torch.Tensor, weight: torch.Tensor, halves: bool) -> Parts:
    softmax = SoftmaxCurvature(p.unsqueeze(2))
    curved = weight.unsqueeze(2) * softmax.curve(softmax.contrast(u.float(), -2), -2)
    high = curved.to(torch.bfloat16)
    return (high, (curved - high.float()).to(torch.bfloat16)) if halves else (high,)


def _root_softmax(
    seed: int, numbers: torch.Tensor, start: int, stop: int, p: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    omega = signs(seed, numbers, p.shape[1], slice(start, stop), dtype=p.dtype)
    return SoftmaxCurvature(p.unsqueeze(2)).root(omega, -2) * weight.sqrt().unsqueeze(2)


def preconditioner_for(
    products: HeadProducts, memory: int, columns: int, precision: Precision | None = None
) -> "ClassBlocks | SharedGram":
    """Make the better preconditioner that fits in `memory` bytes, for solves of `columns` columns in all."""
    if precision is None:
        precision = Precision("tf32" if products.head.device.type == "cuda" else "float32")
    width, k = products.shape
    every_record = width <= WORTH * columns
    blocks = k * width * width * precision.dtype.itemsize
    if not every_record:
        blocks += WEIGHTS.itemsize * k * products.head.n // products.processes.size
    if blocks > memory:
        return SharedGram(products, precision)
    return ClassBlocks(products, precision, every_record=every_record)


class ClassBlocks:
    """An inverse of Σ_j w_jk x_j x_jᵀ + λI for each output k, from all records, or from those with its largest weights
    and the mean record for the rest."""

    name = "class blocks"

    def __init__(self, products: HeadProducts, precision: Precision, *, every_record: bool = True) -> None:
        width, k = products.shape
        self.dtype = precision.dtype
        blocks = torch.zeros(k, width, width, dtype=precision.dtype, device=products.head.device)
        if every_record:
            for window in products.windows(max(1, width // 4)):
                root = products.diagonal(window).sqrt().to(precision.dtype)
                x = window.rows(precision.dtype, width)
                for of_output, block in zip(root.T, blocks, strict=True):
                    _add_square(block, x * of_output.unsqueeze(1), precision)
        else:
            _add_heaviest(blocks, products, precision)
        products.processes.sum_(blocks)
        for block in blocks:
            block.copy_(_regularized_inverse(block, products.penalty.view(-1)))
        self._products, self._inverses = products, blocks

    def __call__(self, r: torch.Tensor) -> torch.Tensor:
        return self._products.project_(torch.bmm(self._inverses, r.transpose(0, 1)).transpose(0, 1))


def _add_heaviest(blocks: torch.Tensor, products: HeadProducts, precision: Precision) -> None:
    """Add the records with the largest weights of each output, and the rest of its weight times the mean record."""
    (width, k), device, dtype = products.shape, blocks.device, precision.dtype
    amount = torch.zeros(k, dtype=torch.float64, device=device)
    mean = torch.zeros(width, width, dtype=dtype, device=device)
    slices = products.slices(max(1, width // 4))
    first, records = (slices[0].start, slices[-1].stop - slices[0].start) if slices else (0, 0)
    # allocated whole: pieces that are put together at the end would take the memory twice
    weights = torch.empty(k, records, dtype=WEIGHTS, device=device)
    for part in slices:
        window, here = products.head.window(part), slice(part.start - first, part.stop - first)
        weight = products.diagonal(window)
        weights[:, here] = weight.T
        amount += weight.sum(0)
        _add_square(mean, window.rows(dtype, width), precision)
    products.processes.sum_(mean)
    mean /= products.head.n
    heaviest = min(HEAVIEST // products.processes.size, max(4 * width, records // 8), records)
    for weight, whole, block in zip(weights, amount.tolist(), blocks, strict=True):
        heavy, places = weight.float().topk(heaviest)
        x = products.head.window(first + places).rows(dtype, width)
        _add_square(block, x * heavy.sqrt().unsqueeze(1), precision)
        block += max(0.0, whole - float(heavy.sum())) * mean


class SharedGram:
    """One weighted Gram matrix of the features for all outputs, scaled by each output's share of the curvature."""

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
        floor = width * torch.finfo(precision.dtype).eps * float(values[-1].clamp_min(1e-300))
        divisor = values.clamp_min(floor)[:, None] * share + products.l2
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


def _regularized_inverse(block: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    """Invert `block` with the penalty added to its diagonal, and a one where a feature has neither."""
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
