"""Sketched curvature: q random combinations Z of H⁻¹ in place of H⁻¹, by conjugate gradients (docs/derivations.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from giveaway.checks import check_number, check_whole, fail, free_memory
from giveaway.curvature.blocks import CAP, Blocks, BlocksOf, FactoredBlocks, LeaveOutStep, MatrixBlocks
from giveaway.curvature.losses import OutputCurvature, loss_of
from giveaway.curvature.products import HeadProducts, preconditioner_for
from giveaway.linalg.cg import CONVERGED, Solution, column_cg
from giveaway.linalg.precision import WORD, Parts, Precision, exact_for, higher_than, precision_named, signs
from giveaway.linalg.processes import ALONE, HERE, Execution, Processes
from giveaway.records import Head
from giveaway.records.head import Window
from giveaway.storage.folder import NO_CHECKPOINT, Checkpoint

MOST_STEPS = 500
ARRAYS, WIDER_ARRAYS = 8, 4  # of a block of probes that conjugate gradients hold, and where residuals are wider
MOST_AT_ONCE = 128
HOST_WINDOW_BYTES, GPU_WINDOW_BYTES = 16_000_000, 4_000_000_000  # of one array of a window's U
REDO_ABOVE = 0.5  # the largest eigenvalue of W B from which a sketched step is not trusted
OWN_STEPS = 300
OWN_TOLERANCE, ROUGH_TOLERANCE = 1e-5, 3e-4  # the latter where residuals have sixteen bits
LARGEST_STEP = 0.25 / (1.0 - CAP)  # of what leaving out does over its first order: beyond it an eigenvalue was capped

Tensors = dict[str, torch.Tensor]
Part = Callable[[str, Callable[[], Tensors]], Tensors]


class CheckpointedParts:
    """Named parts of a long computation, saved as they finish; a part that one process lacks is computed by all."""

    def __init__(self, checkpoint: Checkpoint = NO_CHECKPOINT, processes: Processes = ALONE) -> None:
        self.checkpoint, self.processes = checkpoint, processes
        self._unsaved: dict[str, Tensors] = {}

    def part(self, name: str, compute: Callable[[], Tensors]) -> Tensors:
        """Return what an earlier run saved under `name`, or compute it."""
        tensors = self.checkpoint.load(name)
        if self.processes.any(tensors is None) or tensors is None:
            tensors = compute()
            if self.checkpoint is not NO_CHECKPOINT:
                self._unsaved[name] = tensors
        if self.processes.any(self.processes.first and self.checkpoint.due()):
            for finished, values in self._unsaved.items():
                self.checkpoint.save(finished, values)
            self._unsaved.clear()
        return tensors


def solve_probes(z: torch.Tensor, at_once: int, solve: Callable[[slice], Tensors], part: Part) -> list[Tensors]:
    """Fill z (..., q) with `solve(probes)["z"]`, `at_once` probes after others, by way of `part`; return the rest."""
    solved = []
    for start in range(0, z.shape[-1], at_once):
        probes = slice(start, min(start + at_once, z.shape[-1]))
        tensors = part(f"probes-{probes.start}-{probes.stop}", lambda probes=probes: solve(probes))  # type: ignore[misc]
        z[..., probes] = tensors["z"].to(z.device)
        solved.append({name: value for name, value in tensors.items() if name != "z"})
    return solved


def records_to_redo(leverage: np.ndarray, most: int) -> np.ndarray:
    """The places of the records whose leverage is above REDO_ABOVE, the highest first, and at most so many of them."""
    order = np.argsort(-leverage, kind="stable")
    return order[leverage[order] > REDO_ABOVE][:most]


@dataclass(frozen=True)
class Sketch:
    """Estimate what the curvature says of every record from random combinations of its inverse.

    probes : how many; the error of a score is about √(2/probes) of it.
    tolerance : the solves stop when their worst residual is below it.
    precision : of the products inside the solves: "float64" or "float32", on a GPU also "tf32" or "bf16"; residuals are
        computed in a higher one. "auto" is float32 on a CPU and bf16 on a GPU.
    memory : gigabytes that the sketch may take; by default half of what is free.
    allow_unconverged : use solves that do not reach the tolerance instead of raising an error.
    errors : add the standard error of every score, a record, as attributes.
    seed : of the probes.
    """

    probes: int = 256
    tolerance: float = 1e-3
    precision: str = "auto"
    memory: float | None = None
    allow_unconverged: bool = False
    errors: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("probes", self.probes, remedy="256 suits most heads")
        if not 0 < check_number("tolerance", self.tolerance, minimum=0.0, remedy="1e-3 suits most heads") < 1:
            raise fail("tolerance", "a number between 0 and 1", f"{self.tolerance:g}", "1e-3 suits most heads")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise fail("seed", "a whole number from 0 to 2**63 - 1", repr(self.seed), "leave it out for 0")
        check_number("memory", self.memory or 0.0, minimum=0.0, remedy="give it in gigabytes")


def budget(memory: float | None, head: Head) -> int:
    """Bytes that a curvature may take: `memory` gigabytes, or half of what is free where the head's arrays are."""
    return free_memory(head.device) // 2 if memory is None else int(memory * 1e9)


