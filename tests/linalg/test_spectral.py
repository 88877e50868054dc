"""Largest eigen- and singular values by iteration, against full decompositions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.linalg.spectral import top_eigenvalue, top_singular_value

SIZES = [1, 2, 5, 12, 24, 25, 60]


def batch_last(matrices: np.ndarray | list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.moveaxis(np.array(matrices), 0, -1).copy())


def orthogonal(size: int, rng: np.random.Generator) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


SPECTRA = {
    "spread": lambda size, rng: rng.random(size),
    "one dominates": lambda size, rng: np.logspace(0, -8, size),
    "rank one": lambda size, rng: np.eye(size)[0],
    "all equal": lambda size, rng: np.full(size, 0.3),
    "a pair at the top": lambda size, rng: np.r_[[1.0, 1.0][:size], np.full(max(0, size - 2), 0.5)],
    "a near pair at the top": lambda size, rng: np.r_[[1.0, 1 - 1e-9][:size], np.full(max(0, size - 2), 0.2)],
    "a tight cluster": lambda size, rng: 1 - 1e-4 * rng.random(size),
    "zero": lambda size, rng: np.zeros(size),
}
# an iteration cannot tell eigenvalues apart that lie closer than it is run for
ALLOWED = [1e-7 if name in ("a near pair at the top", "a tight cluster") else 1e-11 for name in SPECTRA]


@pytest.mark.parametrize("size", SIZES)
def test_eigenvalues_of_every_spectrum_in_one_batch(size):
    rng = np.random.default_rng(size)
    matrices, expected = [], []
    for make in SPECTRA.values():
        values, vectors = make(size, rng), orthogonal(size, rng)
        matrices.append(vectors * values @ vectors.T)
        expected.append(values.max())
    found = top_eigenvalue(batch_last(matrices))
    assert (np.abs(found.numpy() - expected) <= np.multiply(ALLOWED, expected)).all()


@pytest.mark.parametrize("size", SIZES)
def test_singular_values_of_every_spectrum_in_one_batch(size):
    rng = np.random.default_rng(100 + size)
    matrices = []
    for make in SPECTRA.values():
        left, right = orthogonal(size, rng), orthogonal(size, rng)
        matrices.append(left * make(size, rng) @ right.T)
    found = top_singular_value(batch_last(matrices))
    expected = np.linalg.svd(matrices, compute_uv=False)[:, 0]
    assert (np.abs(found.numpy() - expected) <= np.multiply(ALLOWED, expected)).all()


@pytest.mark.parametrize("size", [12, 40])
@pytest.mark.parametrize("exponent", [-170, -60, 60, 170])
def test_units_do_not_matter(size, exponent):
    general = np.random.default_rng(1).normal(size=(4, size, size))
    matrices, symmetric = batch_last(general), batch_last(general @ general.transpose(0, 2, 1))
    scale = 10.0**exponent
    torch.testing.assert_close(
        top_singular_value(scale * matrices) / scale, top_singular_value(matrices), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(top_eigenvalue(scale * symmetric) / scale, top_eigenvalue(symmetric), rtol=1e-6, atol=0)


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 12), size=st.integers(1, 40), rank=st.integers(1, 40), seed=st.integers(0, 999))
def test_generated(count, size, rank, seed):
    rng = np.random.default_rng(seed)
    left, right = rng.normal(size=(2, count, size, min(rank, size)))
    general = left @ right.transpose(0, 2, 1)
    symmetric = left @ left.transpose(0, 2, 1)
    singular = top_singular_value(batch_last(general)).numpy()
    np.testing.assert_allclose(singular, np.linalg.svd(general, compute_uv=False)[:, 0], rtol=1e-11)
    eigen = top_eigenvalue(batch_last(symmetric)).numpy()
    np.testing.assert_allclose(eigen, np.linalg.eigvalsh(symmetric)[:, -1], rtol=1e-11)


def test_sign_of_a_single_number():
    numbers = torch.tensor([[[-3.0, 2.0]]], dtype=torch.float64)
    assert top_singular_value(numbers).tolist() == [3.0, 2.0]


@pytest.mark.parametrize("size", [4, 40])
def test_the_matrices_are_left_alone(size):
    general = np.random.default_rng(1).normal(size=(5, size, size))
    for largest, matrices in ((top_singular_value, general), (top_eigenvalue, general @ general.transpose(0, 2, 1))):
        given_over = batch_last(matrices)
        largest(given_over)
        assert torch.equal(given_over, batch_last(matrices))
