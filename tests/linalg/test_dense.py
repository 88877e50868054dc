"""Pairs of features, inverses and largest eigenvalues against NumPy's einsum and decompositions."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from giveaway.linalg import dense
from giveaway.linalg.dense import (
    ROWS,
    Inverse,
    PairTiles,
    cholesky_in_place,
    invert,
    invert_lower_,
    top_eigenvalue,
    top_singular_value,
)


def features_and_weights(n: int, d: int, p: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features (d, n) and weights (p, n)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(d, n, generator=generator, dtype=torch.float64)
    return x, torch.randn(p, n, generator=generator, dtype=torch.float64)


def upper_pairs(tiles: PairTiles) -> torch.Tensor:
    """The sums as (d, d, p), every pair (a, b) with b ≥ a that some tile holds; NaN where none does."""
    whole = torch.full((tiles.d, tiles.d, tiles.p), torch.nan, dtype=torch.float64)
    for start, end, tile in tiles:
        for a in range(start, end):
            whole[a, a:] = tile[a - start :, a - start]
    return whole


def assert_upper_equal(whole: torch.Tensor, expected: torch.Tensor) -> None:
    rows, columns = torch.triu_indices(len(whole), len(whole))
    torch.testing.assert_close(whole[rows, columns], expected[rows, columns], rtol=1e-11, atol=1e-10)


def as_forms(matrices: torch.Tensor) -> PairTiles:
    """Tiles whose forms are xᵀ M_p x for symmetric matrices (d, d, p): the lower triangle folded onto the upper."""
    tiles = PairTiles(len(matrices), matrices.shape[2])
    for start, end, tile in tiles:
        tile.zero_()
        for a in range(start, end):
            tile[a - start :, a - start] = 2 * matrices[a, a:]
            tile[a - start, a - start] = matrices[a, a]
    return tiles


def assert_sums_and_forms(n: int, d: int, p: int, cut: int, seed: int = 0) -> None:
    """The records up to `cut` are added first."""
    x, v = features_and_weights(n, d, p, seed)
    tiles = PairTiles(d, p)
    tiles.add(x[:, :cut], v[:, :cut])
    tiles.add(x[:, cut:], v[:, cut:])
    sums = torch.einsum("aj,bj,pj->abp", x, x, v)
    assert_upper_equal(upper_pairs(tiles), sums)
    forms = as_forms(sums).forms(x)
    torch.testing.assert_close(forms, torch.einsum("aj,bj,abp->pj", x, x, sums), rtol=1e-10, atol=1e-8)


SIZES = [(1, 1, 1), (700, 5, 40), (700, 5, 1), (33, 47, 3), (513, 65, 45), (40, 130, 1), (1025, 16, 8), (3, 31, 16)]


@pytest.mark.parametrize(("n", "d", "p"), SIZES)
def test_sums_and_forms(n, d, p):
    assert_sums_and_forms(n, d, p, cut=n)


@given(n=st.integers(2, 60), d=st.integers(1, 50), p=st.integers(1, 40), cut=st.floats(0, 1), seed=st.integers(0, 99))
def test_sums_of_parts_add_up_to_the_whole(n, d, p, cut, seed):
    assert_sums_and_forms(n, d, p, 1 + round(cut * (n - 2)), seed)


@pytest.mark.parametrize("p", [1, 9])
def test_no_records_add_nothing(p):
    tiles = PairTiles(3, p)
    x, v = features_and_weights(0, 3, p)
    tiles.add(x, v)
    assert_upper_equal(upper_pairs(tiles), torch.zeros(3, 3, p, dtype=torch.float64))
    assert tiles.forms(x).shape == (p, 0)


EPS = np.finfo(np.float64).eps


def inverted(matrix: np.ndarray) -> tuple[Inverse, np.ndarray]:
    """The inverse from the upper triangle alone: what lies below must not be looked at."""

    def assemble() -> torch.Tensor:
        upper = torch.from_numpy(np.triu(matrix))
        upper += torch.full_like(upper, 1e6).tril(-1)
        return upper

    inverse = invert(assemble)
    return inverse, inverse.full.numpy()


def orthogonal(size: int, rng: np.random.Generator) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def with_eigenvalues(values: np.ndarray, seed: int = 0) -> np.ndarray:
    vectors = orthogonal(len(values), np.random.default_rng(seed))
    matrix = vectors * values @ vectors.T
    return (matrix + matrix.T) / 2


@given(size=st.integers(1, 40), spread=st.floats(0, 6), seed=st.integers(0, 99))
def test_full_rank(size, spread, seed):
    matrix = with_eigenvalues(np.logspace(0, -spread, size), seed)
    inverse, full = inverted(matrix)
    assert (inverse.method, inverse.rank) == ("cholesky", size)
    assert inverse.relative_cut == size * EPS
    np.testing.assert_allclose(full, np.linalg.inv(matrix), rtol=0, atol=1e-13 * size * 10.0 ** (2 * spread))
    np.testing.assert_array_equal(full, full.T)


@given(
    size=st.integers(2, 40), lost=st.integers(1, 39), scale=st.sampled_from([1e-8, 1.0, 1e9]), seed=st.integers(0, 99)
)
@example(size=12, lost=4, scale=1e9, seed=0)  # zeros that rounding leaves far above any absolute cut
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
def test_units_do_not_matter_to_inverses(exponent):
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


ORDERS = [1, 2, 5, 12, 60]


def batch_last(matrices: np.ndarray | list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.moveaxis(np.array(matrices), 0, -1).copy())


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


@pytest.mark.parametrize("size", ORDERS)
def test_every_spectrum_in_one_batch(size):
    rng = np.random.default_rng(size)
    spectra = [make(size, rng) for make in SPECTRA.values()]
    symmetric, general = [], []
    for values in spectra:
        left, right = orthogonal(size, rng), orthogonal(size, rng)
        symmetric.append(left * values @ left.T)
        general.append(left * values @ right.T)
    expected = np.max(spectra, 1)
    for found in (top_eigenvalue(batch_last(symmetric)), top_singular_value(batch_last(general))):
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-11)


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


def definite(n: int) -> torch.Tensor:
    x = torch.randn(n, n + 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    return x @ x.T / n


@pytest.mark.parametrize("n", [1, 2, 40, 100, 101, 257])
@pytest.mark.parametrize("block", [16, 100, 384])
def test_matrices_are_factored_and_inverted_by_blocks_in_their_own_memory(n, block, monkeypatch):
    monkeypatch.setattr(dense, "BLOCK", block)
    whole = definite(n)
    given = whole.T.clone(memory_format=torch.contiguous_format).T
    given[torch.ones(n, n).triu(1) > 0] = torch.nan  # nothing is read there
    matrix, place = given.clone(), given.data_ptr()
    assert cholesky_in_place(given) == 0
    assert given.data_ptr() == place
    factor = torch.linalg.cholesky(whole)
    torch.testing.assert_close(given, factor, rtol=1e-9, atol=1e-12)
    assert cholesky_in_place(matrix, clean=False) == 0
    apart = torch.arange(n)[:, None] // block < torch.arange(n) // block  # beside the blocks of the diagonal
    torch.testing.assert_close(matrix[~apart], factor[~apart], rtol=1e-9, atol=1e-12)
    assert matrix[apart].isnan().all()
    invert_lower_(matrix)
    inverse = torch.linalg.inv(factor)
    torch.testing.assert_close(matrix[~apart], inverse[~apart], rtol=1e-9, atol=1e-10)
    assert matrix[apart].isnan().all()
    upper = invert(whole.clone).upper.triu()
    torch.testing.assert_close(upper, torch.linalg.inv(whole).triu(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("row", [3, 70, 99])
def test_the_first_minor_that_is_not_definite_is_named_whatever_block_it_is_in(row, monkeypatch):
    monkeypatch.setattr(dense, "BLOCK", 20)
    matrix = definite(100)
    matrix[row, row] = -1.0
    assert cholesky_in_place(matrix.T.contiguous().T) == row + 1
