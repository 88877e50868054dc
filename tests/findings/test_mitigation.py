"""Removing or weighting down the most exposed rows: against real refits, and planted twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from giveaway import Head, audit
from giveaway.curvature.optimum import refit
from giveaway.findings.mitigation import MOST_RISEN, NOTE, RemovalEffect, removals, weights, without
from giveaway.records import ScoreTable
from tests import oracles
from tests.conftest import made_arrays, made_head, refused


def removal(head: Head, table: ScoreTable, *, share: float) -> RemovalEffect:
    (found,) = removals(head, table, shares=(share,))
    return found


def converged_head(kind: str, *, n: int = 120, d: int = 4, l2: float = 0.3, keep_weights: bool = False, **options):
    head = refit(made_head(kind, n=n, d=d, l2=l2, **options))
    return head if keep_weights else replace(head, weight=None, bias=None)


def refitted_without(head: Head, gone: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of all records under a real refit on those not gone, and the newton of those left (others NaN)."""
    x, y = head.features.numpy(), head.targets.numpy()
    left = ~gone
    weight = None if head.sample_weight is None else head.sample_weight.numpy()[left]
    options = {"l2": head.l2, "intercept": head.intercept, "penalize_intercept": head.penalize_intercept}
    theta, outputs = oracles.refit(x[left], y[left], head.loss, **options, sample_weight=weight, n_outputs=head.m)
    newton = np.full(head.n, np.nan)
    newton[left] = oracles.head_scores(x[left], outputs, y[left], head.loss, **options, sample_weight=weight)["newton"]
    return centred(oracles.design_matrix(x, head.intercept) @ theta, head), newton


def centred(outputs: np.ndarray, head: Head) -> np.ndarray:
    """Softmax does not see a constant added to all outputs."""
    softmax = head.loss == "cross_entropy" and head.m > 1
    return outputs - outputs.mean(1, keepdims=True) if softmax else outputs


def outputs_without(head: Head, gone: np.ndarray) -> np.ndarray:
    return centred(without(head, gone).outputs.numpy(), head)


def newton_after(head: Head, gone: np.ndarray) -> np.ndarray:
    return audit(replace(without(head, gone), groups=None), scores=["newton"])["newton"]


def top(values: np.ndarray, share: float) -> np.ndarray:
    chosen = np.zeros(len(values), dtype=bool)
    chosen[np.argsort(-values)[: max(1, round(share * len(values)))]] = True
    return chosen


PENALTIES = [(0.0, True, True), (2.0, True, False), (0.5, False, True)]
SQUARED = [(kind, *penalty) for kind in ("squared", "squared_many") for penalty in PENALTIES]
OTHER = [(kind, 1.0, True, True) for kind in ("one_logit", "two_classes", "classes", "soft_labels", "multi_label")]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("kind", "l2", "intercept", "penalize"), SQUARED + OTHER)
def test_what_is_left_is_the_real_refit(kind, l2, intercept, penalize, weighted):
    rtol = 1e-8 if kind.startswith("squared") else 1e-6
    weight = np.random.default_rng(1).uniform(0.2, 3.0, 120) if weighted else None
    head = converged_head(kind, l2=l2, intercept=intercept, penalize_intercept=penalize, sample_weight=weight)
    gone = top(audit(head)["newton"], 0.1)
    outputs, newton = refitted_without(head, gone)
    np.testing.assert_allclose(outputs_without(head, gone), outputs, rtol=rtol, atol=rtol / 10)
    after, newton = newton_after(head, gone)[~gone], newton[~gone]
    decile = top(newton, 0.1)
    np.testing.assert_allclose(after[decile], newton[decile], rtol=rtol)
    np.testing.assert_allclose(after, newton, rtol=rtol if rtol < 1e-7 else 1e-5, atol=1e-12)


def test_a_head_without_an_optimum_is_refused():
    x = np.r_[-np.ones((20, 1)), np.ones((20, 1))]
    head = Head(x, x, np.repeat([0, 1], 20), "cross_entropy")
    refused(r"refit: expected a head with a finite optimum.*give l2 above 0", removal, head, audit(head), share=0.05)


