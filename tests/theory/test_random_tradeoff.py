"""Random design: the three curves, against real fits, brute-force Neyman–Pearson tests and the printed numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from giveaway.theory import random_design
from giveaway.theory.laws import cell_errors
from giveaway.theory.random_design import TESTS
from tests.theory.refits import is_convex, refits, same_in_a_loop, sorted_test

RATES = np.array([0.005, 0.05, 0.3, 0.8])


def three(design, alpha):
    return [design.tradeoff(test).tpr(alpha) for test in TESTS]


@pytest.mark.parametrize("q", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_curves_of_real_fits_point_by_point(q):
    """Each test, run on real fits by its own likelihood ratio (computed here from V's density on a fine grid)."""
    rng = np.random.default_rng(10 + q)
    n, p, x = 16, 4, np.array([1.2, -1.5, 0.8, 0.9])
    error = np.array([1.0]) if q == 1 else np.array([0.8, -0.5, 0.3])
    _, out, inside = refits(x, error, n=n, runs=12_000 // q, rng=rng)
    size, leverage, k = np.linalg.norm(error), x @ x, n - p
    v = stats.chi2(k).ppf((np.arange(150) + 0.5) / 150)[:, None]
    tau, c = np.sqrt(leverage / v), v / (v + leverage)

    def ratio(e):
        def density(scale, a):
            return np.mean([stats.norm.pdf(e, a[j] * error, scale[j]).prod(axis=1) for j in range(150)], axis=0)

        return density(tau * c, c) / density(tau, np.ones_like(c))

    def loss_ratio(e):
        loss = (e**2).sum(axis=1)
        grid = np.quantile(loss, np.linspace(0, 1, 300))
        nc = (size / tau) ** 2
        density = [stats.ncx2.pdf(grid / s**2, q, nc) / s**2 for s in (tau, tau * c)]
        return np.interp(loss, grid, density[1].mean(axis=0) / density[0].mean(axis=0))

    design = random_design(leverage, size, k, outputs=q, integrate=True)
    scores = {"threshold": lambda e: -(e**2).sum(axis=1), "optimal": loss_ratio, "signed": ratio}
    for test, score in scores.items():
        left, right = score(out), score(inside)
        curve = design.tradeoff(test)
        expected = curve.tpr(RATES)
        slope = (curve.tpr(RATES * 1.01) - expected) / (RATES * 0.01)
        error_bar = np.sqrt((expected * (1 - expected) + slope**2 * RATES * (1 - RATES)) / len(out))
        measured = (right > np.quantile(left, 1 - RATES)[:, None]).mean(axis=1)
        assert (np.abs(measured - expected) < 4 * error_bar).all(), test


def test_the_printed_numbers():
    at = three(random_design(5.0, 0.5, 100), 0.05)
    np.testing.assert_allclose(at, [0.0536, 0.0557, 0.0558], atol=5e-5)
    power = random_design(np.array([5.0, 20.0]), 1.0, 100).tradeoff().tpr(0.05)
    np.testing.assert_allclose(power, [0.0664, 0.0651], atol=5e-5)


def test_corollary_3_3_as_it_is_written():
    h, e, k, alpha = 4.0, 0.8, 30, np.array([0.01, 0.2, 0.7])
    tau, c = np.sqrt(h / k), k / (k + h)
    law = stats.ncx2(1, (e / tau) ** 2, scale=tau**2)
    np.testing.assert_allclose(random_design(h, e, k).tradeoff().beta(alpha), law.sf(law.ppf(alpha) / c**2), rtol=1e-10)


@pytest.mark.parametrize("q", [1, 2, 300])
@pytest.mark.parametrize("delta", [0.5, 2.2, 30.0])
@pytest.mark.parametrize("eta", [0.01, 0.5, 8.0])
def test_optimal_and_signed_are_the_sorted_likelihood_ratio(q, delta, eta):
    k = 50
    h = eta * k
    tau, c = np.sqrt(eta), 1 / (1 + eta)
    design = random_design(h, delta * tau, k, outputs=q)
    alpha = np.array([0.001, 0.05, 0.5, 0.95])
    edges = tau * np.linspace(0, delta + np.sqrt(q) + 8, 60_001)
    outside, inside = (np.diff(stats.ncx2.cdf((edges / s) ** 2, q, delta**2)) for s in (tau, tau * c))
    best = np.interp(alpha, *sorted_test(outside, inside))
    _, optimal, signed = three(design, alpha)
    np.testing.assert_allclose(optimal, best, rtol=2e-5, atol=1e-9)
    if q == 1:
        edges = tau * np.linspace(-9, delta + 9, 60_001)
        outside, inside = (np.diff(stats.norm.cdf(edges, a * delta * tau, a * tau)) for a in (1, c))
        best = np.interp(alpha, *sorted_test(outside, inside))
        np.testing.assert_allclose(signed, best, rtol=2e-5, atol=1e-9)


def test_signed_for_several_outputs_by_monte_carlo():
    rng = np.random.default_rng(4)
    h, k, error, q = 8.0, 40, np.array([0.4, -0.3, 0.2, 0.1]), 4
    tau, c = np.sqrt(h / k), k / (k + h)
    out, inside = (a * (error + tau * rng.normal(size=(200_000, q))) for a in (1, c))

    def ratio(e):
        laws = [stats.multivariate_normal(a * error, (a * tau) ** 2) for a in (c, 1)]
        return laws[0].logpdf(e) - laws[1].logpdf(e)

    expected = random_design(h, np.linalg.norm(error), k, outputs=q).tradeoff("signed").tpr(RATES)
    measured = (ratio(inside) > np.quantile(ratio(out), 1 - RATES)[:, None]).mean(axis=1)
    np.testing.assert_allclose(measured, expected, atol=4 * np.sqrt(0.5 / 200_000))


@pytest.mark.slow
def test_order_of_the_tests():
    rng = np.random.default_rng(0)
    h, e = rng.exponential(8, 80), rng.normal(size=80) * 2
    alpha = np.array([1e-12, 1e-6, 1e-3, 0.05, 0.5, 0.99])[:, None]
    for q in (1, 3):
        design = random_design(h, np.abs(e), 60, outputs=q)
        threshold, optimal, signed = three(design, alpha)
        assert (threshold >= alpha).all()
        assert (optimal >= threshold * (1 - 1e-13)).all()
        assert (signed >= optimal * (1 - 1e-13)).all()
        square = e**2 * 60 / h
        alike, between = square <= q, (square > q + 1) & (square < 8)  # the ratio of the loss falls throughout, or not
        np.testing.assert_array_equal(optimal[:, alike], threshold[:, alike])
        assert (optimal[3, between] > threshold[3, between]).any()
    assert (three(random_design(h, -e, 60), alpha)[2] == three(random_design(h, e, 60), alpha)[2]).all()


def test_a_negative_error_is_the_mirror_image_with_v_integrated_out():
    curves = [random_design(0.1, error, 40, integrate=True).tradeoff("signed") for error in (2.0, -2.0)]
    assert 0.06 < curves[0].tpr(0.05) == curves[1].tpr(0.05)


def test_only_likelihood_ratio_tests_are_convex():
    design = random_design(5.0, 0.5, 100)
    assert [bool(is_convex(design.tradeoff(test))) for test in TESTS] == [False, True, True]


def test_the_cells_lose_little_and_gain_nothing():
    """With V at its mean the cells can be held against the closed forms."""
    h, e, alpha = np.array([5.0, 20, 5, 1]), np.array([0.5, 1, 1, 3.0]), np.array([1e-3, 0.05, 0.5])[:, None]
    for q, short in ((1, 3e-5), (3, 1e-3)):
        design = random_design(h, e, 100, outputs=q)
        for test in ("optimal", "signed"):
            cells, miss = cell_errors(design.e_out, design.e_in, signed=test == "signed")(alpha)
            exact = design.tradeoff(test).tpr(alpha)
            assert (cells <= exact * (1 + 1e-7)).all()
            assert (cells >= exact * (1 - short)).all()
            np.testing.assert_allclose(miss, 1 - cells, atol=1e-10)


def test_integrating_matters_less_as_k_grows():
    h = np.array([1.0, 4.0])
    off = []
    for k in (10, 100, 1000):
        mean, fixed = (random_design(h * k / 20, 1.0, k, integrate=i).tradeoff().tpr(0.05) for i in (True, False))
        off.append(np.abs(mean - fixed))
    assert (off[1] < off[0] / 4).all()
    assert (off[2] < off[1] / 4).all()


def test_limits():
    alpha = np.array([0.0, 0.01, 0.5, 1.0])
    for integrated in (False, True):
        for test in TESTS:
            nothing = random_design(0.0, 1.0, 50, integrate=integrated).tradeoff(test)
            np.testing.assert_allclose(nothing.beta(alpha), 1 - alpha, atol=1e-4)
            np.testing.assert_allclose(random_design(1e12, 1.0, 50).tradeoff(test).beta(alpha[1:]), 0, atol=1e-3)


def test_power_grows_with_the_squared_error():
    e = np.geomspace(1e-3, 1e3, 60)
    for q in (1, 3):
        for test in TESTS:
            for h, k in ((5.0, 100), (0.5, 3)):
                power = random_design(h, e, k, outputs=q).tradeoff(test).tpr(np.array([[0.01], [0.3]]))
                assert (np.diff(power, axis=1) >= -1e-12).all(), (q, test, h)
                assert (np.diff(power[0]) > 0).any()


@pytest.mark.parametrize(
    ("q", "integrated", "k", "h"),
    [(1, False, 3, 1.0), (1, False, 10_000, 1.0), (2, False, 3, 1.0), (2, False, 10_000, 1.0), (1, True, 3, 1e6)]
    + [pytest.param(1, True, k, 1.0, marks=pytest.mark.slow) for k in (3, 10_000)],
)
def test_extremes_stay_finite_and_ordered(q, integrated, k, h):
    alpha = np.array([1e-12, 0.05, 1 - 1e-12])[:, None, None]
    e = np.array([0, 1.0, 1e6] if h == 1.0 else [0, 1.0])
    design = random_design(np.unique([1e-15, h, 1e6]), e[:, None], k, outputs=q, integrate=integrated)
    before = alpha
    for test in TESTS:
        power, miss = design.tradeoff(test).errors(alpha)
        assert np.isfinite(power).all()
        assert np.isfinite(miss).all()
        assert ((power >= alpha) & (power <= 1 + 1e-12) & (miss >= 0)).all()
        np.testing.assert_allclose(power + miss, 1, atol=1e-9)
        assert (power >= before * (1 - 2e-3) - 1e-12).all()
        assert (np.diff(power, axis=0) >= 0).all()
        before = power


def test_far_out_the_power_has_a_closed_form():
    """δ → ∞: the ball is a half-line, and the power Φ((1 + η)Φ⁻¹(α) + δη)."""
    for h, error, k in ((1e-15, 1.0, 100), (1e-4, 30.0, 10_000), (1e-10, 1e6, 100)):
        eta, alpha = h / k, np.array([1e-12, 0.05, 0.9])
        shift = error / np.sqrt(eta) * eta
        for test in TESTS:
            power = random_design(h, error, k).tradeoff(test).tpr(alpha)
            np.testing.assert_allclose(power, stats.norm.cdf((1 + eta) * stats.norm.ppf(alpha) + shift), rtol=1e-10)


def test_the_area_is_the_chance_of_the_right_order():
    rng = np.random.default_rng(2)
    design = random_design(6.0, 0.7, 30, outputs=2)
    inside, outside = design.loss_in.sample(rng, 400_000), design.loss_out.sample(rng, 400_000)
    assert design.tradeoff().auc() == pytest.approx(np.mean(inside < outside), abs=4 * 0.5 / np.sqrt(400_000))


@given(
    h=st.lists(st.floats(0.01, 50), min_size=1, max_size=3),
    e=st.lists(st.floats(0, 5), min_size=1, max_size=2),
    alpha=st.lists(st.floats(1e-6, 0.99), min_size=1, max_size=2),
    test=st.sampled_from(TESTS),
    q=st.sampled_from([1, 3]),
)
def test_broadcasting_is_a_loop(h, e, alpha, test, q):
    same_in_a_loop(lambda h, e: random_design(h, e, 40, outputs=q).tradeoff(test), h, e, alpha, rel=1e-9)
