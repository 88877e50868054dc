"""The success predicted from the model and the other records: against numbers worked out by hand, limits, order."""

import numpy as np
import pytest
from scipy.special import expit, log_softmax
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from giveaway.scores.predicted import calibrated_phi, phi_of, predict_from_views

N = 400


def labels_and_scores(seed: int = 0, classes: int = 3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, N)
    return y, 0.3 * np.eye(classes)[y] + rng.normal(scale=0.2, size=(N, classes))


def test_phi_is_the_log_odds_of_the_label():
    y, scores = labels_and_scores()
    p = np.exp(log_softmax(scores, axis=1))[np.arange(N), y]
    np.testing.assert_allclose(phi_of(scores, y), np.log(p / (1 - p)), rtol=1e-10)
    one = scores[:, :1]
    np.testing.assert_allclose(phi_of(one, y % 2), np.where(y % 2, one[:, 0], -one[:, 0]))


def test_the_temperature_of_one_logit_is_a_logistic_regression_s_weight():
    y, scores = labels_and_scores(1, 2)
    centred = scores[:, 1:] - scores[:, :1]
    fit = LogisticRegression(C=1e9, fit_intercept=False, tol=1e-10).fit(centred, y)
    expected = np.where(y == 1, 1.0, -1.0) * centred[:, 0] * fit.coef_[0, 0]
    np.testing.assert_allclose(calibrated_phi(centred, y), expected, rtol=1e-3)


def test_no_other_temperature_makes_the_labels_likelier():
    y, scores = labels_and_scores(2)
    best = -np.log(expit(calibrated_phi(scores, y))).mean()
    for factor in np.geomspace(0.01, 100, 41):
        assert -np.log(expit(phi_of(factor * scores, y))).mean() >= best - 1e-6


def test_worked_by_hand():
    """Four groups of 50: with the record φ is 8 ± 1 in all, without it −4, 0, 4, 8 by exposure."""
    model = np.tile([7.0, 9.0], 100)
    view = np.repeat([8.0, 4.0, 0.0, -4.0], 50)
    exposure = np.repeat([1.0, 2.0, 3.0, 4.0], 50)
    found = predict_from_views(model, view, exposure)
    # the surest tenth: 9 of the model, 8 of the view, so that the view is stretched by 9/8
    gaps = 8.0 - 9.0 / 8.0 * np.array([8.0, 4.0, 0.0, -4.0])
    outside = 9.0 / 8.0 * view
    expected = []
    for gap in np.maximum(gaps, 0.0):
        cuts = np.linspace(-60.0, 60.0, 240_001)
        density_in = norm.pdf(cuts, gap, 1.0)
        density_out = norm.pdf(cuts, 0.0, outside.std())
        expected.append(0.5 * np.maximum(density_in, density_out).sum() * (cuts[1] - cuts[0]))
    np.testing.assert_allclose(found.success, np.repeat(expected, 50), rtol=1e-4)


def test_success_follows_the_exposure_where_the_model_is_equally_sure():
    rng = np.random.default_rng(3)
    exposure = rng.normal(size=N)
    model = np.full(N, 5.0) + np.tile([-0.1, 0.1], N // 2)
    found = predict_from_views(model, rng.normal(2.0, 3.0, N), exposure)
    success = found.success[np.argsort(exposure)]
    assert (np.diff(success) >= -1e-3).all()
    assert success[-1] > success[0] + 0.03
    assert ((found.success >= 0.5) & (found.success <= 1.0)).all()


@pytest.mark.parametrize("n", [2, 3, 49, 51])
def test_few_records_and_constants_stay_finite(n):
    constant = predict_from_views(np.full(n, 3.0), np.full(n, 3.0), np.zeros(n))
    assert np.isfinite(constant.success).all()
    rising = predict_from_views(np.arange(n) * 1.0, -np.arange(n) * 1.0, np.arange(n) * 1.0)
    assert np.isfinite(rising.success).all()
