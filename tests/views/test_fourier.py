"""Fourier features: the kernel they stand for, and the columns beside them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.views.fourier import fourier_features, median_distance
from giveaway.views.ridge import leave_one_out_ridge
from giveaway.views.tabular import tabular_features


def draw(n, p, seed=0):
    return np.random.default_rng(seed).normal(size=(n, p)) * np.logspace(-3, 3, p) + 5.0


def gather(blocks):
    return torch.cat(list(blocks()))


def made(x, **options):
    return gather(fourier_features(tabular_features(x), **options)[0])


def kernel_error(features, seed, length=1.5):
    x = draw(60, 4)
    z = torch.from_numpy((x - x.mean(0)) / x.std(0))
    waves = made(x, features=features, length=length, seed=seed)[:, 4:].double()
    assert waves.shape[1] == features
    expected = (-torch.cdist(z, z).square() / (2 * length**2)).exp()
    return float((waves @ waves.T - expected).square().mean().sqrt())


def test_fourier_features_approach_the_rbf_kernel():
    errors = [np.mean([kernel_error(count, seed) for seed in range(8)]) for count in (64, 1024, 16384)]
    # 16 times the features, a quarter of the error
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.2)
    assert errors[2] < 0.01


def test_the_length_is_the_median_distance():
    x = draw(50, 3)
    z = torch.from_numpy((x - x.mean(0)) / x.std(0))
    pairs = [float((z[i] - z[j]).norm()) for i in range(50) for j in range(i)]
    length = median_distance(z)
    assert length == pytest.approx(sorted(pairs)[(len(pairs) - 1) // 2])
    features, used = fourier_features(tabular_features(x), features=10)
    assert used == pytest.approx(length, rel=1e-6)
    torch.testing.assert_close(gather(features), made(x, features=10, length=used))
    assert median_distance(torch.zeros(5, 2)) == 1.0
    assert median_distance(torch.zeros(1, 2)) == 1.0


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(2, 40), p=st.integers(1, 6), half=st.integers(1, 5), block=st.integers(1, 50), single=st.booleans()
)
def test_any_shape_in_blocks_of_any_size(n, p, half, block, single):
    x = draw(n, p).astype(np.float32 if single else np.float64)
    whole = made(x, features=2 * half, seed=3)
    columns = tabular_features(torch.from_numpy(x), block=block)
    parts, _ = fourier_features(columns, features=2 * half, seed=3)
    assert whole.shape == (n, p + 2 * half)
    assert whole.dtype == torch.float32
    torch.testing.assert_close(gather(parts), whole, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(whole[:, :p], gather(columns), rtol=0, atol=0)
    some = torch.arange(n - 1, -1, -2)
    torch.testing.assert_close(parts.of(some), whole[some], rtol=1e-6, atol=1e-6)


def test_the_seed_decides_the_features():
    x = draw(30, 3)
    first, again, other = (made(x, features=8, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_a_memory_map_feeds_a_ridge_that_sees_a_curve(tmp_path):
    x = np.random.default_rng(0).normal(size=(400, 2))
    y = np.sin(2 * x[:, 0]) * x[:, 1]
    np.save(tmp_path / "x.npy", x)
    columns = tabular_features(np.load(tmp_path / "x.npy", mmap_mode="r"), block=64)
    view = leave_one_out_ridge(fourier_features(columns, features=200)[0], y)
    linear = leave_one_out_ridge(x, y)
    assert view.loo_error.min() < 0.2 * linear.loo_error.min()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"features": 7}, r"features: expected an even number .*, got 7; use 8"),
        ({"features": 0}, "features: expected a finite number of at least 2"),
        ({"length": 0.0}, "length: expected a positive number"),
        ({"length": -1.0}, "length: expected a finite number of at least 0"),
    ],
)
def test_errors_say_what_to_do(arguments, words):
    with pytest.raises(InputError, match=words):
        fourier_features(tabular_features(draw(5, 2)), **arguments)