@pytest.mark.parametrize("kind", ["squared", "classes", "multi_label"])
def test_people_leave_with_all_their_records(kind):
    groups = np.array([f"person {i}" for i in np.random.default_rng(3).integers(0, 25, 120)])
    head = converged_head(kind, groups=groups)
    table = audit(head)
    people = np.unique(groups)
    found = removal(head, table, share=0.08)
    assert len(found.removed) == 2
    np.testing.assert_array_equal(found.removed, table.order()[:2])
    gone = np.isin(groups, people[found.removed])
    left = np.setdiff1d(np.arange(len(people)), found.removed)
    outputs = without(head, gone).outputs.numpy()[~gone]
    if kind == "squared":
        np.testing.assert_allclose(outputs, refitted_without(head, gone)[0][~gone], rtol=1e-8, atol=1e-9)
    arrays = (head.features.numpy()[~gone], outputs, head.targets.numpy()[~gone], head.loss, groups[~gone])
    after = np.full(len(people), np.nan)
    after[left] = oracles.group_scores(*arrays, l2=head.l2)["newton"]
    np.testing.assert_allclose(found.after, after[found.risen], rtol=1e-8)
    np.testing.assert_allclose(found.before, table["newton"][found.risen])
    assert found.spearman == pytest.approx(spearmanr(table["newton"][left], after[left]).statistic, abs=1e-9)
    by_record = removal(head, audit(replace(head, groups=None)), share=0.02)
    assert len(by_record.removed) == 2


def test_one_of_two_twins_leaves_and_the_other_is_exposed():
    """Two outliers of one direction share its leverage; the ranking sees only the first of them."""
    arrays = made_arrays("one_logit", n=200, d=6, seed=5)
    x, y = np.random.default_rng(5).normal(size=(200, 6)), arrays["targets"]
    x[:, 5] = 0.0
    x[10, 5], x[90, 5] = 6.0, 6.01
    y[10] = y[90] = 1
    head = refit(Head(**arrays | {"features": x, "targets": y}, l2=0.1))
    table = audit(head, scores=["newton"])
    planted = np.where(np.arange(200) == 10, 1e3, np.where(np.arange(200) == 90, 0.0, table["newton"]))
    found = removal(head, ScoreTable({"newton": table["newton"], "fused": planted}, table.ids), share=0.005)
    assert found.removed.tolist() == [10]
    place = found.risen.tolist().index(90)
    assert found.after[place] > 3 * found.before[place]
    real = refitted_without(head, np.arange(200) == 10)[1]
    assert found.after[place] == pytest.approx(real[90], rel=1e-6)


def test_who_entered_and_who_rose_most():
    """Those who only moved up because others are gone have not entered; several shares are scored one by one."""
    head = converged_head("classes", n=150)
    table = audit(head)
    _, found = removals(head, table, shares=(0.02, 0.1))
    gone = np.isin(np.arange(150), found.removed)
    after = newton_after(head, gone)
    values = (np.where(gone, -1.0, newton) for newton in (table["newton"], after))
    earlier, now = (np.argsort(-newton)[:15].tolist() for newton in values)
    assert found.share == 0.1
    assert found.entered.tolist() == [row for row in now if row not in earlier]
    left = np.setdiff1d(np.arange(150), found.removed)
    rise = after - table["newton"]
    assert found.risen.tolist() == left[np.argsort(-rise[left])[:MOST_RISEN]].tolist()
    np.testing.assert_allclose(found.after - found.before, rise[found.risen], rtol=1e-6)
    assert (found.after > found.before).all()


def test_a_memory_map_gives_the_same_and_a_class_may_lose_all_its_records(tmp_path):
    head = converged_head("classes")
    np.save(tmp_path / "x.npy", head.features.numpy().astype(np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    one = removal(replace(head, features=mapped), table := audit(head), share=0.05)
    two = removal(head, table, share=0.05)
    np.testing.assert_array_equal(one.removed, two.removed)
    np.testing.assert_allclose(one.after[:5], two.after[:5], rtol=1e-4)
    score = (head.targets.numpy() == 4).astype(float)
    found = removal(head, ScoreTable({"loss": score}, head.ids), share=score.mean())
    assert sorted(found.removed.tolist()) == np.flatnonzero(score).tolist()
    assert np.isfinite(found.after).all()


def test_a_share_that_cannot_be_taken_out():
    head = made_head("squared", n=6)
    words = r"share: expected a share that leaves at least 2 rows, got 5 of 6 taken out; take out a smaller share"
    refused(words, removal, head, audit(head), share=0.9)


def test_what_else_is_refused():
    head = made_head("classes", groups=np.arange(60) // 2)
    table = audit(head)
    with pytest.raises(ValueError, match="table: expected 30 rows, as the head has, got 5; pass the whole table"):
        removal(head, table.top(5), share=0.1)
    with pytest.raises(ValueError, match="head: expected groups, as the table is by person, got none; pass groups="):
        removal(replace(head, groups=None), table, share=0.1)
    box = replace(head, features=None, groups=None)
    refused("head: expected a linear head, got a black box; pass the features", removal, box, audit(box), share=0.1)
    weightless = replace(head, groups=None, l2=1.0, sample_weight=np.r_[np.ones(3), np.zeros(57)])
    score = ScoreTable({"loss": np.r_[np.ones(3), np.zeros(57)]}, head.ids)
    with pytest.raises(ValueError, match="share: expected records that count among those left, got records of weight"):
        removal(weightless, score, share=0.05)


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
