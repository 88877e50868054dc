"""Least squares with the other records drawn at random and one record held fixed (PSM, section 3).

Given a record with population leverage h̄ = xᵀΣ⁻¹x and error ε = y − xᵀθ, and with k = n − p, V ~ χ²_k and a normal Z
independent of it, the leverage, the residual when left out, when trained on, and the losses are

    h = h̄/(V + h̄),   e_out = ε + σ√(h̄/V)·Z,   e_in = e_out·V/(V + h̄),   ℓ = ‖e‖².

With q outputs and noise covariance σ²I the residuals are vectors; only ‖ε‖ matters, and `e_out`, `e_in` are the laws
of their component along ε. `integrate=False` puts V at its mean k, as Corollary 3.3 does; `integrate=True` averages
over V.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from giveaway.checks import check_choice, fail
from giveaway.theory.arguments import in_range, whole
from giveaway.theory.balls import dilated_ball, in_blocks
from giveaway.theory.cells import cell_errors
from giveaway.theory.chi_square import Nodes, chi_square_nodes, one_node
from giveaway.theory.laws import ErrorLaw, LeverageLaw, LossLaw
from giveaway.theory.loss_ratio import best_shell
from giveaway.theory.tradeoff import TradeOff

TESTS = ("threshold", "optimal", "signed")


@dataclass(frozen=True)
class RandomDesign:
    """Records given by arrays that broadcast together; build it with `random_design`."""

    leverage: np.ndarray
    error: np.ndarray
    variance: np.ndarray
    freedom: float
    outputs: int
    integrate: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.leverage.shape

    @property
    def nodes(self) -> Nodes:
        """The values V takes and their weights."""
        return chi_square_nodes(self.freedom) if self.integrate else one_node(self.freedom)

    @property
    def h(self) -> LeverageLaw:
        """Law of the empirical leverage."""
        return LeverageLaw(self.leverage, self.freedom, self.integrate)

    @property
    def e_out(self) -> ErrorLaw:
        """Law of the residual (along ε) when the record is left out."""
        return ErrorLaw(self.leverage, self.error, self.variance, self.freedom, self.integrate, member=False)

    @property
    def e_in(self) -> ErrorLaw:
        """Law of the residual (along ε) when the record is trained on."""
        return ErrorLaw(self.leverage, self.error, self.variance, self.freedom, self.integrate, member=True)

    @property
    def loss_out(self) -> LossLaw:
        """Law of the loss when the record is left out."""
        return LossLaw(self.e_out, self.outputs)

    @property
    def loss_in(self) -> LossLaw:
        """Law of the loss when the record is trained on."""
        return LossLaw(self.e_in, self.outputs)

    def tradeoff(self, test: str = "threshold") -> TradeOff:
        """The curve of one of three tests, each accusing where it says:

        `threshold`: a small loss (Corollary 3.3); `optimal`: a large likelihood ratio of the loss, the best that can
        be done with it; `signed`: a large likelihood ratio of the residual itself, the best there is. With V integrated
        out the last two see the loss or residual in cells (`cells.py`).

        >>> design = random_design(leverage=5.0, error=0.5, freedom=100)
        >>> [round(float(design.tradeoff(test).tpr(0.05)), 4) for test in TESTS]
        [0.0536, 0.0557, 0.0558]
        """
        check_choice("test", test, TESTS)
        if self.integrate:
            if test == "threshold":
                return TradeOff(self._mean_threshold, self.shape)
            cells = cell_errors(self.e_out, self.e_in, self.outputs, signed=test == "signed")

            def better(alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
                # the threshold is open to either attacker, and free of the cells' small loss
                (power, miss), (least, most) = cells(alpha), self._mean_threshold(alpha)
                return np.maximum(power, least), np.minimum(miss, most)

            return TradeOff(better, self.shape)
        eta = self.leverage / self.freedom
        spread = np.sqrt(self.variance * eta)
        # h̄ = 0: the record is never seen, and every test is a coin
        delta = np.divide(np.abs(self.error), spread, out=np.zeros(self.shape), where=spread > 0)
        q = self.outputs

        def block(alpha: np.ndarray, delta: np.ndarray, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if test == "optimal":
                return best_shell(alpha, delta, eta, q)
            return dilated_ball(alpha, delta, eta, q, signed=test == "signed")

        return TradeOff(lambda alpha: in_blocks(block, alpha, delta, eta), self.shape)

    def _mean_threshold(self, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loss threshold of level α under the law of ℓ_out, and what it catches under that of ℓ_in."""
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
    """Records with population leverage h̄ ≥ 0 and error ε (its norm, for several outputs), k = `freedom` = n − p and
    noise variance σ² per output; arrays of h̄, ε and σ² broadcast."""
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
