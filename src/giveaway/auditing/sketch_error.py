"""How far a sketched score is off: the spread between scores from disjoint parts of the probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from giveaway.auditing.batches import Portion, Where
from giveaway.scores.catalogue import CATALOGUE

PARTS = 4
SAMPLED = 4_096  # rows that the error of a column is told from


def sampled_spans(sizes: Sequence[int]) -> np.ndarray:
    """Which spans, of so many rows each, are looked at for the errors: evenly spread, with about SAMPLED rows."""
    looked = np.zeros(len(sizes), dtype=bool)
    count = min(len(sizes), max(1, round(SAMPLED / max(1.0, float(np.mean(sizes)))))) if len(sizes) else 0
    looked[((np.arange(count) + 0.5) * len(sizes) / max(1, count)).astype(int)] = True
    return looked


def standard_errors(
    portion: Portion, names: Sequence[str], probes: int
) -> Iterator[tuple[Where, dict[str, np.ndarray]]]:
    """The standard error of each named score, batch by batch."""
    edges = [probes * part // PARTS for part in range(PARTS + 1)]
    walks = [portion.batches(slice(a, b)) for a, b in pairwise(edges)]
    for parts in zip(*walks, strict=True):
        spread = {}
        for name in names:
            scores = torch.stack([CATALOGUE[name].function(batch) for _, batch in parts])
            spread[name] = (scores.std(0) / PARTS**0.5).cpu().numpy()
        yield parts[0][0], spread


def relative_error(score: np.ndarray, error: np.ndarray) -> float | None:
    """A column's typical error over its score, among rows whose error is known; None where no score is positive."""
    known = (error > 0) & (score > 0)
    if not known.any():
        return None
    # the spread of few parts varies: its mean square does not
    return round(float(np.sqrt(np.mean(np.minimum(error[known] / score[known], 10.0) ** 2))), 6)
