"""Leave-one-out distinguishability: how far a process's predictions without a record lie from those with it.

D is the data without, D′ with the record(s). The C outputs are independent and share their covariance, so the terms of
the Kullback–Leibler divergence that come from the covariances count C times.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from giveaway.checks import as_tensor, check_memory, check_names, fail
from giveaway.gp.kernels import KernelLike
from giveaway.gp.nngp import KernelChoice
from giveaway.gp.posterior import (
    KernelRegression,
    Posterior,
    as_records,
    check_noise,
    check_rows,
    fit,
    leave_groups_out,
    leave_one_out,
)
from giveaway.gp.ridge import centred_targets, rows_of_people
from giveaway.records import ScoreTable
from giveaway.records.meta import KernelReport, Meta
from giveaway.text import OnStage, quiet, stages_of

SINGULAR = 1e-12  # share of a query's variance, given the queries before it, that may be rounding
REPEATED = 1e-8  # share below which a search takes them for one query
SERIES = 16  # terms of 2·artanh(t)/t for |t| ≤ 1/3: what is left out is below 1/9¹⁶
NOISE = 0.05  # of targets around 0 with variance 1, or of one-hot classes

KernelGiven = str | KernelChoice | KernelLike
Objective = Literal["kl", "mean"]
IMAGES_BY_DEFAULT, COLUMNS_BY_DEFAULT = KernelChoice("nngp", sphere=True), KernelChoice("rbf")


@dataclass(frozen=True)
class Process:
    """A kernel (a callable (X, Z) -> K, a KernelChoice or its name) and the variance `noise` of the targets around the
    function; None takes an RBF of the median distance for a matrix, an NNGP on the sphere for images."""

    kernel: KernelGiven | None = None
    noise: float = NOISE

    def __post_init__(self) -> None:
        check_noise(self.noise)
        choice = KernelChoice(self.kernel) if isinstance(self.kernel, str) else self.kernel
        if isinstance(choice, KernelChoice):
            choice.options()
        elif choice is not None and (isinstance(choice, type) or not callable(choice)):
            raise fail("kernel", "a kernel's name, or a callable (X, Z) -> K", repr(choice), "give one such as 'rbf'")

    def kernel_for(self, x: torch.Tensor) -> KernelLike:
        """Return the kernel itself, whose defaults may depend on the records."""
        kernel = KernelChoice(self.kernel) if isinstance(self.kernel, str) else self.kernel
        if kernel is None:
            kernel = COLUMNS_BY_DEFAULT if x.ndim == 2 else IMAGES_BY_DEFAULT
        return kernel.kernel(x) if isinstance(kernel, KernelChoice) else kernel

    def fit(
        self, inputs: Any, targets: Any, *, device: str | torch.device | None = None, on_stage: OnStage = quiet
    ) -> Posterior:
        """Fit the process to inputs (n, …) and targets as `lood` takes them."""
        x = as_records(inputs, device)
        if x.device.type == "cpu":
            what, remedy = "matrices of records × records", "take a sample of them, or a machine with more memory"
            check_memory("inputs", 22 * len(x) ** 2, what=what, got=f"{len(x)} records", remedy=remedy)
        return fit(self.kernel_for(x), x, centred_targets(targets), self.noise, on_stage)


def lood(
    kernel: KernelGiven | None,
    inputs: Any,
    targets: Any,
    noise: float,
    *,
    groups: Any = None,
    ids: Any = None,
    device: str | torch.device | None = None,
    progress: bool | None = None,
) -> ScoreTable:
    """Measure, for every record, how far a Gaussian process's prediction of it moves when the record is left out.

    kernel : any callable (X, Z) -> K, one of `ga.gp`, a KernelChoice, or a name: rbf, laplace, linear, nngp,
        conv_nngp (defaults; images as (n, channels, height, width) for the last). None takes an RBF kernel of the
        median distance for a matrix, and an NNGP on the sphere for images.
    inputs : (n, …) numbers. targets : (n,) or (n, C) values, taken as they are (the prior mean is 0), or (n,) integer
        classes, which become one-hot vectors minus 1/classes.
    noise : the variance σ² > 0 of the targets around the function.
    groups : the person each record belongs to; a row is then a person, all of whose records are left out together.
    progress : show what is done on stderr; by default in a terminal and in a notebook.

    Columns `lood_kl`, KL(f without ‖ f with) at the record's own input, which no other query exceeds, and `lood_mean`,
    ½‖mean without − mean with‖² summed over outputs.

    >>> import numpy as np, giveaway as ga
    >>> x = np.array([[0.0], [0.1], [0.2], [4.0]])
    >>> table = ga.lood("rbf", x, np.array([0.0, 0.0, 0.0, 1.0]), noise=0.1)
    >>> int(table.top(1).ids[0])
    3
    """
    if groups is not None and ids is not None:
        raise fail("ids", "no ids beside groups", "both", "a row is a person: its name is the group's")
    began = time.perf_counter()
    with stages_of(enabled=progress) as on_stage:
        posterior = Process(kernel, noise).fit(inputs, targets, device=device, on_stage=on_stage)
        on_stage("Gaussian process, leaving records out", 0, 1)
        n = len(posterior.inputs)
        names, members = np.arange(n) if ids is None else check_names("ids", ids, n, unique=True), None
        if groups is not None:
            names, members = rows_of_people(check_names("groups", groups, n, unique=False))
        distance = divergence(posterior, members)
    unit, outputs = "record" if groups is None else "person", posterior.targets.shape[1]
    used = KernelReport(name=repr(posterior.kernel), noise=posterior.noise, condition=posterior.condition)
    columns = {"lood_kl": distance.kl.cpu().numpy(), "lood_mean": distance.mean.cpu().numpy()}
    seconds = round(time.perf_counter() - began, 3)
    meta = Meta(unit=unit, rows=len(names), records=n, outputs=outputs, kernel=used, seconds=seconds)
    return ScoreTable(scores=columns, ids=names, meta=meta)


@dataclass(frozen=True, eq=False)
class Divergence:
    """Distances `kl` = KL(f_D(Q) ‖ f_D′(Q)), `mean` = ½‖μ_D(Q) − μ_D′(Q)‖² and `reverse` = KL(f_D′(Q) ‖ f_D(Q)), one of
    each a record or group."""

    kl: torch.Tensor
    mean: torch.Tensor
    reverse: torch.Tensor


def divergence(regression: KernelRegression, groups: Sequence[Any] | None = None) -> Divergence:
    """Measure every record (or group) at Q = its own inputs, where the divergence is largest (docs/derivations.md)."""
    outputs, noise = regression.targets.shape[1], regression.noise
    if groups is None:
        single = leave_one_out(regression)
        pull, x = -(single.mean_change * single.residual).sum(1) / noise, single.variance / noise
        reverse = (outputs * x_minus_log1p(-x / (1.0 + x)) + pull / (1.0 + x)) / 2
        kl = (outputs * x_minus_log1p(x) + pull) / 2
        return Divergence(kl, mean_distance(single.mean_change.unsqueeze(1)), reverse)
    kl, mean, reverse = (regression.factor.new_empty(len(groups)) for _ in range(3))
    for part in leave_groups_out(regression, groups):
        excess = torch.linalg.eigvalsh(part.covariance / noise).clamp_min(0.0)
        pull = -(part.mean_change * part.residual).sum((1, 2)) / noise
        kl[part.place] = (outputs * x_minus_log1p(excess).sum(1) + pull) / 2
        mean[part.place] = mean_distance(part.mean_change)
        back = torch.linalg.solve(part.covariance + noise * torch.eye(excess.shape[1]).to(excess), part.residual)
        pull = -(part.mean_change * back).sum((1, 2))
        reverse[part.place] = (outputs * x_minus_log1p(-excess / (1.0 + excess)).sum(1) + pull) / 2
    return Divergence(kl, mean, reverse)


@dataclass(frozen=True, eq=False)
class RemovedRecords:
    """R removals of s records each, `rows` (R, s), from one posterior, seen from queries (R, q, …) or (1, q, …) in O(n)
    each, differentiably. With S the rows and A = M⁻¹[S, S], `columns` (R, n, s) is U = M⁻¹[:, S], `root` (R, s, s) has
    root rootᵀ = A⁻¹, and `step` (R, n, C) is U A⁻¹ w_S: K(Q, X) step is the mean with less that without, and K(Q, X) U
    root is a root of the covariance without less that with."""

    posterior: Posterior
    rows: torch.Tensor
    columns: torch.Tensor
    root: torch.Tensor
    step: torch.Tensor

    @property
    def inputs(self) -> torch.Tensor:
        return self.posterior.inputs

    def change(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the mean change (R, q, C), E (R, q, s) and the covariance with the records (R or 1, q, q). E Eᵀ is the
        excess without them: the difference of the two covariances would cancel."""
        q = self.posterior.as_queries(queries, len(self.rows))
        cross = self._cross(q)
        return -cross @ self.step, cross @ (self.columns @ self.root), self.posterior.covariances(q, cross)

    def measure(self, objective: Objective, owner: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """Return one distance (p,) of the removals `owner` at queries (p, q, …); NaN where queries (nearly) repeat."""
        if objective == "mean":
            return mean_distance(self._cross(queries) @ self.step[owner])
        chosen = {name: getattr(self, name)[owner] for name in ("rows", "columns", "root", "step")}
        mean_change, excess, with_ = replace(self, **chosen).change(queries)
        bad = factored(with_.detach(), REPEATED)[1]
        usable = torch.where(bad[:, None, None], torch.eye(with_.shape[-1]).to(with_), with_)
        return torch.where(bad, math.nan, kl_of_change(mean_change, excess, usable))

    def own(self, objective: Objective) -> torch.Tensor:
        """Return the distance (R,) of every removal at the removed records themselves."""
        return getattr(divergence(self.posterior, list(self.rows)), objective)

    def _cross(self, queries: torch.Tensor) -> torch.Tensor:
        return self.posterior.cross(queries.flatten(0, 1)).view(*queries.shape[:2], -1)


def remove(posterior: Posterior, rows: Any) -> RemovedRecords:
    """Prepare R removals of the records `rows` (R, s), or of single records `rows` (R,): 2n² operations a record."""
    n = len(posterior.factor)
    index = as_tensor("rows", rows)
    index = index.unsqueeze(1) if index.ndim == 1 else index
    if index.ndim != 2 or index.numel() == 0:
        raise fail("rows", "shape (R, s) or (R,), not empty", f"shape {tuple(index.shape)}", "give s rows a removal")
    count, size = index.shape
    index = check_rows("rows", index.flatten().cpu().numpy(), [size] * count, n).view(count, size)
    index = index.to(posterior.factor.device)
    unit = posterior.factor.new_zeros(n, count * size)
    unit[index.flatten(), torch.arange(count * size, device=unit.device)] = 1.0
    columns = torch.cholesky_solve(unit, posterior.factor).view(n, count, size).transpose(0, 1)
    block = columns.gather(1, index.unsqueeze(2).expand(-1, -1, size))
    factor = torch.linalg.cholesky((block + block.mT) / 2)
    root = torch.linalg.solve_triangular(factor, torch.eye(size).to(factor), upper=False).mT
    step = columns @ (root @ (root.mT @ posterior.weights[index]))
    return RemovedRecords(posterior, index, columns, root, step)


def divergence_at(removal: RemovedRecords, queries: torch.Tensor) -> Divergence:
    """Measure every removal at its queries (R, q, …) or (1, q, …): (R,) each, differentiable in the queries."""
    mean_change, excess, with_ = removal.change(queries)
    kl, reverse = (kl_of_change(mean_change, excess, with_, back) for back in (False, True))
    return Divergence(kl, mean_distance(mean_change), reverse)


def kl_of_change(
    mean_change: torch.Tensor, excess: torch.Tensor, with_: torch.Tensor, reverse: bool = False
) -> torch.Tensor:
    """Compute the divergence (…) of what `RemovedRecords.change` returns, with no difference of covariances."""
    shift, spread = whitened(mean_change, excess, with_)
    gram = spread.mT @ spread if spread.shape[-1] < spread.shape[-2] else spread @ spread.mT
    x = gram[..., 0] if gram.shape[-1] == 1 else torch.linalg.eigvalsh(gram).clamp_min(0.0)
    pulled = shift
    if reverse:
        pulled = torch.linalg.solve(spread @ spread.mT + torch.eye(shift.shape[-2]).to(shift), shift)
        x = -x / (1.0 + x)
    return (mean_change.shape[-1] * x_minus_log1p(x).sum(-1) + (shift * pulled).sum((-2, -1))) / 2


def mean_distance(mean_change: torch.Tensor) -> torch.Tensor:
    """Sum ½(μ_D − μ_D′)² over queries and outputs, (…, q, C) → (…)."""
    return mean_change.square().sum((-2, -1)) / 2


def whitened(mean_change: torch.Tensor, excess: torch.Tensor, with_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return L⁻¹ mean_change and L⁻¹ excess for L Lᵀ = with_; refuse queries of which that is singular."""
    root, bad = factored(with_, SINGULAR)
    if bool(bad.any()):
        got = f"one that is not, in place {int(bad.reshape(-1).nonzero()[0])}"
        remedy = "drop queries that repeat one another or that the records determine, or raise noise"
        raise fail("queries", "positive definite predictive covariances", got, remedy)
    both = torch.cat([mean_change, excess], dim=-1)
    solved = torch.linalg.solve_triangular(root.expand(*both.shape[:-2], -1, -1), both, upper=False)
    return solved[..., : mean_change.shape[-1]], solved[..., mean_change.shape[-1] :]


def factored(covariance: torch.Tensor, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Cholesky factors, and which leave a query with no more than a `share` of its variance."""
    root, info = torch.linalg.cholesky_ex(covariance)
    left = root.diagonal(dim1=-2, dim2=-1).square()
    return root, (info != 0) | ~(left > share * covariance.diagonal(dim1=-2, dim2=-1)).all(-1)


def x_minus_log1p(x: torch.Tensor) -> torch.Tensor:
    """Return x − log(1 + x) for x > −1, to full relative precision near 0, where it is x²/2."""
    near = (x > -0.5) & (x < 1.0)
    small = torch.where(near, x, 0.0)
    t = small / (2.0 + small)
    square = t.square()
    tail = torch.zeros_like(t)
    for k in range(2 * SERIES + 1, 1, -2):
        tail = 1.0 / k + square * tail
    return torch.where(near, t * (small - 2.0 * square * tail), x - torch.log1p(torch.where(near, 1.0, x)))
