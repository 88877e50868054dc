"""Sketched curvature of a head: q random combinations Z of H⁻¹ in place of H⁻¹, by conjugate gradients.

H = AᵀA, with A the stack of W_j^½ (x_j ⊗ I)ᵀ and √λ I. With Ω of random signs, Z = H⁻¹ AᵀΩ/√q has Z Zᵀ ≈ H⁻¹, so that
B_i ≈ (x_iᵀ Z)(x_iᵀ Z)ᵀ for every record at once: the relative error of a quadratic form is at most √(2/q).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch

from giveaway.checks import free_memory
from giveaway.curvature.blocks import Blocks, SeparateBlocks
from giveaway.curvature.factored import FactoredBlocks
from giveaway.curvature.losses import Logistic, Loss, Softmax, Squared
from giveaway.curvature.preconditioner import preconditioner_for
from giveaway.curvature.products import HeadProducts
from giveaway.linalg.cg import CONVERGED, Solution, column_cg
from giveaway.linalg.precision import Parts, Precision, exact_for, higher_than, precision_named
from giveaway.linalg.probes import WORD, signs
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head
from giveaway.records.rows import Window
from giveaway.storage.checkpoint import NO_CHECKPOINT, Checkpoint

PROBES = 256
TOLERANCE = 1e-3
MOST_STEPS = 500
ARRAYS, WIDER_ARRAYS = 8, 4  # of a block of probes that conjugate gradients hold, and where residuals are wider
MOST_AT_ONCE = 128
HOST_LOOK_BYTES, GPU_LOOK_BYTES = 16_000_000, 4_000_000_000  # of one array of a window's U


class SketchedCurvature:
    """The sketch of `head`'s curvature."""

    def __init__(
        self,
        head: Head,
        *,
        l2: float | None = None,
        probes: int = PROBES,
        tolerance: float = TOLERANCE,
        precision: str = "auto",
        memory: int | None = None,
        allow_unconverged: bool = False,
        seed: int = 0,
        processes: Processes = ALONE,
        checkpoint: Checkpoint = NO_CHECKPOINT,
        on_rows: Callable[[int], Any] = lambda rows: None,
    ) -> None:
        self.head, self.seed, self.probes, self.tolerance = head, seed, probes, tolerance
        self._again = partial(
            SketchedCurvature,
            head,
            probes=probes,
            tolerance=tolerance,
            precision=precision,
            memory=memory,
            allow_unconverged=allow_unconverged,
            seed=seed,
            processes=processes,
            on_rows=on_rows,
        )
        self.l2 = head.l2 if l2 is None else l2
        self.products = HeadProducts(head, self.l2, processes=processes, on_rows=on_rows)
        self.precision = precision_named(precision, head.device)
        self.exact, self.begun_with = exact_for(self.precision, head.device), self.precision.name
        self.memory = free_memory(head.device) // 2 if memory is None else memory
        self.allow_unconverged = allow_unconverged
        wide = self.precision if self.precision.name == "float64" else None
        self.preconditioner = preconditioner_for(self.products, self.memory // 2, probes, wide)
        width, k = self.products.shape
        self.z = torch.empty(width, k, probes, dtype=self.precision.dtype, device=head.device)
        self.at_once = probes_at_once(head, probes, self.memory, self.precision)
        self.residual, self.steps = 0.0, 0
        unsaved = {}
        for start in range(0, probes, self.at_once):
            part = slice(start, min(start + self.at_once, probes))
            name = f"probes-{part.start}-{part.stop}"
            found = checkpoint.load(name)
            if found is None:
                found = unsaved[name] = self._solve_block(part)
            self.z[:, :, part] = found["z"].to(self.z.device)
            self.residual = max(self.residual, float(found["residual"].max()))
            self.steps = max(self.steps, int(found["steps"]))
            if checkpoint.due():
                for finished, tensors in unsaved.items():
                    checkpoint.save(finished, tensors)
                unsaved.clear()
            elif checkpoint is NO_CHECKPOINT:
                unsaved.clear()

    @cached_property
    def factors(self) -> Parts:
        """Z as it is multiplied with."""
        return self.precision.parts(self.z.view(self.products.width, -1))

    @property
    def loss(self) -> Loss:
        return self.products.loss

    @property
    def size(self) -> int:
        """P, the parameters of the head in the directions that matter."""
        return self.head.width * self.loss.degrees

    def with_l2(self, l2: float) -> SketchedCurvature:
        """The same head, penalized by `l2`: another sketch."""
        return self._again(l2=l2)

    def group_bytes(self, s: int) -> int:
        """Of one array of a group of s records."""
        return s * self.products.k * self.probes * self.precision.dtype.itemsize

    @property
    def array_bytes(self) -> int:
        """That one array of a batch may take."""
        return GPU_LOOK_BYTES if self.head.device.type == "cuda" else HOST_LOOK_BYTES

    @property
    def looks_at_once(self) -> int:
        """In a quarter of the memory, each with as many arrays as a solve holds."""
        return max(1, self.memory // (4 * ARRAYS * self.array_bytes))

    @property
    def report(self) -> dict[str, Any]:
        """What the metadata says of this curvature."""
        return {
            "curvature": "sketch",
            "parameters": self.size,
            "probes": self.probes,
            "probes_at_once": self.at_once,
            "seed": self.seed,
            "precision": self.precision.name,
            "precision_begun_with": self.begun_with,
            "residual_precision": self.precision.name if self.exact is None else self.exact.name,
            "tolerance": self.tolerance,
            "residual": self.residual,
            "steps": self.steps,
            "preconditioner": self.preconditioner.name,
            "fused_passes": self.products.curvature.fused_rows is not None,
            "l2": self.l2,
        }

    def look(self, window: Window, size: int = 1) -> Look:
        """At the groups of `size` consecutive rows of `window`."""
        return Look(self, window, size)

    def precondition(self, r: torch.Tensor) -> torch.Tensor:
        """About H⁻¹ of columns (D, k, s)."""
        return self.products.project_(self.preconditioner(r.to(self.preconditioner.dtype)).to(r.dtype))

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        """H⁻¹ v for v (d, m): a gradient of the summed loss with respect to θ; softmax needs rows that sum to zero."""
        return self.products.as_parameters(self._cg(self.products.as_vectors(v).to(self.precision.dtype)).x).to(v.dtype)

    def _cg(self, right: torch.Tensor) -> Solution:
        exact = self.exact
        higher = higher_than(self.precision, right.device)
        solution = column_cg(
            lambda v: self.products.apply(v, self.precision),
            right,
            precondition=self.precondition,
            tolerance=self.tolerance,
            most_steps=MOST_STEPS,
            exact_product=None
            if exact is None
            else lambda v: self.products.apply(v.to(exact.dtype), exact).to(v.dtype),
            trusted=self.precision.trusted,
            allow_unconverged=self.allow_unconverged or higher is not None,
        )
        if higher is None or set(solution.status) == {CONVERGED}:
            return solution
        # products too rough for a curvature so uneven: from here on in the next precision, which the report tells
        self.precision, self.exact = higher, exact_for(higher, right.device)
        self.__dict__.pop("factors", None)
        return self._cg(right.to(higher.dtype))

    def _solve_block(self, part: slice) -> dict[str, torch.Tensor]:
        right = self.products.draw(self.seed, part, self.precision)
        solution = self._cg(right)
        z = solution.x * self.probes**-0.5
        return {"z": z, "residual": solution.residual, "steps": torch.tensor(solution.steps)}


def probes_at_once(head: Head, probes: int, memory: int, precision: Precision) -> int:
    """How many probes are solved for together."""
    products = HeadProducts(head, head.l2)
    width, k = products.shape
    exact = exact_for(precision, head.device)
    arrays = ARRAYS + (WIDER_ARRAYS if exact is not None and exact.dtype != precision.dtype else 0)
    fit = max(1, memory // 4 // (arrays * width * k * precision.dtype.itemsize))
    # fused passes want a record's numbers in a GPU's cache
    most = min(WORD if products.curvature.fused_rows else MOST_AT_ONCE, probes)
    if fit >= most:
        return most
    # below a word's signs as many in each block as in every other
    return fit // WORD * WORD or -(-probes // -(-probes // fit))


class Look:
    """U of a window's records: what their blocks are made of."""

    def __init__(self, curvature: SketchedCurvature, window: Window, size: int) -> None:
        self._curvature, self._window, self._size = curvature, window, size
        products, precision = curvature.products, curvature.precision
        kept = precision.dtype
        x = precision.parts(window.rows(kept, products.width))
        u = precision.product(x, curvature.factors).to(kept)
        self._u = u.view(-1, size, products.k, curvature.probes)
        self._signs = signs(curvature.seed, window.numbers, products.k, slice(0, curvature.probes), dtype=kept)

    def blocks(self, part: slice, probes: slice | None) -> Blocks:
        """Of the groups in `part`, by all probes or some of them."""
        curvature = self._curvature
        rows = slice(part.start * self._size, part.stop * self._size)
        window = self._window.part(rows)
        u, own = self._u[part], self._signs[rows].view(self._u[part].shape)
        if probes is not None:
            scale = (curvature.probes / (probes.stop - probes.start)) ** 0.5
            u, own = u[..., probes] * scale, own[..., probes]
        n, s = u.shape[:2]
        outputs = window.outputs.to(torch.float64).view(n, s, -1)
        weight = window.weights.view(n, s)
        if isinstance(curvature.loss, Softmax):
            return FactoredBlocks(u, own, torch.softmax(outputs, -1), weight)
        loss = curvature.loss
        assert isinstance(loss, (Squared, Logistic))
        diagonal = loss.weights(outputs)
        block, complement = _separate(u, own, diagonal, weight)
        return SeparateBlocks(block, diagonal, weight, loss.sensitivity, complement)


def _separate(
    u: torch.Tensor, own: torch.Tensor, diagonal: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """B of separate outputs (s, s, k, N), and I − W^½ B W^½ (N, k, s, s) from what the records' own signs leave over,
    where there are probes enough for that."""
    u, own = u.to(torch.float64).transpose(1, 2), own.to(torch.float64).transpose(1, 2)  # (N, k, s, q)
    k, s, q = u.shape[1:]
    root = (diagonal[:, :, :k] * weight.unsqueeze(2)).sqrt().transpose(1, 2).unsqueeze(3)  # (N, k, s, 1)
    block, rest = u @ u.mT, own * q**-0.5 - root * u
    complement = rest @ rest.mT
    if s == 1:  # what is one together stays one, and neither leaves [0, 1]
        both = root * root * block + complement
        block, complement = block / both, complement / both
    complement = complement * (q / max(1, q - s - 1))  # the inverse of an estimate is too large on average
    return block.permute(2, 3, 1, 0), complement if q >= 4 * s else None
