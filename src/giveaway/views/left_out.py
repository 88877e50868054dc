"""What the other records predict for each record, by a kernel that never saw the trained model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from giveaway.checks import available_memory, check_finite
from giveaway.gp.leave_one_out import LeftOutErrors, kernel_regression, left_out_errors
from giveaway.gp.ridge import as_targets, check_row_count, leave_one_out_ridge, rows_of_groups
from giveaway.views.features import (
    RecordFeatures,
    Scaling,
    fourier_features,
    landmark_count,
    landmark_features,
    laplace_matrix,
    nearest,
    scaling_of,
)

EXACT_UP_TO = 30_000  # records whose whole kernel is factored
MATRICES = 2.2  # n × n in float64 that are alive in the factorization
SAMPLE = 4_096  # records that tell the columns' scale and the length
NOISES = tuple(10.0 ** (k / 2) for k in range(-8, 5))  # λ beside a kernel of 1 on the diagonal
CHOSEN_ON = 3_000  # records, at random, on which λ is chosen: a variance, it does not grow with n


@dataclass(frozen=True, eq=False)
class LeftOutPrediction:
    """Left-out errors y − ŷ (n, C), leverages (n,), what was done (for the metadata), and who is near.

    With groups, a group's records are left out together; the leverage stays the record's own. `nearest(rows, count)`
    gives the numbers (r, count) of the records whose features are nearest, −1 where there is none.
    """

    error: torch.Tensor
    leverage: torch.Tensor
    report: dict[str, Any]
    nearest: Callable[[Any, int], torch.Tensor]


def left_out_smooth(
    columns: RecordFeatures, targets: torch.Tensor, *, groups: Any = None, seed: int = 0
) -> LeftOutPrediction:
    """Leave out every record, or every group, of a table in turn: ridge regression on columns and Fourier features.

    `targets` (n, C) are around 0, the ridge is chosen by the squared left-out error.
    """
    y = as_targets(targets)
    check_row_count(columns.n, len(y))
    features, length = fourier_features(columns, seed=seed)
    ridge = leave_one_out_ridge(features, y, groups=groups)
    report = {"kernel": "rbf", "length": length, "method": f"Fourier features, {ridge.method}", "l2": ridge.l2}
    report["left_out_error"] = _relative(ridge.error, y)
    sample = columns.of(torch.randperm(columns.n, generator=torch.Generator().manual_seed(seed))[:SAMPLE])
    scaling = scaling_of(sample, standardize=True)
    return LeftOutPrediction(ridge.error, ridge.leverage, report, partial(_near, columns, scaling, torch.device("cpu")))


def left_out(
    features: RecordFeatures,
    targets: torch.Tensor,
    *,
    groups: Any = None,
    standardize: bool = True,
    device: torch.device | str = "cpu",
    exact: bool | None = None,
    seed: int = 0,
) -> LeftOutPrediction:
    """Leave out every record, or every group, of images or texts in turn: kernel ridge regression.

    `targets` (n, C) are around 0. The noise λ is chosen by the squared left-out error alone. Up to 30,000 records,
    memory allowing, the kernel is exact; beyond, or with exact=False, it is seen from landmarks.
    """
    targets, where = as_targets(targets), torch.device(device)
    n = len(targets)
    check_row_count(features.n, n)
    if exact is None:
        exact = n <= EXACT_UP_TO and (where.type != "cpu" or MATRICES * 8 * n * n <= available_memory())
    chosen = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:SAMPLE]
    sample = features.of(chosen).to(where)
    check_finite("features", sample)
    scaling = scaling_of(sample, standardize=standardize, shares=features.shares)
    if exact:
        members = [] if groups is None else [rows.to(where) for rows in rows_of_groups(groups, n).values()]
        rows = torch.cat([scaling.apply(block.to(where)) for block in features()])
        check_finite("features", rows)
        y = targets.to(where)
        noise = choose_noise(rows, y, scaling.length, members, seed=seed)
        exactly, noise = errors_of_rows(rows, y, scaling.length, noise, members)
        error, leverage = exactly.error.cpu(), exactly.leverage.cpu()
        report = {"method": "exact", "noise": noise, "noise_chosen_on": min(n, CHOSEN_ON)}
        features = RecordFeatures(n, rows.__getitem__, n)
        scaling = scaling.done()
    else:
        landmarks = scaling.apply(sample[: landmark_count(n)])
        blocks = landmark_features(features, landmarks, scaling)
        ridge = leave_one_out_ridge(blocks, targets, groups=groups, standardize=False)
        error, leverage = ridge.error, ridge.leverage
        report = {"method": "landmarks", "landmarks": len(landmarks), "l2": ridge.l2}
    report = {"kernel": "laplace", "length": scaling.length, **report}
    report["left_out_error"] = _relative(error, targets)
    return LeftOutPrediction(error, leverage, report, partial(_near, features, scaling, where))


def errors_of_rows(
    rows: torch.Tensor, targets: torch.Tensor, length: float, noise: float, members: Sequence[torch.Tensor] = ()
) -> tuple[LeftOutErrors, float]:
    """Return the left-out errors of scaled rows (n, d) and the λ used: the first of NOISES from `noise` on that works.

    Distances of very many records that are nearly the same are mostly rounding: their kernel has negative directions.
    """
    while True:
        kernel = laplace_matrix(rows, length)
        try:
            regression = kernel_regression(kernel, targets, noise, constant=True)
            del kernel
            return left_out_errors(regression, members), noise
        except torch.linalg.LinAlgError:
            if noise >= NOISES[-1]:
                raise
            noise = min(larger for larger in NOISES if larger > noise)


def choose_noise(
    rows: torch.Tensor, targets: torch.Tensor, length: float, members: Sequence[torch.Tensor], *, seed: int
) -> float:
    """Choose the λ of NOISES with the least squared left-out error on CHOSEN_ON records (whole groups)."""
    rows, targets, members = _some(rows, targets, members, seed)
    kernel = laplace_matrix(rows, length)

    def squared(noise: float) -> float:
        try:
            regression = kernel_regression(kernel, targets, noise, constant=True)
            return float(left_out_errors(regression, members).error.square().mean())
        except torch.linalg.LinAlgError:
            return math.inf

    return min(NOISES, key=squared)


def _some(
    rows: torch.Tensor, targets: torch.Tensor, members: Sequence[torch.Tensor], seed: int
) -> tuple[torch.Tensor, torch.Tensor, Sequence[torch.Tensor]]:
    """Draw CHOSEN_ON records, or groups that have as many together, at least two."""
    n = len(rows)
    if n <= CHOSEN_ON:
        return rows, targets, members
    generator = torch.Generator().manual_seed(seed)
    if not members:
        chosen = torch.randperm(n, generator=generator)[:CHOSEN_ON].to(rows.device)
        return rows[chosen], targets[chosen], ()
    sizes = torch.cat([torch.full((len(groups),), groups.shape[1]) for groups in members])
    taken = torch.zeros(len(sizes), dtype=torch.bool)
    room = CHOSEN_ON
    for group in torch.randperm(len(sizes), generator=generator).tolist():
        if sizes[group] <= room:
            taken[group] = True
            room -= int(sizes[group])
    if taken.sum() < 2:  # one group alone has nobody to predict it
        taken[sizes.argsort()[:2]] = True
    parts = zip(members, taken.split([len(groups) for groups in members]), strict=True)
    drawn = [groups[wanted.to(groups.device)] for groups, wanted in parts]
    chosen = torch.cat([group.flatten() for group in drawn])
    place = torch.zeros(n, dtype=torch.int64, device=rows.device)
    place[chosen] = torch.arange(len(chosen), device=rows.device)
    return rows[chosen], targets[chosen], [place[group] for group in drawn]


def _near(features: RecordFeatures, scaling: Scaling, device: torch.device, which: Any, count: int) -> torch.Tensor:
    return nearest(features, torch.as_tensor(which, dtype=torch.int64, device=device), scaling, count).cpu()


def _relative(error: torch.Tensor, targets: torch.Tensor) -> float:
    """Return the left-out squared error in units of what a constant would leave; 0 where that is nothing."""
    spread = float((targets - targets.mean(0)).square().mean())
    varies = spread > 1e-24 * float(targets.square().mean())  # else rounding
    return float(error.square().mean()) / spread if varies else 0.0
