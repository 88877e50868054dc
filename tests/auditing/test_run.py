"""What an audit says beside its scores, and that no head makes a score that is not a number."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from giveaway import Head, audit
from giveaway import text as progress
from giveaway.auditing import scoring
from giveaway.curvature.optimum import refit
from tests import oracles
from tests.conftest import KINDS, made_arrays, made_head, refused

EPS = np.finfo(float).eps
RANKING = ("loss", "gradient_norm", "entropy", "margin", "leverage", "gls_trace", "gls_frobenius", "gls_spectral")
RANKING += ("influence", "newton", "loo_gap")


def with_weights(kind: str, seed: int = 0, **options) -> Head:
    """A made head whose outputs come from random parameters, far from any optimum."""
    head = made_head(kind, **options)
    theta = torch.randn(head.width, head.m, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return head.with_parameters(theta)


# ------------------------------------------------------------------------------------------------ metadata


def test_metadata_of_a_plain_audit():
    meta = audit(made_head("classes", l2=0.5, penalize_intercept=False)).meta
    expected = {
        "unit": "record",
        "rows": 60,
        "records": 60,
        "outputs": 5,
        "loss": "cross_entropy",
        "l2": 0.5,
        "intercept": True,
        "penalize_intercept": False,
        "newton_capped": 0,
    }
    assert {key: getattr(meta, key) for key in expected} == expected
    assert meta.options.to_json() == {
        "scores": [*RANKING],
        "unit": "record",
        "converged": True,
        "refit": False,
    }
    assert meta.view is None
    assert meta.no_view == "No fused score: the records themselves were not given (inputs)."
    curvature = meta.curvature
    assert (curvature.parameters, curvature.rank, curvature.l2) == (20, 20, 0.5)
    assert curvature.rank_relative_cut == 20 * EPS
    assert curvature.inverse == "cholesky"
    meta = audit(made_head("classes"), scores=["loss", "margin"]).meta
    assert (meta.curvature, meta.newton_capped) == (None, None)


@pytest.mark.parametrize("kind", KINDS)
def test_rank_and_cut_of_deficient_heads(kind):
    arrays = made_arrays(kind, d=3)
    features = arrays["features"]
    copies = Head(**arrays | {"features": np.column_stack([features, features])})
    curvature = audit(copies, scores=["leverage"]).meta.curvature
    m = copies.m
    degrees = m - 1 if copies.loss == "cross_entropy" and m > 1 else m
    assert (curvature.rank, curvature.parameters) == (4 * degrees, 7 * degrees)
    assert curvature.inverse == "eigenvectors"
    coupled = degrees if copies.loss == "cross_entropy" else 1
    assert curvature.rank_relative_cut == 7 * coupled * EPS


def test_distance_from_the_optimum():
    head = with_weights("classes", l2=0.5)
    far = audit(head, scores=["loss"]).meta.optimum
    x, f, y = head.window(slice(0, 60)).rows().numpy(), head.outputs.numpy(), np.eye(5)[head.targets]
    g, _ = oracles.derivatives(f, y, "softmax")
    theta = head.parameters().numpy()
    total = x.T @ g + 0.5 * (theta - theta.mean(1, keepdims=True))
    size = (np.linalg.norm(x, axis=1) * np.linalg.norm(g, axis=1)).sum()
    assert far.relative_gradient == pytest.approx(np.linalg.norm(total) / size, rel=1e-9)
    assert far.note.startswith("not at its optimum")
    near = audit(refit(head), scores=["loss"]).meta.optimum
    assert near.relative_gradient < 1e-10
    assert near.note == "at its optimum"
    unknown = audit(made_head("classes", l2=0.5), scores=["loss"]).meta.optimum
    assert unknown.to_json() == {"relative_gradient": None, "note": "unknown: the head's weights were not given"}
    unpenalized = audit(made_head("classes"), scores=["loss"]).meta.optimum
    assert unpenalized.relative_gradient > 1e-3


def test_attributes_of_records_and_of_people():
    arrays = made_arrays("classes")
    groups = np.array([f"p{i % 7}" for i in range(60)])
    records = audit(replace(Head(**arrays, groups=groups), groups=None))
    assert records["class"].tolist() == arrays["targets"].tolist()
    g, _ = oracles.derivatives(arrays["outputs"], np.eye(5)[arrays["targets"]], "softmax")
    np.testing.assert_allclose(records["residual"], np.abs(g).max(1), rtol=1e-10)
    people = audit(Head(**arrays, groups=groups))
    assert people["records"].tolist() == [np.sum(groups == name) for name in people.ids]
    worst = [records["residual"][groups == name].max() for name in people.ids]
    np.testing.assert_allclose(people["residual"], worst)


# ------------------------------------------------------------------------------------------------ options


def test_rows_are_people_where_the_head_has_groups_and_ids_come_through():
    groups, ids = (np.array([f"{name} {i // size}" for i in range(60)]) for name, size in (("person", 3), ("id", 1)))
    head = made_head("classes", groups=groups, ids=ids)
    table = audit(head)
    assert (table.meta.unit, table.meta.rows, table.meta.records) == ("person", 20, 60)
    assert table.ids.tolist() == sorted(set(groups.tolist()))
    assert table.meta.repeats is None
    assert audit(replace(head, groups=None), scores=["loss"]).ids.tolist() == ids.tolist()


@pytest.mark.parametrize("kind", ["squared_many", "classes", "multi_label"])
def test_unconverged_newton_needs_no_correction_at_the_optimum_and_does_elsewhere(kind):
    far = with_weights(kind, l2=0.5)
    plain, corrected = audit(far)["newton"], audit(far, optimum="corrected")["newton"]
    assert np.abs(plain - corrected).max() > 1e-2 * np.abs(plain).max()
    near = refit(far)
    np.testing.assert_allclose(audit(near, optimum="corrected")["newton"], audit(near)["newton"], rtol=1e-6, atol=1e-12)
    assert audit(far, optimum="corrected").meta.options.converged is False


@pytest.mark.parametrize("kind", ["squared_many", "one_logit", "classes"])
def test_refit_scores_the_optimum(kind):
    far = with_weights(kind, l2=0.5)
    table = audit(far, optimum="refit")
    features, targets = far.features.numpy(), far.targets.numpy()
    _, outputs = oracles.refit(features, targets, far.loss, l2=0.5, n_outputs=far.m)
    expected = oracles.head_scores(features, outputs, targets, far.loss, l2=0.5)
    for name in ("loss", "leverage", "newton", "gls_spectral"):
        np.testing.assert_allclose(table[name], expected[name], rtol=1e-6, atol=1e-9 * expected[name].max())
    assert table.meta.optimum.relative_gradient < 1e-10
    assert table.meta.options.refit is True


@pytest.mark.parametrize("kind", KINDS)
def test_one_score_alone_equals_that_score_among_all(kind):
    head = made_head(kind, l2=0.3)
    together = audit(head)
    for name in together.columns:
        np.testing.assert_array_equal(audit(head, scores=[name])[name], together[name])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("grouped", [False, True])
def test_scores_do_not_depend_on_batches_and_threads(monkeypatch, grouped, threads):
    groups = np.random.default_rng(0).integers(0, 12, 60) if grouped else None
    head = made_head("classes", l2=0.1, groups=groups)
    whole = audit(head)
    monkeypatch.setattr(scoring, "WINDOW", 7)
    monkeypatch.setattr(scoring, "MOST_ROWS", 7)
    monkeypatch.setattr("giveaway.curvature.dense.ARRAY_BYTES", 3 * 8 * 25)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        parts = audit(head)
    finally:
        torch.set_num_threads(before)
    for name in whole.columns:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-11)


def test_a_person_with_too_many_records_is_refused(monkeypatch):
    monkeypatch.setattr(scoring, "LARGEST_GROUP_BYTES", 10_000)
    head = made_head("classes", groups=np.r_[np.zeros(30, int), np.arange(1, 31)])
    refused(r"groups: expected people whose joint .* a person with 30 records, which needs", audit, head)
    assert len(audit(replace(head, groups=None))) == 60


@pytest.mark.parametrize("enabled", [True, False])
def test_progress_is_plain_lines_where_stderr_is_no_terminal(monkeypatch, capsys, enabled):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    audit(made_head("classes", l2=0.1), progress=enabled)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert bool(lines) is enabled
    if enabled:
        shares = [int(line.removeprefix("audit: ").removesuffix(" %")) for line in lines]
        assert shares == sorted(shares)
        assert shares[-1] == 100


# ------------------------------------------------------------------------------------------------ degenerate heads


def degenerate(kind: str) -> dict[str, dict]:
    """Heads on which curvatures are singular or records stand alone."""
    base = made_arrays(kind, n=40, d=3)
    features, few = base["features"], made_arrays(kind, n=max(4, KINDS[kind][1]), d=9)
    lone = np.zeros((40, 1))
    lone[11] = 1.0
    return {
        "dead features": base | {"features": np.column_stack([features, np.zeros((40, 2))])},
        "no live feature": base | {"features": np.zeros((40, 2))},
        "no feature": base | {"features": np.zeros((40, 0))},
        "duplicated columns": base | {"features": np.column_stack([features, features])},
        "more parameters than records": few,
        "a record alone in a direction": base | {"features": np.column_stack([features, lone])},
        "constant feature beside the bias": base | {"features": np.column_stack([features, np.full(40, 7.0)])},
        "sure outputs": base | {"outputs": base["outputs"] * 1e3},
        "outputs beyond sure": base | {"outputs": base["outputs"] * 1e6},
        "wide units": base | {"features": features * np.array([1e-30, 1.0, 1e30])},
        "all records the same": base | {"features": np.ones((40, 3))},
        "a record without weight": base | {"sample_weight": (np.arange(40) > 0).astype(float)},
    }


MANY = pytest.param("many_classes", marks=pytest.mark.slow)


@pytest.mark.parametrize("l2", [0.0, 1e-3])
@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("kind", [MANY if kind == "many_classes" else kind for kind in KINDS])
def test_no_score_is_ever_nan(kind, unit, l2):
    for case, arrays in degenerate(kind).items():
        n = len(arrays["features"])
        groups = np.arange(n) // 2 if unit == "person" else None
        table = audit(Head(**arrays, l2=l2, groups=groups))
        for name in table.columns:
            assert np.isfinite(table[name]).all(), (case, name)
            # records of one person under different weights do not make a symmetric form
            if name not in ("margin", "loo_gap") and case != "a record without weight":
                assert (table[name] >= -1e-9 * np.abs(table[name]).max()).all(), (case, name)
        if unit == "record":
            assert table["leverage"].max() <= 1.0, case


@pytest.mark.parametrize("kind", ["squared", "classes"])
def test_a_head_without_intercept_that_sees_only_zeros(kind):
    table = audit(Head(**made_arrays(kind) | {"features": np.zeros((60, 2))}, intercept=False))
    assert table["leverage"].tolist() == [0.0] * 60
    assert table.meta.curvature.rank == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_alone_in_a_direction_is_flagged_and_ranks_first(kind):
    arrays = degenerate(kind)["a record alone in a direction"]
    head = Head(**arrays)
    table = audit(head)
    assert np.flatnonzero(table["newton_capped"]).tolist() == [11]
    assert table.meta.newton_capped == 1
    assert table.order("newton")[0] == 11
    if KINDS[kind][1] == 1:
        assert table["leverage"][11] == pytest.approx(1.0, abs=1e-9)
        cap = 1e-8
        assert table["newton"][11] == pytest.approx(table["influence"][11] / cap, rel=1e-6)
    assert audit(Head(**arrays, l2=0.1)).meta.newton_capped == 0
    people = audit(Head(**arrays, groups=np.arange(40) // 2))
    assert np.flatnonzero(people["newton_capped"]).tolist() == [5]


def test_traces_sum_to_the_reported_rank_on_degenerate_heads():
    for case in ("dead features", "duplicated columns", "more parameters than records", "all records the same"):
        table = audit(Head(**degenerate("classes")[case]))
        assert table["gls_trace"].sum() == pytest.approx(table.meta.curvature.rank, rel=1e-8), case
