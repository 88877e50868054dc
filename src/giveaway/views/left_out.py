"""What the other records predict for each record, by a kernel that never saw the trained model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from giveaway.checks import available_memory, check_finite
from giveaway.views.blocks import RecordFeatures
from giveaway.views.exact import CHOSEN_ON, choose_noise, errors_of_rows
from giveaway.views.fourier import fourier_features
from giveaway.views.kernel import SAMPLE, Scaling, nearest, scaling_of
from giveaway.views.landmarks import landmark_count, landmark_features
from giveaway.views.moments import check_rows
from giveaway.views.ridge import as_targets, leave_one_out_ridge, rows_of_groups

EXACT_UP_TO = 30_000  # records whose whole kernel is factored
MATRICES = 2.2  # n × n in float64 that are alive in the factorization


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Left-out errors y − ŷ (n, C), leverages (n,), what was done (for the metadata), and who is near.

    With groups, a group's records are left out together; the leverage stays the record's own. `nearest(rows, count)`
    gives the numbers (r, count) of the records whose features are nearest, −1 where there is none.
    """

    error: torch.Tensor
    leverage: torch.Tensor
    report: dict[str, Any]
    nearest: Callable[[Any, int], torch.Tensor]


def left_out_smooth(columns: RecordFeatures, targets: torch.Tensor, *, groups: Any = None, seed: int = 0) -> LeftOut:
    """Leave out every record, or every group, of a table in turn: ridge regression on its columns and on Fourier
    features of them; `targets` (n, C) are around 0, the ridge is chosen by the squared left-out error."""
    y = as_targets(targets)
    check_rows(columns.n, len(y))
    features, length = fourier_features(columns, seed=seed)
    view = leave_one_out_ridge(features, y, groups=groups)
    error = y - view.prediction
    report = {"kernel": "rbf", "length": length, "method": f"Fourier features, {view.method}", "l2": view.l2}
    report["left_out_error"] = _relative(error, y)
    sample = columns.of(torch.randperm(columns.n, generator=torch.Generator().manual_seed(seed))[:SAMPLE])
    scaling = scaling_of(sample, standardize=True)
    return LeftOut(error, view.leverage, report, partial(_near, columns, scaling, torch.device("cpu")))


def left_out(
    features: RecordFeatures,
    targets: torch.Tensor,
    *,
    groups: Any = None,
    standardize: bool = True,
    device: torch.device | str = "cpu",
    exact: bool | None = None,
    seed: int = 0,
) -> LeftOut:
    """Leave out every record, or every group, of images or texts in turn: kernel ridge regression.

    `targets` (n, C) are around 0. The noise λ is chosen by the squared left-out error alone. Up to 30,000 records,
    memory allowing, the kernel is exact; beyond, or with exact=False, it is seen from landmarks.
    """
    targets, where = as_targets(targets), torch.device(device)
    n, y = len(targets), targets.to(where)
    check_rows(features.n, n)
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
        noise = choose_noise(rows, y, scaling.length, members, seed=seed)
        found, noise = errors_of_rows(rows, y, scaling.length, noise, members)
        error, leverage = found.error.cpu(), found.leverage.cpu()
        report = {"method": "exact", "noise": noise, "noise_chosen_on": min(n, CHOSEN_ON)}
        features = RecordFeatures(n, rows.__getitem__, n)
        scaling = scaling.done()
    else:
        landmarks = scaling.apply(sample[: landmark_count(n)])
        seen = landmark_features(features, landmarks, scaling)
        view = leave_one_out_ridge(seen, targets, groups=groups, standardize=False)
        error, leverage = targets - view.prediction, view.leverage
        report = {"method": "landmarks", "landmarks": len(landmarks), "l2": view.l2}
    report = {"kernel": "laplace", "length": scaling.length, **report}
    report["left_out_error"] = _relative(error, targets)
    return LeftOut(error, leverage, report, partial(_near, features, scaling, where))


def _near(features: RecordFeatures, scaling: Scaling, device: torch.device, which: Any, count: int) -> torch.Tensor:
    return nearest(features, torch.as_tensor(which, dtype=torch.int64, device=device), scaling, count).cpu()


def _relative(error: torch.Tensor, targets: torch.Tensor) -> float:
    """The left-out squared error in units of what a constant would leave; 0 where that is nothing."""
    spread = float((targets - targets.mean(0)).square().mean())
    varies = spread > 1e-24 * float(targets.square().mean())  # else rounding
    return float(error.square().mean()) / spread if varies else 0.0
