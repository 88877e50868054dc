"""Leave-one-out distinguishability: how far a process's predictions without a record lie from those with it.

D is the data without, D′ with the record(s). The C outputs are independent and share their covariance, so the terms of
the Kullback–Leibler divergence that come from the covariances count C times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_choice, check_finite, check_memory, check_names, fail
from giveaway.gp.kernels import RBF, Kernel, KernelLike, Laplace, Linear, Sphere
from giveaway.gp.leave_one_out import leave_groups_out, leave_one_out
from giveaway.gp.nngp import NNGP, NTK, ConvNNGP, ConvNTK
from giveaway.gp.posterior import Posterior, RemovedRecords, check_noise, fit
from giveaway.records import ScoreTable
from giveaway.records.meta import KernelReport, Meta

SINGULAR = 1e-12  # share of a query's variance, given the queries before it, that may be rounding
SERIES = 16  # terms of 2·artanh(t)/t for |t| ≤ 1/3: what is left out is below 1/9¹⁶
KINDS: dict[str, type[Kernel]] = {
    "rbf": RBF,
    "laplace": Laplace,
    "linear": Linear,
    "nngp": NNGP,
    "ntk": NTK,
    "conv_nngp": ConvNNGP,
    "conv_ntk": ConvNTK,
}
DEPTH = 3
NOISE = 0.05  # of targets around 0 with variance 1, or of one-hot classes
SAMPLED = 1_000  # records whose distances give the typical length


@dataclass(frozen=True)
class KernelChoice:
    """A kernel in words; None takes the kernel's own default.

    `length` of rbf and laplace is the median distance between records unless given. `sphere` centres every record on
    its own mean and scales it to ‖x‖² = d first.
    """

    name: str
    length: float | None = None
    depth: int | None = None
    activation: str | None = None
    weight_variance: float | None = None
    bias_variance: float | None = None
    filter_size: int | None = None
    stride: int | None = None
    padding: str | None = None
    readout: str | None = None
    sphere: bool = False

    def options(self) -> dict[str, Any]:
        """Return what was given beside the name; refuse what the kernel does not take."""
        check_choice("kernel", self.name, KINDS)
        named = [field.name for field in fields(self) if field.name not in ("name", "sphere")]
        given = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        for name in given:
            if name not in signature(KINDS[self.name]).parameters:
                fit = ", ".join(kernel for kernel, kind in KINDS.items() if name in signature(kind).parameters)
                raise fail(name, f"one of the kernels {fit}", self.name, f"drop {name}, or choose another kernel")
        return given

    def kernel(self, inputs: torch.Tensor) -> Kernel:
        """Make the kernel for these inputs (n, …)."""
        options, takes = self.options(), signature(KINDS[self.name]).parameters
        if "length" in takes and "length" not in options:
            options["length"] = median_distance(Sphere(Linear(), centre=True).map(inputs) if self.sphere else inputs)
        if "depth" in takes:
            options.setdefault("depth", DEPTH)
        made = KINDS[self.name](**options)
        return Sphere(made, centre=True) if self.sphere else made


KernelGiven = str | KernelChoice | KernelLike
IMAGES_BY_DEFAULT, COLUMNS_BY_DEFAULT = KernelChoice("nngp", sphere=True), KernelChoice("rbf")


@dataclass(frozen=True)
class Process:
    """A Gaussian process: a kernel, and the variance `noise` of the targets around the function.

    `kernel` is any callable (X, Z) -> K, one of `ga.gp`, a KernelChoice, or its name; None takes an RBF kernel of the
    median distance for the columns of a matrix, and an NNGP on the sphere for images.
    """

    kernel: KernelGiven | None = None
    noise: float = NOISE

    def __post_init__(self) -> None:
        check_noise(self.noise)
        choice = KernelChoice(self.kernel) if isinstance(self.kernel, str) else self.kernel
        if isinstance(choice, KernelChoice):
            choice.options()
        elif choice is not None and (isinstance(choice, type) or not callable(choice)):
            raise fail("kernel", "a kernel's name, or a callable (X, Z) -> K", repr(choice), "give one such as 'rbf'")

    def fit(self, inputs: Any, targets: Any, *, device: str | torch.device | None = None) -> Posterior:
        """Fit the process to inputs (n, …) and targets as `lood` takes them."""
        x = as_tensor("inputs", inputs).to(device=device, dtype=torch.float64)
        if x.ndim < 2 or len(x) == 0:
            raise fail("inputs", "records as (n, …)", f"shape {tuple(x.shape)}", "give one record a row")
        check_finite("inputs", x)
        if x.device.type == "cpu":
            check_memory(
                "inputs",
                22 * len(x) ** 2,
                what="matrices of records × records",
                got=f"{len(x)} records",
                remedy="take a sample of them, or a machine with more memory",
            )
        kernel = self.kernel
        if kernel is None:
            kernel = COLUMNS_BY_DEFAULT if x.ndim == 2 else IMAGES_BY_DEFAULT
        choice = KernelChoice(kernel) if isinstance(kernel, str) else kernel
        made = choice.kernel(x) if isinstance(choice, KernelChoice) else choice
        return fit(made, x, centred_targets(targets), self.noise)


def lood(
    kernel: KernelGiven,
    inputs: Any,
    targets: Any,
    noise: float,
    *,
    groups: Any = None,
    ids: Any = None,
    device: str | torch.device | None = None,
) -> ScoreTable:
    """Measure, for every record, how far a Gaussian process's prediction of it moves when the record is left out.

    Parameters
    ----------
    kernel : any callable (X, Z) -> K, one of `ga.gp`, a KernelChoice, or a name: rbf, laplace, linear, nngp, ntk,
        conv_nngp, conv_ntk (defaults; images as (n, channels, height, width) for the last two).
    inputs : (n, …) numbers. targets : (n,) or (n, C) values, taken as they are (the prior mean is 0), or (n,) integer
        classes, which become one-hot vectors minus 1/classes.
    noise : the variance σ² > 0 of the targets around the function.
    groups : the person each record belongs to; a row is then a person, all of whose records are left out together.

    Returns
    -------
    Columns `lood_kl`, KL(f without ‖ f with) at the record's own input, which no other query exceeds, and `lood_mean`,
    ½‖mean without − mean with‖² summed over outputs.

    Examples
    --------
    >>> import numpy as np, giveaway as ga
    >>> x = np.array([[0.0], [0.1], [0.2], [4.0]])
    >>> table = ga.lood("rbf", x, np.array([0.0, 0.0, 0.0, 1.0]), noise=0.1)
    >>> int(table.top(1).ids[0])
    3
    """
    began = time.perf_counter()
    posterior = Process(kernel, noise).fit(inputs, targets, device=device)
    table = lood_table(posterior, groups=groups, ids=ids)
    return replace(table, meta=replace(table.meta, seconds=round(time.perf_counter() - began, 3)))


def lood_table(posterior: Posterior, *, groups: Any = None, ids: Any = None) -> ScoreTable:
    """Make the table of `lood` from a posterior over all records."""
    n = len(posterior.inputs)
    if groups is None:
        names = np.arange(n) if ids is None else check_names("ids", ids, n, unique=True)
        members = None
    else:
        if ids is not None:
            raise fail("ids", "no ids beside groups", "both", "a row is a person: its name is the group's")
        names, members = rows_of_people(check_names("groups", groups, n, unique=False))
    distance = divergence(posterior, members)
    meta = Meta(
        unit="record" if groups is None else "person",
        rows=len(names),
        records=n,
        outputs=posterior.targets.shape[1],
        kernel=KernelReport(name=repr(posterior.kernel), noise=posterior.noise, condition=posterior.condition),
    )
    columns = {"lood_kl": distance.kl.cpu().numpy(), "lood_mean": distance.mean.cpu().numpy()}
    return ScoreTable(scores=columns, ids=names, meta=meta)


@dataclass(frozen=True, eq=False)
class Divergence:
    """Distances `kl` = KL(f_D(Q) ‖ f_D′(Q)) and `mean` = ½‖μ_D(Q) − μ_D′(Q)‖², one of each a record or group."""

    kl: torch.Tensor
    mean: torch.Tensor


def divergence(posterior: Posterior, groups: Sequence[Any] | None = None) -> Divergence:
    """Measure every record (or group) at Q = its own inputs; the order is that of the records (or groups).

    No query tells more: f_D′ is f_D given one more noisy sight of f(S), so the likelihood ratio of the two whole
    processes depends on f(S) alone and KL(Q) ≤ KL(S) for any queries Q and any kernel. (The mean distance can be
    larger elsewhere.)
    """
    outputs = posterior.targets.shape[1]
    if groups is None:
        single = leave_one_out(posterior)
        excess = single.variance / posterior.noise
        pull = -(single.mean_change * single.residual).sum(1) / posterior.noise
        kl = (outputs * x_minus_log1p(excess) + pull) / 2
        return Divergence(kl, mean_distance(single.mean_change.unsqueeze(1)))
    kl, mean = (posterior.factor.new_empty(len(groups)) for _ in range(2))
    for part in leave_groups_out(posterior, groups):
        excess = torch.linalg.eigvalsh(part.covariance / posterior.noise).clamp_min(0.0)
        pull = -(part.mean_change * part.residual).sum((1, 2)) / posterior.noise
        kl[part.place] = (outputs * x_minus_log1p(excess).sum(1) + pull) / 2
        mean[part.place] = mean_distance(part.mean_change)
    return Divergence(kl, mean)


def divergence_at(removal: RemovedRecords, queries: torch.Tensor) -> Divergence:
    """Measure every removal at its queries (R, q, …) or (1, q, …): (R,) each, differentiable in the queries."""
    mean_change, excess, with_ = removal.change(queries)
    return Divergence(kl_of_change(mean_change, excess, with_), mean_distance(mean_change))


def kl_of_change(mean_change: torch.Tensor, excess: torch.Tensor, with_: torch.Tensor) -> torch.Tensor:
    """Compute the divergence (…) of what `RemovedRecords.change` returns, with no difference of covariances."""
    shift, spread = whitened(mean_change, excess, with_)
    gram = spread.mT @ spread if spread.shape[-1] < spread.shape[-2] else spread @ spread.mT
    x = gram[..., 0] if gram.shape[-1] == 1 else torch.linalg.eigvalsh(gram).clamp_min(0.0)
    return (mean_change.shape[-1] * x_minus_log1p(x).sum(-1) + shift.square().sum((-2, -1))) / 2


def gaussian_kl(mean_change: torch.Tensor, without: torch.Tensor, with_: torch.Tensor) -> torch.Tensor:
    """Sum KL(N(m, without) ‖ N(m′, with_)) over C outputs: mean_change m − m′ (…, q, C), covariances (…, q, q).

    With W the difference of the covariances whitened by with_, and x its eigenvalues, it is
    ½(C Σ(x − log(1 + x)) + ‖whitened mean change‖²): near-equal covariances do not cancel.
    """
    root = cholesky_of("with_", with_)
    half = torch.linalg.solve_triangular(root, without - with_, upper=False)
    w = torch.linalg.solve_triangular(root, half.mT, upper=False)
    x = w[..., 0] if w.shape[-1] == 1 else torch.linalg.eigvalsh((w + w.mT) / 2)
    if bool((x <= -1.0).any()):
        raise fail("without", "positive definite covariances", "one that is not", "drop repeated queries")
    shift = torch.linalg.solve_triangular(root, mean_change, upper=False)
    return (mean_change.shape[-1] * x_minus_log1p(x).sum(-1) + shift.square().sum((-2, -1))) / 2


def mean_distance(mean_change: torch.Tensor) -> torch.Tensor:
    """Sum ½(μ_D − μ_D′)² over queries and outputs, (…, q, C) → (…)."""
    return mean_change.square().sum((-2, -1)) / 2


def whitened(mean_change: torch.Tensor, excess: torch.Tensor, with_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return L⁻¹ mean_change and L⁻¹ excess for L Lᵀ = with_."""
    root = cholesky_of("queries", with_)
    both = torch.cat([mean_change, excess], dim=-1)
    solved = torch.linalg.solve_triangular(root.expand(*both.shape[:-2], -1, -1), both, upper=False)
    return solved[..., : mean_change.shape[-1]], solved[..., mean_change.shape[-1] :]


