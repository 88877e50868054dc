"""Random design: draws, gap and curves against real least-squares fits, scipy.stats, brute-force Neyman–Pearson
tests and the printed numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from giveaway.theory import expected_gap, gap_expansion, random_design
from giveaway.theory.balls import ball_quantile, chi_square_nodes, far_from
from giveaway.theory.random_design import TESTS
from tests.conftest import refused
from tests.theory.refits import is_convex, refits, same_in_a_loop, sorted_test

N, P, SIGMA, RUNS = 16, 4, 1.3, 10_000
COVARIANCE = np.array([[2.0, 0.5, 0, 0], [0.5, 1, 0.2, 0], [0, 0.2, 1, 0], [0, 0, 0, 0.5]])
X = np.array([1.0, -1.5, 0.8, 0.4])
LEVERAGE = X @ np.linalg.solve(COVARIANCE, X)
ERRORS = {1: np.array([-1.6]), 3: np.array([1.0, -0.9, 0.4])}


@pytest.fixture(scope="module", params=[1, 3])
def fits(request):
    q = request.param
    rng = np.random.default_rng(q)
    error = ERRORS[q]
    h, out, inside = refits(X, error, n=N, runs=RUNS, rng=rng, sigma=SIGMA, covariance=COVARIANCE)
    size = error[0] if q == 1 else np.linalg.norm(error)
    design = random_design(LEVERAGE, size, N - P, variance=SIGMA**2, outputs=q)
    return design, h, out, inside, error


def test_draws_are_distributed_as_real_fits(fits):
    design, h, out, inside, error = fits
    along = error / np.linalg.norm(error) if len(error) > 1 else np.ones(1)
    drawn = design.draws(40_000)
    pairs = [
        (drawn.h, h),
        (drawn.e_out, out @ along),
        (drawn.e_in, inside @ along),
        (drawn.loss_out, (out**2).sum(axis=1)),
        (drawn.loss_in, (inside**2).sum(axis=1)),
        (drawn.loss_in / drawn.loss_out, (inside**2).sum(axis=1) / (out**2).sum(axis=1)),
    ]
    for ours, seen in pairs:
        assert stats.ks_2samp(ours, seen).pvalue > 1e-3


def test_draws_against_closed_forms():
    design = random_design(np.array([5.0, 0.5]), np.array([[0.7], [2.0]]), 7, variance=2.0, outputs=3)
    drawn = design.draws(20_000, seed=1)
    assert drawn.h.shape == (20_000, 2, 2)
    for i, j in np.ndindex(2, 2):
        leverage, error = (5.0, 0.5)[j], (0.7, 2.0)[i]
        v = leverage * (1 - drawn.h[:, i, j]) / drawn.h[:, i, j]
        assert stats.kstest(v, stats.chi2(7).cdf).pvalue > 1e-3
        student = stats.t(7, loc=error, scale=np.sqrt(2.0 * leverage / 7))
        assert stats.kstest(drawn.e_out[:, i, j], student.cdf).pvalue > 1e-3
    gap = drawn.loss_out - drawn.loss_in
    assert (np.abs(gap.mean(0) - expected_gap(design)) < 4 * gap.std(0) / np.sqrt(20_000)).all()


def test_the_gap_of_real_fits(fits):
    design, _, out, inside, _ = fits
    gap = (out**2).sum(axis=1) - (inside**2).sum(axis=1)
    error = gap.std() / np.sqrt(RUNS)
    assert abs(gap.mean() - expected_gap(design)) < 3 * error
    assert abs(gap_expansion(design) - expected_gap(design)) > 3 * error  # k is small: only the exact one is right


@pytest.mark.parametrize("k", [1, 3, 40, 10_000])
def test_the_quadrature(k):
    values, weights = np.transpose(chi_square_nodes(float(k)))
    law = stats.chi2(k)
    for function in (lambda v: v, lambda v: v * v, lambda v: v / (v + 3), lambda v: np.exp(-v / k)):
        exact = law.expect(function, epsrel=1e-10)
        assert weights @ function(values) == pytest.approx(exact, rel=1e-7)
    assert weights @ values == pytest.approx(k, rel=1e-12)
    assert weights @ (values - k) ** 2 == pytest.approx(2 * k, rel=1e-11)


def test_a_record_without_leverage_leaves_no_trace():
    design = random_design(0.0, 0.4, 50)
    drawn = design.draws(5)
    assert (drawn.h == 0).all()
    for values, certain in ((drawn.e_out, 0.4), (drawn.e_in, 0.4), (drawn.loss_in, 0.16)):
        np.testing.assert_allclose(values, certain)
    assert expected_gap(design) == 0
    assert expected_gap(random_design(1.0, 1.0, 2)) == np.inf


@pytest.mark.parametrize("q", [1, 4])
def test_the_expansion_is_off_by_the_third_power_of_k(q):
    k = np.array([200, 400, 800, 1600, 3200])
    off = []
    for each in k:
        design = random_design(np.array([3.0, 1.0, 8.0]), np.array([1.0, 2.0, 0.0]), each, variance=0.7, outputs=q)
        off.append(np.abs(gap_expansion(design) - expected_gap(design)))
    slopes = np.polyfit(np.log(k), np.log(off), 1)[0]
    assert ((slopes > -3.1) & (slopes < -2.9)).all()
    last = np.log2(np.divide(off[-2], off[-1]))
    np.testing.assert_allclose(last, 3, atol=0.1)


def test_the_gap_grows_with_leverage_and_error():
    h, e = np.geomspace(1e-8, 1e4, 40), np.geomspace(1e-6, 1e6, 40)[:, None]
    for k in (3, 100, 10_000):
        gap = expected_gap(random_design(h, e, k))
        assert np.isfinite(gap).all()
        assert (np.diff(gap, axis=0) > 0).all()
        assert (np.diff(gap, axis=1) > 0).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"leverage": -1.0}, r"leverage: expected finite numbers in \[0, inf\), got -1; give xᵀΣ⁻¹x"),
        ({"error": np.inf}, r"error: expected finite numbers in \(-inf, inf\), got inf"),
        ({"freedom": 0}, r"freedom: expected finite numbers in \[1, inf\), got 0; give n − p"),
        ({"variance": 0.0}, r"variance: expected finite numbers in \(0, inf\), got 0"),
        ({"outputs": 1.5}, "outputs: expected whole numbers, got 1.5"),
        ({"outputs": 2, "error": -1.0}, "error: expected norms of error vectors"),
    ],
)
def test_out_of_range_arguments(arguments, words):
    refused(words, random_design, **{"leverage": 1.0, "error": 1.0, "freedom": 10} | arguments)


def test_wrong_calls():
    design = random_design(1.0, 1.0, 10)
    refused("test: expected a known name, got 'sign'; did you mean signed", design.tradeoff, "sign")


RATES = np.array([0.005, 0.05, 0.3, 0.8])


def both(design, alpha):
    return [design.tradeoff(test).tpr(alpha) for test in TESTS]


def best_by_loss(eta, delta, q, alpha):
    """The likelihood ratio of the loss, by sorting many cells."""
    edges = np.linspace(0, delta + np.sqrt(q) + 8, 60_001)
    outside, inside = (np.diff(stats.ncx2.cdf((edges / s) ** 2, q, delta**2)) for s in (1, 1 / (1 + eta)))
    return np.interp(alpha, *sorted_test(outside, inside))


def test_the_printed_numbers():
    threshold, signed = both(random_design(5.0, 0.5, 100), 0.05)
    at = [threshold, best_by_loss(0.05, 0.5 / np.sqrt(0.05), 1, 0.05), signed]
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
def test_signed_is_the_sorted_likelihood_ratio_and_beats_that_of_the_loss(q, delta, eta):
    alpha = np.array([0.001, 0.05, 0.5, 0.95])
    threshold, signed = both(random_design(eta * 50, delta * np.sqrt(eta), 50, outputs=q), alpha)
    by_loss = best_by_loss(eta, delta, q, alpha)
    assert (threshold <= by_loss * (1 + 2e-5)).all()
    assert (by_loss <= signed * (1 + 2e-5)).all()
    if delta**2 <= q:  # the ratio of the loss falls throughout: the threshold is the best that sees the loss
        np.testing.assert_allclose(threshold, by_loss, rtol=2e-5, atol=1e-9)
    if q == 1:
        edges = np.linspace(-9, delta + 9, 60_001)
        outside, inside = (np.diff(stats.norm.cdf(edges, a * delta, a)) for a in (1, 1 / (1 + eta)))
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


def test_order_of_the_tests():
    rng = np.random.default_rng(0)
    h, e = rng.exponential(8, 80), rng.normal(size=80) * 2
    alpha = np.array([1e-12, 1e-6, 1e-3, 0.05, 0.5, 0.99])[:, None]
    for q in (1, 3):
        threshold, signed = both(random_design(h, np.abs(e), 60, outputs=q), alpha)
        assert (threshold >= alpha).all()
        assert (signed >= threshold * (1 - 1e-13)).all()
    assert (both(random_design(h, -e, 60), alpha)[1] == both(random_design(h, e, 60), alpha)[1]).all()


def test_only_likelihood_ratio_tests_are_convex():
    design = random_design(5.0, 0.5, 100)
    assert [bool(is_convex(design.tradeoff(test))) for test in TESTS] == [False, True]


def test_limits():
    alpha = np.array([0.0, 0.01, 0.5, 1.0])
    for test in TESTS:
        np.testing.assert_allclose(random_design(0.0, 1.0, 50).tradeoff(test).beta(alpha), 1 - alpha, atol=1e-12)
        np.testing.assert_allclose(random_design(1e12, 1.0, 50).tradeoff(test).beta(alpha[1:]), 0, atol=1e-3)


def test_power_grows_with_the_squared_error():
    e = np.geomspace(1e-3, 1e3, 60)
    for q in (1, 3):
        for test in TESTS:
            for h, k in ((5.0, 100), (0.5, 3)):
                power = random_design(h, e, k, outputs=q).tradeoff(test).tpr(np.array([[0.01], [0.3]]))
                assert (np.diff(power, axis=1) >= -1e-12).all(), (q, test, h)
                assert (np.diff(power[0]) > 0).any()


@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("k", [3, 10_000])
def test_extremes_stay_finite_and_ordered(q, k):
    alpha = np.array([1e-12, 0.05, 1 - 1e-12])[:, None, None]
    design = random_design(np.array([1e-15, 1.0, 1e6]), np.array([[0], [1.0], [1e6]]), k, outputs=q)
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


@pytest.mark.parametrize("q", [2, 200, 1_000, 5_000])
def test_quantiles_of_many_outputs_hold_their_share(q):
    delta, alpha = np.meshgrid(np.linspace(0, 0.999 * far_from(q), 9), [1e-12, 1e-5, 0.01, 0.5, 0.99])
    x, t = ball_quantile(alpha.ravel(), delta.ravel(), q)
    np.testing.assert_allclose(stats.ncx2.cdf(x * x, q, delta.ravel() ** 2), alpha.ravel(), rtol=1e-6)
    np.testing.assert_allclose(t, x - delta.ravel(), atol=1e-9)


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
    outside, inside = (np.array([0.7, 0.0]) + np.sqrt(0.2) * rng.normal(size=(2, 400_000, 2))) * [[[1.0]], [[1 / 1.2]]]
    right = np.mean((inside**2).sum(1) < (outside**2).sum(1))
    area = random_design(6.0, 0.7, 30, outputs=2).tradeoff().auc()
    assert area == pytest.approx(right, abs=4 * 0.5 / np.sqrt(400_000))


@given(
    h=st.lists(st.floats(0.01, 50), min_size=1, max_size=3),
    e=st.lists(st.floats(0, 5), min_size=1, max_size=2),
    alpha=st.lists(st.floats(1e-6, 0.99), min_size=1, max_size=2),
    test=st.sampled_from(TESTS),
    q=st.sampled_from([1, 3]),
)
def test_broadcasting_is_a_loop(h, e, alpha, test, q):
    same_in_a_loop(lambda h, e: random_design(h, e, 40, outputs=q).tradeoff(test), h, e, alpha, rel=1e-9)
