"""Fourier features of tables: the kernel they stand for, and the columns beside them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.views.ridge import leave_one_out_ridge
from giveaway.views.tabular import LEVELS, median_distance, read_columns, tabular_features


def draw(n, p, seed=0):
    return np.random.default_rng(seed).normal(size=(n, p)) * np.logspace(-3, 3, p) + 5.0


def gather(blocks):
    return torch.cat(list(blocks()))


def kernel_error(features, seed, length=1.5):
    x = draw(60, 4)
    z = torch.from_numpy((x - x.mean(0)) / x.std(0))
    waves = gather(tabular_features(x, features=features, length=length, seed=seed))[:, 4:].double()
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
    torch.testing.assert_close(
        gather(tabular_features(x, features=10)), gather(tabular_features(x, features=10, length=length))
    )
    assert median_distance(torch.zeros(5, 2)) == 1.0
    assert median_distance(torch.zeros(1, 2)) == 1.0


def test_columns_are_standardized_and_constant_ones_dropped():
    x = draw(200, 3)
    x[:, 1] = 0.1
    columns = gather(tabular_features(x, features=0))
    expected = ((x - x.mean(0)) / x.std(0).clip(1e-9))[:, [0, 2]]
    np.testing.assert_allclose(columns.numpy(), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(2, 40), p=st.integers(1, 6), half=st.integers(0, 5), block=st.integers(1, 50), single=st.booleans()
)
def test_any_shape_in_blocks_of_any_size(n, p, half, block, single):
    x = draw(n, p).astype(np.float32 if single else np.float64)
    whole = gather(tabular_features(x, features=2 * half, seed=3))
    parts = tabular_features(torch.from_numpy(x), features=2 * half, seed=3, block=block)
    assert whole.shape == (n, p + 2 * half)
    assert whole.dtype == torch.float32
    torch.testing.assert_close(gather(parts), whole, rtol=1e-6, atol=1e-6)


def test_the_seed_decides_the_features():
    x = draw(30, 3)
    first, again, other = (gather(tabular_features(x, features=8, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def test_categories_get_a_column_a_level():
    ages = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    table = np.empty((5, 3), dtype=object)
    table[:, 0] = ["b", "a", "b", "c", "b"]
    table[:, 1] = ages
    table[:, 2] = ["same"] * 5
    made = gather(tabular_features(table, features=0, categorical=[0, 2])).numpy()
    np.testing.assert_allclose(made[:, 0], (ages - 30) / ages.std(), rtol=1e-6)
    # commonest first, then by name; a category of one level has no column
    np.testing.assert_array_equal(made[:, 1:], [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]])
    numbers = np.column_stack([[7, 3, 7, 9, 7], ages])
    np.testing.assert_array_equal(gather(tabular_features(numbers, features=0, categorical=[0])).numpy(), made)


def test_rare_levels_of_a_long_category_have_no_column():
    ids = np.concatenate([np.arange(LEVELS + 50), np.arange(LEVELS)])
    made = read_columns(ids[:, None], [0]).rows(slice(None))
    assert made.shape == (2 * LEVELS + 50, LEVELS)
    assert made[:LEVELS].equal(torch.eye(LEVELS, dtype=torch.float64))
    assert not made[LEVELS : LEVELS + 50].any()


def test_a_memory_map_feeds_a_ridge_that_sees_a_curve(tmp_path):
    x = np.random.default_rng(0).normal(size=(400, 2))
    y = np.sin(2 * x[:, 0]) * x[:, 1]
    np.save(tmp_path / "x.npy", x)
    blocks = tabular_features(np.load(tmp_path / "x.npy", mmap_mode="r"), features=200, block=64)
    view = leave_one_out_ridge(blocks, y)
    linear = leave_one_out_ridge(x, y)
    assert view.loo_error.min() < 0.2 * linear.loo_error.min()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"matrix": np.zeros(5)}, r"matrix: expected shape \(n, columns\)"),
        ({"matrix": np.full((5, 2), np.nan)}, "matrix: expected finite numbers"),
        ({"matrix": np.ones((5, 2))}, "matrix: expected at least one column that varies"),
        ({"matrix": np.array([["a", 1], ["b", 2]], dtype=object)}, "name the columns that hold text in categorical"),
        ({"categorical": [2]}, "categorical: expected column numbers from 0 to 1, got 2"),
        ({"categorical": [-1]}, "categorical: expected column numbers from 0 to 1, got -1"),
        ({"features": 7}, r"features: expected an even number .*, got 7; use 8"),
        ({"features": -2}, "features: expected a finite number of at least 0"),
        ({"length": 0.0}, "length: expected a positive number"),
    ],
)
def test_errors_say_what_to_do(arguments, words):
    call = {"matrix": draw(5, 2), **arguments}
    with pytest.raises(InputError, match=words):
        tabular_features(call.pop("matrix"), **call)
