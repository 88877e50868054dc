"""Scores beside leave-one-out retraining: which rows, which correlations, which texts."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from giveaway import InputError, ScoreTable
from giveaway.attacks import leave_one_out
from giveaway.attacks.leave_one_out import LeaveOneOut
from giveaway.evaluation import spearman
from giveaway.evaluation.retraining import beside

RNG = np.random.default_rng(0)
TABLE = ScoreTable({"newton": RNG.normal(size=50), "loss": RNG.normal(size=50)}, ids=[f"p{i}" for i in range(50)])
RECORDS = np.array([41, 3, 17, 8, 30])


def retrained() -> LeaveOneOut:
    with_record = RNG.normal(size=(4, 5)) + 1.0
    return leave_one_out(with_record, RNG.normal(size=(4, 5)), kind="phi", records=RECORDS)


def test_values_and_correlations_are_those_of_the_chosen_records():
    measured = retrained()
    table = beside(measured, TABLE)
    assert list(table.spearman()) == ["newton", "loss"]
    for score, row in table.spearman().items():
        np.testing.assert_array_equal(table.scores[score], TABLE[score][RECORDS])
        for measure in ("loss_gap", "memorization", "auc"):
            assert row[measure] == spearman(TABLE[score][RECORDS], getattr(measured, measure))


def test_rows_say_where_each_record_stands_and_columns_which_scores():
    table = beside(retrained(), TABLE, rows=[0, 1, 2, 3, 4], columns=["loss"])
    np.testing.assert_array_equal(table.scores["loss"], TABLE["loss"][:5])
    assert list(table.scores) == ["loss"]
    np.testing.assert_array_equal(table.records, RECORDS)


def test_texts():
    table = beside(retrained(), TABLE)
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert list(rows[0]) == ["record", "loss_gap", "memorization", "auc", "newton", "loss"]
    assert [int(row["record"]) for row in rows] == RECORDS.tolist()
    assert [float(row["newton"]) for row in rows] == TABLE["newton"][RECORDS].tolist()
    found = {row["score"]: float(row["auc"]) for row in csv.DictReader(io.StringIO(table.spearman_csv()))}
    assert found == {score: row["auc"] for score, row in table.spearman().items()}
    lines = table.to_markdown().splitlines()
    assert lines[0] == "| Spearman with | loss_gap | memorization | auc |"
    assert lines[2].startswith(f"| newton | {table.spearman()['newton']['loss_gap']:.3g} |")
    assert lines[5] == "| record | loss_gap | memorization | auc | newton | loss |"
    assert lines[7].startswith(f"| 41 | {table.measured['loss_gap'][0]:.3g} |")
    assert len(lines) == 12
    assert "p41" not in table.to_markdown() + table.to_csv()


def test_squared_errors_have_no_memorization():
    measured = leave_one_out([[1.0, 2.0]], [[2.0, 2.5]], kind="squared_error")
    assert list(beside(measured, TABLE).measured) == ["loss_gap", "auc"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": [1, 2]}, r"rows: expected 5 row numbers of the table, 0 to 49, got int64 of shape \(2,\) up to 2"),
        ({"rows": [0, 1, 2, 3, 50]}, r"rows: expected 5 row numbers of the table, 0 to 49, got .* up to 50"),
        ({"columns": ["newtom"]}, "columns: expected a known name, got 'newtom'; did you mean newton"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(InputError, match=words):
        beside(retrained(), TABLE, **options)


def test_one_record_has_no_ranking():
    with pytest.raises(InputError, match="retrained: expected at least two records, got 1; retrain without more"):
        beside(leave_one_out([[1.0]], [[2.0]], kind="phi"), TABLE)
