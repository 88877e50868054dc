"""Why a row ranks high, in words."""

from __future__ import annotations

import numpy as np

from giveaway import ScoreTable, audit
from giveaway.auditing.why import why
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
        "pulls the head (top 1 %); fitted badly (top 1 %)",
        "pulls the head (top 5 %); fitted badly (top 1 %)",
        "pulls the head (top 25 %); fitted badly (top 1 %)",
        "fitted badly (top 1 %)",
        "fitted badly (top 1 %); alone in a direction (score capped)",
    ]


def test_the_record_of_most_leverage_and_the_worst_fitted_one_are_named_so():
    table = audit(made_head("classes", n=200))
    rows = np.array([table["leverage"].argmax(), table["residual"].argmax()])
    assert [phrase.split("; ")[k] for k, phrase in zip((0, -1), why(table, rows), strict=True)] == [
        "pulls the head (top 1 %)",
        "fitted badly (top 1 %)",
    ]


def test_a_table_that_tells_nothing():
    assert why(ScoreTable({"newton": [1.0, 2.0]}, [0, 1]), np.array([1, 0])) == ["both moderate"] * 2
