"""All views from end to end: which columns there are, that fused follows from them, what is refused, what is kept."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
import torch

import giveaway as ga
from giveaway import Head, LossTrace, audit
from giveaway.records import ScoreTable
from giveaway.records.meta import Meta
from giveaway.scores.fusion import normal_scores
from giveaway.views.model import phi_of
from tests.conftest import made_arrays, refused
from tests.views.test_others import PEOPLE, N, compared, records

IDS = [f"r{i:02d}" for i in range(N)]
FROM_CURVATURE = {"gradient_norm", "leverage", "gls_trace", "gls_frobenius", "gls_spectral", "influence"}
FROM_CURVATURE |= {"newton", "loo_gap"}


def head_of(kind: str = "classes", *, linear: bool = True, **options) -> Head:
    arrays = made_arrays(kind)
    return Head(**arrays | ({} if linear else {"features": None}), l2=1.0 if linear else 0.0, ids=IDS, **options)


def losses(seed: int = 0) -> np.ndarray:
    """Five epochs of losses, some of them missing; whose they are the ids tell."""
    rng = np.random.default_rng(seed)
    made = rng.exponential(size=N) * np.linspace(3.0, 0.5, 5)[:, None] * rng.uniform(0.5, 1.5, (5, N))
    made[rng.random(made.shape) < 0.1] = np.nan
    return made


def traced(seed: int = 0) -> LossTrace:
    return LossTrace.from_losses(losses(seed), ids=IDS)


def others(seed: int = 5) -> dict:
    """Views that only the head can hold."""
    rng, arrays = np.random.default_rng(seed), made_arrays("classes")
    mirror, bag = (arrays["outputs"] + rng.normal(size=arrays["outputs"].shape) for _ in range(2))
    return {"relatives": {"mirror": mirror}, "out_of_bag": bag, "held_out": (2.0 * mirror, arrays["targets"])}


def normal(values) -> np.ndarray:
    inverse, n = NormalDist().inv_cdf, len(values)
    return np.array([inverse((np.sum(values < v) + np.sum(values == v) / 2) / n) for v in values])


def check_fused(table: ScoreTable, head: Head) -> None:
    """fused is the sum of its table's columns as normal scores, each times what the metadata say that it counts."""
    weights = table.meta.fusion.weights
    columns = {name: table["newton" if head.linear else "loss"] if name == "head" else table[name] for name in weights}
    if "trace" in weights and head.inputs is not None:
        _, seen = compared(head)
        unpredicted, held_out = 0.0, table.meta.fusion.held_out_error
        if held_out is not None:
            unpredicted = np.clip((seen.error_without.sum() - head.n * held_out) / seen.variation, 0, 1)
        columns["trace"] = table["trace"] ** 2 * seen.leverage ** ((1 - seen.memorized) * (1 - unpredicted) ** 2)
    expected = sum(weight * normal(columns[name]) for name, weight in weights.items())
    np.testing.assert_allclose(table["fused"], expected, atol=2e-5)


# ------------------------------------------------------------------------------------------------ columns


@pytest.mark.parametrize("groups", [None, PEOPLE], ids=["records", "people"])
@pytest.mark.parametrize("inputs", [None, records()], ids=["alone", "inputs"])
@pytest.mark.parametrize("linear", [True, False], ids=["head", "black box"])
def test_a_trace_adds_its_column_and_speaks_in_fused(linear, inputs, groups):
    head = head_of(linear=linear, inputs=inputs, groups=groups)
    table, plain = audit(head, trace=traced()), audit(head)
    before = ["loss", "entropy", "margin"]
    added = ["trace", "fused"] if inputs is None else ["left_out", "trace", "fused"]
    assert [name for name in table.columns if name not in FROM_CURVATURE] == [*before, *added]
    assert FROM_CURVATURE & set(table.columns) == (FROM_CURVATURE if linear else set())
    for name in set(plain.columns) - {"fused"}:
        np.testing.assert_array_equal(table[name], plain[name])
    assert table.ranking() == "fused"
    assert set(table.meta.fusion.weights) == {"head", "trace"} | ({"left_out"} if inputs is not None else set())
    assert 0 < table.meta.fusion.trace_share_of_its_own <= 1
    assert table.meta.fusion.weights["trace"] == pytest.approx(table.meta.fusion.trace_share_of_its_own**2, abs=1e-5)
    check_fused(table, head)
    stored = losses().astype(np.float16).astype(float)
    roots = np.array([np.sqrt(column[~np.isnan(column)]).mean() for column in stored.T])
    if groups is not None:
        roots = np.array([roots[name == PEOPLE].sum() for name in np.unique(PEOPLE)])
    np.testing.assert_allclose(table["trace"], roots, rtol=1e-12)
    assert table.meta.trace.proof == "ids"
    shown = table.order("fused")[:10].tolist() if groups is None else []
    assert list(table.meta.trace.rows) == shown
    assert ("learned_by" in table.attributes) is (groups is None)


