"""Count records that are in the data more than once, exactly or nearly: their scores are too low for their person."""

from typing import Any

import numpy as np
import torch

from giveaway.records import Head
from giveaway.views.tables import column_scaling

NEAR = 1e-2  # of the typical distance from the mean record
PROJECTIONS = 4  # held for all records at once
NEIGHBOURS = 8
SORTS = 4
ROWS = 1_024


def count_duplicates(head: Head) -> dict[str, Any]:
    """Count the records with an exact copy, and at least how many have a near one: within 1 % of the root-mean-square
    distance from the mean record, in columns of unit variance. Near copies are looked for along random directions:
    missed sometimes, never invented."""
    _, scale = column_scaling(head.features)
    projected, spread = _project(head, scale)
    near = np.zeros(head.n, dtype=bool)
    exact = np.zeros(head.n, dtype=bool)
    radius = NEAR * spread
    for k in range(SORTS):
        order = torch.argsort(projected[k])
        one, two = projected[k - 1][order], projected[k - 2][order]
        for shift in range(1, min(NEIGHBOURS, head.n - 1) + 1):
            # a random projection of unit variance is the distance on average; a factor of 3 misses next to nothing
            close = (one[shift:] - one[:-shift]).abs() <= 3.0 * radius
            close &= (two[shift:] - two[:-shift]).abs() <= 3.0 * radius
            pairs = torch.stack([order[:-shift][close], order[shift:][close]])
            pairs = pairs[:, (projected[:, pairs[0]] - projected[:, pairs[1]]).norm(dim=0) <= 3.0 * radius]
            for start in range(0, pairs.shape[1], ROWS):
                _mark(head, pairs[:, start : start + ROWS], scale, radius, exact, near)
    return {
        "exact": int(exact.sum()),
        "near": int((near & ~exact).sum()),
        "near_means": f"within {NEAR:g} of the root-mean-square distance from the mean; a lower bound",
    }


def _project(head: Head, scale: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return random projections (PROJECTIONS, n) of the scaled records, and their root-mean-square distance."""
    device, d = head.device, head.features.shape[1]
    kind = head.features.dtype if head.features.dtype in (torch.float32, torch.float64) else torch.float32
    generator = torch.Generator().manual_seed(0)
    directions = (torch.randn(d, PROJECTIONS, generator=generator) / PROJECTIONS**0.5).to(device, kind)
    total = torch.zeros(d, dtype=torch.float64, device=device)
    origin = head.features[:1].to(kind)  # any record will do: a mean far from zero would swallow the variance
    squares = 0.0
    projected = torch.empty(PROJECTIONS, head.n, dtype=kind, device=device)
    for rows in head.slices(ROWS):
        x = (head.features[rows].to(kind) - origin) * scale.to(kind)
        projected[:, rows] = (x @ directions).T
        total += x.sum(0)
        squares += float(x.norm()) ** 2
    variance = squares / head.n - float((total / head.n).square().sum())
    return projected, max(variance, 0.0) ** 0.5


def _mark(
    head: Head, pairs: torch.Tensor, scale: torch.Tensor, radius: float, exact: np.ndarray, near: np.ndarray
) -> None:
    first, second = (head.features[rows].to(torch.float64) for rows in pairs)
    distance = ((first - second) * scale).norm(dim=1)
    same_target = head.targets[pairs[0]] == head.targets[pairs[1]]
    if same_target.ndim == 2:
        same_target = same_target.all(dim=1)
    rows = pairs.cpu().numpy()
    copies = rows[:, ((distance == 0) & same_target).cpu().numpy()]
    exact[copies.ravel()] = True
    near[rows[:, (distance <= radius).cpu().numpy()].ravel()] = True
