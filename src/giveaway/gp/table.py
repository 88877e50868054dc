"""Leave-one-out distinguishability of every record (or person) of a data set, as a table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, check_memory, check_names, fail
from giveaway.gp.divergence import lood as lood_of
from giveaway.gp.named_kernels import KernelChoice
from giveaway.gp.posterior import Posterior, fit
from giveaway.records import ScoreTable
from giveaway.records.meta import KernelReport, Meta

KernelGiven = str | KernelChoice | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


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
    """How far a Gaussian process's prediction of a record moves when the record is left out, for every record.

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
    table = table_of(fitted(kernel, inputs, targets, noise, device=device), groups=groups, ids=ids)
    return replace(table, meta=replace(table.meta, seconds=round(time.perf_counter() - began, 3)))


def table_of(posterior: Posterior, *, groups: Any = None, ids: Any = None) -> ScoreTable:
    """The table of `lood` from a posterior over all records."""
    n = len(posterior.inputs)
    if groups is None:
        names = np.arange(n) if ids is None else check_names("ids", ids, n, unique=True)
        members = None
    else:
        if ids is not None:
            raise fail("ids", "no ids beside groups", "both", "a row is a person: its name is the group's")
        names, members = people(check_names("groups", groups, n, unique=False))
    found = lood_of(posterior, members)
    meta = Meta(
        unit="record" if groups is None else "person",
        rows=len(names),
        records=n,
        outputs=posterior.targets.shape[1],
        kernel=KernelReport(name=repr(posterior.kernel), noise=posterior.noise, condition=posterior.condition),
    )
    columns = {"lood_kl": found.kl.cpu().numpy(), "lood_mean": found.mean.cpu().numpy()}
    return ScoreTable(scores=columns, ids=names, meta=meta)


def fitted(
    kernel: KernelGiven, inputs: Any, targets: Any, noise: float, *, device: str | torch.device | None = None
) -> Posterior:
    """The posterior of `lood`'s arguments."""
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
    choice = KernelChoice(kernel) if isinstance(kernel, str) else kernel
    if not isinstance(choice, KernelChoice) and (isinstance(choice, type) or not callable(choice)):
        raise fail("kernel", "a kernel's name, or a callable (X, Z) -> K", repr(choice), "give one such as 'rbf'")
    made = choice.kernel(x) if isinstance(choice, KernelChoice) else choice
    return fit(made, x, centred_targets(targets), noise)


def centred_targets(targets: Any) -> torch.Tensor:
    """Values as float64; integer classes (n,) as one-hot vectors minus 1/classes: the prior is an even guess."""
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


def people(groups: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The distinct names and the rows of each."""
    names, person, counts = np.unique(groups, return_inverse=True, return_counts=True)
    return names, np.split(np.argsort(person, kind="stable"), np.cumsum(counts)[:-1])
