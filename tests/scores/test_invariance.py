"""What must not change a score."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

import giveaway as ga
from giveaway.records import ScoreTable
from tests.conftest import KINDS, made_arrays, made_head


def assert_tables_equal(a: ScoreTable, b: ScoreTable, *, but: tuple[str, ...] = (), rtol: float = 1e-9) -> None:
    for name in a.columns:
        if name not in but:
            scale = np.abs(a[name]).max()
            np.testing.assert_allclose(a[name], b[name], rtol=rtol, atol=1e-12 * scale, err_msg=name)


@pytest.mark.parametrize("kind", ["two_classes", "classes", "many_classes"])
def test_class_relabelling(kind: str) -> None:
    arrays = made_arrays(kind)
    order = np.random.default_rng(0).permutation(arrays["outputs"].shape[1])
    moved = dict(arrays, outputs=arrays["outputs"][:, order], targets=np.argsort(order)[arrays["targets"]])
    assert_tables_equal(ga.audit(ga.Head(**arrays, l2=0.2)), ga.audit(ga.Head(**moved, l2=0.2)))


def test_constant_logit() -> None:
    arrays = made_arrays("classes")
    shifted = dict(arrays, outputs=arrays["outputs"] + np.random.default_rng(0).normal(size=(60, 1)))
    assert_tables_equal(ga.audit(ga.Head(**arrays, l2=0.2)), ga.audit(ga.Head(**shifted, l2=0.2)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "many_classes"])
def test_linear_map_of_the_features_without_penalty(kind: str) -> None:
    arrays = made_arrays(kind)
    change = np.random.default_rng(0).normal(size=(4, 4)) * np.array([1e-3, 1.0, 10.0, 1e4])
    mapped = dict(arrays, features=arrays["features"] @ change)
    tables = ga.audit(ga.Head(**arrays)), ga.audit(ga.Head(**mapped))
    assert tables[1].meta.curvature.inverse == "cholesky"
    assert_tables_equal(*tables, but=("gradient_norm",), rtol=1e-6)


def test_permuting_records_permutes_scores() -> None:
    arrays = made_arrays("classes")
    order = np.random.default_rng(0).permutation(60)
    moved = {key: value[order] if key != "loss" else value for key, value in arrays.items()}
    table, other = ga.audit(ga.Head(**arrays, l2=0.1)), ga.audit(ga.Head(**moved, l2=0.1, ids=order))
    for name in table.columns:
        np.testing.assert_allclose(other[name], table[name][order], rtol=1e-9)


@pytest.mark.parametrize("l2", [0.0, 0.6])
@pytest.mark.parametrize("penalize", [True, False])
def test_two_classes_equal_one_logit_with_half_the_penalty(l2: float, penalize: bool) -> None:
    arrays = made_arrays("two_classes")
    one = dict(arrays, outputs=arrays["outputs"][:, 1:] - arrays["outputs"][:, :1])
    logit = ("gls_trace_logit", "gls_frobenius_logit", "gls_spectral_logit")
    theory = ("predicted_success", "predicted_auc", "predicted_tpr", "predicted_tpr_low")
    names = [*ga.audit(ga.Head(**arrays)).columns, *logit, *theory]
    two, single = (
        ga.audit(ga.Head(**case, l2=l2, penalize_intercept=penalize), scores=list(dict.fromkeys(names)))
        for case, l2 in ((arrays, l2), (one, l2 / 2))
    )
    assert_tables_equal(two, single, but=("gradient_norm", *logit))
    np.testing.assert_allclose(two["gls_trace_logit"] * 2, single["gls_trace_logit"])


@pytest.mark.parametrize("kind", KINDS)
def test_traces_sum_to_the_rank(kind: str) -> None:
    table = ga.audit(made_head(kind, n=80))
    rank = table.meta.curvature.rank
    loss, m = KINDS[kind]
    assert rank == 5 * (m - 1 if loss == "cross_entropy" and m > 1 else m)
    assert table["gls_trace"].sum() == pytest.approx(rank, rel=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_storage_type_of_the_features(dtype: torch.dtype) -> None:
    head = made_head("classes", l2=0.3)
    rounded = head.features.to(dtype)
    small = ga.audit(dataclasses.replace(head, features=rounded))
    wide = ga.audit(dataclasses.replace(head, features=rounded.to(torch.float64)))
    assert_tables_equal(small, wide, rtol=1e-15)


def test_people_of_one_record_equal_records() -> None:
    head = made_head("classes", l2=0.3, groups=np.arange(60))
    assert_tables_equal(ga.audit(head), ga.audit(replace(head, groups=None)))
