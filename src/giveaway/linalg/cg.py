"""Preconditioned conjugate gradients for many right sides, with a true residual for each (docs/derivations.md)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from giveaway.linalg.precision import tf32_products

CONVERGED, RAN_OUT, NEGATIVE = "converged", "steps", "negative curvature"
STALLED_AT = 0.9  # of the true residual before: what a rough product no longer improves
STALLS = 3
DONE = 0.3  # of the tolerance, below which a column is left alone
NUMBERS_AT_ONCE = 1 << 21  # converted to float64 at a time
LEAST_SPREAD = 1e-12  # of a block's directions in float64, below which they count as one
WORN = 0.1  # deviation from conjugacy at which a block's directions are made anew

Product = Callable[[torch.Tensor], torch.Tensor]


class SolveError(RuntimeError):
    """An iterative solve did not reach its tolerance; the message is one line and says what to do."""


@dataclass(frozen=True)
class Solution:
    """The solution x of an iterative solve, and for every column its true relative residual and how it ended."""

    x: torch.Tensor
    residual: torch.Tensor
    steps: int
    status: tuple[str, ...]

    def checked(self, tolerance: float, *, allow_unconverged: bool) -> "Solution":
        """Return this solution; raise SolveError if a column did not converge, unless that is allowed."""
        if allow_unconverged or all(status == CONVERGED for status in self.status):
            return self
        columns, negative = len(self.status), self.status.count(NEGATIVE)
        if negative:
            raise SolveError(
                f"solve: expected a curvature that is nowhere negative, got {negative} of {columns} right sides along "
                "which it is; use the Gauss-Newton curvature, more damping (l2), or a higher precision"
            )
        worst = float(self.residual.max())
        raise SolveError(
            f"solve: expected a residual of {tolerance:g} for every right side, got {worst:.2g} for the worst of "
            f"{columns} after {self.steps} steps; allow more steps, a larger tolerance, or more damping"
        )


def column_cg(
    product: Product,
    right: torch.Tensor,
    *,
    precondition: Product | None = None,
    tolerance: float = 1e-3,
    most_steps: int = 200,
    exact_product: Product | None = None,
    trusted: float = 0.1,
    allow_unconverged: bool = False,
    on_step: Callable[[int], Any] = lambda step: None,
) -> Solution:
    """Solve A X = `right` for positive (semi-)definite A; stop when the worst column's residual is `tolerance`, else
    raise SolveError, unless `allow_unconverged`. Right sides stand in the last dimension; one along which A is not
    positive stops where it is. Products may be rough: with `exact_product` the residual is computed anew each time it
    has fallen by the factor `trusted`, and before a column counts as solved."""
    exact = product if exact_product is None else exact_product
    inverse = (lambda r: r) if precondition is None else precondition
    norms = _norms(right)
    scale = torch.where(norms > 0, norms, 1.0)
    x, r, relative = torch.zeros_like(right), right.clone(), norms / scale
    negative = torch.zeros_like(norms, dtype=torch.bool)
    z = inverse(r)
    direction, rz = z.clone(), _dots(r, z)
    last_true, stalls, steps = _worst(relative, negative), 0, 0
    while last_true > tolerance and steps < most_steps and stalls < STALLS:
        image = product(direction)
        curvature = _dots(direction, image)
        negative |= (curvature <= 0) & (rz > 0) & (relative > tolerance)
        # a solved column stays where it is: following the rounding that is left of it would lead away
        going = (curvature > 0) & ~negative & (relative > DONE * tolerance)
        length = torch.where(going, rz / torch.where(going, curvature, 1.0), 0.0)
        x.addcmul_(direction, length)
        r.addcmul_(image, length, value=-1)
        steps += 1
        on_step(steps)
        relative = _norms(r) / scale
        worst = _worst(relative, negative)
        doubtful = exact_product is not None and worst <= trusted * last_true
        if doubtful or worst <= tolerance or steps == most_steps:
            del r  # before the product takes its space
            r = right - exact(x)
            relative = _norms(r) / scale
            before, last_true = last_true, _worst(relative, negative)
            stalls = stalls + 1 if last_true > STALLED_AT * before else 0
        z = inverse(r)
        # from the change of the residual: equal to Fletcher and Reeves for exact products, forgiving for rough ones
        turned = -length * _dots(z, image) / torch.where(rz > 0, rz, 1.0)
        rz = _dots(r, z)
        direction.mul_(turned).add_(z)
        del z
    ended = zip(negative.tolist(), relative.tolist(), strict=True)
    status = tuple(NEGATIVE if bad else CONVERGED if at <= tolerance else RAN_OUT for bad, at in ended)
    return Solution(x, relative, steps, status).checked(tolerance, allow_unconverged=allow_unconverged)


def _dots(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).flatten(0, -2).sum(0)


def _norms(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(a.flatten(0, -2), dim=0)


def _worst(relative: torch.Tensor, negative: torch.Tensor) -> float:
    return float(torch.where(negative, 0.0, relative).max())


def shared_cg(
    product: Product,
    right: torch.Tensor,
    *,
    precondition: Product | None = None,
    tolerance: float = 1e-3,
    most_steps: int = 200,
    allow_unconverged: bool = False,
    on_step: Callable[[int], Any] = lambda step: None,
) -> Solution:
    """Solve A X = `right` (size, columns) for positive (semi-)definite A; stop when the worst true residual is
    `tolerance`, else raise SolveError, unless `allow_unconverged`: then each column has the x with its least true
    residual."""
    inverse = (lambda r: r) if precondition is None else precondition
    norms = torch.linalg.vector_norm(right, dim=0)
    scale = torch.where(norms > 0, norms, 1.0)
    x, r = torch.zeros_like(right), right / scale
    best, residual = x, norms / scale  # the x with the least true residual of every column
    last, stalls, steps = float(residual.max()), 0, 0
    while float(residual.max()) > tolerance and steps < most_steps and stalls < STALLS:
        block = _Block(r, inverse)
        del r
        while True:
            residuals = block.step(product, x)
            steps += 1
            on_step(steps)
            if steps == most_steps or block.worn or float(residuals.max()) <= tolerance:
                break
        excused = block.worn or block.dropped
        del block  # before the product takes its space
        r = torch.sub(right / scale, product(x))
        now = torch.linalg.vector_norm(r, dim=0)
        best = torch.where(now < residual, x, 0.0 if best is x else best)
        residual = torch.minimum(now, residual)
        before, last = last, float(now.max())
        stalls = stalls + 1 if last > STALLED_AT * before and not excused else 0
    status = tuple(CONVERGED if at <= tolerance else RAN_OUT for at in residual.tolist())
    return Solution(best.mul_(scale), residual, steps, status).checked(tolerance, allow_unconverged=allow_unconverged)


class _Block:
    """Residuals as R = W σ with WᵀM⁻¹W = I: without their lengths, directions stay distinct while residuals shrink."""

    def __init__(self, r: torch.Tensor, inverse: Product) -> None:
        self._inverse = inverse
        self._w, self._directions, self._sigma = _orthonormal(r, inverse(r))
        self.dropped, self.worn = self._w.shape[1] < r.shape[1], False

    def step(self, product: Product, x: torch.Tensor) -> torch.Tensor:
        """Add to x the part of the solution that lies along the block's directions; return the residuals' norms."""
        images = product(self._directions)
        # the inverse of the curvature along the directions, without those that depend on the others
        scale, values, vectors = _spectrum(_gram(self._directions, images))
        distinct = values > torch.finfo(x.dtype).eps * values[-1:]
        turn = vectors[:, distinct] / scale.unsqueeze(1)
        form = (turn / values[distinct]) @ turn.T
        with tf32_products(False):
            x.addmm_(self._directions, (form @ self._sigma).to(x.dtype))
            left = self._w.addmm_(images, form.to(x.dtype), alpha=-1)
        del images
        self._w, turned, zeta = _orthonormal(left, self._inverse(left))
        self._directions = _times(self._directions, zeta.T).add_(turned)
        self._sigma = zeta @ self._sigma
        # the identity where the directions are conjugate
        between = _gram(self._directions, self._w)
        between.diagonal().sub_(1.0)
        self.worn = not bool((between.abs() <= WORN).all())
        return (_gram(self._w, self._w) @ self._sigma * self._sigma).sum(0).clamp_min(0.0).sqrt()


def _orthonormal(r: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return W, M⁻¹W and σ (float64) with r = W σ and WᵀM⁻¹W = I, for z = M⁻¹r, without shared directions."""
    sigma = torch.eye(r.shape[1], dtype=torch.float64, device=r.device)
    for _ in range(2):  # the second pass removes what rounding left of the first
        scale, values, vectors = _spectrum(_gram(r, z))
        distinct = values > max(10 * torch.finfo(r.dtype).eps, LEAST_SPREAD) * values[-1:]  # none where all is solved
        root, vectors = values[distinct].sqrt(), vectors[:, distinct]
        turn = vectors / (scale.unsqueeze(1) * root)
        r, z = _times(r, turn), _times(z, turn)
        sigma = root.unsqueeze(1) * (vectors.T @ (scale.unsqueeze(1) * sigma))
    return r, z, sigma


def _spectrum(form: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return c, and eigenvalues and -vectors of form / c cᵀ, whose diagonal is one: all columns count alike."""
    if not bool(form.isfinite().all()):
        raise SolveError("solve: expected finite products, got infinity or nan; use a wider dtype or more damping")
    diagonal = form.diagonal()
    scale = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
    values, vectors = torch.linalg.eigh(0.5 * (form + form.T) / (scale.unsqueeze(1) * scale))
    return scale, values, vectors


def _times(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a b in column-major layout, as the products have it."""
    with tf32_products(False):
        return (b.T.to(a.dtype) @ a.T).T


def _gram(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return aᵀ b in float64."""
    total = torch.zeros(a.shape[1], b.shape[1], dtype=torch.float64, device=a.device)
    rows = max(1, NUMBERS_AT_ONCE // max(1, a.shape[1], b.shape[1]))
    for one, other in zip(a.split(rows), b.split(rows), strict=True):
        total.addmm_(one.to(torch.float64).T, other.to(torch.float64))
    return total
