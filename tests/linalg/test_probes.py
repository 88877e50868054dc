"""Random signs: what they depend on, what they do not, and that they are as good as independent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway.linalg.probes import WORD, signs

RECORDS, OUTPUTS, PROBES = 40, 3, 3 * WORD + 7


def whole(seed: int, **options) -> np.ndarray:
    return signs(seed, torch.arange(RECORDS), OUTPUTS, slice(0, PROBES), **options).numpy()


@given(
    seed=st.integers(0, 1 << 62),
    rows=st.lists(st.integers(0, RECORDS - 1), min_size=1, max_size=8),
    cut=st.tuples(st.integers(0, PROBES - 1), st.integers(1, PROBES)).filter(lambda cut: cut[0] < cut[1]),
    outputs=st.integers(1, OUTPUTS),
)
def test_any_rows_and_any_cut_of_the_probes_are_parts_of_the_whole(seed, rows, cut, outputs):
    part = signs(seed, torch.tensor(rows), outputs, slice(*cut))
    np.testing.assert_array_equal(part, whole(seed)[rows, :outputs, cut[0] : cut[1]])
    assert set(np.unique(part)) <= {-1.0, 1.0}


@pytest.mark.parametrize("numbers", [torch.int32, torch.int64])
def test_the_same_in_every_precision(numbers):
    rows = torch.arange(RECORDS, dtype=numbers)
    single = signs(5, rows, OUTPUTS, slice(0, PROBES), dtype=torch.float32)
    assert single.dtype == torch.float32
    np.testing.assert_array_equal(single, whole(5))
    np.testing.assert_array_equal(signs(5, rows, OUTPUTS, slice(0, PROBES), dtype=torch.bfloat16).float(), whole(5))


def test_no_global_generator_is_read_or_moved():
    torch.manual_seed(1)
    first = whole(9)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    np.testing.assert_array_equal(whole(9), first)
    assert torch.equal(before, torch.get_rng_state())


def test_seeds_give_unrelated_signs():
    """Neighbouring seeds too: agreements of two are a fair coin's."""
    drawn = [whole(seed).ravel() for seed in (0, 1, 2, -1, 1 << 40)]
    for a in range(len(drawn)):
        for b in range(a):
            assert abs(np.mean(drawn[a] * drawn[b])) < 4.5 / drawn[a].size ** 0.5
    shifted = signs(1, torch.arange(RECORDS), OUTPUTS, slice(0, PROBES)).numpy()[1:]
    assert abs(np.mean(shifted * whole(0)[:-1])) < 4.5 / shifted.size**0.5


@pytest.mark.parametrize("kept", ["records", "outputs", "probes"])
def test_mean_and_correlations_of_pairs(kept):
    """Within 5.5 standard errors: of some 8,000 pairs the largest of independent ones is at about 4."""
    drawn = signs(3, torch.arange(128), 128, slice(0, 128)).numpy()
    axis = ("records", "outputs", "probes").index(kept)
    flat = np.moveaxis(drawn, axis, 0).reshape(128, -1)
    assert np.abs(flat.mean(1)).max() < 5.5 / flat.shape[1] ** 0.5
    together = (flat @ flat.T / flat.shape[1])[np.triu_indices(128, 1)]
    assert np.abs(together).max() < 5.5 / flat.shape[1] ** 0.5
    # and not too even: the pairs' own spread is that of independent signs
    assert together.std() * flat.shape[1] ** 0.5 == pytest.approx(1.0, abs=0.05)


def test_products_of_three_are_fair():
    """Pairs could be uncorrelated while a third follows from them."""
    drawn = signs(4, torch.arange(400), 8, slice(0, 64)).numpy()
    flat = drawn.reshape(400 * 8, 64)
    for a, b, c in ((0, 1, 2), (0, 31, 32), (5, 37, 63), (30, 31, 62)):
        assert abs(np.mean(flat[:, a] * flat[:, b] * flat[:, c])) < 4.5 / len(flat) ** 0.5
