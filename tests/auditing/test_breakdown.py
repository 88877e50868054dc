"""Whether the most exposed are spread evenly, and what of it may be shared."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from giveaway import ScoreTable
from giveaway.auditing.breakdown import LEAST, POOLED, breakdown, breakdowns


def made(classes, scores, **attributes) -> ScoreTable:
    return ScoreTable({"newton": scores}, np.arange(len(scores)), {}, {"class": np.array(classes), **attributes})


def test_shares_by_hand():
    """100 rows, five most exposed: three of the ten of class b, two of the ninety of class a."""
    scores = np.zeros(100)
    classes = np.array(["a"] * 90 + ["b"] * 10)
    scores[[90, 91, 92, 0, 1]] = [5, 4, 3, 2, 1]
    found = breakdown(made(classes, scores), "class", "class")
    assert found.top == 5
    rare, common = found.groups
    assert (rare.name, rare.rows, rare.exposed) == ("b", 10, 3)
    assert (common.name, common.rows, common.exposed) == ("a", 90, 2)
    assert rare.ratio == pytest.approx((3 / 5) / (10 / 100))
    assert common.ratio == pytest.approx((2 / 5) / (90 / 100))
    assert found.rare_share == pytest.approx(6.0)
    for group in found.groups:
        low, high = binomtest(group.exposed, group.rows).proportion_ci(0.95, "exact")
        assert (group.low, group.high) == pytest.approx((low / 0.05, high / 0.05))
    assert rare.stands_out
    assert not common.stands_out


def test_nobody_and_everybody_exposed_have_intervals_too():
    scores = np.zeros(40)
    scores[:2] = 1.0
    found = {g.name: g for g in breakdown(made([0] * 2 + [1] * 38, scores), "class", "class").groups}
    assert (found["0"].exposed, found["1"].exposed) == (2, 0)
    assert found["0"].high == pytest.approx(1 / 0.05)
    assert found["1"].low == 0.0


def test_classes_and_every_subgroup_are_looked_at():
    sex = np.array(["f", "m"] * 50)
    table = made([0] * 100, np.arange(100.0), subgroup_sex=sex, residual=np.zeros(100))
    assert [found.kind for found in breakdowns(table)] == ["class", "sex"]
    assert breakdowns(ScoreTable({"newton": np.arange(3.0)}, np.arange(3))) == []


def test_small_groups_are_shared_together_or_not_at_all():
    classes = ["big"] * 180 + ["large"] * 40 + ["tiny-secret"] * 3 + ["small-secret"] * 4
    scores = np.zeros(227)
    scores[180:191] = 1.0
    told = json.dumps(breakdown(made(classes, scores), "class", "class").to_json())
    assert "secret" not in told
    found = json.loads(told)
    # seven rows alone would still be fewer than ten: the next smallest joins them
    assert [(g["name"], g["rows"]) for g in found["groups"]] == [("big", 180), (POOLED, 47)]


def test_small_counts_of_exposed_are_not_told():
    scores = np.zeros(400)
    scores[:3] = 3.0
    scores[200:217] = 2.0
    found = breakdown(made(["a"] * 200 + ["b"] * 200, scores), "class", "class").to_json()
    told = {g["name"]: g for g in found["groups"]}
    assert told["a"] == {"name": "a", "rows": 200, "among_the_most_exposed": None}
    assert told["b"]["among_the_most_exposed"] == 17


@given(st.lists(st.integers(0, 6), min_size=1, max_size=80), st.integers(0, 2**32 - 1))
def test_what_is_shared_hides_every_small_group(classes, seed):
    scores = np.random.default_rng(seed).random(len(classes))
    whole = breakdown(made(classes, scores), "class", "class")
    assert sum(group.rows for group in whole.groups) == len(classes)
    assert sum(group.exposed for group in whole.groups) == whole.top
    assert sum(group.exposed / group.rows * group.rows for group in whole.groups) == pytest.approx(whole.top)
    shared = whole.shareable()
    assert sum(group.rows for group in shared.groups) == len(classes)
    assert all(group.rows >= LEAST for group in shared.groups) or len(classes) < LEAST
