"""Reasons that the columns of a table give: every sentence is true of its row, and nothing else is said."""

import re
from dataclasses import replace

import numpy as np
import pytest

from giveaway import audit
from giveaway.records import ScoreTable
from giveaway.records.meta import FusionReport, Meta, TraceReport
from giveaway.records.reasons import NOTHING, UNKNOWN, OwnTerms, why
from tests.conftest import made_head, refused


def asked(scores, weights=None, *, unit="record", relatives=None, epochs=None, **attributes) -> ScoreTable:
    """A table of 100 rows whose `fused` gave these weights to its views."""
    fusion = FusionReport(weights=weights or {"head": 1.0}, relatives=relatives)
    trace = epochs and TraceReport(epochs=epochs, proof="ids", never_seen=0, band=[], rows=[], losses=[])
    meta = Meta(unit=unit, loss="cross_entropy", fusion=fusion, trace=trace)
    return ScoreTable({"fused": np.zeros(100), **scores}, np.arange(100), meta, attributes)


def test_places_among_all_rows_are_percentages_below():
    n = 200
    leverage, residual = np.arange(n, dtype=float), np.r_[np.zeros(n - 1), 1.0]
    attributes = {"residual": residual, "newton_capped": np.arange(n) == 0}
    table = ScoreTable({"newton": leverage, "leverage": leverage}, np.arange(n), attributes=attributes)
    pulls = "Its own target pulls the model's prediction more than that of {} % of the records."
    assert why(table, np.array([199, 190, 189, 0])) == [
        f"{pulls.format(99)} The model errs more about it than about 99 % of the records.",
        pulls.format(95),
        NOTHING,
        "Nothing else holds the model in one direction of its features, so the score is capped.",
    ]
    same = ScoreTable({"newton": np.ones(n), "leverage": np.ones(n)}, np.arange(n))
    assert why(same, np.array([3])) == [NOTHING]  # nobody is below


def test_every_place_that_is_told_is_so():
    table = audit(made_head("classes", n=300))
    columns = {"pulls the model's prediction": "leverage", "errs more about it": "residual"}
    told = why(table, np.arange(300))
    assert sum(reason != NOTHING for reason in told) >= 20
    for row, reason in enumerate(told):
        for sentence in filter(None, reason.removesuffix(".").split(". ") if reason != NOTHING else []):
            (values,) = (table[name] for words, name in columns.items() if words in sentence)
            assert int(re.search(r"(\d+) %", sentence)[1]) <= 100 * np.mean(values < values[row])
        if reason == NOTHING:
            assert all(np.mean(table[name] < table[name][row]) < 0.95 for name in columns.values())


def test_classes_that_the_others_contradict():
    attributes = {"class": np.array([5, 6, 7]), "others_say": np.array([3, 6, 7])}
    attributes["nearest"] = np.array(["8, 9", "", "1, 2, 3"])
    table = ScoreTable({"fused": [3.0, 2.0, 1.0], "left_out": [3.0, 2.0, 1.0]}, np.arange(3), attributes=attributes)
    rows = np.array([0, 1, 2])
    for values in (True, False):
        expected = ["The other records predict 3.", NOTHING, NOTHING]
        assert why(table, rows, nearest=False, values=values) == expected
    assert why(table, rows) == ["The other records predict 3. Nearest: 8, 9.", NOTHING, "Nearest: 1, 2, 3."]


def test_values_that_the_others_would_not_have_guessed():
    target, said = np.zeros(100), np.linspace(0.0, 1.0, 100)
    target[99], said[99] = 5.1234, 2.3456
    table = asked({"left_out": np.arange(100.0)}, target=target, others_say=said)
    rows = np.array([99, 97, 80])
    told = ["The other records predict 2.346, it is 5.123.", "The other records predict 0.9798, it is 0.", NOTHING]
    assert why(table, rows) == told
    below = "The others predict it worse than {} % of the records."
    assert why(table, rows, values=False) == [below.format(99), below.format(97), NOTHING]
    trees = asked({"out_of_bag": np.arange(100.0)}, {"out_of_bag": 1.0}, target=target, trees_say=said)
    assert why(trees, rows[:1]) == ["Without the trees that saw it, the model would say 2.346, it is 5.123."]
    silent = asked({"out_of_bag": np.arange(100.0)}, {"out_of_bag": 1.0}, target=target, trees_say=np.full(100, np.nan))
    assert why(silent, rows) == [NOTHING] * 3
    hidden = "Trees that never saw it predict it worse than 99 % of the records."
    assert why(trees, rows[:1], values=False) == [hidden]


def test_trees_speak_before_the_others_and_own_terms_end_the_sentence():
    classes, said = np.full(100, 5), np.full(100, 5)
    said[[0, 1]] = 3, UNKNOWN  # a number, as earlier versions had it
    weights, scores = {"out_of_bag": 1.0, "left_out": 1.0}, {"out_of_bag": np.zeros(100), "left_out": np.zeros(100)}
    table = asked(scores, weights, **{"class": classes, "trees_say": said, "others_say": np.full(100, 4)})
    others = "The other records predict 4."
    lead = "Without the trees that saw it, the model would call it 3"
    assert why(table, np.array([0, 1, 2])) == [f"{lead}.", others, others]
    terms = OwnTerms(np.array([2, 0]), np.array(["", "few have its a"]), np.array(["", "few have a = secret"]))
    told = ScoreTable(table.scores, table.ids, table.meta, table.attributes, own_terms=terms)
    assert why(told, np.array([0, 1])) == [f"{lead}: few have its a.", others]
    assert why(told, np.array([0]), contents=True) == [f"{lead}: few have a = secret."]
    withheld = ScoreTable(table.scores, table.ids, table.meta, table.attributes, own_terms=terms.withheld())
    assert why(withheld, np.array([0]), contents=True) == [f"{lead}: few have its a."]
    text = table.attributes | {"trees_say": np.where(np.arange(100) == 0, "", "5"), "others_say": classes}
    assert why(ScoreTable(table.scores, table.ids, table.meta, text), np.array([0, 1])) == [NOTHING] * 2


