"""Why a row ranks high, in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from giveaway import ScoreTable, audit
from giveaway.findings.explain import why
from tests.conftest import made_head


def test_phrases_follow_the_place_among_all_rows():
    n = 200
    leverage = np.arange(n, dtype=float)
    residual = np.r_[np.zeros(n - 1), 1.0]
    capped = np.arange(n) == 0
    table = ScoreTable(
        {"newton": leverage, "leverage": leverage},
        np.arange(n),
        attributes={"residual": residual, "newton_capped": capped},
    )
    phrases = why(table, np.array([199, 192, 160, 100, 0]))
    assert phrases == [
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


def test_a_table_that_tells_nothing():
    assert why(ScoreTable({"newton": [1.0, 2.0]}, [0, 1]), np.array([1, 0])) == ["nothing stands out"] * 2


# ------------------------------------------------------------------------------------------------ the second view

NEAR = np.array(["8, 9", "", "1, 2, 3"])


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
    assert why(table, rows) == [
        "the other records predict 2.35, not 5.12",
        "the other records predict 0.98, not 0",
        "the other records predict 0.808, not 0",
        "nothing stands out",
    ]
    assert why(table, rows, values=False) == [
        "the other records predict otherwise (top 1 %)",
        "the other records predict otherwise (top 5 %)",
        "the other records predict otherwise (top 25 %)",
        "nothing stands out",
    ]


def test_people_and_several_outputs_have_the_place_of_their_left_out_error():
    n = 100
    table = ScoreTable({"fused": np.zeros(n), "left_out": np.arange(n)}, np.arange(n))
    said = ["the other records predict otherwise (top 1 %)", "the other records predict otherwise (top 5 %)"]
    assert why(table, np.array([99, 96, 3])) == [*said, "nothing stands out"]
    assert why(ScoreTable({"fused": [1.0, 2.0]}, [0, 1]), np.array([1])) == ["nothing stands out"]


def test_everything_at_once_is_one_line():
    head = made_head("classes", n=200)
    table = audit(replace(head, inputs=head.features**2))
    lines = why(table, table.order()[:20])
    assert all("\n" not in line and len(line) < 140 for line in lines)
    assert any(line.count("; ") >= 3 for line in lines)
    assert all("; nearest: " in line for line in lines)
