"""What an audit is asked for, resolved or refused before any work."""

from __future__ import annotations

import numpy as np
import pytest

from giveaway import Head, InputError, audit
from giveaway.auditing.plan import SENSITIVITY_UP_TO, plan
from giveaway.scores.catalogue import CATALOGUE
from tests.conftest import KINDS, made_arrays, made_head

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
    both = {"inputs": True, "view": True, "lood": True}
    with_kernel = plan(made_head("classes"), **DEFAULTS, **both)
    assert with_kernel.scores == tuple(name for name in CATALOGUE if name not in PREDICTED)
    assert (with_kernel.of_view, with_kernel.of_lood) == (("left_out", "fused"), ("lood_kl", "lood_mean"))
    assert every - set(plan(made_head("squared"), **DEFAULTS, **both).scores) == {"entropy", "margin"}
    with_view = plan(made_head("classes"), **DEFAULTS, inputs=True, view=True)
    assert every - set(with_view.scores) == {"lood_kl", "lood_mean"}
    without = plan(made_head("classes"), **DEFAULTS)
    others = {"left_out", "fused", "lood_kl", "lood_mean"}
    assert every - set(without.scores) == others == every - set(without.of_head)
    assert without.of_theory == without.of_view == without.of_lood == ()


def black_box(kind: str, **options) -> Head:
    arrays = made_arrays(kind)
    return Head(**arrays | {"features": None}, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_a_black_box(kind):
    head = black_box(kind)
    of_classes = () if kind.startswith("squared") else ("entropy", "margin")
    resolved = plan(head, **DEFAULTS, inputs=True, view=True)
    assert resolved.scores == ("loss", *of_classes, "left_out", "fused")
    assert (resolved.beside_view, resolved.l2_sensitivity) == ("loss", False)
    assert plan(head, **DEFAULTS).scores == ("loss", *of_classes)


@pytest.mark.parametrize("name", [name for name, score in CATALOGUE.items() if score.features])
def test_scores_of_a_linear_head_are_refused_for_a_black_box(name):
    with pytest.raises(InputError) as caught:
        audit(black_box("classes"), scores=["loss", name])
    expected = "scores: expected scores that exist for a black box, got {}; leave it out: it needs a linear head"
    assert str(caught.value) == expected.format(name)


@pytest.mark.parametrize(("option", "value"), [("refit", True), ("converged", False)])
def test_options_of_a_linear_head_are_refused_for_a_black_box(option, value):
    with pytest.raises(InputError) as caught:
        audit(black_box("classes"), **{option: value})
    assert str(caught.value) == f"{option}: expected a linear head beside it, got a black box; leave {option} out"


@pytest.mark.parametrize(("names", "of_head"), [(["fused"], ("newton",)), (["loss", "left_out"], ("loss", "newton"))])
def test_the_head_s_part_of_fused_is_worked_out_unasked(names, of_head):
    resolved = plan(made_head("classes"), **DEFAULTS | {"scores": names}, inputs=True, view=True)
    assert (resolved.of_head, resolved.of_view) == (of_head, (names[-1],))
    assert resolved.options()["scores"] == names
    assert not resolved.l2_sensitivity


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
