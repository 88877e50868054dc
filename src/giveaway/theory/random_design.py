"""Least squares with one fixed record and the others drawn at random (PSM, section 3) (docs/derivations.md)."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from giveaway.checks import check_choice, fail
from giveaway.theory.balls import chi_square_nodes, dilated_ball, in_blocks
from giveaway.theory.tradeoff import TradeOff, in_range, whole

TESTS = ("threshold", "signed")


@dataclass(frozen=True)
class Draws:
    """Draws (size, …) of a record's empirical leverage, its residual (along ε) and its loss when left out and when
    trained on."""

    h: np.ndarray
    e_out: np.ndarray
    e_in: np.ndarray
    loss_out: np.ndarray
    loss_in: np.ndarray


@dataclass(frozen=True)
class RandomDesign:
    """Records by arrays of one shape, h̄, ε (several outputs: its norm) and each output's σ², and k = n − p; draws of
    what is seen of them, and the curves of tests. Build it with `random_design`."""

    leverage: np.ndarray
    error: np.ndarray
    variance: np.ndarray
    freedom: float
    outputs: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.leverage.shape

    def draws(self, size: int, *, seed: int = 0) -> Draws:
        """Draw from the laws of what is seen: given V ~ χ²_k a residual left out is N(ε, σ²h̄/V) in each output."""
        generator = np.random.default_rng(seed)
        v = generator.chisquare(self.freedom, (size, *self.shape))
        h, kept = self.leverage / (v + self.leverage), v / (v + self.leverage)
        variance = self.variance * self.leverage / v
        out = self.error + np.sqrt(variance) * generator.standard_normal(v.shape)
        loss = out**2
        if self.outputs > 1:  # across ε there is noise alone
            loss += variance * generator.chisquare(self.outputs - 1, v.shape)
        return Draws(h, out, kept * out, loss, kept**2 * loss)

    def tradeoff(self, test: str = "threshold") -> TradeOff:
        """Return the curve of one of two tests, with V at its mean k.

        `threshold` accuses where the loss is small (Corollary 3.3); `signed` where the likelihood ratio of the residual
        itself is large, the best there is.

        >>> design = random_design(leverage=5.0, error=0.5, freedom=100)
        >>> [round(float(design.tradeoff(test).tpr(0.05)), 4) for test in TESTS]
        [0.0536, 0.0558]
        """
        check_choice("test", test, TESTS)
        eta = self.leverage / self.freedom
        spread = np.sqrt(self.variance * eta)
        # h̄ = 0: the record is never seen, and every test is a coin
        delta = np.divide(np.abs(self.error), spread, out=np.zeros(self.shape), where=spread > 0)
        ball = partial(dilated_ball, q=self.outputs, signed=test == "signed")
        return TradeOff(lambda alpha: in_blocks(ball, alpha, delta, eta), self.shape)


def random_design(
    leverage: ArrayLike, error: ArrayLike, freedom: float, *, variance: ArrayLike = 1.0, outputs: int = 1
) -> RandomDesign:
    """Describe records by h̄ ≥ 0, ε (several outputs: its norm), k = n − p and each output's σ²; arrays broadcast."""
    k = float(in_range("freedom", freedom, 1, np.inf, "give n − p, records minus features"))
    q = int(whole("outputs", outputs, 1, "give the number of outputs"))
    h, e, v = np.broadcast_arrays(
        in_range("leverage", leverage, 0, np.inf, "give xᵀΣ⁻¹x"),
        in_range("error", error, -np.inf, np.inf, "give y − xᵀθ"),
        in_range("variance", variance, 0, np.inf, "give the noise variance σ²", closed=False),
    )
    if q > 1 and (e < 0).any():
        raise fail("error", "norms of error vectors", "a negative number", "take the norm over the outputs")
    return RandomDesign(h, e, v, k, q)


def expected_gap(design: RandomDesign) -> np.ndarray:
    """Return how much lower a record's loss is, on average, for having been trained on; infinite for k ≤ 2."""
    k, h = design.freedom, design.leverage

    def shrinkage(freedom: float) -> np.ndarray:
        total = np.zeros(design.shape)
        for v, weight in chi_square_nodes(freedom):
            c = h / (v + h)
            total += weight * c * (2 - c)
        return total

    gap = design.error**2 * shrinkage(k)
    if k <= 2:
        return np.where(h > 0, math.inf, gap)[()]
    return (gap + design.outputs * design.variance * h / (k - 2) * shrinkage(k - 2))[()]


def gap_expansion(design: RandomDesign) -> np.ndarray:
    """Return 2‖ε‖²h̄/k + (4‖ε‖²h̄ + h̄²(2qσ² − 3‖ε‖²))/k², the expected gap up to O(k⁻³)."""
    k, h, square = design.freedom, design.leverage, design.error**2
    noise = design.outputs * design.variance
    return (2 * square * h / k + (4 * square * h + h * h * (2 * noise - 3 * square)) / k**2)[()]
