"""The shape of φ, pooled over records: how skewed and how heavy-tailed is it around its mean?

One record has a handful of models a side, which say nothing about tails; thousands of records of one recipe do. The
family has two parameters: a gamma distribution carries the skewness, and a random scale carries the tails, as in
Student's t. Normal, exponential (either way) and t are members of it. Records differ: half of them are taken to be more
skewed than the other half, by as much as their samples differ beyond what chance makes of equal ones.

Skewness and kurtosis of small samples are far from those of the distribution, so they are not taken at face value: the
parameters are those whose samples *of the same size* look the same. Samples of three say nothing about tails; the
heaviest of the family are then taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

SKEWNESS = np.array([0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.5, 3.0])
TAILS = np.array([0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3])  # 1 / degrees of freedom of the random scale
NUMBERS = 200_000  # drawn for each cell of the table


@dataclass(frozen=True)
class Shape:
    """A distribution of mean 0 and variance 1; `tails` is 0 for a fixed scale, 1/ν for that of Student's t."""

    skewness: float
    tails: float

    def draw(self, size: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
        values = _skewed(abs(self.skewness), size, generator) * _scales(self.tails, size, generator)
        return values if self.skewness >= 0 else -values


def pooled_shapes(skewness: np.ndarray, kurtosis: np.ndarray, size: int) -> tuple[Shape, Shape, float]:
    """Return two shapes, each of half of the records, and the standard deviation of skewness between records.

    Samples of `size` numbers from the two have the mean skewness, the variance of skewness and the mean kurtosis of
    the samples given. The deviation is in units of sample skewness, without what sampling adds.
    """
    table = _sample_moments(size)
    low = high = tails = between = 0.0
    for _ in range(8):
        means = np.maximum.accumulate([np.interp(tails, TAILS, row) for row in table[:, :, 0]])
        spread = 0.5 * sum(_interpolated(table[:, :, 2], end, tails) for end in (low, high))
        between = np.sqrt(max(float(skewness.var()) - spread, 0.0))
        ends = skewness.mean() - between, skewness.mean() + between
        low, high = (float(np.copysign(np.interp(abs(end), means, SKEWNESS), end)) for end in ends)
        along = [0.5 * sum(_interpolated(table[:, :, 1], end, at) for end in (low, high)) for at in TAILS]
        tails = float(np.interp(kurtosis.mean(), np.maximum.accumulate(along), TAILS))
    return Shape(low, tails), Shape(high, tails), between


def _interpolated(table: np.ndarray, skewness: float, tails: float) -> float:
    return float(np.interp(tails, TAILS, [np.interp(abs(skewness), SKEWNESS, column) for column in table.T]))


@lru_cache(maxsize=64)
def _sample_moments(size: int) -> np.ndarray:
    """Return mean skewness, mean kurtosis and variance of skewness of samples, (skewness, tails, 3), over the grid."""
    generator = np.random.default_rng(size)
    shape = (max(NUMBERS // size, 400), size)
    scales = [_scales(tails, shape, generator) for tails in TAILS]
    table = np.empty((len(SKEWNESS), len(TAILS), 3))
    for row, skewness in enumerate(SKEWNESS):
        values = _skewed(skewness, shape, generator)
        for column, scale in enumerate(scales):
            away = values * scale
            away -= away.mean(axis=1, keepdims=True)
            square = away * away
            variance = square.mean(axis=1)
            third = (square * away).mean(axis=1) / variance**1.5
            table[row, column] = third.mean(), ((square * square).mean(axis=1) / variance**2).mean(), third.var()
    return table


def _skewed(skewness: float, size: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    if skewness < 0.05:
        return generator.standard_normal(size)
    order = 4 / skewness**2
    return (generator.standard_gamma(order, size) - order) / np.sqrt(order)


def _scales(tails: float, size: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    if tails < 0.01:
        return np.ones(size)
    freedom = 1 / tails
    return np.sqrt((freedom - 2) / (2 * generator.standard_gamma(freedom / 2, size)))
