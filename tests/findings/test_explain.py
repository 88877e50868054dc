"""Why rows rank high, whether the most exposed are spread evenly, and what of it may be shared."""

from __future__ import annotations

import json
from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giveaway import audit
from giveaway.findings.explain import LEAST, POOLED, breakdown, breakdowns
from giveaway.records import ScoreTable
from giveaway.records.meta import FusionReport, Meta
from giveaway.records.reasons import UNKNOWN, why
from tests.conftest import made_head


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
    half = breakdown(made([0] * 500 + [1] * 500, scores), "class", "class")
    assert [(group.name, group.stands_out) for group in half.groups] == [("0", True), ("1", False)]
    (alone,) = breakdown(made([0] * 1000, scores), "class", "class").groups
    assert (alone.low, alone.ratio, alone.high, alone.stands_out) == (1.0, 1.0, 1.0, False)


def test_classes_and_every_subgroup_are_looked_at():
    sex = np.array(["f", "m"] * 50)
    table = made([0] * 100, np.arange(100.0), subgroup_sex=sex, residual=np.zeros(100))
    assert [found.kind for found in breakdowns(table)] == ["class", "sex"]
    assert breakdowns(ScoreTable({"newton": np.arange(3.0)}, np.arange(3))) == []


def test_small_groups_are_shared_together_or_not_at_all():
    classes = ["big"] * 180 + ["large"] * 40 + ["tiny-secret"] * 3 + ["small-secret"] * 4
    told = json.dumps(breakdown(made(classes, np.arange(227.0)), "class", "class").to_json())
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
    found = breakdown(table, "class", "class", top=sum(counts) / sum(sizes)).to_json()
    return {g["name"]: g["among_the_most_exposed"] for g in found["groups"]}


def test_small_counts_of_exposed_do_not_follow_from_the_others():
    assert told_of([26, 20, 30], [500, 480, 300]) == {"0": 30, "1": 20, "2": 30}
    assert told_of([26, 20, 4], [500, 480, 20]) == {"0": 30, POOLED: 20}
    assert told_of([26, 20, 0], [500, 480, 20]) == {"0": 30, POOLED: 20}
    assert told_of([20, 15, 30], [20, 480, 300]) == {POOLED: 50, "1": 20}  # all twenty are exposed
    assert told_of([3, 3, 2, 40], [100, 100, 100, 500]) == {"0": None, "1": None, "2": None, "3": None}
    few = breakdown(made([0] * 90 + [1] * 90, np.arange(180.0)), "class", "class")
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
    found = breakdown(table, "class", "class", top=sum(counts) / sum(sizes)).to_json()
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
    whole = breakdown(made(classes, scores), "class", "class")
    assert sum(group.rows for group in whole.groups) == len(classes)
    assert sum(group.exposed for group in whole.groups) == whole.top
    shared = whole.shareable()
    assert sum(group.rows for group in shared.groups) == len(classes)
    assert all(group.rows >= LEAST for group in shared.groups) or len(classes) < LEAST


def test_phrases_follow_the_place_among_all_rows():
    n = 200
    leverage = np.arange(n, dtype=float)
    residual = np.r_[np.zeros(n - 1), 1.0]
    capped = np.arange(n) == 0
    attributes = {"residual": residual, "newton_capped": capped}
    table = ScoreTable({"newton": leverage, "leverage": leverage}, np.arange(n), attributes=attributes)
    assert why(table, np.array([199, 192, 160, 100, 0])) == [
        "high leverage (top 1 %); poorly fitted (top 1 %)",
        "high leverage (top 5 %); poorly fitted (top 1 %)",
        "high leverage (top 25 %); poorly fitted (top 1 %)",
        "poorly fitted (top 1 %)",
        "poorly fitted (top 1 %); alone in a feature direction (score capped)",
    ]


def test_the_record_of_most_leverage_and_the_worst_fitted_one_are_named_so():
    table = audit(made_head("classes", n=200))
    rows = np.array([table["leverage"].argmax(), table["residual"].argmax()])
    assert [phrase.split("; ")[k] for k, phrase in zip((0, -1), why(table, rows), strict=True)] == [
        "high leverage (top 1 %)",
        "poorly fitted (top 1 %)",
    ]


NEAR = np.array(["8, 9", "", "1, 2, 3"])
OTHERWISE = [f"otherwise (top {percent} %)" for percent in (1, 5, 25)]


def viewed(**attributes) -> ScoreTable:
    scores = {"fused": [3.0, 2.0, 1.0], "left_out": [3.0, 2.0, 1.0]}
    return ScoreTable(scores, np.arange(3), attributes=attributes)


def test_classes_that_the_others_contradict():
    table = viewed(**{"class": np.array([5, 6, 7]), "others_say": np.array([3, 6, 7]), "nearest": NEAR})
    rows = np.array([0, 1, 2])
    expected = ["the other records predict 3", "nothing stands out", "nothing stands out"]
    assert why(table, rows, nearest=False) == expected
    assert why(table, rows) == [
        "the other records predict 3; nearest: 8, 9",
        "nothing stands out",
        "nothing stands out; nearest: 1, 2, 3",
    ]
    assert why(table, rows, nearest=False, values=False) == expected


