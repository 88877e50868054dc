"""From curves and from measured attacks to (ε, δ)."""

import numpy as np
import pytest
from scipy import stats

from giveaway.theory import (
    TradeOff,
    epsilon_lower_bound,
    estimated_epsilon,
    fixed_design,
    two_normals,
)
from tests.conftest import refused

MU = np.array([0.1, 0.5, 1.0, 3.0])


def gaussian(mu):
    return two_normals(mu, 1.0, 1.0)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0])
def test_the_gaussian_curve_has_a_closed_form(epsilon):
    """δ(ε) = Φ(−ε/μ + μ/2) − e^ε·Φ(−ε/μ − μ/2) (Dong, Roth and Su, Corollary 2.13), which ε(δ) undoes."""
    delta = stats.norm.cdf(-epsilon / MU + MU / 2) - np.exp(epsilon) * stats.norm.cdf(-epsilon / MU - MU / 2)
    seen = delta > 1e-9
    np.testing.assert_allclose(estimated_epsilon(gaussian(MU[seen]), delta[seen]), epsilon, atol=1e-7)


def test_the_area_under_a_gaussian_curve():
    np.testing.assert_allclose(gaussian(MU).auc(), TradeOff(gaussian(MU).errors, MU.shape).auc(), rtol=1e-10)


def test_randomized_response_is_epsilon_zero():
    """max(0, 1 − e^ε·α, e^{−ε}(1 − α)): the curve of (ε, 0)."""
    epsilon = 1.3

    def errors(alpha):
        beta = np.maximum(1 - np.exp(epsilon) * alpha, np.exp(-epsilon) * (1 - alpha))
        return 1 - beta, beta

    curve = TradeOff(errors)
    assert estimated_epsilon(curve, 1e-9) == pytest.approx(epsilon, abs=1e-6)


def test_a_curve_and_its_mirror_image_give_the_same():
    curve = fixed_design.tradeoff(0.4, m=3)

    def mirrored(alpha):  # β⁻¹(α): clear where the other accuses
        x = stats.chi2.isf(alpha, 3) * 0.6 / 1.4
        return stats.chi2.sf(x, 3), stats.chi2.cdf(x, 3)

    mirror = TradeOff(mirrored)
    assert estimated_epsilon(mirror, 1e-4) == pytest.approx(float(estimated_epsilon(curve, 1e-4)), rel=1e-6)


def test_estimates_grow_with_leverage():
    curve = fixed_design.tradeoff(np.array([0.0, 0.01, 0.1, 0.4, 0.8]))
    epsilon = estimated_epsilon(curve, 1e-5)
    assert epsilon[0] == pytest.approx(0, abs=1e-9)
    assert (np.diff(epsilon) > 0).all()
    assert estimated_epsilon(curve, np.array([1e-3, 1e-6])[:, None]).shape == (2, 5)


def test_clopper_pearson_limits_are_scipys():
    bound = epsilon_lower_bound(60, 200, 4, 300, delta=1e-5, confidence=0.9)
    tpr = stats.binomtest(60, 200).proportion_ci(0.9, method="exact").low
    fpr = stats.binomtest(4, 300).proportion_ci(0.9, method="exact").high
    assert (bound.tpr, bound.fpr) == (pytest.approx(tpr), pytest.approx(fpr))
    assert bound.value == pytest.approx(max(np.log((tpr - 1e-5) / fpr), np.log((1 - fpr - 1e-5) / (1 - tpr))))
    assert bound.confidence == 0.9


def test_a_lower_bound_is_one_as_often_as_it_says():
    rng = np.random.default_rng(0)
    tpr, fpr = gaussian(1.5).tpr(0.05), 0.05
    true, false = rng.binomial(500, tpr, 4000), rng.binomial(500, fpr, 4000)
    epsilon = np.log((tpr - 1e-5) / fpr)
    assert np.mean(epsilon_lower_bound(true, 500, false, 500, delta=1e-5, confidence=0.8).value > epsilon) < 0.2


def test_more_evidence_raises_the_bound_and_more_thresholds_lower_it():
    few, many = (epsilon_lower_bound(30 * s, 100 * s, 2 * s, 100 * s, delta=1e-5).value for s in (1, 100))
    assert few < many < np.log(15)
    assert epsilon_lower_bound(30, 100, 2, 100, delta=1e-5, thresholds=50).value < few
    nothing = epsilon_lower_bound([0, 5, 100], 100, [0, 5, 100], 100, delta=1e-5).value
    np.testing.assert_array_equal(nothing, 0)
    assert np.isfinite(epsilon_lower_bound(100, 100, 0, 100, delta=0.0).value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: estimated_epsilon(gaussian(1), 0), r"delta: expected finite numbers in \(1e-13, 1\), got 0"),
        (lambda: epsilon_lower_bound(5, 4, 0, 4, delta=0.1), "true_positives: expected at most the number of members"),
        (lambda: epsilon_lower_bound(1, 4, 5, 4, delta=0.1), "false_positives: expected at most the number of nonmem"),
        (lambda: epsilon_lower_bound(1, 4, 0, 4, delta=1.0), "delta: expected"),
        (
            lambda: epsilon_lower_bound(0.5, 4, 0, 4, delta=0.1),
            "true_positives: expected whole numbers, got 0.5; give counts",
        ),
        (lambda: epsilon_lower_bound(1, 4, 0, 4, confidence=1.0, delta=0.1), "confidence: expected"),
        (lambda: epsilon_lower_bound(1, 4, 0, 4, thresholds=0, delta=0.1), "thresholds: expected"),
    ],
)
def test_out_of_range_arguments(call, words):
    refused(words, call)
