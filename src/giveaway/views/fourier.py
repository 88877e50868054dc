"""Random Fourier features: an RBF kernel seen through a fixed number of columns, whatever the number of records.

k(x, x′) = exp(−‖x − x′‖²/(2·length²)) = E cos(ωᵀ(x − x′)), ω ~ N(0, I/length²): with F/2 draws of ω the features
√(2/F)·(cos ωᵀx, sin ωᵀx) have k as their expected product (Rahimi and Recht, 2007).
"""

from __future__ import annotations

import torch

from giveaway.checks import check_number, fail
from giveaway.views.blocks import RecordFeatures

SAMPLE = 1000  # records whose distances give the length


def fourier_features(
    columns: RecordFeatures, *, features: int = 1024, length: float | None = None, seed: int = 0
) -> tuple[RecordFeatures, float]:
    """The columns and `features` Fourier features of them, float32, and the length used.

    The length is the median distance of 1,000 records unless given.
    """
    check_number("features", features, minimum=2, remedy="ask for some")
    if features % 2:
        raise fail("features", "an even number (cosines and sines)", str(features), f"use {features + 1}")
    generator = torch.Generator().manual_seed(seed)
    some = columns.of(torch.randperm(columns.n, generator=generator)[:SAMPLE]).to(torch.float64)
    if length is None:
        length = median_distance(some)
    elif check_number("length", length, minimum=0.0, remedy="leave it out for the median distance") == 0.0:
        raise fail("length", "a positive number", "0", "leave it out for the median distance")
    draws = torch.randn(some.shape[1], features // 2, dtype=torch.float64, generator=generator) / length
    weights = draws.to(some.device)

    def of(rows: slice | torch.Tensor) -> torch.Tensor:
        x = columns.of(rows).to(torch.float64)
        angles = x @ weights
        waves = [wave.mul_((features // 2) ** -0.5) for wave in (angles.cos(), angles.sin())]
        return torch.cat([x, *waves], dim=1).float()

    return RecordFeatures(columns.n, of, columns.block), length


def median_distance(rows: torch.Tensor) -> float:
    """The median over pairs of different records; 1 where most are equal."""
    distances = torch.nn.functional.pdist(rows)
    return float(distances.median()) or 1.0 if len(distances) else 1.0
