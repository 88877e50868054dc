"""Least squares with one fixed record and the others drawn at random (PSM, section 3) (docs/derivations.md)."""

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from giveaway.checks import check_choice, check_number, fail
from giveaway.theory.balls import Pair, best_shell, chi_square_nodes, dilated_ball, in_blocks
from giveaway.theory.laws import LeverageLaw, LossLaw, Records, ResidualLaw, cell_errors
from giveaway.theory.tradeoff import TradeOff, in_range, whole

TESTS = ("threshold", "optimal", "signed")


@dataclass(frozen=True)
class RandomDesign(Records):
    """Records, the laws of what is seen of them, and the curves of tests; build it with `random_design`."""

    @property
    def h(self) -> LeverageLaw:
        """The law of the empirical leverage."""
        return LeverageLaw(**vars(self))

    @property
    def e_out(self) -> ResidualLaw:
        """The law of the residual (along ε) when the record is left out."""
        return ResidualLaw(**vars(self), member=False)

    @property
    def e_in(self) -> ResidualLaw:
        """The law of the residual (along ε) when the record is trained on."""
        return ResidualLaw(**vars(self), member=True)

    @property
    def loss_out(self) -> LossLaw:
        """The law of the loss when the record is left out."""
        return LossLaw(**vars(self), member=False)

    @property
    def loss_in(self) -> LossLaw:
        """The law of the loss when the record is trained on."""
        return LossLaw(**vars(self), member=True)

    def tradeoff(self, test: str = "threshold") -> TradeOff:
        """Return the curve of one of three tests.

        `threshold` accuses where the loss is small (Corollary 3.3); `optimal` where the likelihood ratio of the loss is
        large, the best that can be done with the loss; `signed` where the likelihood ratio of the residual itself is
        large, the best there is. With V integrated out the last two see it in small cells (`laws.py`).

        >>> design = random_design(leverage=5.0, error=0.5, freedom=100)
        >>> [round(float(design.tradeoff(test).tpr(0.05)), 4) for test in TESTS]
        [0.0536, 0.0557, 0.0558]
        """
        check_choice("test", test, TESTS)
        if self.integrate:
            if test == "threshold":
                return TradeOff(self._mean_threshold, self.shape)
            cells = cell_errors(self.e_out, self.e_in, signed=test == "signed")

            def better(alpha: np.ndarray) -> Pair:
                # the threshold is open to either attacker, and free of the cells' small loss
                (power, miss), (least, most) = cells(alpha), self._mean_threshold(alpha)
                return np.maximum(power, least), np.minimum(miss, most)

            return TradeOff(better, self.shape)
        eta = self.leverage / self.freedom
        spread = np.sqrt(self.variance * eta)
        # h̄ = 0: the record is never seen, and every test is a coin
        delta = np.divide(np.abs(self.error), spread, out=np.zeros(self.shape), where=spread > 0)
        best = best_shell if test == "optimal" else partial(dilated_ball, signed=test == "signed")
        return TradeOff(lambda alpha: in_blocks(partial(best, q=self.outputs), alpha, delta, eta), self.shape)

    def _mean_threshold(self, alpha: np.ndarray) -> Pair:
        """Put the threshold at level α under the law of ℓ_out; return what it catches and misses under that of ℓ_in."""
        at = self.loss_out.ppf(alpha)
        seen = self.leverage > 0  # without leverage the loss is one number, in and out
        power = np.where(seen, self.loss_in.cdf(at), alpha)
        miss = np.where(seen, self.loss_in.sf(at), 1 - alpha)
        return np.maximum(power, alpha), np.minimum(miss, 1 - alpha)


def random_design(
    leverage: ArrayLike,
    error: ArrayLike,
    freedom: float,
    *,
    variance: ArrayLike = 1.0,
    outputs: int = 1,
    integrate: bool = False,
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
    return RandomDesign(h, e, v, k, q, bool(integrate))


class SimulatedGap(NamedTuple):
    """The mean over draws and its standard error, for every record."""

    mean: np.ndarray
    standard_error: np.ndarray


def expected_gap(design: RandomDesign) -> np.ndarray:
    """Return how much lower a record's loss is, on average, for having been trained on; infinite for k ≤ 2. V is
    averaged over whatever the design's `integrate` says: this is the exact gap."""
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


def simulated_gap(design: RandomDesign, rng: np.random.Generator, *, draws: int = 10_000) -> SimulatedGap:
    """Return the gap's mean over draws of (V, Z), and its standard error."""
    check_number("draws", draws, minimum=2, remedy="give a number such as 10000")
    if design.freedom <= 2:
        raise fail("freedom", "n − p above 2", f"{design.freedom:g}", "the expected gap is infinite")
    size = (int(draws), *design.shape)
    v = rng.chisquare(design.freedom, size)
    tau = np.sqrt(design.variance * design.leverage / v)
    loss = (design.error + tau * rng.standard_normal(size)) ** 2
    if design.outputs > 1:
        loss += tau**2 * rng.chisquare(design.outputs - 1, size)
    c = design.leverage / (v + design.leverage)
    gap = loss * c * (2 - c)
    return SimulatedGap(gap.mean(axis=0)[()], (gap.std(axis=0, ddof=1) / math.sqrt(draws))[()])
