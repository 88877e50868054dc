"""Two views put together, and the success predicted from them: against numbers worked out by hand, limits, order."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, log_softmax
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from giveaway.scores.fusion import Views, fused, left_out, normal_scores
from giveaway.scores.predicted import calibrated_phi, phi_of, predict_from_views

FINITE = st.floats(0.0, 1e6, allow_subnormal=False)
ROWS = st.integers(2, 30).flatmap(lambda n: st.tuples(*(st.lists(FINITE, min_size=n, max_size=n) for _ in range(3))))


def seen(head, inside, outside, leverage=None, *, variation: float = np.inf, exact: bool = False) -> Views:
    """With endless variation next to nothing is held by memory."""
    columns = [np.array(column, dtype=float) for column in (head, inside, outside)]
    return Views(*columns, np.full(len(head), 0.5) if leverage is None else np.array(leverage), variation, exact)


def by_hand(values) -> np.ndarray:
    """Φ⁻¹((rank − ½)/n) by counting, one value at a time."""
    inverse, n = NormalDist().inv_cdf, len(values)
    ranks = [sum(o < v for o in values) + (sum(o == v for o in values) + 1) / 2 for v in values]
    return np.array([inverse((rank - 0.5) / n) for rank in ranks])


# ------------------------------------------------------------------------------------------------ normal scores


def test_normal_scores_of_four():
    """Quantiles at 1/8, 3/8, 5/8 and 7/8."""
    expected = [0.3186393639643751, 1.1503493803760079, -0.3186393639643751, -1.1503493803760079]
    np.testing.assert_allclose(normal_scores(np.array([3.0, 9.0, 2.0, -7.0])), expected, rtol=1e-12)


def test_equal_values_share_their_mean_rank():
    found = normal_scores(np.array([5.0, 1.0, 5.0, 5.0, 0.0]))
    assert found[0] == found[2] == found[3]
    np.testing.assert_allclose(found, by_hand([5.0, 1.0, 5.0, 5.0, 0.0]), rtol=1e-12)
    np.testing.assert_array_equal(normal_scores(np.full(7, 3.0)), 0.0)
    assert normal_scores(np.array([2.0])).tolist() == [0.0]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40))
def test_normal_scores_are_those_of_counting(values):
    found = normal_scores(np.array(values))
    np.testing.assert_allclose(found, by_hand(values), rtol=1e-9, atol=1e-12)
    assert np.isfinite(found).all()


# ------------------------------------------------------------------------------------------------ what was memorized


@pytest.mark.parametrize(
    ("inside", "outside", "memorized", "weight"),
    [
        ([0.0, 0.0], [1.0, 3.0], 1.0, 1.0),  # all of the error is gone
        ([1.0, 3.0], [1.0, 3.0], 0.0, 1.0),  # none of it
        ([1.0, 1.0], [1.0, 3.0], 0.5, 0.5),
        ([1.0, 0.0], [1.0, 3.0], 0.75, 0.625),
        ([5.0, 5.0], [1.0, 3.0], 0.0, 1.0),  # worse than left out: no less than nothing
        ([0.0, 0.0], [0.0, 0.0], 0.0, 1.0),  # the others know everything
    ],
)
def test_the_share_memorized_and_the_weight_of_the_head(inside, outside, memorized, weight):
    both = seen([1.0, 2.0], inside, outside)
    assert both.memorized == memorized
    assert both.head_weight == weight


@pytest.mark.parametrize(
    ("inside", "outside", "leverage", "taken", "weight"),
    [
        # M = 1: leverage does not count, the head's view counts as much as the other
        ([0.0, 0.0, 0.0], [4.0, 1.0, 2.0], [0.1, 0.9, 0.5], [4.0, 1.0, 2.0], 1.0),
        # M = 0: the left-out error counts by its leverage
        ([4.0, 1.0, 2.0], [4.0, 1.0, 2.0], [0.1, 0.9, 0.5], [0.4, 0.9, 1.0], 1.0),
        # M = ¾: leverage to the power ¼, the head by 9/16 + 1/16
        ([1.0, 0.0, 1.0], [4.0, 3.0, 1.0], [1 / 16, 1.0, 1 / 81], [2.0, 3.0, 1 / 3], 0.625),
    ],
)
def test_what_a_record_takes_away_by_how_much_is_memorized(inside, outside, leverage, taken, weight):
    both = seen([1.0, 3.0, 2.0], inside, outside, leverage)
    np.testing.assert_allclose(left_out(both), taken, rtol=1e-14)
    np.testing.assert_allclose(fused(both), by_hand(taken) + weight * by_hand([1.0, 3.0, 2.0]), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    ("variation", "held", "weight"),
    [(8.0, 0.375, 0.625 * 0.625), (4.0, 0.75, 0.25 * 0.625), (3.0, 1.0, 0.0), (1.0, 1.0, 0.0), (0.0, 0.0, 0.625)],
)
def test_what_is_held_by_memory_takes_from_the_head_s_weight(variation, held, weight):
    """3 of 4 units of error are gone: M = ¾, and G = 3/variation."""
    both = seen([1.0, 2.0], [1.0, 0.0], [1.0, 3.0], variation=variation)
    assert both.held == held
    assert both.head_weight == weight
    expected = by_hand(left_out(both).tolist()) + weight * by_hand([1.0, 2.0])
    np.testing.assert_allclose(fused(both), expected, rtol=1e-14)


def test_a_model_worse_than_its_left_out_predictions_holds_nothing():
    assert seen([1.0, 2.0], [5.0, 5.0], [1.0, 3.0], variation=8.0).held == 0.0


# ------------------------------------------------------------------------------------------------ an exact head


def test_where_nothing_was_learned_the_head_is_all():
    both = seen([2.0, 3.0, 1.0], [0.0, 0.0, 1.0], [1.0, 2.0, 30.0], exact=True)
    np.testing.assert_array_equal(fused(both), normal_scores(both.head))
    assert fused(both).argmax() == 1
    np.testing.assert_array_equal(left_out(both), left_out(seen(both.head, both.error_with, both.error_without)))


# ------------------------------------------------------------------------------------------------ properties


@given(ROWS, st.floats(0.0, 1.0), FINITE)
def test_values_of_any_rows(rows, leverage, variation):
    head, inside, outside = rows
    both = seen(head, inside, outside, np.linspace(leverage, 1.0, len(head)), variation=variation)
    assert 0.0 <= both.memorized <= 1.0
    assert 0.0 <= both.held <= 1.0
    assert (1.0 - both.held) / 2 - 1e-12 <= both.head_weight <= 1.0 - both.held + 1e-12
    assert (left_out(both) >= 0.0).all()
    expected = by_hand(left_out(both).tolist()) + both.head_weight * by_hand(head)
    np.testing.assert_allclose(fused(both), expected, rtol=1e-9, atol=1e-9)


@given(ROWS, st.data())
def test_more_in_the_head_s_view_is_never_less_exposed(rows, data):
    head, inside, outside = rows
    k = data.draw(st.integers(0, len(head) - 1))
    more = [*head]
    more[k] += data.draw(st.floats(0.0, 1e6))
    assert fused(seen(more, inside, outside))[k] >= fused(seen(head, inside, outside))[k] - 1e-12


@given(ROWS)
def test_who_leads_in_both_views_leads(rows):
    head, inside, outside = rows
    found = fused(seen(head, inside, outside))
    for a in range(len(head)):
        ahead = (np.array(head) <= head[a]) & (np.array(outside) <= outside[a])
        assert (found[ahead] <= found[a] + 1e-12).all()


@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_and_the_units_of_rows_do_not_matter(rows, random):
    head, inside, outside = (np.array(column) for column in rows)
    order = np.array(random.sample(range(len(head)), len(head)))
    plain = fused(seen(head, inside, outside))
    moved = fused(seen(head[order], inside[order], outside[order]))
    np.testing.assert_allclose(moved, plain[order], rtol=1e-9, atol=1e-9)
    scaled = fused(seen(np.cbrt(head), 4.0 * inside, 4.0 * outside))
    np.testing.assert_allclose(scaled, fused(seen(np.cbrt(head), inside, outside)), rtol=1e-9, atol=1e-9)


def test_a_leverage_of_0_is_no_harm():
    both = seen([1.0, 2.0], [1.0, 1.0], [1.0, 1.0], [0.0, 0.5])
    assert np.isfinite(left_out(both)).all()
    assert fused(both).argmax() == 1


# ------------------------------------------------------------------------------------------------ predicted success

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
