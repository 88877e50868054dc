"""Least squares with fixed inputs, where only the noise is random (GLS, section 3) (docs/derivations.md)."""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, gammainc, gammaincc, gammaincinv

from giveaway.checks import fail
from giveaway.theory.tradeoff import TradeOff, in_range, whole

LEVERAGE = "leverage is a diagonal entry of the hat matrix"


def statistic(residual: ArrayLike, h: ArrayLike, *, variance: ArrayLike = 1.0) -> np.ndarray:
    """Return S = m·artanh(h) − h/(σ²(1 − h²))·‖r‖² of residuals (…, m), the log-likelihood ratio of membership."""
    r = np.asarray(residual, dtype=np.float64)
    if r.ndim == 0 or not np.isfinite(r).all():
        raise fail("residual", "finite numbers with the outputs last", f"shape {r.shape}", "give an (…, m) array")
    h = in_range("h", h, 0, np.nextafter(1, 0), LEVERAGE)
    variance = in_range("variance", variance, 0, np.inf, "give the noise variance σ²", closed=False)
    return r.shape[-1] * np.arctanh(h) - h / (variance * (1 - h) * (1 + h)) * (r * r).sum(axis=-1)


def tradeoff(h: ArrayLike, *, m: ArrayLike = 1) -> TradeOff:
    """Return β(α) = 1 − F_m((1 + h)/(1 − h)·F_m⁻¹(α)), F_m the χ²_m cdf: the curve of the test on S.

    AUC = I_{(1+h)/2}(m/2, m/2), the chance that a member's residual is the shorter.

    >>> curve = tradeoff(np.array([0.0, 0.5, 0.9]))
    >>> curve.tpr(0.05).round(4)
    array([0.05  , 0.0865, 0.2154])
    >>> curve.auc().round(4)
    array([0.5   , 0.6667, 0.8564])
    """
    h = in_range("h", h, 0, 1, LEVERAGE)
    half = whole("m", m, 1, "give the number of outputs") / 2
    with np.errstate(divide="ignore"):
        ratio = (1 + h) / (1 - h)

    def errors(alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # inverted before h is broadcast in: few rates, many records
        quantile = gammaincinv(half, alpha)
        with np.errstate(invalid="ignore"):
            at = quantile * ratio
        # h = 1: members have no residual at all, and a non-member has one almost surely
        at = np.where(np.isnan(at), np.inf, at)
        return np.maximum(gammainc(half, at), alpha), np.minimum(gammaincc(half, at), 1 - alpha)

    shape = np.broadcast_shapes(h.shape, half.shape)
    return TradeOff(errors, shape, np.broadcast_to(betainc(half, half, (1 + h) / 2), shape))
