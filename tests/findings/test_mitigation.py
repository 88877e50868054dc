"""Weighting down the most exposed rows: against real refits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giveaway import Head, audit
from giveaway.curvature.optimum import refit
from giveaway.findings.mitigation import NOTE, weights
from giveaway.records import ScoreTable
from tests import oracles
from tests.conftest import made_head, refused


def converged_head(kind: str, *, n: int = 120, d: int = 4, l2: float = 0.3, keep_weights: bool = False, **options):
    head = refit(made_head(kind, n=n, d=d, l2=l2, **options))
    return head if keep_weights else replace(head, weight=None, bias=None)


def retrained_newton(head: Head, row: int, weight: float) -> float:
    """Newton of a record after a retraining in which it alone is weighted, from the slow formulas."""
    s = np.ones(head.n) if head.sample_weight is None else head.sample_weight.numpy().copy()
    s[row] *= weight
    x, y = head.features.numpy(), head.targets.numpy()
    options = {"l2": head.l2, "sample_weight": s}
    _, outputs = oracles.refit(x, y, head.loss, **options, n_outputs=head.m)
    return oracles.head_scores(x, outputs, y, head.loss, **options)["newton"][row]


def capped_share(head: Head, rows: np.ndarray) -> np.ndarray:
    """Newton over the cap of each row, weighted alone."""
    table = audit(head)
    found = weights(table)
    return np.array([retrained_newton(head, row, found[row]) for row in rows]) / np.quantile(table["newton"], 0.9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["squared", "squared_many"])
def test_squared_loss_comes_down_to_the_cap_exactly(kind, weighted):
    given_weights = np.random.default_rng(1).uniform(0.3, 2.0, 60) if weighted else None
    head = refit(made_head(kind, l2=0.5, sample_weight=given_weights))
    table = audit(head)
    found = weights(table)
    above = np.flatnonzero(table["newton"] > np.quantile(table["newton"], 0.9))
    np.testing.assert_array_equal(np.flatnonzero(found < 1.0), above)
    assert table["leverage"][above].max() > 0.3  # a record that a weight in proportion, or leverage alone, would miss
    np.testing.assert_allclose(capped_share(head, above), 1.0, rtol=1e-8)


def test_a_record_with_most_of_its_direction():
    """Above leverage ½ newton rises before it falls; the weight is the one beyond the rise."""
    x = np.c_[np.random.default_rng(0).normal(size=40), np.zeros(40)]
    x[7, 1] = 3.0
    y = x[:, 0] + np.random.default_rng(1).normal(size=40)
    y[7] = 20.0
    _, outputs = oracles.refit(x, y, "squared", l2=2.0)
    head = Head(x, outputs, y, "squared", l2=2.0)
    table = audit(head)
    assert table["leverage"][7] > 0.8
    assert table.order("newton")[0] == 7
    assert retrained_newton(head, 7, 0.5) > table["newton"][7]
    np.testing.assert_allclose(capped_share(head, np.array([7])), 1.0, rtol=1e-8)
    assert weights(table)[7] < 0.01


@pytest.mark.parametrize("kind", ["one_logit", "classes", "soft_labels", "multi_label"])
def test_other_losses_come_near_the_cap(kind):
    head = refit(made_head(kind, n=100, l2=1.0))
    table = audit(head)
    found, limit = weights(table), np.quantile(table["newton"], 0.9)
    after = []
    for row in np.flatnonzero(found < 1.0):
        alone = np.where(np.arange(100) == row, found[row], 1.0)
        after.append(audit(refit(replace(head, sample_weight=alone)), scores=["newton"])["newton"][row])
    assert np.abs(np.median(after) / limit - 1.0) < 0.15
    assert max(after) < 2.5 * limit
    assert max(after) < 0.5 * table["newton"].max()


def test_a_person_with_one_weight_for_all_records():
    groups = np.arange(120) // 3
    head = refit(made_head("squared", n=120, l2=0.5, groups=groups))
    table = audit(head)
    found, limit = weights(table), np.quantile(table["newton"], 0.9)
    above = np.flatnonzero(found < 1.0)
    after = []
    for person in above:
        s = np.where(groups == person, found[person], 1.0)
        after.append(audit(refit(replace(head, sample_weight=s)), scores=["newton"])["newton"][person])
    assert len(above) == 4
    np.testing.assert_allclose(np.array(after) / limit, 1.0, atol=0.25)


@given(h=st.floats(0.0, 1.0, exclude_max=True), newton=st.floats(1.0, 1e12, exclude_min=True))
def test_the_weight_is_the_smaller_root(h, newton):
    table = ScoreTable({"newton": [newton, 1.0, 1.0], "influence": [newton * (1.0 - h), 1.0, 1.0]}, np.arange(3))
    s = weights(table, cap=0.5)[0]
    assert 0.0 < s <= 1.0
    kept = newton * (1.0 - h) / newton
    assert s * newton / (kept + s * (1.0 - kept)) ** 2 == pytest.approx(1.0, rel=1e-6)
    lower = np.linspace(0.0, s, 50)[:-1]
    assert (lower * newton / (kept + lower * (1.0 - kept)) ** 2 < 1.0).all()


def test_capped_rows_keep_a_weight_above_nothing():
    """A record that alone spans its direction: the cap on its newton leaves a leverage of one in effect."""
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=30), np.arange(30) == 4]
    head = Head(x, x[:, :1], x[:, 0] + rng.normal(size=30), "squared", l2=0.0)
    table = audit(head)
    assert table["newton_capped"][4]
    found = weights(table)
    assert 0.0 < found[4] < 1e-6
    zero = ScoreTable({"newton": [1.0, 1.0, 5.0], "influence": [1.0, 1.0, 0.0]}, np.arange(3))
    assert weights(zero, cap=0.5)[2] > 0.0


def test_weights_that_are_refused():
    assert NOTE == "heuristic: weights that depend on the data void a stated (ε, δ)"
    head = made_head("classes")
    box = replace(head, features=None)
    words = "table: expected the column newton, got loss, .*; audit a linear head with it; a black box has no curvature"
    refused(words, weights, audit(box))
    refused("table: expected the column influence, got newton; audit", weights, audit(head, scores=["newton"]))
    for cap in (0.0, 1.5):
        refused(f"cap: expected a quantile above 0 and up to 1, got {cap:g}; give a", weights, audit(head), cap=cap)
    mostly = ScoreTable({"newton": [0.0, 0.0, 0.0, 1.0], "influence": [0.0, 0.0, 0.0, 1.0]}, np.arange(4))
    refused("cap: expected a quantile of newton above 0, got a quantile of 0, which no", weights, mostly, cap=0.5)