def test_contents_are_in_no_file_that_was_not_asked_for_them(tmp_path):
    terms = OwnTerms(np.array([1]), np.array(["no other record has its a"]), np.array(["no other has a = secret"]))
    table = ScoreTable({"fused": [1.0, 2.0]}, np.arange(2), own_terms=terms)
    assert table.top(1)["why"] == ["No other record has its a."]
    assert table.top(1, show_records=True)["why"] == ["No other has a = secret."]
    table.save(tmp_path)
    again = ScoreTable.load(tmp_path)
    assert again.top(1, show_records=True)["why"] == ["No other record has its a."]
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.iterdir())
    assert "own" not in (tmp_path / "scores.csv").read_text()


def test_clauses_that_belong_to_no_rows_are_refused():
    refused("own_terms: expected a clause a row", OwnTerms, np.array([1, 2]), np.array(["one"]))
    refused("own_terms: expected a clause a row", OwnTerms, np.array([1]), np.array(["one"]), np.array([2.0]))


def test_what_was_hard_to_learn_late_or_forgotten():
    trace, learned, forgotten = np.arange(100.0), np.full(100, 3), np.zeros(100, dtype=int)
    learned[[99, 96, 20]] = 20
    forgotten[[99, 20, 10]] = 2, 1, 4
    rows = np.array([99, 97, 96, 20, 10])
    hard, late = (
        "It was harder to learn than {} % of the records",
        "learned by epoch 20 of 30, half of the records by epoch 3",
    )
    table = asked({"trace": trace}, {"trace": 0.6, "head": 0.1}, epochs=30, learned_by=learned, forgotten=forgotten)
    assert why(table, rows) == [
        f"{hard.format(99)}; {late}; forgotten 2 times.",
        f"{hard.format(97)}.",
        f"{hard.format(96)}; {late}.",
        f"It was {late}; forgotten once.",
        NOTHING,
    ]
    people = asked({"trace": trace}, {"trace": 1.0}, unit="person")
    assert why(people, rows[:1]) == ["They were harder to learn than 99 % of the people."]
    for silent in ({"trace": 0.05, "head": 0.9}, {"head": 1.0}):
        assert why(asked({"trace": trace}, silent, epochs=30, learned_by=learned), rows[:1]) == [NOTHING]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"mirror": 0.6, "shift": 0.1}, "its mirror image"),
        ({"mirror": 0.2, "shift": 0.7}, "its shifted image"),
        ({"mirror": 0.5, "shift": 0.6}, "its mirror image and shifted image"),
        ({"word dropped": 0.5}, "its variant word dropped"),
    ],
)
def test_records_whose_variants_are_not_recognized(weights, words):
    told = {name: {"new": 1.0, "natural": 1.0, "weight": weight} for name, weight in weights.items()}
    fused, losses, rows = {"relatives": 0.5, "left_out": 1.0}, np.linspace(0.0, 0.6, 100), np.array([99, 98, 20])
    table = asked({"relatives": losses}, fused, relatives=told, recognized=np.arange(100) < 99)
    known = f"The model errs more about {words} than about those of 98 % of the records."
    assert why(table, rows) == [f"The model does not recognize {words}.", known, NOTHING]
    people = asked({"relatives": losses}, fused, relatives=told, unit="person")
    said = "The model errs more about variants of their records than about those of 99 % of the people."
    assert why(people, rows[:1]) == [said]
    assert why(asked({"relatives": losses}, {"relatives": 0.0, "left_out": 1.0}, relatives=told), rows[:1]) == [NOTHING]


def test_people_are_told_which_record_carries_them():
    held = {
        "records": np.r_[3, np.ones(99, dtype=int)],
        "carried_by": np.arange(100) + 7,
        "carries": np.full(100, 0.626),
    }
    table = asked({}, unit="person", **held)
    several = "Of their 3 records, number 7 makes up 63 % of the model's loss on them."
    assert why(table, np.array([0, 1])) == [several, "Their one record is number 8."]


def test_of_texts_a_newton_step_that_counts_is_told():
    steps, weights = np.arange(40.0), {"newton": 0.9, "left_out": 0.1}
    meta = {"loss": "tokens", "unit": "record", "fusion": {"weights": weights}}
    table = ScoreTable({"fused": steps, "newton": steps, "left_out": -steps}, np.arange(40), meta)
    assert table.top(1)["why"].tolist() == [
        "Without it its loss would rise, by estimate, more than that of 97 % of the texts."
    ]
    alone = replace(table, meta=replace(table.meta, fusion=replace(table.meta.fusion, weights={"left_out": 1.0})))
    assert "loss would rise" not in alone.top(1)["why"][0]