def cholesky_of(argument: str, covariance: torch.Tensor) -> torch.Tensor:
    """Factor predictive covariances; where that is impossible, the error names the first."""
    root, info = torch.linalg.cholesky_ex(covariance)
    left = root.diagonal(dim1=-2, dim2=-1).square()
    bad = (info != 0) | (left <= SINGULAR * covariance.diagonal(dim1=-2, dim2=-1)).any(-1)
    if bool(bad.any()):
        first = int(bad.reshape(-1).nonzero()[0])
        raise fail(
            argument,
            "positive definite predictive covariances",
            f"one that is not, in place {first}",
            "drop queries that repeat one another or that the records determine, or raise noise",
        )
    return root


def x_minus_log1p(x: torch.Tensor) -> torch.Tensor:
    """Return x − log(1 + x) for x > −1, to full relative precision near 0, where it is x²/2.

    With t = x/(2 + x): log(1 + x) = 2·artanh(t) and x − 2t = x·t, so it is t·(x − 2t²(1/3 + t²/5 + …)).
    """
    near = (x > -0.5) & (x < 1.0)
    small = torch.where(near, x, 0.0)
    t = small / (2.0 + small)
    square = t.square()
    tail = torch.zeros_like(t)
    for k in range(2 * SERIES + 1, 1, -2):
        tail = 1.0 / k + square * tail
    return torch.where(near, t * (small - 2.0 * square * tail), x - torch.log1p(torch.where(near, 1.0, x)))


