"""Every option of an audit is resolved, or refused, before any work."""

from dataclasses import replace

import numpy as np
import pytest

from giveaway import Head, audit
from giveaway.auditing.plan import plan
from giveaway.curvature.choice import Auto, Choice, Dense, choose
from giveaway.scores.catalogue import CATALOGUE
from tests.conftest import KINDS, made_arrays, made_head, refused

PREDICTED = {"predicted_success", "predicted_auc", "predicted_tpr", "predicted_tpr_low"}
LOGIT = {"gls_trace_logit", "gls_frobenius_logit", "gls_spectral_logit"}
HALVES, PAIRS = np.full(60, 0.5), np.arange(60) // 2
INPUTS = np.random.default_rng(0).normal(size=(60, 3))


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("classes", {"scores": ["newtom"]}, "scores: expected a known name, got 'newtom'; did you mean newton"),
        ("classes", {"scores": []}, "scores: expected at least one score, got none; leave scores out"),
        ("squared", {"scores": ["loss", "margin"]}, "scores: expected scores that exist for squared loss, got margin"),
        ("squared", {"scores": ["entropy"]}, "scores: expected scores that exist for squared loss, got entropy"),
        ("classes", {"scores": "fused"}, "scores: expected inputs beside a score that looks at the records, got fused"),
        ("classes", {"optimum": "corected"}, "optimum: expected a known name, got 'corected'; did you mean corrected"),
        (
            "classes",
            {"optimum": "corrected"},
            'optimum: expected a head with its weights for "corrected", got none; pass weight= and bias=',
        ),
        (
            "classes",
            {"curvature": "sketch"},
            "curvature: expected Dense(), Sketch() or Auto(), got 'sketch'; make one, as ga.Sketch(probes=256)",
        ),
    ],
)
def test_refused_with_these_words(kind, options, words):
    assert refused("expected", audit, made_head(kind), **options).startswith(words)


@pytest.mark.parametrize("name", sorted(PREDICTED))
@pytest.mark.parametrize(
    ("kind", "of_head", "got", "remedy"),
    [
        ("soft_labels", {}, "of other targets, or with sample weights", "leave it out"),
        ("multi_label", {}, "of other targets, or with sample weights", "leave it out"),
        ("classes", {"sample_weight": HALVES}, "of other targets, or with sample weights", "leave it out"),
        ("squared", {"groups": PAIRS}, "of people", "leave it out, or audit the records, by a head without groups"),
    ],
)
def test_predictions_are_refused_where_the_theory_has_none(name, kind, of_head, got, remedy):
    message = refused("expected", audit, made_head(kind, **of_head), scores=["newton", name])
    expected = "records of equal weight with values or one class each"
    assert message == f"scores: expected {expected}, got {name} {got}; {remedy}"


@pytest.mark.parametrize("kind", ["squared", "squared_many", "one_logit", "two_classes", "classes"])
def test_predictions_are_there_when_asked_for(kind):
    head = made_head(kind, groups=PAIRS, l2=0.1)
    records = replace(head, groups=None)
    names = ["predicted_tpr", "newton", "predicted_auc"]
    resolved = plan(records, names)
    assert resolved.scores == tuple(names)
    assert resolved.of_theory == ("predicted_tpr", "predicted_auc")
    assert resolved.of_head == ("newton",)
    table = audit(records, scores=names)
    assert list(table.columns) == names
    assert not set(audit(head).columns) & PREDICTED
    assert not set(audit(records).columns) & PREDICTED
    one = audit(records, scores="predicted_tpr")
    np.testing.assert_array_equal(one["predicted_tpr"], table["predicted_tpr"])
    more = audit(records, scores=["default", "predicted_tpr"])
    assert more.columns == (*audit(records).columns, "predicted_tpr")


def test_by_default_the_scores_that_rank():
    every = set(CATALOGUE) - PREDICTED - LOGIT - {"trace", "lt_iqr", "relatives", "out_of_bag"}
    with_kernel = plan(made_head("classes", inputs=INPUTS), kernel="rbf")
    assert set(with_kernel.scores) == every
    assert (with_kernel.of_view, with_kernel.of_lood) == (("left_out", "fused"), ("lood_kl", "lood_mean"))
    assert every - set(plan(made_head("squared", inputs=INPUTS), kernel="rbf").scores) == {"entropy", "margin"}
    with_view = plan(made_head("classes", inputs=INPUTS))
    assert every - set(with_view.scores) == {"lood_kl", "lood_mean"}
    without = plan(made_head("classes"))
    others = {"left_out", "fused", "lood_kl", "lood_mean"}
    assert every - set(without.scores) == others == every - set(without.of_head)
    assert without.of_theory == without.of_view == without.of_lood == ()
    assert set(plan(made_head("classes"), ["default", *LOGIT]).scores) == every - others | LOGIT


def black_box(kind: str, **options) -> Head:
    return Head(**made_arrays(kind) | {"features": None}, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_a_black_box(kind):
    of_classes = () if kind.startswith("squared") else ("entropy", "margin")
    resolved = plan(black_box(kind, inputs=INPUTS))
    assert resolved.scores == ("loss", *of_classes, "left_out", "fused")
    assert resolved.beside_view == "loss"
    assert plan(black_box(kind)).scores == ("loss", *of_classes)


@pytest.mark.parametrize("name", [name for name, score in CATALOGUE.items() if score.features])
def test_scores_of_a_linear_head_are_refused_for_a_black_box(name):
    message = refused("expected", audit, black_box("classes"), scores=["loss", name])
    expected = "scores: expected scores that exist for a black box, got {}; leave it out: it needs a linear head"
    assert message == expected.format(name)


@pytest.mark.parametrize(("names", "of_head"), [(["fused"], ("newton",)), (["loss", "left_out"], ("loss", "newton"))])
def test_the_head_s_part_of_fused_is_computed_unasked(names, of_head):
    resolved = plan(made_head("classes", inputs=INPUTS), names)
    assert (resolved.of_head, resolved.of_view) == (of_head, (names[-1],))
    assert resolved.scores == tuple(names)


def test_the_choice_says_why():
    head = made_head("classes")
    assert choose(head, Dense()) == Choice(Dense(), "asked for")
    small, large = choose(head, Auto(memory=1e-9)), choose(head, Auto(memory=1.0))
    assert small.sketch is not None
    assert "does not fit the budget of 1e-09 GB" in small.because
    assert large.sketch is None
    assert "fits the budget of 1 GB" in large.because
