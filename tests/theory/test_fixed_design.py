"""Fixed design: laws against real fits, the curve against high precision and brute force."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from giveaway.theory import fixed_design as fd
from tests.conftest import refused
from tests.theory.refits import is_convex, same_in_a_loop

SIGMA = 1.7


@pytest.fixture(scope="module", params=[1, 3])
def fits(request):
    """Leverage of one record of a fixed design, and its residuals over 20,000 real fits with fresh noise."""
    m, rng = request.param, np.random.default_rng(3)
    x = rng.normal(size=(30, 5))
    x[0] *= 2.5
    theta = rng.normal(size=(5, m))
    noise = SIGMA * rng.normal(size=(20_000, 30, m))
    fitted = x[0] @ np.linalg.lstsq(x, (x @ theta + noise).swapaxes(0, 1).reshape(30, -1), rcond=None)[0]
    fitted = fitted.reshape(20_000, m)
    member = x[0] @ theta + noise[:, 0] - fitted
    fresh = x[0] @ theta + SIGMA * rng.normal(size=(20_000, m)) - fitted
    return float(x[0] @ np.linalg.solve(x.T @ x, x[0])), member, fresh


def test_residual_and_loss_laws_of_real_fits(fits):
    h, *sides = fits
    assert 0.3 < h < 0.9
    for residual, member in zip(sides, (True, False), strict=True):
        m = residual.shape[1]
        law = stats.norm(scale=SIGMA * np.sqrt(1 - h if member else 1 + h))
        assert min(stats.kstest(residual[:, j], law.cdf).pvalue for j in range(m)) > 1e-3
        loss = stats.chi2(m, scale=SIGMA**2 * (1 - h if member else 1 + h))
        assert stats.kstest((residual**2).sum(axis=1), loss.cdf).pvalue > 1e-3


def test_the_statistic_is_the_log_likelihood_ratio(fits):
    h, member, _ = fits
    laws = [stats.norm(scale=SIGMA * np.sqrt(1 + side * h)) for side in (-1, 1)]
    direct = laws[0].logpdf(member).sum(axis=1) - laws[1].logpdf(member).sum(axis=1)
    np.testing.assert_allclose(fd.statistic(member, h, variance=SIGMA**2), direct, rtol=1e-9, atol=1e-9)


def test_the_curve_of_real_fits_point_by_point(fits):
    h, member, fresh = fits
    inside, outside = (fd.statistic(r, h, variance=SIGMA**2) for r in (member, fresh))
    curve = fd.tradeoff(h, m=member.shape[1])
    for fpr in (0.01, 0.05, 0.2, 0.5, 0.9):
        measured = np.mean(inside > np.quantile(outside, 1 - fpr))
        expected = curve.tpr(fpr)
        # the threshold is measured too: its error is carried over by the slope
        slope = (curve.tpr(fpr * 1.001) - expected) / (fpr * 0.001)
        error = np.sqrt((expected * (1 - expected) + slope**2 * fpr * (1 - fpr)) / len(inside))
        assert abs(measured - expected) < 4 * error
    auc = stats.mannwhitneyu(inside, outside).statistic / len(inside) ** 2
    assert abs(auc - curve.auc()) < 4 * 0.5 / np.sqrt(len(inside))


@pytest.mark.parametrize("m", [1, 3, 100, 10_000])
@pytest.mark.parametrize("h", [1e-15, 0.3, 1 - 1e-15])
@pytest.mark.parametrize("alpha", [1e-12, 0.05, 0.999999])
def test_digits_at_the_extremes(m, h, alpha):
    with mp.workdps(40):
        half, guess = mp.mpf(m) / 2, 2 * float(stats.gamma.ppf(alpha, m / 2)) / 2

        def cdf(x):
            return mp.gammainc(half, 0, x, regularized=True)

        root = mp.findroot(lambda x: mp.log(cdf(mp.exp(x)) / alpha), mp.log(guess), tol=1e-30)
        at = mp.exp(root) * (1 + mp.mpf(h)) / (1 - mp.mpf(h))
        power, miss = cdf(at), mp.gammainc(half, at, mp.inf, regularized=True)
    curve = fd.tradeoff(h, m=m)
    assert abs(curve.tpr(alpha) / power - 1) < 1e-11
    assert miss < 1e-300 or abs(curve.beta(alpha) / miss - 1) < 1e-11


def test_limits_and_order():
    alpha = np.concatenate([[1e-12], np.linspace(0, 1, 101)])[:, None]
    h = np.array([0, 1e-15, 1e-8, 0.1, 0.5, 0.9, 1 - 1e-15, 1])
    for m in (1, 7, 10_000):
        curve = fd.tradeoff(h, m=m)
        beta = curve.beta(alpha)
        np.testing.assert_allclose(beta[:, 0], 1 - alpha[:, 0], atol=1e-12)
        assert (beta[:, -1] == 0).all()
        assert (np.diff(beta, axis=1) <= 1e-13).all()  # monotone in h
        assert (np.diff(beta[1:], axis=0) <= 1e-13).all()
        assert np.isfinite(beta).all()
        assert is_convex(curve).all()
        auc = curve.auc()
        assert auc[0] == pytest.approx(0.5, abs=1e-15)
        assert auc[-1] == 1
        assert (np.diff(auc) >= -1e-15).all()


def test_the_auc_is_the_area():
    curve = fd.tradeoff(np.array([0.0, 0.2, 0.7, 0.99, 1 - 1e-9]), m=np.array([[1], [2], [50]]))
    numeric = type(curve)(curve.errors, curve.shape).auc()
    np.testing.assert_allclose(curve.auc(), numeric, rtol=1e-12)


@given(
    h=st.lists(st.floats(0, 0.999), min_size=1, max_size=4),
    alpha=st.lists(st.floats(1e-6, 0.999), min_size=1, max_size=3),
    m=st.lists(st.integers(1, 50), min_size=1, max_size=2),
)
def test_broadcasting_is_a_loop(h, alpha, m):
    same_in_a_loop(lambda h, m: fd.tradeoff(h, m=m), h, m, alpha, rel=0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fd.tradeoff(1.2), r"h: expected finite numbers in \[0, 1\], got 1.2; leverage is a diagonal"),
        (lambda: fd.tradeoff([0.1, np.nan, -1]), r"h: expected .*got nan \(2 such values\)"),
        (lambda: fd.tradeoff(0.1, m=0), r"m: expected finite numbers in \[1, inf\), got 0"),
        (lambda: fd.tradeoff(0.1, m=1.5), "m: expected whole numbers, got 1.5"),
        (lambda: fd.tradeoff("high"), "h: expected numbers, got str"),
        (lambda: fd.tradeoff(0.1).tpr(-0.1), r"fpr: expected finite numbers in \[0, 1\], got -0.1; give rates"),
        (lambda: fd.tradeoff(0.1).beta(2), r"alpha: expected .* got 2"),
        (lambda: fd.statistic([1.0], 0.1, variance=0), r"variance: expected finite numbers in \(0, inf\)"),
        (lambda: fd.statistic([1.0], 1.0), "h: expected"),
        (lambda: fd.statistic(1.0, 0.5), "residual: expected finite numbers with the outputs last"),
    ],
)
def test_out_of_range_arguments(call, words):
    refused(words, call)
