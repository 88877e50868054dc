"""Audits of texts: which columns there are, what fused is made of, people, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, pearsonr, rankdata

import giveaway as ga
from giveaway.records import ScoreTable
from giveaway.scores import texts as scores
from giveaway.scores.texts import TextViews
from giveaway.views.tokens import predicted_by_others
from tests.conftest import refused
from tests.scores.test_texts import texts_of

TEXTS = texts_of(np.random.default_rng(0).integers(2, 30, 40), vocabulary=9)


STEPS = ("leverage", "influence", "newton", "newton_error")


def trace_of(texts, seed=1):
    """Losses of four epochs that go with the model's own."""
    losses = -texts.means(texts.log_likelihood) * np.random.default_rng(seed).uniform(0.8, 1.2, (4, texts.n))
    return ga.LossTrace.from_losses(losses, targets=texts.targets)


def normal(values):
    return norm.ppf((rankdata(values) - 0.5) / len(values))


def test_columns_are_the_scores_and_fused_adds_the_views():
    trace = trace_of(TEXTS)
    table = ga.audit(TEXTS, trace=trace)
    views = TextViews(TEXTS, predicted_by_others(TEXTS).log_likelihood)
    for name in ("loss", "min_k", "min_k_plus", "zlib_ratio", "base_gap", "error_gap", "left_out"):
        np.testing.assert_allclose(table[name], getattr(scores, name)(views), rtol=1e-12)
    roots = np.sqrt(trace.losses.astype(float)).mean(0)
    np.testing.assert_allclose(table["trace"], roots, rtol=1e-12)
    own = 1 - pearsonr(normal(roots), normal(table["loss"])).statistic ** 2
    np.testing.assert_allclose(table["fused"], normal(table["left_out"]) + own * normal(roots), rtol=1e-9)
    assert table.meta.fusion.weights == pytest.approx({"left_out": 1.0, "trace": own})
    assert table.ranking() == "fused"
    np.testing.assert_array_equal(table["tokens"], TEXTS.lengths)


def test_what_was_not_given_is_not_among_the_columns():
    table = ga.audit(replace(TEXTS, base=None, contents=None))
    assert table.columns == ("loss", "min_k", "min_k_plus", "left_out", "fused")
    np.testing.assert_allclose(table["fused"], normal(table["left_out"]))
    assert ga.audit(TEXTS, scores=("min_k", "fused")).columns == ("min_k", "fused")


def test_the_newton_step_counts_as_far_as_the_model_has_not_learned_by_heart():
    steps = {name: np.random.default_rng(len(name)).exponential(size=TEXTS.n) for name in STEPS}
    others = predicted_by_others(TEXTS).log_likelihood
    for share in (0.3, 2.0):  # of the other texts' loss that the model's own is
        texts = replace(
            TEXTS,
            steps=steps,
            log_likelihood=TEXTS.log_likelihood * (others.sum() * share / TEXTS.log_likelihood.sum()),
        )
        table, memorized = ga.audit(texts), max(0.0, 1 - share)
        assert table.meta.fusion.weights == pytest.approx({"newton": 1 - memorized, "left_out": memorized})
        expected = (1 - memorized) * normal(table["newton"]) + memorized * normal(table["left_out"])
        np.testing.assert_allclose(table["fused"], expected, rtol=1e-9)
        np.testing.assert_allclose(table["newton"] * np.sqrt(TEXTS.lengths), steps["newton"])
        np.testing.assert_allclose(table["influence"] * np.sqrt(TEXTS.lengths), steps["influence"])
        np.testing.assert_array_equal(table["leverage"], steps["leverage"])
    refused("scores: expected curvature beside a score that needs it", ga.audit, TEXTS, scores="newton")


def test_texts_that_are_all_the_same_are_audited():
    steps = {name: np.ones(TEXTS.n) for name in STEPS}
    same = replace(TEXTS, tokens=np.ones_like(TEXTS.tokens), base=None, base_best=None, steps=steps)
    assert ga.audit(same).meta.fusion.weights == {"newton": 1.0, "left_out": 0.0}


def test_people_are_ranked_by_all_of_their_documents():
    groups = np.repeat(np.arange(10), 4)
    people = replace(TEXTS, groups=groups)
    table = ga.audit(people, trace=trace_of(TEXTS))
    whole = ga.audit(people.by_person())
    assert table.meta.unit == "person"
    assert len(table) == 10
    np.testing.assert_allclose(table["left_out"], whole["left_out"])
    alone = ga.audit(TEXTS, trace=trace_of(TEXTS))
    np.testing.assert_allclose(table["trace"], alone["trace"].reshape(10, 4).mean(1))


def test_a_table_of_texts_is_saved_reported_and_loaded(tmp_path):
    ga.report(ga.audit(TEXTS, trace=trace_of(TEXTS)), tmp_path / "audit")
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "A language model" in page
    assert "A classifier" not in page
    assert ScoreTable.load(tmp_path / "audit").meta.fusion.weights.keys() == {"left_out", "trace"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scores": "trace"}, "scores: expected trace beside a score that needs it, got trace alone; pass trace="),
        ({"scores": "newtn"}, "scores"),
        ({"trace": trace_of(texts_of([3, 5, 9]))}, "trace: expected losses of the head's 40 records, got losses of 3"),
        ({"trace": "my.losses"}, "trace: expected a LossTrace, got str; read a file by ga.LossTrace"),
        ({"optimum": "refit"}, "optimum: expected a head beside it, got texts"),
        ({"curvature": ga.Dense()}, "curvature: expected a head beside it, got texts"),
    ],
)
def test_what_texts_have_not_is_refused(options, words):
    refused(words, ga.audit, TEXTS, **options)
    refused("scores: expected base beside a score", ga.audit, replace(TEXTS, base=None), scores="base_gap")