@pytest.mark.parametrize("trace", [None, traced()], ids=["no trace", "trace"])
@pytest.mark.parametrize("inputs", [None, records()], ids=["alone", "inputs"])
def test_all_views_together(inputs, trace):
    given = others()
    head = head_of(inputs=inputs, **given)
    table = audit(head, trace=trace)
    asked = {"relatives", "out_of_bag"} | ({"left_out"} if inputs is not None else set())
    asked |= {"trace"} if trace is not None else set()
    assert set(table.meta.fusion.weights) == asked
    assert asked <= set(table.columns)
    assert table.meta.fusion.held_out_error > 0
    assert set(table.meta.fusion.relatives) == {"mirror"}
    assert table.meta.fusion.without_out_of_bag == 0
    check_fused(table, head)
    for name, outputs in (("relatives", given["relatives"]["mirror"]), ("out_of_bag", given["out_of_bag"])):
        loss = torch.nn.functional.cross_entropy(torch.from_numpy(outputs), head.targets, reduction="none")
        expected = normal_scores(loss.numpy()) if name == "relatives" else loss.numpy()
        np.testing.assert_allclose(table[name], expected, rtol=1e-10)


def test_inputs_alone_count_what_they_did_and_a_head_alone_has_no_fused():
    table = audit(head_of(inputs=records()))
    assert table.meta.fusion.weights == {"left_out": 1.0, "head": pytest.approx(table.meta.view.head_weight, abs=2e-6)}
    assert (table.meta.trace, table.meta.fusion.trace_share_of_its_own) == (None, None)
    alone = audit(head_of())
    assert "fused" not in alone.columns
    assert (alone.meta.fusion, alone.meta.trace) == (None, None)


def test_columns_by_name():
    head, trace = head_of(), traced()
    default = audit(head, trace=trace)
    table = audit(head, trace=trace, scores=["lt_iqr", "trace"])
    assert list(table.columns) == ["lt_iqr", "trace"]
    stored = losses().astype(np.float16).astype(float)
    ranges = [np.subtract(*np.percentile(column[~np.isnan(column)], [75, 25])) for column in stored.T]
    np.testing.assert_allclose(table["lt_iqr"], ranges, rtol=1e-12)
    np.testing.assert_array_equal(table["trace"], default["trace"])
    fused = audit(head, trace=trace, scores="fused")
    assert list(fused.columns) == ["fused"]
    np.testing.assert_array_equal(fused["fused"], default["fused"])
    assert "lt_iqr" not in default.columns
    assert {*default.columns, "lt_iqr"} == set(audit(head, trace=trace, scores=["default", "lt_iqr"]).columns)


def test_a_trace_in_which_only_it_tells_ranks_by_it():
    """Losses that go against those of the model repeat nothing of them: the trace alone counts."""
    head = head_of(linear=False)
    table = audit(head, scores=["loss", "fused"], trace=LossTrace.from_losses(losses(), ids=IDS))
    against = 1.0 / (1.0 + np.argsort(np.argsort(table["loss"])))
    table = audit(head, trace=LossTrace.from_losses(against[None], ids=IDS))
    assert table.meta.fusion.weights == {"head": 0.0, "trace": 1.0}
    np.testing.assert_array_equal(table.order("fused"), table.order("trace"))


# ------------------------------------------------------------------------------------------------ refused


