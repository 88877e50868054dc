"""spearman against SciPy, recall_at against averaging over every way to break ties."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from giveaway import InputError
from giveaway.evaluation import recall_at, recall_curve, spearman

few_values = st.lists(st.integers(0, 3), min_size=5, max_size=5)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=60))
def test_spearman_with_ties(pairs):
    a, b = np.array(pairs, dtype=float).T
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    else:
        assert spearman(a, b) == 0.0


@pytest.mark.parametrize(("transform", "expected"), [(np.exp, 1.0), (lambda x: -(x**3), -1.0)])
def test_spearman_sees_only_the_order(transform, expected):
    values = np.random.default_rng(0).normal(size=50)
    assert spearman(values, transform(values)) == pytest.approx(expected, abs=1e-14)


def recall_over_all_tie_breaks(scores, truth, top: int, keep: int) -> float:
    """Mean over the orders of the rows of the recall of plain stable sorts: ties at random, scores apart from truth."""

    def chance_inside(values: list[float], count: int) -> np.ndarray:
        inside = np.zeros(len(values))
        orders = list(permutations(range(len(values))))
        for order in orders:
            chosen = sorted(order, key=lambda row: -values[row])[:count]
            inside[chosen] += 1 / len(orders)
        return inside

    return float(chance_inside(scores, keep) @ chance_inside(truth, top)) / top


@settings(max_examples=40, deadline=None)
@given(few_values, few_values, st.integers(1, 5), st.integers(1, 5))
def test_recall_gives_ties_fractional_credit(scores, truth, top, keep):
    expected = recall_over_all_tie_breaks(scores, truth, top, keep)
    assert recall_at(scores, truth, top=top / 5, keep=keep / 5) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(20)), st.integers(1, 20), st.integers(1, 20))
def test_recall_without_ties_counts_the_overlap(scores, top, keep):
    truth = list(range(20))
    best, kept = set(range(20 - top, 20)), {row for row in range(20) if scores[row] >= 20 - keep}
    assert recall_at(scores, truth, top=top / 20, keep=keep / 20) == len(best & kept) / top


@settings(max_examples=60, deadline=None)
@given(few_values, few_values, st.integers(1, 5))
def test_the_curve_with_ties_is_recall_at_everywhere(scores, truth, top):
    keeps, recalls = recall_curve(scores, truth, top / 5)
    np.testing.assert_allclose(keeps, [0.2, 0.4, 0.6, 0.8, 1.0])
    expected = [recall_at(scores, truth, top / 5, keep) for keep in keeps]
    np.testing.assert_allclose(recalls, expected, rtol=0, atol=1e-14)


def test_the_curve_without_ties_is_exactly_recall_at():
    rng = np.random.default_rng(2)
    scores, truth = rng.normal(size=(2, 3001))
    keeps, recalls = recall_curve(scores, truth, 0.01)
    assert recalls.tolist() == [recall_at(scores, truth, 0.01, keep) for keep in keeps]
    assert (keeps[0], keeps[-1], recalls[-1]) == (1 / 3001, 1.0, 1.0)
    assert 100 < len(keeps) <= 200
    assert (np.diff(keeps) > 0).all()
    own, some = recall_curve(scores, truth, 0.01, [0.5, 0.0305, 0.2])
    assert own.tolist() == [0.5, 0.0305, 0.2]
    assert some.tolist() == [recall_at(scores, truth, 0.01, keep) for keep in own]


def test_recall_does_not_depend_on_the_order_of_the_rows():
    rng = np.random.default_rng(1)
    scores, truth = rng.integers(0, 10, 200), rng.integers(0, 10, 200)
    order = rng.permutation(200)
    here = recall_at(scores, truth, top=0.05, keep=0.1)
    assert recall_at(scores[order], truth[order], top=0.05, keep=0.1) == pytest.approx(here, abs=1e-14)
    assert 0 < here < 1


def test_counts_are_rounded_shares():
    scores = np.arange(100.0)
    truth = np.where(np.arange(100) == 97, 1000.0, -np.arange(100.0))
    assert recall_at(scores, truth, top=0.012, keep=0.026) == 1.0
    assert recall_at(scores, truth, top=0.012, keep=0.024) == 0.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: recall_at([1, 2, 3], [1, 2, 3], top=0.1, keep=1.0), "top: expected a share that keeps 1 to 3 records"),
        (
            lambda: recall_at([1, 2, 3], [1, 2, 3], top=0.5, keep=1.5),
            "keep: expected a share that keeps 1 to 3 records",
        ),
        (
            lambda: recall_curve([1, 2, 3], [1, 2, 3], 0.5, [0.5, 0.1]),
            "keeps: expected a share that keeps 1 to 3 records, got 0.1",
        ),
        (
            lambda: recall_curve([1, 2, 3], [1, 2, 3], np.nan),
            "top: expected a share that keeps 1 to 3 records, got nan",
        ),
        (lambda: recall_at([1, 2, 3], [1, 2], top=0.5, keep=0.5), "scores: expected two rankings of the same records"),
        (lambda: spearman([1], [1]), r"got shapes \(1,\) and \(1,\); align them"),
    ],
)
def test_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