class SketchedCurvature:
    """The sketch of `head`'s curvature, of P = `size` parameters in the directions that matter. One array of a window's
    U may take `array_bytes`."""

    def __init__(self, head: Head, options: Sketch, execution: Execution = HERE) -> None:
        self.head, self.loss, self.options = head, loss_of(head), options
        self.seed, self.probes, self.tolerance = options.seed, options.probes, options.tolerance
        self.size = head.width * self.loss.degrees
        self.memory, self.at_once = budget(options.memory, head), probes_at_once(head, options)
        self.array_bytes = GPU_WINDOW_BYTES if head.device.type == "cuda" else HOST_WINDOW_BYTES
        # as many windows as fit in a quarter of the memory, each with as many arrays as a solve holds
        self.windows_at_once = max(1, self.memory // (4 * ARRAYS * self.array_bytes))
        self.products = HeadProducts(head, head.l2, execution)
        self._set_precision(precision_named(options.precision, head.device))
        self._first_precision = self.precision.name
        wide = self.precision if self.precision.name == "float64" else None
        self.preconditioner = preconditioner_for(self.products, self.memory // 2, self.probes, wide)
        self.z = torch.empty(*self.products.shape, self.probes, dtype=self.precision.dtype, device=head.device)
        parts = CheckpointedParts(execution.checkpoint, execution.processes)
        solved = solve_probes(self.z, self.at_once, self._solve_block, parts.part)
        self.residual = max(float(part["residual"].max()) for part in solved)
        self.steps = max(int(part["steps"]) for part in solved)

    def _set_precision(self, precision: Precision) -> None:
        self.precision, self.exact = precision, exact_for(precision, self.head.device)
        self.__dict__.pop("factors", None)

    @cached_property
    def factors(self) -> Parts:
        """Z as it is multiplied with."""
        return self.precision.parts(self.z.view(self.products.width, -1))

    def group_bytes(self, s: int) -> int:
        return s * self.products.k * self.probes * self.precision.dtype.itemsize

    @property
    def report(self) -> dict[str, Any]:
        return {
            "curvature": "sketch",
            "parameters": self.size,
            "probes": self.probes,
            "probes_at_once": self.at_once,
            "seed": self.seed,
            "precision": self.precision.name,
            "precision_begun_with": self._first_precision,
            "residual_precision": self.precision.name if self.exact is None else self.exact.name,
            "tolerance": self.tolerance,
            "residual": self.residual,
            "steps": self.steps,
            "preconditioner": self.preconditioner.name,
            "fused_passes": self.products.fused_rows is not None,
            "threads": torch.get_num_threads(),  # which sum in another order, and so to other last digits
            "l2": self.products.l2,
        }

    def window_blocks(self, window: Window, size: int = 1) -> BlocksOf:
        """Prepare U for the groups of `size` consecutive rows of `window`; the function that is returned makes the
        blocks of some groups, by all probes or by some of them."""
        products, precision, loss, total = self.products, self.precision, self.loss, self.probes
        x = precision.parts(window.rows(precision.dtype, products.width))
        whole = precision.product(x, self.factors).to(precision.dtype).view(-1, size, products.k, total)
        all_signs = signs(self.seed, window.numbers, products.k, slice(0, total), dtype=precision.dtype)

        def blocks(groups: slice, curvature: OutputCurvature, weight: torch.Tensor, probes: slice | None) -> Blocks:
            u, own = whole[groups], all_signs.view(whole.shape)[groups]
            if probes is not None:
                u, own = u[..., probes] * (total / (probes.stop - probes.start)) ** 0.5, own[..., probes]
            if loss.coupled:
                return FactoredBlocks(u, own, curvature, weight, loss)
            block, complement = _separate(u, own, curvature.weights, weight)
            return MatrixBlocks(block, curvature, weight, loss, complement=complement)

        return blocks

    def precondition(self, r: torch.Tensor) -> torch.Tensor:
        """Apply an approximate H⁻¹ to columns (D, k, s)."""
        return self.products.project_(self.preconditioner(r.to(self.preconditioner.dtype)).to(r.dtype))

    def solve(self, v: torch.Tensor) -> torch.Tensor:
        """H⁻¹ v for v (d, m): a gradient of the summed loss with respect to θ; softmax needs rows that sum to zero."""
        return self.products.as_parameters(self._cg(self.products.as_vectors(v).to(self.precision.dtype)).x).to(v.dtype)

    def _cg(self, right: torch.Tensor) -> Solution:
        exact, apply = self.exact, self.products.apply
        higher = higher_than(self.precision, right.device)
        solution = column_cg(
            lambda v: apply(v, self.precision),
            right,
            precondition=self.precondition,
            tolerance=self.tolerance,
            most_steps=MOST_STEPS,
            exact_product=None if exact is None else lambda v: apply(v.to(exact.dtype), exact).to(v.dtype),
            trusted=self.precision.trusted,
            allow_unconverged=self.options.allow_unconverged or higher is not None,
        )
        if higher is None or set(solution.status) == {CONVERGED}:
            return solution
        # products were too rough for so uneven a curvature: the next precision serves from here on
        self._set_precision(higher)
        return self._cg(right.to(higher.dtype))

    def _solve_block(self, probes: slice) -> Tensors:
        solution = self._cg(self.products.draw(self.seed, probes, self.precision))
        z = solution.x * self.probes**-0.5
        return {"z": z, "residual": solution.residual, "steps": torch.tensor(solution.steps)}


def probes_at_once(head: Head, options: Sketch) -> int:
    """How many probes are solved for together."""
    precision, probes = precision_named(options.precision, head.device), options.probes
    products = HeadProducts(head, head.l2)
    width, k = products.shape
    exact = exact_for(precision, head.device)
    arrays = ARRAYS + (WIDER_ARRAYS if exact is not None and exact.dtype != precision.dtype else 0)
    fit = max(1, budget(options.memory, head) // 4 // (arrays * width * k * precision.dtype.itemsize))
    # fused passes want a record's numbers in a GPU's cache
    most = min(WORD if products.fused_rows else MOST_AT_ONCE, probes)
    if fit >= most:
        return most
    # below a word's signs as many in each block as in every other
    return fit // WORD * WORD or -(-probes // -(-probes // fit))


def _separate(
    u: torch.Tensor, own: torch.Tensor, diagonal: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """B of separate outputs (s, 1, s, 1, m·N), and I − W^½ B W^½ (m·N, s, s) from what the records' own signs leave
    over, where there are probes enough for that."""
    u, own = u.to(torch.float64).transpose(1, 2), own.to(torch.float64).transpose(1, 2)  # (N, k, s, q)
    n, k, s, q = u.shape
    m = diagonal.shape[2]
    root = (diagonal[:, :, :k] * weight.unsqueeze(2)).sqrt().transpose(1, 2).unsqueeze(3)  # (N, k, s, 1)
    block, rest = u @ u.mT, own * q**-0.5 - root * u
    complement = rest @ rest.mT
    if s == 1:  # what is one together stays one, and neither leaves [0, 1]
        both = root * root * block + complement
        block, complement = block / both, complement / both
    complement = complement * (q / max(1, q - s - 1))  # the inverse of an estimate is too large on average
    block = block.permute(2, 3, 1, 0).expand(s, s, m, n).reshape(s, 1, s, 1, m * n)
    complement = complement.transpose(0, 1).expand(m, n, s, s).reshape(m * n, s, s)
    return block, complement if q >= 4 * s else None


class ExactSteps(NamedTuple):
    """B(s g) of N groups (N, s, m), their step of leaving out, and the true residual of either solve, the larger."""

    image: torch.Tensor
    left_out: LeaveOutStep
    residual: torch.Tensor


def exact_steps(
    curvature: SketchedCurvature,
    window: Window,
    gradient: torch.Tensor,
    total: torch.Tensor | None = None,
    drift: torch.Tensor | None = None,
) -> ExactSteps:
    """Solve for the steps of groups with gradients g (N, s, m); `drift` is H⁻¹ `total`, of a head not at its
    optimum."""
    products, loss = curvature.products, curvature.loss
    n, s, _ = gradient.shape
    x = window.rows(torch.float64, products.width).view(n, s, -1)
    of_outputs = loss.curvature(window.outputs.to(torch.float64).view(n, s, -1))
    weight = window.weights.view(n, s, 1)

    def curve(v: torch.Tensor) -> torch.Tensor:
        return weight * of_outputs.curve(of_outputs.contrast(v, -1), -1)

    first = torch.einsum("nsd,nsm->dmn", x, weight * gradient)
    padding = products.width - window.width
    second = first if total is None else first - torch.nn.functional.pad(total, (0, 0, 0, padding)).unsqueeze(2)
    right = torch.stack([first, second], 2)  # (D, m, 2, N)
    precision = curvature.precision if right.is_cuda else Precision("float64")
    exact = exact_for(precision, right.device)

    def apply(v: torch.Tensor, precision: Precision) -> torch.Tensor:
        """H v, less the groups' own terms in their second columns; v is (D, k, columns)."""
        result = products.apply(v.to(precision.dtype), precision).to(v.dtype)
        outputs = torch.einsum("nsd,dmn->nsm", x, v.view(right.shape)[:, :, 1].to(torch.float64))
        own = torch.einsum("nsd,nsm->dmn", x, CAP * curve(outputs))
        result.view(right.shape)[:, :, 1] -= own.to(v.dtype)
        return result

    solution = column_cg(
        lambda v: apply(v, precision),
        right.reshape(len(right), products.k, -1).to(precision.dtype),
        precondition=curvature.precondition,
        tolerance=min(curvature.tolerance, OWN_TOLERANCE if exact is None else ROUGH_TOLERANCE),
        most_steps=OWN_STEPS,
        exact_product=None if exact is None else lambda v: apply(v, exact),
        trusted=precision.trusted,
        allow_unconverged=True,
    )
    image, step = torch.einsum("nsd,dmcn->cnsm", x, solution.x.view(right.shape).to(x.dtype))
    norms = ((v * curve(v)).sum((1, 2)).clamp_min(0.0).sqrt() for v in (step, image))
    capped = next(norms) > LARGEST_STEP * next(norms)
    if drift is not None:
        step = step + torch.einsum("nsd,dm->nsm", x[..., : len(drift)], drift)
    return ExactSteps(image, LeaveOutStep(step, capped), solution.residual.view(-1, 2, n).amax((0, 1)))