NEEDS = "scores: expected {} beside a score that needs it, got {} alone; "
TO_HEAD = "give them to the head, or leave it out"


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("trace", "a trace", "pass trace= to audit"),
        ("lt_iqr", "a trace", "pass trace= to audit"),
        ("relatives", "relatives", TO_HEAD),
        ("out_of_bag", "out-of-bag predictions", TO_HEAD),
    ],
)
def test_a_view_that_is_not_there_is_refused_by_name(name, what, remedy):
    message = refused("expected", audit, head_of(inputs=records()), scores=["newton", name])
    assert message == NEEDS.format(what, name) + remedy


def test_fused_and_left_out_without_what_they_need():
    needs = "scores: expected inputs beside a score that looks at the records, got {} alone; pass inputs to the head"
    assert refused("expected", audit, head_of(), scores="left_out", trace=traced()) == needs.format("left_out")
    assert refused("expected", audit, head_of(), scores="fused").startswith(needs.format("fused").split(";")[0])


def test_what_is_no_trace_of_these_records_is_refused():
    refused("got other ids", audit, head_of(), trace=LossTrace.from_losses(losses(), ids=IDS[::-1]))
    refused("losses of the head's 60 records, got losses of 59", audit, head_of(), trace=LossTrace(N - 1))
    words = "trace: expected a LossTrace, got str; read a file by ga.LossTrace(path)"
    assert refused("a LossTrace", audit, head_of(), trace="losses.trace") == words


def test_a_network_takes_no_trace():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    data = torch.randn(6, 3), torch.arange(6) % 2
    deep = ga.network.Depths(model, data, loss="cross_entropy", damping=1.0)
    words = "trace: expected a head beside it, got a network; leave trace out, or audit the head too"
    assert refused("a network", audit, deep, trace=traced()) == words


# ------------------------------------------------------------------------------------------------ kept


def test_a_saved_table_keeps_what_the_views_said(tmp_path):
    trace = traced()
    trace.save(tmp_path / "losses.trace")
    table = audit(head_of(inputs=records(), **others()), trace=LossTrace(tmp_path / "losses.trace"))
    table.save(tmp_path / "table")
    again = ScoreTable.load(tmp_path / "table")
    assert again.meta.fusion.to_json() == table.meta.fusion.to_json()
    assert again.meta.trace.to_json() == table.meta.trace.to_json()
    for name in ("trace", "relatives", "out_of_bag", "fused"):
        np.testing.assert_array_equal(again[name], table[name])
    np.testing.assert_array_equal(again.attributes["learned_by"], table.attributes["learned_by"])


def test_how_many_are_exposed_is_predicted_in_words_from_records_held_out():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(1200, 4)), rng.integers(0, 3, 1200)
    unseen = rng.normal(size=(1200, 3))
    learned = unseen + 12.0 * np.eye(3)[y]  # every label by heart, in place of none
    own, rest = slice(0, 600), slice(600, 1200)
    held_out = (unseen[rest], y[rest])
    for outputs, words in ((learned, ["many"]), (unseen, ["few"])):
        head = Head(x[own], outputs[own], y[own], "cross_entropy", l2=1.0, held_out=held_out)
        said = audit(head, scores=["loss"]).meta.predicted_share
        assert (said.words, said.held_out) == (words, 600)
        people = replace(head, groups=np.arange(600) // 2)
        assert audit(people, scores=["loss"]).meta.predicted_share is None
        few = replace(head, held_out=(unseen[:499], y[:499]))
        assert audit(few, scores=["loss"]).meta.predicted_share is None
    assert "predicted_share" not in audit(few, scores=["loss"]).meta.to_json()
    assert audit(head, scores=["loss"], optimum="refit").meta.predicted_share is None  # the others are of another model
    for words in ([], ["few", "=1+1"]):
        refused("some of few, some, many", Meta.from_json, {"predicted_share": {"words": words, "held_out": 600}})


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_phi_of_classes_against_probabilities(outputs):
    rng = np.random.default_rng(0)
    f, y = torch.from_numpy(rng.normal(size=(40, outputs))), torch.from_numpy(rng.integers(0, max(2, outputs), 40))
    p = torch.sigmoid(torch.cat([-f, f], 1)) if outputs == 1 else f.softmax(1)
    own = p[torch.arange(40), y]
    np.testing.assert_allclose(phi_of(f, y), torch.log(own / (1 - own)).numpy(), rtol=1e-9)
