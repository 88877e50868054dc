"""The shape of φ, pooled over records: how skewed and how heavy-tailed is it around its mean?

One record has a handful of models a side, which say nothing about tails; thousands of records of one recipe do. The
family has two parameters a side: a gamma distribution carries the skewness, and a random scale carries the tails, as
in Student's t. Normal, exponential (either way) and t are members of it.

The mean skewness and kurtosis of small samples are far from those of the distribution, so they are not taken at face
value: the parameters are those whose samples *of the same size* have the same means.
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


def pooled_shape(skewness: float, kurtosis: float, size: int) -> Shape:
    """Return the shape whose samples of `size` numbers have this mean skewness and this mean kurtosis."""
    known = _sample_moments(size)
    tails = 0.0
    for _ in range(4):  # skewness hardly depends on the tails, so this settles at once
        at = np.array([[np.interp(tails, TAILS, column) for column in row] for row in known.transpose(0, 2, 1)])
        found = float(np.interp(abs(skewness), np.maximum.accumulate(at[:, 0]), SKEWNESS))
        along = np.array([[np.interp(found, SKEWNESS, column) for column in row] for row in known.transpose(1, 2, 0)])
        tails = float(np.interp(kurtosis, np.maximum.accumulate(along[:, 1]), TAILS))
    return Shape(float(np.copysign(found, skewness)), tails)


@lru_cache(maxsize=64)
def _sample_moments(size: int) -> np.ndarray:
    """Return mean skewness and kurtosis of samples (skewness, tails, 2) for all shapes of the grid."""
    generator = np.random.default_rng(size)
    shape = (max(NUMBERS // size, 400), size)
    scales = [_scales(tails, shape, generator) for tails in TAILS]
    table = np.empty((len(SKEWNESS), len(TAILS), 2))
    for row, skewness in enumerate(SKEWNESS):
        values = _skewed(skewness, shape, generator)
        for column, scale in enumerate(scales):
            away = values * scale
            away -= away.mean(axis=1, keepdims=True)
            square = away * away
            variance = square.mean(axis=1)
            third, fourth = (square * away).mean(axis=1), (square * square).mean(axis=1)
            table[row, column] = (third / variance**1.5).mean(), (fourth / variance**2).mean()
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
