"""The kernel of very many records, seen from some of them (Nyström): features whose products approximate it.

Features of a record are k(x, z) K_zz^{-1/2}, z the landmarks; leaving records out of a ridge regression on them is
exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from giveaway.views.blocks import Blocks, RecordFeatures
from giveaway.views.kernel import Scaling, laplace

WORK = 2e12  # records times landmarks squared
MOST = 4_096
KEPT_BYTES = 1 << 31  # of features that are held rather than made anew on every pass
NEGLIGIBLE = 1e-7  # of the largest eigenvalue of K_zz: rounding of float32 distances


def landmark_count(n: int) -> int:
    """A power of two whose square times n is at most WORK: 4,096 up to 119,000 records, 1,024 at a million."""
    count = MOST
    while count > 256 and n * count * count > WORK:
        count //= 2
    return min(count, n)


def landmark_features(features: RecordFeatures, landmarks: torch.Tensor, scaling: Scaling) -> Blocks:
    """Features (rows, up to m) of all records, blockwise, given scaled landmarks (m, d)."""
    kernel = laplace(landmarks, landmarks, scaling.length).fill_diagonal_(1.0).to(torch.float64)
    values, vectors = torch.linalg.eigh(kernel)
    kept = values > NEGLIGIBLE * values[-1]
    root = (vectors[:, kept] / values[kept].sqrt()).float()

    def passes() -> Iterator[torch.Tensor]:
        for block in features():
            yield laplace(scaling.apply(block.to(landmarks.device)), landmarks, scaling.length) @ root

    if 4 * features.n * root.shape[1] > KEPT_BYTES:
        return passes
    held = list(passes())
    return lambda: iter(held)
