"""What an audit is asked for, resolved or refused before any work."""

from __future__ import annotations

import numpy as np
import pytest

from giveaway import InputError, audit
from giveaway.auditing.plan import SENSITIVITY_UP_TO, plan
from giveaway.scores.catalogue import CATALOGUE
from tests.conftest import made_head

DEFAULTS = {"scores": None, "by": "auto", "converged": True, "refit": False, "l2_sensitivity": None}
PREDICTED = {"predicted_success", "predicted_auc", "predicted_tpr", "predicted_tpr_low"}
HALVES, PAIRS = np.full(60, 0.5), np.arange(60) // 2


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("classes", {"by": "people"}, "by: expected a known name, got 'people'; did you mean person"),
        ("classes", {"by": "person"}, "by: expected a head with groups, got none; pass groups= to Head"),
        ("classes", {"scores": ["newtom"]}, "scores: expected a known name, got 'newtom'; did you mean newton"),
        ("classes", {"scores": []}, "scores: expected at least one score, got none; leave scores out"),
        ("squared", {"scores": ["loss", "margin"]}, "scores: expected scores that exist for squared loss, got margin"),
        ("squared", {"scores": ["entropy"]}, "scores: expected scores that exist for squared loss, got entropy"),
        (
            "classes",
            {"converged": False},
            "converged: expected a head with its weights when converged=False, got none; pass weight= and bias=",
        ),
        (
            "classes",
            {"scores": ["leverage"], "l2_sensitivity": True},
            "l2_sensitivity: expected newton among the scores, got leverage; add newton",
        ),
    ],
)
def test_refused_with_these_words(kind, options, words):
    with pytest.raises(InputError) as caught:
        audit(made_head(kind), **options)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("name", sorted(PREDICTED))
@pytest.mark.parametrize(
    ("kind", "of_head", "by", "got", "remedy"),
    [
        ("soft_labels", {}, "auto", "of other targets, or with sample weights", "leave it out"),
        ("multi_label", {}, "record", "of other targets, or with sample weights", "leave it out"),
        ("classes", {"sample_weight": HALVES}, "auto", "of other targets, or with sample weights", "leave it out"),
        ("squared", {"sample_weight": HALVES}, "auto", "of other targets, or with sample weights", "leave it out"),
        ("classes", {"groups": PAIRS}, "auto", "of people", "leave it out, or audit by='record'"),
        ("squared", {"groups": PAIRS}, "person", "of people", "leave it out, or audit by='record'"),
    ],
)
def test_predictions_are_refused_where_the_theory_has_none(name, kind, of_head, by, got, remedy):
    with pytest.raises(InputError) as caught:
        audit(made_head(kind, **of_head), scores=["newton", name], by=by)
    expected = "records of equal weight with values or one class each"
    assert str(caught.value) == f"scores: expected {expected}, got {name} {got}; {remedy}"


@pytest.mark.parametrize("kind", ["squared", "squared_many", "one_logit", "two_classes", "classes"])
def test_predictions_are_there_when_asked_for(kind):
    head = made_head(kind, groups=PAIRS, l2=0.1)
    names = ["predicted_tpr", "newton", "predicted_auc"]
    resolved = plan(head, **DEFAULTS | {"scores": names, "by": "record"})
    assert resolved.scores == tuple(names)
    assert resolved.of_theory == ("predicted_tpr", "predicted_auc")
    assert resolved.of_head == ("newton",)
    table = audit(head, scores=names, by="record")
    assert list(table.columns) == names
    assert not set(audit(head).columns) & PREDICTED
    assert not set(audit(head, by="record").columns) & PREDICTED
    one = audit(head, scores="predicted_tpr", by="record")
    np.testing.assert_array_equal(one["predicted_tpr"], table["predicted_tpr"])


def test_by_default_every_score_that_exists():
    every = set(CATALOGUE) - PREDICTED
    assert {name for name, score in CATALOGUE.items() if score.predicted} == PREDICTED
    with_inputs = plan(made_head("classes"), **DEFAULTS, inputs=True).scores
    assert with_inputs == tuple(name for name in CATALOGUE if name not in PREDICTED)
    missing = every - set(plan(made_head("squared"), **DEFAULTS, inputs=True).scores)
    assert missing == {"entropy", "margin"}
    without = plan(made_head("classes"), **DEFAULTS)
    assert every - set(without.scores) == {"lood_kl", "lood_mean"} == every - set(without.of_head)
    assert without.of_theory == ()


def test_names_are_taken_once_in_the_order_given():
    assert plan(made_head("classes"), **DEFAULTS | {"scores": ["newton", "loss", "newton"]}).scores == (
        "newton",
        "loss",
    )
    assert plan(made_head("classes"), **DEFAULTS | {"scores": "newton"}).scores == ("newton",)


@pytest.mark.parametrize(
    ("groups", "by", "unit"),
    [(False, "auto", "record"), (True, "auto", "person"), (True, "record", "record"), (True, "person", "person")],
)
def test_people_where_there_are_groups(groups, by, unit):
    head = made_head("classes", groups=np.arange(60) // 2 if groups else None)
    assert plan(head, **DEFAULTS | {"by": by}).unit == unit


@pytest.mark.parametrize(
    ("kind", "d", "parameters"),
    [("classes", 499, 2000), ("classes", 500, 2004), ("multi_label", 665, 1998), ("squared_many", 666, 2001)],
)
def test_l2_sensitivity_by_default_up_to_two_thousand_parameters(kind, d, parameters):
    head = made_head(kind, n=4, d=d)
    assert SENSITIVITY_UP_TO == 2000
    assert plan(head, **DEFAULTS).l2_sensitivity is (parameters <= 2000)
    for asked in (True, False):
        assert plan(head, **DEFAULTS | {"l2_sensitivity": asked}).l2_sensitivity is asked
    assert not plan(head, **DEFAULTS | {"scores": ["loss"]}).l2_sensitivity
