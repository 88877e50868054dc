"""The kernel of a view, its scaling, who is nearest, and features that stand for a kernel, against SciPy and loops."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist

from giveaway.views import left_out as module
from giveaway.views.left_out import (
    Scaling,
    distances,
    fourier_features,
    landmark_count,
    landmark_features,
    laplace,
    laplace_matrix,
    nearest,
    scaling_of,
)
from giveaway.views.tables import table_features
from tests.views.made import draw, gather, held


def unscaled(d):
    return Scaling(torch.zeros(d), torch.ones(d), 1.0)


@given(r=st.integers(1, 20), s=st.integers(1, 20), d=st.integers(1, 50), seed=st.integers(0, 99))
def test_distances_and_kernel_are_those_of_scipy(r, s, d, seed):
    a, b = draw(r, d, seed), draw(s, d, seed + 100)
    expected = cdist(a.double().numpy(), b.double().numpy())
    np.testing.assert_allclose(distances(a, b).numpy(), expected, rtol=1e-4, atol=1e-2)
    np.testing.assert_allclose(distances(a.double(), b.double()).numpy(), expected, rtol=1e-10, atol=1e-6)
    np.testing.assert_allclose(laplace(a.double(), b.double(), 2.5).numpy(), np.exp(-expected / 2.5), rtol=1e-6)


@pytest.mark.parametrize("others", [3, 8, 4096])
@pytest.mark.parametrize(("n", "rows"), [(23, 4), (23, 23), (23, 1), (24, 8), (1, 5), (23, 512)])
def test_the_lower_triangle_in_tiles(n, rows, others, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", rows)
    monkeypatch.setattr(module, "OTHERS_AT_ONCE", others)
    x = draw(n, 5)
    x[n // 2] = x[0]
    made = laplace_matrix(x, 1.3)
    expected = np.exp(-cdist(x.double().numpy(), x.double().numpy()) / 1.3)
    assert made.dtype == torch.float64
    np.testing.assert_allclose(np.tril(made.numpy()), np.tril(expected), atol=2e-3)
    assert made.diagonal().eq(1.0).all()
    if n > 1:
        mean = pdist((x - x.mean(0)).double().numpy()).mean()
        assert scaling_of(x, standardize=False).length == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize("d", [1, 4, 100, 3000])
def test_duplicates_are_exactly_one_wherever_they_are(d, monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    x = 100 * draw(20, d).repeat(3, 1) + 30  # a square of rounding would be a distance
    made = laplace_matrix(x, 50.0)
    assert made.diagonal().eq(1.0).all()
    for row in range(60):
        assert made[row, row % 20 : row + 1 : 20].eq(1.0).all()
    assert distances(x[:20], x[20:40]).diagonal().eq(0.0).all()
    assert (made.tril() == 1.0).sum() == 60 + 3 * 20


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


@given(n=st.integers(1, 30), block=st.integers(1, 31), count=st.integers(0, 6), seed=st.integers(0, 99))
def test_the_nearest_are_those_of_all_pairs(n, block, count, seed):
    x = draw(n, 3, seed) * 3
    own = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: max(1, n // 2)]
    made = nearest(held(x, block), unscaled(3), own, count)
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


def test_the_nearest_are_so_in_the_units_of_the_scaling_and_never_the_record_itself():
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 50.0]])
    far = Scaling(torch.zeros(2), torch.tensor([1.0, 0.01]), 1.0)
    assert nearest(held(x), unscaled(2), [0], 1).tolist() == [[1]]
    assert nearest(held(x), far, [0], 1).tolist() == [[2]]
    assert nearest(held(x), far, [], 2).shape == (0, 2)
    alike = nearest(held(torch.zeros(7, 2), 2), unscaled(2), torch.arange(7), 6).tolist()
    assert [sorted(others) for others in alike] == [[k for k in range(7) if k != row] for row in range(7)]


def draw_landmarks(n):
    return draw(n, 4) * 3 + 1


def laplace_by_scipy(x, scaling):
    z = ((x - scaling.shift) * scaling.scale).double().numpy()
    return np.exp(-cdist(z, z) / scaling.length)


def doubles(blocks):
    return gather(blocks).double()


def test_with_every_record_a_landmark_products_are_the_kernel():
    x = draw_landmarks(50)
    scaling = scaling_of(x, standardize=True)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    features = doubles(landmark_features(held(x, 7), scaling.apply(x[order]), scaling))
    np.testing.assert_allclose((features @ features.T).numpy(), laplace_by_scipy(x, scaling), atol=1e-4)


def test_with_some_landmarks_products_are_those_of_nystrom():
    x = draw_landmarks(60)
    scaling = scaling_of(x, standardize=False)
    features = doubles(landmark_features(held(x, 7), scaling.apply(x[:15]), scaling))
    k = laplace_by_scipy(x, scaling)
    expected = k[:, :15] @ np.linalg.solve(k[:15, :15], k[:15])
    assert features.shape == (60, 15)
    np.testing.assert_allclose((features @ features.T).numpy(), expected, atol=1e-4)
    np.testing.assert_allclose((features @ features.T).numpy()[:15], k[:15], atol=1e-4)  # exact for landmarks


def test_landmarks_that_are_the_same_record_count_once():
    x = draw_landmarks(10)
    x[5:] = x[:5]
    scaling = scaling_of(x, standardize=True)
    features = doubles(landmark_features(held(x, 7), scaling.apply(x), scaling))
    assert features.isfinite().all()
    np.testing.assert_allclose((features @ features.T).numpy(), laplace_by_scipy(x, scaling), atol=2e-3)
    same = torch.ones(6, 3)
    scaling = scaling_of(same, standardize=True)
    features = doubles(landmark_features(held(same, 7), scaling.apply(same), scaling))
    np.testing.assert_allclose((features @ features.T).numpy(), np.ones((6, 6)), rtol=1e-5)


@pytest.mark.parametrize(
    ("n", "count"),
    [
        *[(2, 2), (300, 300), (4096, 4096), (50_000, 4096), (100_000, 4096), (119_000, 4096), (120_000, 2048)],
        *[(1_000_000, 1024), (10_000_000, 256), (1_000_000_000, 256)],
    ],
)
def test_the_number_of_landmarks(n, count):
    assert landmark_count(n) == count
    assert count in (n, 256) or n * count**2 <= module.LANDMARK_WORK


def draw_fourier(n, p, seed=0):
    return np.random.default_rng(seed).normal(size=(n, p)) * np.logspace(-3, 3, p) + 5.0


def kernel_error(monkeypatch, features, seed):
    monkeypatch.setattr(module, "SEED", seed)
    x = draw_fourier(60, 4)
    z = torch.from_numpy((x - x.mean(0)) / x.std(0))
    both, length = fourier_features(table_features(x)[1], features=features)
    waves = gather(both)[:, 4:].double()
    assert waves.shape[1] == features
    expected = (-torch.cdist(z, z).square() / (2 * length**2)).exp()
    return float((waves @ waves.T - expected).square().mean().sqrt())


def test_fourier_features_approach_the_rbf_kernel(monkeypatch):
    errors = [np.mean([kernel_error(monkeypatch, count, seed) for seed in range(8)]) for count in (64, 1024, 16384)]
    # 16 times the features, a quarter of the error
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.2)
    assert errors[2] < 0.01


def test_the_length_is_the_median_distance():
    x = draw_fourier(50, 3)
    z = torch.from_numpy((x - x.mean(0)) / x.std(0))
    pairs = [float((z[i] - z[j]).norm()) for i in range(50) for j in range(i)]
    _, length = fourier_features(table_features(x)[1], features=10)
    assert length == pytest.approx(sorted(pairs)[(len(pairs) - 1) // 2], rel=1e-6)
    for same in (torch.zeros(5, 2), torch.zeros(1, 2)):
        assert fourier_features(held(same), features=10)[1] == 1.0
