"""Whether the most exposed are spread evenly, and what of it may be shared."""

import json
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giveaway.findings.explain import LEAST, POOLED, breakdown, breakdowns
from giveaway.records import ScoreTable


def made(classes, scores, **attributes) -> ScoreTable:
    return ScoreTable({"newton": scores}, np.arange(len(scores)), {}, {"class": np.array(classes), **attributes})


def test_shares_by_hand():
    """100 rows, five most exposed: three of the ten of class b, two of the ninety of class a."""
    scores = np.zeros(100)
    classes = np.array(["a"] * 90 + ["b"] * 10)
    scores[[90, 91, 92, 0, 1]] = [5, 4, 3, 2, 1]
    found = breakdown(made(classes, scores), "class")
    assert found.top == 5
    rare, common = found.groups
    assert (rare.name, rare.rows, rare.exposed) == ("b", 10, 3)
    assert (common.name, common.rows, common.exposed) == ("a", 90, 2)
    assert rare.ratio == pytest.approx((3 / 5) / (10 / 100))
    assert common.ratio == pytest.approx((2 / 5) / (90 / 100))
    for group in found.groups:
        chances = [comb(group.rows, k) * comb(100 - group.rows, 5 - k) / comb(100, 5) for k in range(6)]
        below = np.cumsum(chances)
        low, high = (int(np.flatnonzero(below >= q - 1e-12)[0]) for q in (0.025, 0.975))
        even = group.rows * 5 / 100
        assert (group.low, group.high) == pytest.approx((low / even, high / even))
        assert group.stands_out is (sum(chances[group.exposed :]) <= 0.025)
    assert rare.stands_out
    assert not common.stands_out


def test_a_skewed_half_stands_out_and_one_class_alone_does_not():
    scores = np.zeros(1000)
    scores[:35], scores[500:515] = 1.0, 1.0
    half = breakdown(made([0] * 500 + [1] * 500, scores), "class")
    assert [(group.name, group.stands_out) for group in half.groups] == [("0", True), ("1", False)]
    (alone,) = breakdown(made([0] * 1000, scores), "class").groups
    assert (alone.low, alone.ratio, alone.high, alone.stands_out) == (1.0, 1.0, 1.0, False)


def test_classes_and_every_subgroup_are_looked_at():
    sex = np.array(["f", "m"] * 50)
    table = made([0] * 100, np.arange(100.0), subgroup_sex=sex, residual=np.zeros(100))
    assert [found.kind for found in breakdowns(table)] == ["class", "sex"]
    assert breakdowns(ScoreTable({"newton": np.arange(3.0)}, np.arange(3))) == []


def test_small_groups_are_shared_together_or_not_at_all():
    classes = ["big"] * 180 + ["large"] * 40 + ["tiny-secret"] * 3 + ["small-secret"] * 4
    told = json.dumps(breakdown(made(classes, np.arange(227.0)), "class").to_json())
    assert "secret" not in told
    found = json.loads(told)
    # seven rows alone would still be fewer than ten: the next smallest joins them
    assert [(g["name"], g["rows"]) for g in found["groups"]] == [("big", 180), (POOLED, 50)]


def told_of(counts, sizes):
    """What is shared of classes of these sizes with so many of the most exposed."""
    scores = np.zeros(sum(sizes))
    start = 0
    for count, size in zip(counts, sizes, strict=True):
        scores[start : start + count] = 1.0
        start += size
    table = made(np.repeat(np.arange(len(sizes)), sizes), scores)
    found = breakdown(table, "class", top=sum(counts) / sum(sizes)).to_json()
    return {g["name"]: g["among_the_most_exposed"] for g in found["groups"]}


def test_small_counts_of_exposed_do_not_follow_from_the_others():
    assert told_of([26, 20, 30], [500, 480, 300]) == {"0": 30, "1": 20, "2": 30}
    assert told_of([26, 20, 4], [500, 480, 20]) == {"0": 30, POOLED: 20}
    assert told_of([26, 20, 0], [500, 480, 20]) == {"0": 30, POOLED: 20}
    assert told_of([20, 15, 30], [20, 480, 300]) == {POOLED: 50, "1": 20}  # all twenty are exposed
    assert told_of([3, 3, 2, 40], [100, 100, 100, 500]) == {"0": None, "1": None, "2": None, "3": None}
    few = breakdown(made([0] * 90 + [1] * 90, np.arange(180.0)), "class")
    assert few.to_json() is None  # fewer than ten of the most exposed


def test_a_group_that_stands_out_is_not_hidden_for_a_small_one():
    """Four groups are large enough; 8 of the fifth are exposed. The 19 of 300, twice an even share, must be told."""
    counts, sizes = [840, 90, 30, 19, 8], [27_800, 3_000, 1_000, 300, 270]
    assert told_of(counts, sizes) == {"0": 850, "1": 90, POOLED: 40, "3": 20}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), st.lists(st.integers(0, 300), min_size=9, max_size=9))
def test_no_small_count_is_told_or_follows_from_the_total(counts, more):
    sizes = [count + others for count, others in zip(counts, more, strict=False)]
    if sum(counts) < LEAST or min(sizes) == 0:
        return
    scores = np.concatenate([np.repeat([1.0, 0.0], [c, s - c]) for c, s in zip(counts, sizes, strict=True)])
    table = made(np.repeat(np.arange(len(sizes)), sizes), scores)
    found = breakdown(table, "class", top=sum(counts) / sum(sizes)).to_json()
    told = [group["name"] for group in found["groups"] if group["among_the_most_exposed"] is not None]
    known = {str(number): count for number, count in enumerate(counts)}
    rest = [number for name, number in known.items() if name not in told]
    alone = [name for name in told if name != POOLED]
    if len(counts) > 1:
        assert all(LEAST <= known[name] <= sizes[int(name)] - LEAST for name in alone)
        assert not rest or sum(rest) >= LEAST or not told
        assert len(rest) != 1


@given(st.lists(st.integers(0, 6), min_size=1, max_size=80), st.integers(0, 2**32 - 1))
def test_what_is_shared_hides_every_small_group(classes, seed):
    scores = np.random.default_rng(seed).random(len(classes))
    whole = breakdown(made(classes, scores), "class")
    assert sum(group.rows for group in whole.groups) == len(classes)
    assert sum(group.exposed for group in whole.groups) == whole.top
    shared = whole.shareable()
    assert sum(group.rows for group in shared.groups) == len(classes)
    assert all(group.rows >= LEAST for group in shared.groups) or len(classes) < LEAST
