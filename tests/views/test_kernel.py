"""The Laplace kernel, its scaling, and who is nearest, against SciPy and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist

from giveaway.views import kernel
from giveaway.views.blocks import RecordFeatures, as_blocks
from giveaway.views.kernel import Scaling, distances, kernel_matrix, laplace, nearest, scaling_of


def draw(n, d, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def held(x, block=1024):
    return RecordFeatures(len(x), x.__getitem__, block)


def unscaled(d):
    return Scaling(torch.zeros(d), torch.ones(d), 1.0)


@settings(max_examples=25, deadline=None)
@given(r=st.integers(1, 20), s=st.integers(1, 20), d=st.integers(1, 50), seed=st.integers(0, 99))
def test_distances_and_kernel_are_those_of_scipy(r, s, d, seed):
    a, b = draw(r, d, seed), draw(s, d, seed + 100)
    expected = cdist(a.double().numpy(), b.double().numpy())
    np.testing.assert_allclose(distances(a, b).numpy(), expected, rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(distances(a.double(), b.double()).numpy(), expected, rtol=1e-10, atol=1e-6)
    np.testing.assert_allclose(laplace(a.double(), b.double(), 2.5).numpy(), np.exp(-expected / 2.5), rtol=1e-6)


@pytest.mark.parametrize(("n", "pairs"), [(23, 100), (23, 23), (23, 1), (24, 24 * 8), (1, 5), (23, 1 << 25)])
def test_the_lower_triangle_in_blocks(n, pairs, monkeypatch):
    monkeypatch.setattr(kernel, "PAIRS_AT_ONCE", pairs)
    x = draw(n, 5)
    x[n // 2] = x[0]
    made = kernel_matrix(x, 1.3)
    expected = np.exp(-cdist(x.double().numpy(), x.double().numpy()) / 1.3)
    assert made.dtype == torch.float64
    np.testing.assert_allclose(np.tril(made.numpy()), np.tril(expected), atol=2e-3)
    assert made.diagonal().eq(1.0).all()


@pytest.mark.parametrize("d", [1, 4, 100, 3000])
def test_duplicates_are_exactly_one_wherever_they_are(d, monkeypatch):
    monkeypatch.setattr(kernel, "PAIRS_AT_ONCE", 60 * 7)
    x = 100 * draw(20, d).repeat(3, 1) + 30  # a square of rounding would be a distance
    made = kernel_matrix(x, 50.0)
    assert made.diagonal().eq(1.0).all()
    for row in range(60):
        assert made[row, row % 20 : row + 1 : 20].eq(1.0).all()
    assert distances(x[:20], x[20:40]).diagonal().eq(0.0).all()
    assert (made.tril() == 1.0).sum() == 60 + 3 * 20


def test_small_distances_that_are_not_rounding_are_kept():
    x = draw(30, 500)
    y = x + 3e-3 * draw(30, 500, 1)
    near = distances(x, y).diagonal().double()
    torch.testing.assert_close(near, (x.double() - y.double()).norm(dim=1), rtol=0.05, atol=0.0)


@pytest.mark.parametrize("standardize", [True, False])
def test_the_scaling_is_that_of_the_sample(standardize):
    x = draw(40, 6).double() * torch.logspace(-2, 2, 6) + 7.0
    x[:, 2] = 0.1
    scaling = scaling_of(x.float(), standardize=standardize)
    kept = [0, 1, 3, 4, 5]
    expected = (x - x.mean(0))[:, kept]
    if standardize:
        expected = expected / x.std(0, correction=0)[kept]
    rows = scaling.apply(x.float())
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows[:, kept].double(), expected, rtol=1e-3, atol=2e-4)
    assert rows[:, 2].eq(0).all()
    assert scaling.length == pytest.approx(pdist(expected.numpy()).mean(), rel=1e-3)
    again = scaling.done()
    torch.testing.assert_close(again.apply(rows), rows, rtol=0, atol=0)
    assert again.length == scaling.length


@pytest.mark.parametrize("x", [torch.ones(5, 3), torch.zeros(1, 3), torch.full((4, 2), 0.1, dtype=torch.float16)])
def test_records_that_are_all_the_same_have_a_length(x):
    scaling = scaling_of(x, standardize=True)
    assert scaling.length == 1.0
    assert scaling.apply(x).eq(0).all()


def test_parts_have_their_shares_of_squared_distances():
    x = draw(50, 9) * torch.logspace(-2, 2, 9) + 3
    x[:, 1] = 4.0  # constant columns take no part
    shares = ((4, 0.5), (2, 0.3), (3, 0.2))
    scaling = scaling_of(x, standardize=True, shares=shares)
    z = scaling.apply(x).double().numpy()
    squares = [pdist(part, "sqeuclidean").mean() for part in np.split(z, [4, 6], axis=1)]
    np.testing.assert_allclose(np.array(squares) / sum(squares), [0.5, 0.3, 0.2], rtol=1e-4)
    assert scaling.length == pytest.approx(pdist(z).mean(), rel=1e-4)
    whole = scaling_of(x, standardize=True, shares=((9, 1.0),))
    plain = scaling_of(x, standardize=True)
    torch.testing.assert_close(whole.apply(x) / whole.length, plain.apply(x) / plain.length, rtol=1e-4, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 30), block=st.integers(1, 31), count=st.integers(0, 6), seed=st.integers(0, 99))
def test_the_nearest_are_those_of_all_pairs(n, block, count, seed):
    x = draw(n, 3, seed) * 3
    own = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: max(1, n // 2)]
    made = nearest(held(x, block), own, unscaled(3), count)
    apart = cdist(x.double().numpy(), x.double().numpy())
    np.fill_diagonal(apart, np.inf)
    assert made.dtype == torch.int64
    assert made.shape == (len(own), count)
    there = min(count, n - 1)
    assert made[:, there:].eq(-1).all()
    for row, others in zip(own.tolist(), made[:, :there].tolist(), strict=True):
        assert len(set(others) - {row}) == there
        # which of two is nearer float32 tells up to rounding
        np.testing.assert_allclose(apart[row, others], np.sort(apart[row])[:there], atol=2e-2)


@pytest.mark.parametrize("block", [1, 2, 100])
def test_among_equally_near_records_any_but_never_itself(block):
    x = torch.zeros(7, 2)
    x[5:] = 9.0
    made = nearest(held(x, block), torch.arange(7), unscaled(2), 6).tolist()
    for row, others in enumerate(made):
        alike = {0, 1, 2, 3, 4} if row < 5 else {5, 6}
        assert set(others[: len(alike) - 1]) == alike - {row}
        assert sorted(others) == [other for other in range(7) if other != row]


def test_the_nearest_are_so_in_the_units_of_the_scaling():
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 50.0]])
    far = Scaling(torch.zeros(2), torch.tensor([1.0, 0.01]), 1.0)
    assert nearest(held(x), torch.tensor([0]), unscaled(2), 1).tolist() == [[1]]
    assert nearest(held(x), torch.tensor([0]), far, 1).tolist() == [[2]]
    assert nearest(held(x), torch.empty(0, dtype=torch.int64), far, 2).shape == (0, 2)


@pytest.mark.parametrize("block", [1, 3, 4, 10, 99])
def test_record_features_are_read_in_blocks_as_often_as_asked(block):
    x = draw(10, 2)
    features = held(x, block)
    for _ in range(2):
        parts = list(features())
        assert [len(part) for part in parts] == [len(part) for part in x.split(block)]
        assert torch.equal(torch.cat(parts), x)
    assert torch.equal(features.of(torch.tensor([3, 0, 3])), x[[3, 0, 3]])
    assert as_blocks(features) is features
