"""PairTiles: sums of weighted feature products and quadratic forms from them, against einsum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.linalg.pairs import PairTiles


def made(n: int, d: int, p: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
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


SIZES = [(1, 1, 1), (700, 5, 40), (700, 5, 1), (33, 47, 3), (513, 65, 45), (40, 130, 1), (1025, 16, 8), (3, 31, 16)]


@pytest.mark.parametrize(("n", "d", "p"), SIZES)
def test_sums_and_forms(n, d, p):
    x, v = made(n, d, p)
    tiles = PairTiles(d, p)
    tiles.add(x, v)
    sums = torch.einsum("aj,bj,pj->abp", x, x, v)
    assert_upper_equal(upper_pairs(tiles), sums)
    forms = as_forms(sums).forms(x)
    torch.testing.assert_close(forms, torch.einsum("aj,bj,abp->pj", x, x, sums), rtol=1e-10, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 60), d=st.integers(1, 50), p=st.integers(1, 40), cut=st.floats(0, 1), seed=st.integers(0, 99))
def test_sums_of_parts_add_up_to_the_whole(n, d, p, cut, seed):
    x, v = made(n, d, p, seed)
    k = 1 + round(cut * (n - 2))
    first = PairTiles(d, p)
    first.add(x[:, :k], v[:, :k])
    first.add(x[:, k:], v[:, k:])
    expected = torch.einsum("aj,bj,pj->abp", x, x, v)
    assert_upper_equal(upper_pairs(first), expected)
    forms = as_forms(expected).forms(x)
    torch.testing.assert_close(forms, torch.einsum("aj,bj,abp->pj", x, x, expected), rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("p", [1, 9])
def test_no_records_add_nothing(p):
    tiles = PairTiles(3, p)
    x, v = made(0, 3, p)
    tiles.add(x, v)
    assert_upper_equal(upper_pairs(tiles), torch.zeros(3, 3, p, dtype=torch.float64))
    assert tiles.forms(x).shape == (p, 0)