def centred_targets(targets: Any) -> torch.Tensor:
    """Return values as float64, and integer classes (n,) as one-hot vectors minus 1/classes, an even guess."""
    y = as_tensor("targets", targets)
    if y.is_floating_point() or y.ndim != 1 or len(y) == 0:
        return y.to(torch.float64)
    if int(y.min()) < 0:
        raise fail("targets", "classes numbered from 0", f"class {int(y.min())}", "number them, or give floats")
    classes = int(y.max()) + 1
    check_memory(
        "targets",
        3 * 8 * len(y) * classes,
        what="one-hot classes",
        got=f"classes up to {classes - 1}",
        remedy="number the classes from 0 without gaps, or give values as floats",
    )
    return torch.nn.functional.one_hot(y.long(), classes).to(torch.float64) - 1.0 / classes


def rows_of_people(groups: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the distinct names and the rows of each."""
    names, person, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return names, np.split(np.argsort(person, kind="stable"), np.cumsum(counts)[:-1])


def median_distance(inputs: torch.Tensor) -> float:
    """Return the median distance between up to 1,000 evenly spaced records that are apart; 1 where none are."""
    step = -(-len(inputs) // SAMPLED)
    chosen = inputs[::step].flatten(1).to(torch.float64)
    distances = torch.pdist(chosen)
    apart = distances[distances > 0]
    return float(apart.quantile(0.5)) if len(apart) else 1.0
