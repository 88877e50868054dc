"""Tables as numbers: columns, categories, what is missing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.views.others import features_of
from giveaway.views.tables import LEVELS, read_table, table_features
from tests.conftest import refused
from tests.views.made import gather


def made(x):
    return gather(table_features(x)[1])


def same_levels(category, words):
    """Whether the commonest word is level 0, then by name, and each has a column."""
    order = sorted(set(words), key=lambda word: (-list(words).count(word), word))
    return category[0].tolist() == [order.index(word) for word in words] and category[1] == len(order)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i8", "u1", "?"])
def test_arrays_of_finite_numbers_are_returned_as_they_are(kind):
    x = (np.arange(12).reshape(4, 3) % 5).astype(kind)
    numbers, categories = read_table(x)
    assert np.shares_memory(numbers.numpy(), x)
    assert categories == []
    assert read_table(x[:, 0])[0].shape == (4, 1)


def test_tensors_and_lists():
    x = torch.arange(12.0).reshape(4, 3)
    assert read_table(x)[0].data_ptr() == x.data_ptr()
    assert read_table(x[:, 0])[0].shape == (4, 1)
    assert read_table(x.tolist())[0].shape == (4, 3)
    x[1, 2] = torch.nan
    numbers, categories = read_table(x.requires_grad_())
    np.testing.assert_allclose(numbers[1], [3, 4, (2 + 8 + 11) / 3, 1])
    assert categories == []


@pytest.mark.parametrize("gap", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("as_objects", [False, True])
def test_missing_numbers_become_the_mean_and_a_column_that_says_so(gap, as_objects):
    x = np.array([[1.0, 5.0, 2.0], [gap, 5.0, 3.0], [3.0, 5.0, gap], [8.0, 5.0, gap]])
    numbers, categories = read_table(x.astype(object) if as_objects else x)
    expected = [[1, 5, 2, 0, 0], [4, 5, 3, 1, 0], [3, 5, 2.5, 0, 1], [8, 5, 2.5, 0, 1]]
    np.testing.assert_array_equal(numbers, expected)
    assert numbers.dtype == torch.float64
    assert categories == []


def test_a_column_without_any_number_is_zero():
    numbers, categories = read_table(np.array([[1.0, np.nan], [2.0, np.nan]]))
    np.testing.assert_array_equal(numbers, [[1, 0, 1], [2, 0, 1]])
    assert categories == []
    assert next(features_of(np.array([[1.0, None], [2.0, None]], dtype=object))[1]()).shape == (2, 1)


@pytest.mark.parametrize("kind", [str, object])
def test_columns_of_words_are_categories_and_numbers_in_words_are_not(kind):
    x = np.array([["red", "1.5", "7"], ["blue", "-2", "8"], ["red", "1e3", "x7"]]).astype(kind)
    numbers, categories = read_table(x)
    np.testing.assert_array_equal(numbers, [[1.5], [-2], [1000]])
    assert len(categories) == 2
    assert same_levels(categories[0], ["red", "blue", "red"])
    assert same_levels(categories[1], ["7", "8", "x7"])


def test_bytes_mixed_objects_and_dates():
    numbers, categories = read_table(np.array([[b"a", b"2"], [b"b", b"3"]]))
    assert same_levels(categories[0], ["a", "b"])
    np.testing.assert_array_equal(numbers, [[2], [3]])
    mixed = np.array([[1, "a", None], [None, None, "z"], [2.5, 3, "y"]], dtype=object)
    numbers, categories = read_table(mixed)
    np.testing.assert_array_equal(numbers, [[1, 0], [1.75, 1], [2.5, 0]])
    assert len(categories) == 2
    assert same_levels(categories[0], ["a", "None", "3"])
    days = np.array([["2020-01-01"], ["NaT"], ["2020-01-05"]], dtype="datetime64[D]")
    numbers, categories = read_table(days)
    assert categories == []
    np.testing.assert_array_equal(numbers - numbers[:1], [[0, 0], [2, 1], [4, 0]])


def frame():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: no DataFrames to read")
    return pandas.DataFrame(
        {
            "number": [1.0, None, 4.0, 7.0],
            "word": ["b", "a", "b", None],
            "truth": [True, False, True, True],
            "declared": pandas.Categorical([3, 1, 3, 2]),
            "whole": pandas.array([1, None, 3, 5], dtype="Int64"),
            "text": ["1", "2", "3", "4"],
            "day": pandas.to_datetime(["2020-01-01", "2020-01-02", None, "2020-01-03"]),
            "maybe": pandas.array([True, None, False, True], dtype="boolean"),
            "small": np.array([1, 2, 3, 4], dtype=np.int8),
        }
    )


def test_a_dataframe():
    numbers, categories = read_table(frame())
    word, truth, declared, maybe = categories
    assert same_levels(truth, ["True", "False", "True", "True"])
    assert same_levels(declared, [3, 1, 3, 2])
    assert [word[1], maybe[1]] == [3, 3]  # missing is a level
    assert word[0][0] == word[0][2]
    # numbers, whole numbers, numbers in words, days, small numbers; then where the first, second and fourth had gaps
    number, whole, text, day, small, *gaps = numbers.T.numpy()
    np.testing.assert_array_equal(number, [1, 4, 4, 7])
    np.testing.assert_array_equal(whole, [1, 3, 3, 5])
    np.testing.assert_array_equal(text, [1, 2, 3, 4])
    assert day[2] == (day[0] + day[1] + day[3]) / 3
    np.testing.assert_array_equal(small, [1, 2, 3, 4])
    np.testing.assert_array_equal(gaps, [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])


def test_features_of_a_dataframe_and_of_its_columns():
    given = frame()
    described, features = features_of(given)
    assert described == {"view": "tabular", "columns": 12, "categorical": 4}
    made = next(features())
    # 5 columns of numbers and 3 of gaps, then 3 + 2 + 3 + 3 levels
    assert made.shape == (4, 8 + 11)
    assert made.isfinite().all()
    assert features_of(given["small"])[0] == {"view": "tabular", "columns": 1, "categorical": 0}
    assert features_of(given["text"])[0]["view"] == "text"
    assert features_of(given[["number", "small"]])[0]["columns"] == 3
    renamed = given[["small", "number"]].set_axis(["x", "x"], axis=1)  # two columns of one name
    assert features_of(renamed)[0]["columns"] == 3


def test_columns_are_standardized_and_constant_ones_dropped():
    x = np.random.default_rng(0).normal(size=(200, 3)) * np.logspace(-3, 3, 3) + 5.0
    x[:, 1] = 0.1
    expected = ((x - x.mean(0)) / x.std(0).clip(1e-9))[:, [0, 2]]
    np.testing.assert_allclose(made(x).numpy(), expected, rtol=1e-5, atol=1e-6)


@settings(max_examples=20)
@given(n=st.integers(2, 40), p=st.integers(1, 6), block=st.integers(1, 50), kind=st.sampled_from(["f2", "f4", "f8"]))
def test_any_shape_in_blocks_of_any_size(n, p, block, kind):
    x = np.random.default_rng(n).normal(size=(n, p)).astype(kind)
    whole = made(x)
    parts = replace(table_features(torch.from_numpy(x))[1], block=block)
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
    rows = made(table).numpy()
    np.testing.assert_allclose(rows[:, 0], (ages - 30) / ages.std(), rtol=1e-6)
    # commonest first, then by name; a category of one level has no column
    np.testing.assert_array_equal(rows[:, 1:], [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]])


def test_rare_levels_of_a_long_category_have_no_column():
    ids = np.concatenate([np.arange(LEVELS + 50), np.arange(LEVELS)])
    rows = made(np.array([[f"id {number:03d}"] for number in ids]))
    assert rows.shape == (2 * LEVELS + 50, LEVELS)
    assert rows[:LEVELS].equal(torch.eye(LEVELS))
    assert not rows[LEVELS : LEVELS + 50].any()


def test_a_memory_map_stays_on_disk(tmp_path):
    x = np.random.default_rng(0).normal(size=(100, 3))
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert read_table(mapped)[0].data_ptr() == mapped.ctypes.data
    torch.testing.assert_close(gather(replace(table_features(mapped)[1], block=7)), made(x), rtol=0, atol=0)


def test_a_table_without_a_column_that_varies_is_refused():
    refused("matrix: expected at least one column that varies", table_features, np.ones((5, 2)))
