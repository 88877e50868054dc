"""Every score against a naive loop over records, on made heads of every kind and on generated ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import giveaway as ga
from giveaway.records import ScoreTable
from tests import oracles
from tests.conftest import KINDS, made_arrays

TOLERANCE = 1e-9


def assert_same(table: ScoreTable, expected: dict[str, np.ndarray]) -> None:
    """Equal to TOLERANCE for all rows and, apart, for the most influential decile of every column.

    The oracle subtracts two losses for loo_gap, so it is held to what that subtraction leaves of it.
    """
    assert set(table.columns) == set(expected)
    for name, values in expected.items():
        rounding = 1e-14 * (1 + np.abs(expected["loss"])) if name == "loo_gap" else 0.0
        allowed = TOLERANCE * np.abs(values) + rounding + 1e-13 * np.abs(values).max()
        wrong = np.abs(table[name] - values) > allowed
        assert not wrong.any(), f"{name}: rows {np.flatnonzero(wrong)}"
        decile = np.argsort(-values)[: max(1, len(values) // 10)]
        np.testing.assert_allclose(table[name][decile], values[decile], rtol=1e-8, err_msg=f"{name}, top decile")


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("free_intercept", [False, True], ids=["penalized", "free"])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_records(kind: str, l2: float, free_intercept: bool, weighted: bool) -> None:
    arrays = made_arrays(kind)
    options = {"l2": l2, "penalize_intercept": not free_intercept}
    if weighted:
        options["sample_weight"] = np.random.default_rng(1).random(len(arrays["features"])) + 0.1
    expected = oracles.head_scores(**arrays, **options)
    assert_same(ga.audit(ga.Head(**arrays, **options), scores=list(expected)), expected)


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "many_classes"])
def test_people(kind: str, weighted: bool) -> None:
    arrays = made_arrays(kind)
    groups = np.random.default_rng(2).integers(0, 25, len(arrays["features"]))
    options: dict = {"l2": 0.3}
    if weighted:
        options["sample_weight"] = np.random.default_rng(1).random(len(groups)) + 0.1
    expected = oracles.group_scores(**arrays, groups=groups, **options)
    table = ga.audit(ga.Head(**arrays, groups=groups, **options), scores=list(expected))
    assert table.meta.unit == "person"
    assert (table.ids == np.unique(groups)).all()
    assert_same(table, expected)


@given(
    kind=st.sampled_from(sorted(KINDS)),
    n=st.integers(30, 50),
    d=st.integers(1, 5),
    intercept=st.booleans(),
    l2=st.sampled_from([0.0, 1e-3, 2.0]),
    seed=st.integers(0, 10_000),
)
def test_generated(kind: str, n: int, d: int, intercept: bool, l2: float, seed: int) -> None:
    arrays = made_arrays(kind, n=n, d=d, seed=seed)
    expected = oracles.head_scores(**arrays, l2=l2, intercept=intercept)
    lone = oracles.top_eigenvalues(**arrays, l2=l2, intercept=intercept).max()
    table = ga.audit(ga.Head(**arrays, l2=l2, intercept=intercept), scores=list(expected))
    if lone < 1 - 1e-5:  # nearer to 1 the oracle's own (I − W B)⁻¹ has no digits left
        assert_same(table, expected)
    else:
        for name in ("leverage", "gls_trace", "gls_frobenius", "gls_spectral", "influence"):
            np.testing.assert_allclose(table[name], expected[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["squared_many", "one_logit", "classes", "multi_label", "soft_labels"])
def test_unconverged_newton(kind: str) -> None:
    arrays = made_arrays(kind, seed=3)
    rng = np.random.default_rng(4)
    m = arrays["outputs"].shape[1]
    theta = rng.normal(size=(arrays["features"].shape[1] + 1, m))
    arrays["outputs"] = np.column_stack([arrays["features"], np.ones(len(arrays["features"]))]) @ theta
    head = ga.Head(**arrays, l2=0.5, weight=theta[:-1].T, bias=theta[-1])
    table = ga.audit(head, optimum="corrected")
    expected = oracles.unconverged_newton(**arrays, l2=0.5, theta=theta)
    np.testing.assert_allclose(table["newton"], expected, rtol=1e-8, atol=1e-10 * np.abs(expected).max())
    plain = ga.audit(head)["newton"]
    assert np.abs(plain - expected).max() > 0.01 * np.abs(expected).max()
    assert table.meta.options.converged is False
