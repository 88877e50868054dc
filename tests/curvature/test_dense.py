"""Dense curvature: its inverse applied to a gradient, under several penalties, against a P × P matrix."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway import Head
from giveaway.curvature.dense import DenseCurvature
from giveaway.curvature.losses import Softmax
from tests import oracles
from tests.conftest import KINDS, made_arrays, made_head
from tests.curvature.cases import OPTIONS, PENALIZED, dense_inverse, gradient_like, terms


@given(st.integers(2, 30))
def test_helmert_is_an_orthonormal_basis_of_vectors_that_sum_to_zero(m):
    basis = Softmax(m).basis()
    torch.testing.assert_close(basis.T @ basis, torch.eye(m - 1, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(basis.sum(0), torch.zeros(m - 1, dtype=torch.float64), rtol=0, atol=1e-14)


def forms(head: Head, curvature: DenseCurvature) -> torch.Tensor:
    """The numbers of every record's leverage block."""
    return curvature.forms.forms(head.window(slice(0, head.n)).rows().T.contiguous())


@pytest.mark.parametrize("options", PENALIZED)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "many_classes"])
def test_solve_under_several_penalties(kind, options):
    for l2 in (0.4, 0.04, 4.0):
        head = made_head(kind, **OPTIONS[options] | {"l2": l2})
        v, curvature = gradient_like(head), DenseCurvature(head)
        expected = (dense_inverse(head, l2) @ v.numpy().ravel()).reshape(v.shape)
        np.testing.assert_allclose(curvature.solve(v), expected, rtol=1e-9, atol=1e-11 * np.abs(expected).max())
        assert curvature.report["l2"] == l2


@pytest.mark.parametrize("kind", ["squared_many", "classes", "multi_label"])
def test_units_of_the_features_do_not_change_rank_or_forms(kind):
    arrays = made_arrays(kind)
    units = np.array([1e-9, 1e6, 1.0, 1e3])
    plain, scaled = Head(**arrays), Head(**arrays | {"features": arrays["features"] * units})
    first, second = DenseCurvature(plain), DenseCurvature(scaled)
    assert first.report["rank"] == second.report["rank"] == first.size
    torch.testing.assert_close(forms(plain, first), forms(scaled, second), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("lead", [0.0, 60.0])
@pytest.mark.parametrize("kind", ["one_logit", "classes", "multi_label"])
def test_dead_features_change_nothing(kind, lead):
    arrays = made_arrays(kind)
    outputs = np.random.default_rng(8).normal(size=arrays["outputs"].shape)
    sign = np.where(oracles.target_matrix(arrays["targets"], arrays["loss"], outputs.shape[1]) == 1, 1.0, -1.0)
    arrays["outputs"] = outputs + lead * sign
    plain = Head(**arrays)
    wider = Head(**arrays | {"features": np.insert(arrays["features"], 2, 0.0, axis=1)})
    without, beside = DenseCurvature(plain), DenseCurvature(wider)
    assert beside.report["rank"] == without.report["rank"] == without.size
    assert (beside.report["dead_features"], without.report["dead_features"]) == (1, 0)
    expected = forms(plain, without)
    torch.testing.assert_close(forms(wider, beside), expected, rtol=1e-8, atol=1e-10 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", ["squared", "squared_many", "one_logit", "classes", "multi_label"])
def test_repeated_features_lower_the_rank_and_nothing_else(kind):
    arrays = made_arrays(kind)
    features = arrays["features"]
    plain = Head(**arrays)
    wider = Head(**arrays | {"features": np.column_stack([features, features[:, 0] - 2 * features[:, 1]])})
    regular, deficient = DenseCurvature(plain), DenseCurvature(wider)
    assert deficient.report["rank"] == regular.report["rank"] == regular.size
    assert deficient.size == regular.size * 6 // 5
    assert (regular.report["inverse"], deficient.report["inverse"]) == ("cholesky", "eigenvectors")
    torch.testing.assert_close(forms(wider, deficient), forms(plain, regular), rtol=1e-9, atol=1e-12)


@given(
    kind=st.sampled_from(sorted(KINDS)),
    size=st.integers(1, 4),
    weighted=st.booleans(),
    lead=st.sampled_from([0.0, 3.0]),
    seed=st.integers(0, 1000),
)
def test_curvature_form_of_groups_against_output_hessians(kind, size, weighted, lead, seed):
    """vᵀWv with every record's W from automatic differentiation, its weight with it; softmax sees no constant in v."""
    head = made_head(kind, n=36, seed=seed)
    rng = np.random.default_rng(seed)
    weight = rng.random(head.n) + 0.1 if weighted else np.ones(head.n)
    outputs = head.outputs.numpy() + lead * rng.normal(size=(head.n, head.m))
    moved_head, v = replace(head, outputs=outputs, sample_weight=weight), rng.normal(size=(head.n, head.m))
    expected = weight * np.einsum("na,nab,nb->n", v, terms(moved_head).W, v)
    expected = expected[: 36 // size * size].reshape(-1, size).sum(1)

    def grouped(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array[: 36 // size * size].reshape(-1, size, *array.shape[1:]))

    curvature = DenseCurvature(moved_head)
    n, window = 36 // size, moved_head.window(slice(0, 36 // size * size))
    of_outputs = curvature.loss.curvature(window.outputs.to(torch.float64).view(n, size, -1))
    blocks = curvature.window_blocks(window, size)(slice(0, n), of_outputs, window.weights.view(n, size), None)
    np.testing.assert_allclose(blocks.curvature_form(grouped(v)), expected, rtol=1e-11, atol=1e-14)
    if curvature.loss.coupled:
        moved = v + 3.0 * rng.normal(size=(head.n, 1))
        np.testing.assert_allclose(blocks.curvature_form(grouped(moved)), expected, rtol=1e-10, atol=1e-13)
