"""What an audit is asked for, resolved or refused before any work."""

from __future__ import annotations

import numpy as np
import pytest

from giveaway import InputError, audit
from giveaway.auditing.plan import SENSITIVITY_UP_TO, plan
from giveaway.scores.catalogue import CATALOGUE
from tests.conftest import made_head

DEFAULTS = {"scores": None, "by": "auto", "converged": True, "refit": False, "l2_sensitivity": None}


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


def test_by_default_every_score_that_exists():
    assert plan(made_head("classes"), **DEFAULTS, inputs=True).scores == tuple(CATALOGUE)
    missing = set(CATALOGUE) - set(plan(made_head("squared"), **DEFAULTS, inputs=True).scores)
    assert missing == {"entropy", "margin"}
    without = plan(made_head("classes"), **DEFAULTS)
    assert set(CATALOGUE) - set(without.scores) == {"lood_kl", "lood_mean"} == set(CATALOGUE) - set(without.of_head)


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