def test_values_that_the_others_would_not_have_guessed():
    n = 100
    target, said = np.zeros(n), np.linspace(0.0, 1.0, n)
    target[99], said[99] = 5.1234, 2.3456
    scores = {"fused": np.arange(n), "left_out": np.arange(n)}
    table = ScoreTable(scores, np.arange(n), attributes={"target": target, "others_say": said})
    rows = np.array([99, 97, 80, 60])
    for values, told in ((True, ["2.35, not 5.12", "0.98, not 0", "0.808, not 0"]), (False, OTHERWISE)):
        expected = [f"the other records predict {words}" for words in told]
        assert why(table, rows, values=values) == [*expected, "nothing stands out"]


def test_people_and_several_outputs_have_the_place_of_their_left_out_error():
    assert why(ScoreTable({"newton": [1.0, 2.0]}, [0, 1]), np.array([1, 0])) == ["nothing stands out"] * 2
    n = 100
    table = ScoreTable({"fused": np.zeros(n), "left_out": np.arange(n)}, np.arange(n))
    said = [f"the other records predict {words}" for words in OTHERWISE[:2]]
    assert why(table, np.array([99, 96, 3])) == [*said, "nothing stands out"]
    assert why(ScoreTable({"fused": [1.0, 2.0]}, [0, 1]), np.array([1])) == ["nothing stands out"]


def test_everything_at_once_is_one_line():
    head = made_head("classes", n=200)
    table = audit(replace(head, inputs=head.features**2))
    lines = why(table, table.order()[:20])
    assert all("\n" not in line and len(line) < 140 for line in lines)
    assert any(line.count("; ") >= 3 for line in lines)
    assert all("; nearest: " in line for line in lines)


def asked(scores, weights, relatives=None, unit="record", **attributes) -> ScoreTable:
    """A table of 100 rows whose `fused` gave these weights to its views."""
    fusion = FusionReport(weights=weights, relatives=relatives)
    meta = Meta(unit=unit, loss="cross_entropy", fusion=fusion)
    return ScoreTable({"fused": np.zeros(100), **scores}, np.arange(100), meta, attributes)


def test_records_that_were_learned_last():
    trace, loss, learned = np.arange(100.0), np.full(100, 0.01), np.full(100, 3)
    learned[[99, 96, 90]] = 20
    loss[96] = 95.0**2  # still nearly as large as it was
    rows = np.array([99, 96, 90, 80, 20])
    told = ["learned last (top 1 %)", "hard to learn (top 5 %)", "learned last (top 25 %)", "hard to learn (top 25 %)"]
    scores, weights = {"trace": trace, "loss": loss}, {"trace": 0.6, "head": 0.1}
    assert why(asked(scores, weights, learned_by=learned), rows) == [*told, "nothing stands out"]
    assert why(asked(scores, weights), rows[:1]) == ["hard to learn (top 1 %)"]  # people have no epoch
    assert why(asked({"trace": trace}, weights, learned_by=learned), rows[:1]) == ["hard to learn (top 1 %)"]
    for silent in ({"trace": 0.05, "head": 0.9}, {"head": 1.0}):
        assert why(asked(scores, silent, learned_by=learned), rows[:1]) == ["nothing stands out"]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"mirror": 0.6, "shift": 0.1}, "its mirror image is"),
        ({"mirror": 0.2, "shift": 0.7}, "its shifted image is"),
        ({"mirror": 0.5, "shift": 0.6}, "its mirror image and shifted image are"),
        ({"word dropped": 0.5}, "its variant word dropped is"),
    ],
)
def test_records_whose_variants_are_not_recognized(weights, words):
    losses = np.linspace(0.0, 0.6, 100)
    told = {name: {"new": 1.0, "natural": 1.0, "weight": weight} for name, weight in weights.items()}
    fused = {"relatives": 0.5, "left_out": 1.0}
    rows = np.array([99, 98, 20])
    table = asked({"relatives": losses}, fused, told, recognized=np.arange(100) < 99)
    known = f"{words} known less well (top 5 %)"
    assert why(table, rows) == [f"{words} not recognized (top 1 %)", known, "nothing stands out"]
    values = asked({"relatives": losses}, fused, told)
    assert why(values, rows[:1]) == [f"{words} known less well (top 1 %)"]
    people = asked({"relatives": losses}, fused, told, unit="person")
    assert why(people, rows[:1]) == ["variants of their records are known less well (top 1 %)"]
    silent = asked({"relatives": losses}, {"relatives": 0.0, "left_out": 1.0}, told)
    assert why(silent, rows[:1]) == ["nothing stands out"]


def test_what_trees_say_that_never_saw_a_record():
    classes, said = np.full(100, 5), np.full(100, 5)
    said[[0, 1]] = 3, UNKNOWN
    scores, weights = {"out_of_bag": np.arange(100.0)}, {"out_of_bag": 1.0, "left_out": 1.0}
    rows = np.array([0, 1, 99])
    table = asked(scores, weights, **{"class": classes, "trees_say": said})
    assert why(table, rows) == ["trees that never saw it say 3", "nothing stands out", "nothing stands out"]
    target, value = np.zeros(100), np.linspace(0.0, 1.0, 100)
    target[99], value[99], value[98] = 5.1234, 2.3456, np.nan
    values = asked(scores, weights, target=target, trees_say=value)
    rows = np.array([99, 98, 97])
    told = ["trees that never saw it say 2.35, not 5.12", "nothing stands out"]
    assert why(values, rows) == [*told, "trees that never saw it say 0.98, not 0"]
    otherwise = "trees that never saw it say otherwise"
    assert why(values, rows[:1], values=False) == [f"{otherwise} (top 1 %)"]
    assert why(asked(scores, weights), np.array([99, 3])) == [f"{otherwise} (top 1 %)", "nothing stands out"]
