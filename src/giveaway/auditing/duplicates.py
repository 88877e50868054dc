"""Count records that are in the data more than once, exactly or nearly: their scores are too low for their person."""

from typing import Any

import numpy as np
import torch

from giveaway.records import Head
from giveaway.views.tables import column_scaling

NEAR = 1e-2  # of the typical distance from the mean record
PROJECTIONS = 4  # held for all records at once
NEIGHBOURS = 8
ROWS = 1_024


def count_duplicates(head: Head) -> dict[str, Any]:
    """Count the records with an exact copy, and at least how many have a near one: within 1 % of the root-mean-square
    distance from the mean record, in columns of unit variance. Near copies are looked for along random directions:
    missed sometimes, never invented."""
    mean, scale = column_scaling(head.features)
    radius = NEAR * float((scale > 0).sum()) ** 0.5  # every column that varies adds 1 to the mean square
    kind = head.features.dtype if head.features.dtype in (torch.float32, torch.float64) else torch.float32
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(head.features.shape[1], PROJECTIONS, generator=generator) / PROJECTIONS**0.5
    projected = torch.empty(PROJECTIONS, head.n, dtype=kind, device=head.device)
    for rows in head.slices(ROWS):
        x = (head.features[rows].to(torch.float64) - mean) * scale
        projected[:, rows] = (x.to(kind) @ directions.to(head.device, kind)).T
    near, exact = np.zeros((2, head.n), dtype=bool)
    for k in range(PROJECTIONS):
        order = torch.argsort(projected[k])
        one, two = projected[k - 1][order], projected[k - 2][order]
        for shift in range(1, min(NEIGHBOURS, head.n - 1) + 1):
            # a random projection of unit variance is the distance on average; a factor of 3 misses next to nothing
            close = (one[shift:] - one[:-shift]).abs() <= 3.0 * radius
            close &= (two[shift:] - two[:-shift]).abs() <= 3.0 * radius
            pairs = torch.stack([order[:-shift][close], order[shift:][close]])
            pairs = pairs[:, (projected[:, pairs[0]] - projected[:, pairs[1]]).norm(dim=0) <= 3.0 * radius]
            for some in pairs.split(ROWS, 1):
                first, second = (head.features[rows].to(torch.float64) for rows in some)
                distance = ((first - second) * scale).norm(dim=1)
                same = head.targets[some[0]] == head.targets[some[1]]
                exact[some[:, (distance == 0) & (same if same.ndim == 1 else same.all(1))].cpu().numpy()] = True
                near[some[:, distance <= radius].cpu().numpy()] = True
    return {
        "exact": int(exact.sum()),
        "near": int((near & ~exact).sum()),
        "near_means": f"within {NEAR:g} of the root-mean-square distance from the mean; a lower bound",
    }
