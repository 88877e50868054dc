"""invert: the inverse where there is one, the pseudo-inverse on the numerical range where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.linalg.inverse import ROWS, Inverse, invert

EPS = np.finfo(np.float64).eps


def inverted(matrix: np.ndarray) -> tuple[Inverse, np.ndarray]:
    """The inverse from the upper triangle alone: what lies below must not be looked at."""

    def assemble() -> torch.Tensor:
        upper = torch.from_numpy(np.triu(matrix))
        upper += torch.full_like(upper, 1e6).tril(-1)
        return upper

    inverse = invert(assemble)
    return inverse, inverse.full.numpy()


def with_eigenvalues(values: np.ndarray, seed: int = 0) -> np.ndarray:
    size = len(values)
    vectors, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    matrix = vectors * values @ vectors.T
    return (matrix + matrix.T) / 2


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 40), spread=st.floats(0, 6), seed=st.integers(0, 99))
def test_full_rank(size, spread, seed):
    matrix = with_eigenvalues(np.logspace(0, -spread, size), seed)
    inverse, full = inverted(matrix)
    assert (inverse.method, inverse.rank) == ("cholesky", size)
    assert inverse.relative_cut == size * EPS
    np.testing.assert_allclose(full, np.linalg.inv(matrix), rtol=0, atol=1e-13 * size * 10.0 ** (2 * spread))
    np.testing.assert_array_equal(full, full.T)


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(2, 40), lost=st.integers(1, 39), scale=st.sampled_from([1e-8, 1.0, 1e9]), seed=st.integers(0, 99)
)
def test_rank_deficient(size, lost, scale, seed):
    rank = max(0, size - lost)
    values = np.concatenate([np.linspace(1, 2, rank), np.zeros(size - rank)])
    matrix = scale * with_eigenvalues(values, seed)
    inverse, full = inverted(matrix)
    assert (inverse.method, inverse.rank) == ("eigenvectors", rank)
    expected = np.linalg.pinv(matrix, rcond=size * EPS, hermitian=True)
    np.testing.assert_allclose(scale * full, scale * expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("decades", [5, 10, 13])
def test_badly_scaled_but_regular(decades):
    matrix = with_eigenvalues(np.logspace(0, -decades, 12))
    inverse, full = inverted(matrix)
    assert inverse.rank == 12
    np.testing.assert_allclose(full @ matrix, np.eye(12), atol=10.0 ** (decades - 13))


@pytest.mark.parametrize("exponent", [-150, 150])
def test_units_do_not_matter(exponent):
    matrix = with_eigenvalues(np.linspace(1, 5, 6))
    scale = 10.0**exponent
    inverse, full = inverted(scale * matrix)
    assert inverse.rank == 6
    np.testing.assert_allclose(full * scale, np.linalg.inv(matrix), rtol=1e-11)


def test_what_lies_below_the_cut_is_left_out_however_it_is_reached():
    values = np.array([1.0, 0.5, 0.25, 1e-17])
    inverse, full = inverted(with_eigenvalues(values))
    assert (inverse.method, inverse.rank) == ("eigenvectors", 3)
    assert np.abs(full).max() < 5.0


@pytest.mark.parametrize("size", [1, 7])
def test_zero_matrix(size):
    inverse, full = inverted(np.zeros((size, size)))
    assert inverse.rank == 0
    np.testing.assert_array_equal(full, np.zeros((size, size)))


@pytest.mark.parametrize("deficient", [False, True])
def test_larger_than_one_block_of_rows(deficient):
    size = ROWS + 77
    rng = np.random.default_rng(0)
    root = rng.normal(size=(size, size // 2 if deficient else 2 * size)) / np.sqrt(size)
    matrix = root @ root.T
    inverse, full = inverted(matrix)
    assert inverse.rank == (size // 2 if deficient else size)
    projector = full @ matrix
    np.testing.assert_allclose(projector @ matrix, matrix, atol=1e-10)
    np.testing.assert_allclose(np.trace(projector), inverse.rank, rtol=1e-9)
    np.testing.assert_array_equal(full, full.T)
