"""Two normals: curve, area and best success against root finding, quadrature, sorted cells and simulation."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.integrate import quad, trapezoid
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, ndtr, ndtri
from scipy.stats import chi2, norm

from giveaway.theory import random_design
from giveaway.theory.tradeoff import best_success, two_normals
from tests.conftest import refused
from tests.theory.refits import is_convex, sorted_test

RATES = np.array([1e-5, 1e-3, 0.01, 0.2, 0.7, 0.99])
EXACT = 1e-9


class Pair:
    """N(g, c²), members, against N(0, 1), by the interval (u, 2z − u) in which the likelihood ratio is largest.

    Its log is a parabola with its top at z = g/(1 − c²); the lower end u holds its digits however far away z is.
    """

    def __init__(self, gap, sd_in, sd_out):
        self.g, self.c = abs(gap) / sd_out, sd_in / sd_out
        self.z = self.g / ((sd_out - sd_in) * (sd_out + sd_in) / sd_out**2)

    def out(self, u):
        return ndtr(-u) - ndtr(u - 2 * self.z) if u > -1 else ndtr(2 * self.z - u) - ndtr(u)

    def inside(self, u):
        a, b = (u - self.g) / self.c, (2 * self.z - u - self.g) / self.c
        return ndtr(-a) - ndtr(-b) if a > 0 else ndtr(b) - ndtr(a)

    def tpr(self, alpha):
        top = min(self.z, 40.0)
        return self.inside(brentq(lambda u: self.out(u) - alpha, -40.0, top, xtol=1e-15, rtol=1e-15))

    def auc(self):
        """P(the member lies in the narrower interval), by quadrature over the member."""

        def outside(t):
            point = self.g + self.c * t
            u = min(point, 2 * self.z - point)
            return norm.pdf(t) * (ndtr(u) + ndtr(u - 2 * self.z))

        break_at = np.unique(np.clip([(self.z - self.g) / self.c, 0.0, -self.g / self.c], -38, 38))
        ends = np.concatenate([[-39.0], break_at, [39.0]])
        return sum(quad(outside, a, b, epsabs=1e-13, epsrel=1e-12, limit=400)[0] for a, b in pairwise(ends))

    def success(self):
        """Where the ratio is 1, by bisection on its logarithm."""

        def log_ratio(u):
            return 0.5 * u**2 - 0.5 * ((u - self.g) / self.c) ** 2 - np.log(self.c)

        u = brentq(log_ratio, -60.0, min(self.z, self.g), xtol=1e-15, rtol=1e-15)
        return 0.5 + 0.5 * (self.inside(u) - self.out(u))


PAIRS = [
    (gap, c * scale, scale)
    for scale in (1.0, 3e-7)
    for gap in (0.0, 1e-4 * scale, 0.3 * scale, -1.0 * scale, 2.5 * scale, 6.0 * scale)
    for c in (1e-10, 1e-3, 0.1, 0.5, 0.9, 0.99, 1 - 1e-4, 1 - 1e-6)
]


@pytest.mark.parametrize("scale", [1.0, pytest.param(3e-7, marks=pytest.mark.slow)])
def test_curve_area_and_success_by_roots_and_quadrature(scale):
    for gap, inside, outside in (pair for pair in PAIRS if pair[2] == scale):
        exact, curve = Pair(gap, inside, outside), two_normals(gap, inside, outside)
        here = f"{gap} {inside} {outside}"
        expected = [exact.tpr(alpha) for alpha in RATES]
        np.testing.assert_allclose(curve.tpr(RATES), expected, rtol=0, atol=EXACT, err_msg=here)
        np.testing.assert_allclose(curve.beta(RATES), 1 - np.array(expected), rtol=0, atol=EXACT, err_msg=here)
        np.testing.assert_allclose(curve.auc(), exact.auc(), rtol=0, atol=EXACT, err_msg=here)
        np.testing.assert_allclose(best_success(gap, inside, outside), exact.success(), rtol=0, atol=EXACT)


@given(
    gap=st.floats(-8, 8),
    narrower=st.floats(-6, -0.001),
    scale=st.floats(-9, 9),
    alpha=st.floats(1e-6, 1 - 1e-6),
)
def test_generated_pairs(gap, narrower, scale, alpha):
    outside = 10.0**scale
    inside = outside * 10.0**narrower
    assume(abs(gap) > 1e-12 or gap == 0)
    exact, curve = Pair(gap * outside, inside, outside), two_normals(gap * outside, inside, outside)
    assert curve.tpr(alpha) == pytest.approx(exact.tpr(alpha), abs=EXACT)
    success = best_success(gap * outside, inside, outside)
    assert success == pytest.approx(exact.success(), abs=EXACT)
    assert success >= (1 - alpha + curve.tpr(alpha)) / 2 - 1e-12
    assert 0.5 <= curve.auc() <= 1


@pytest.mark.parametrize("c", [1.0, 1 - 1e-13, 1 - 1e-11, 1.5, 1e6], ids=str)
@pytest.mark.parametrize("gap", [0.0, 1e-7, 0.5, -2.0, 5.0, 20.0])
def test_equal_spreads_and_a_wider_member(gap, c):
    """The shift of one normal; a member that varies more counts as one that varies alike."""
    curve = two_normals(3 * gap, 3 * c, 3.0)
    np.testing.assert_allclose(curve.tpr(RATES), ndtr(ndtri(RATES) + abs(gap)), rtol=0, atol=EXACT)
    np.testing.assert_allclose(curve.beta(RATES), ndtr(-ndtri(RATES) - abs(gap)), rtol=1e-6, atol=EXACT)
    np.testing.assert_allclose(curve.auc(), ndtr(abs(gap) / np.sqrt(2)), rtol=0, atol=EXACT)
    np.testing.assert_allclose(best_success(3 * gap, 3 * c, 3.0), ndtr(abs(gap) / 2), rtol=0, atol=EXACT)


def test_nothing_jumps_as_the_spreads_meet():
    c = 1 - np.concatenate([np.logspace(-3, -16, 53), [0.0]])
    for gap in (0.0, 0.4, 3.0):
        for values in (two_normals(gap, c, 1.0).tpr(0.01), two_normals(gap, c, 1.0).auc(), best_success(gap, c, 1.0)):
            assert (np.abs(np.diff(values)) <= np.abs(np.diff(c)) + 1e-11).all()  # no slope in c reaches 1 here
            np.testing.assert_allclose(values[-20:], values[-1], rtol=0, atol=EXACT)


FAR = [(1e5, 1, 1), (1e300, 1e-150, 1e-150), (0, 1e-160, 1), (1, 1e-300, 1e8)]
FAR += [(-1e200, 1.0, 2.0), (3, 1e-320, 1e-200), (5, 1e200, 1e-200)]


@pytest.mark.parametrize(("gap", "sd_in", "sd_out"), FAR)
def test_far_apart_or_narrow_beyond_float64(gap, sd_in, sd_out):
    curve = two_normals(gap, sd_in, sd_out)
    assert (curve.tpr([1e-50, 0.001, 0.5]) == 1).all()
    assert (curve.beta([1e-50, 0.001, 0.5]) == 0).all()
    assert curve.auc() == 1
    assert best_success(gap, sd_in, sd_out) == 1


def test_small_spreads_in_units_of_each_other():
    """Only ratios count: the smallest spreads behave as the others."""
    for scale in (1e-150, 1e-300, 1e150):
        gap, inside, outside = 0.7 * scale, 0.6 * scale, 0.9 * scale
        exact = Pair(0.7, 0.6, 0.9)
        np.testing.assert_allclose(two_normals(gap, inside, outside).tpr(RATES), [exact.tpr(a) for a in RATES], 1e-9)
        np.testing.assert_allclose(best_success(gap, inside, outside), exact.success(), rtol=1e-9)


@pytest.mark.parametrize(("gap", "sd_in", "sd_out"), [(0.0, 0.5, 1.0), (1.0, 0.8, 1.0), (-3.0, 2.0, 2.5), (0.6, 1, 1)])
def test_sorted_cells(gap, sd_in, sd_out):
    """No parabola and no interval: cells of the line, sorted by how much likelier a member is there."""
    edges = np.linspace(-12 * sd_out, 12 * sd_out, 600_001)
    inside, outside = (np.diff(ndtr((edges - at) / sd)) for at, sd in ((gap, sd_in), (0.0, sd_out)))
    false, true = sorted_test(outside, inside)
    curve = two_normals(gap, sd_in, sd_out)
    np.testing.assert_allclose(curve.tpr(RATES[1:]), np.interp(RATES[1:], false, true), rtol=0, atol=3e-9)
    np.testing.assert_allclose(curve.auc(), trapezoid(true, false), rtol=0, atol=3e-9)
    np.testing.assert_allclose(best_success(gap, sd_in, sd_out), 0.5 + (true - false).max() / 2, rtol=0, atol=3e-9)


def test_arrays_broadcast_and_signs_do_not_matter():
    gap, inside, outside = np.array([-1.0, 0.2, 3.0]), np.array([[0.5], [0.9]]), 1.1
    curve = two_normals(gap, inside, outside)
    assert curve.auc().shape == curve.tpr(0.1).shape == best_success(gap, inside, outside).shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        one = two_normals(-gap[j], inside[i, 0], outside)
        assert (one.tpr(0.1), one.auc()) == (curve.tpr(0.1)[i, j], curve.auc()[i, j])
        assert best_success(-gap[j], inside[i, 0], outside) == best_success(gap, inside, outside)[i, j]
    assert is_convex(curve).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.nan, 1, 1), "gap: expected finite numbers in (-inf, inf), got nan; give mean with − mean without"),
        (([0.0, np.inf], 1, 1), "gap: expected finite numbers in (-inf, inf), got inf; give mean with"),
        (("far", 1, 1), "gap: expected numbers, got str; give mean with"),
        ((1, 0, 1), "sd_in: expected finite numbers in (0, inf), got 0; give a standard deviation above 0"),
        ((1, 1, [-1.0, 0.0]), "sd_out: expected finite numbers in (0, inf), got -1 (2 such values); give a standard"),
    ],
)
@pytest.mark.parametrize("function", [two_normals, best_success])
def test_refused_with_these_words(function, arguments, words):
    refused(f"^{re.escape(words)}", function, *arguments)


# ------------------------------------------------------------------------------------------- several dimensions


def sliced_success(delta, c, q):
    """By quadrature along e₁: at z the ratio exceeds 1 where what lies across is below `room` in square."""
    widest = (1 - c) * (1 + c) / c**2

    def room(z):
        return np.maximum(-2 * q * np.log(c) - ((z - c * delta) / c) ** 2 + (z - delta) ** 2, 0.0) / widest

    reach = np.sqrt(-2 * q * np.log(c) / widest + (c * delta / (1 + c)) ** 2)
    low, high = c * delta / (1 + c) - reach, c * delta / (1 + c) + reach

    def mass(at, sd):
        def slice_(z):
            return norm.pdf(z, at, sd) * chi2.cdf(room(z) / sd**2, q - 1)

        a, b = max(low, at - 38 * sd), min(high, at + 38 * sd)
        return quad(slice_, a, b, epsabs=1e-13, epsrel=1e-11, limit=500)[0] if a < b else 0.0

    return 0.5 + 0.5 * (mass(c * delta, c) - mass(delta, 1.0))


@pytest.mark.parametrize("q", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(10, marks=pytest.mark.slow)])
def test_several_dimensions_by_quadrature(q):
    for delta in (0.0, 0.3, 2.0, 70.0):
        for c in (0.05, 0.6, 0.99):
            expected = sliced_success(delta, c, q)
            assert best_success(delta * (1 - c), c, 1.0, outputs=q) == pytest.approx(expected, abs=EXACT), (delta, c)


@pytest.mark.parametrize("q", [1, 2, 5, 40])
def test_the_best_point_of_the_curve(q):
    """The signed curve of a random design is the same pair of laws: its best threshold gives the same number."""
    freedom, variance = 50.0, 0.7
    leverage, error = np.meshgrid([0.02, 1.0, 20.0, 400.0], [0.0, 0.4, 3.0])
    curve = random_design(leverage, error, freedom, variance=variance, outputs=q).tradeoff("signed")
    delta = error / np.sqrt(variance * leverage / freedom)
    c = freedom / (freedom + leverage)
    found = best_success(delta * (1 - c), c, 1.0, outputs=q)
    logits = np.linspace(-60, 10, 281)
    grid = (1 - expit(logits) + curve.tpr(expit(logits)[:, None, None]).transpose(1, 2, 0)) / 2
    assert (grid.max(2) <= found + 1e-12).all()
    for i, j in np.ndindex(found.shape):
        one = random_design(leverage[i, j], error[i, j], freedom, variance=variance, outputs=q).tradeoff("signed")

        def lost(logit, one=one):
            return -(1 - expit(logit) + one.tpr(expit(logit))) / 2

        near = logits[grid[i, j].argmax()]
        best = minimize_scalar(lost, bounds=(near - 0.3, near + 0.3), method="bounded", options={"xatol": 1e-7})
        assert -best.fun == pytest.approx(found[i, j], abs=EXACT)


def test_a_gap_is_kept_where_the_spreads_count_as_equal():
    """δ(1 − c) is the gap: with c as near to 1 as float64 allows it still is, and without a gap nothing is seen."""
    c = 1 - 2.0 ** -np.arange(41, 53)
    for q in (1, 3):
        for gap in (0.1, 1.0, 4.0):
            found = best_success(gap, c, 1.0, outputs=q)
            np.testing.assert_allclose(found, ndtr(gap / 2), rtol=0, atol=1e-8)
        assert best_success(0.0, 1.0, 1.0, outputs=q) == pytest.approx(0.5, abs=EXACT)
