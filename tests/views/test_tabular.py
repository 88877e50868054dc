"""Tables as standardized columns and one column a level."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.views.tabular import LEVELS, read_columns, tabular_features


def draw(n, p, seed=0):
    return np.random.default_rng(seed).normal(size=(n, p)) * np.logspace(-3, 3, p) + 5.0


def gather(blocks):
    return torch.cat(list(blocks()))


def test_columns_are_standardized_and_constant_ones_dropped():
    x = draw(200, 3)
    x[:, 1] = 0.1
    columns = gather(tabular_features(x))
    expected = ((x - x.mean(0)) / x.std(0).clip(1e-9))[:, [0, 2]]
    np.testing.assert_allclose(columns.numpy(), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(n=st.integers(2, 40), p=st.integers(1, 6), block=st.integers(1, 50), kind=st.sampled_from(["f2", "f4", "f8"]))
def test_any_shape_in_blocks_of_any_size(n, p, block, kind):
    x = np.random.default_rng(n).normal(size=(n, p)).astype(kind)
    whole = gather(tabular_features(x))
    parts = tabular_features(torch.from_numpy(x), block=block)
    assert parts.n == n
    assert whole.shape == (n, p)
    assert whole.dtype == torch.float32
    torch.testing.assert_close(gather(parts), whole, rtol=0, atol=0)
    some = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    torch.testing.assert_close(parts.of(some), whole[some], rtol=0, atol=0)


def test_categories_get_a_column_a_level():
    ages = np.array([10.0, 20.0, 30.0, 40.0, 50.0])
    table = np.empty((5, 3), dtype=object)
    table[:, 0] = ["b", "a", "b", "c", "b"]
    table[:, 1] = ages
    table[:, 2] = ["same"] * 5
    made = gather(tabular_features(table, categorical=[0, 2])).numpy()
    np.testing.assert_allclose(made[:, 0], (ages - 30) / ages.std(), rtol=1e-6)
    # commonest first, then by name; a category of one level has no column
    np.testing.assert_array_equal(made[:, 1:], [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]])
    numbers = np.column_stack([[7, 3, 7, 9, 7], ages])
    np.testing.assert_array_equal(gather(tabular_features(numbers, categorical=[0])).numpy(), made)


def test_rare_levels_of_a_long_category_have_no_column():
    ids = np.concatenate([np.arange(LEVELS + 50), np.arange(LEVELS)])
    made = read_columns(ids[:, None], [0]).rows(slice(None))
    assert made.shape == (2 * LEVELS + 50, LEVELS)
    assert made[:LEVELS].equal(torch.eye(LEVELS, dtype=torch.float64))
    assert not made[LEVELS : LEVELS + 50].any()


def test_a_memory_map_stays_on_disk(tmp_path):
    x = draw(100, 3)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    columns = read_columns(mapped, [])
    assert columns.numbers.data_ptr() == mapped.ctypes.data
    torch.testing.assert_close(gather(tabular_features(mapped, block=7)), gather(tabular_features(x)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"matrix": np.zeros(5)}, r"matrix: expected shape \(n, columns\)"),
        ({"matrix": np.full((5, 2), np.nan)}, "matrix: expected finite numbers"),
        ({"matrix": np.ones((5, 2))}, "matrix: expected at least one column that varies"),
        ({"matrix": np.array([["a", 1], ["b", 2]], dtype=object)}, "name the columns that hold text in categorical"),
        ({"categorical": [2]}, "categorical: expected column numbers from 0 to 1, got 2"),
        ({"categorical": [-1]}, "categorical: expected column numbers from 0 to 1, got -1"),
        ({"block": 0}, "block: expected a finite number of at least 1"),
    ],
)
def test_errors_say_what_to_do(arguments, words):
    call = {"matrix": draw(5, 2), **arguments}
    with pytest.raises(InputError, match=words):
        tabular_features(call.pop("matrix"), **call)
