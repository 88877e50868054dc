"""Tables as numbers: columns, categories, what is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.views.others import features_of
from giveaway.views.tables import LEVELS, as_table, read_columns, tabular_features


def same_levels(codes, words):
    """Whether numbers and words tell records apart alike, and the numbers are in the words' order."""
    pairs = sorted(set(zip(words, codes, strict=True)))
    return [code for _, code in pairs] == list(range(len(pairs)))


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i1", "i8", "u2", "u1", "?"])
def test_arrays_of_finite_numbers_are_returned_as_they_are(kind):
    x = (np.arange(12).reshape(4, 3) % 5).astype(kind)
    table, categorical = as_table(x)
    assert np.shares_memory(table, x)
    assert table.dtype == x.dtype
    assert categorical == []
    flat, _ = as_table(x[:, 0])
    assert flat.shape == (4, 1)


def test_tensors_and_lists():
    x = torch.arange(12.0).reshape(4, 3)
    table, categorical = as_table(x)
    assert table.data_ptr() == x.data_ptr()
    assert categorical == []
    assert as_table(x[:, 0])[0].shape == (4, 1)
    assert as_table(x.tolist())[0].shape == (4, 3)
    x[1, 2] = torch.nan
    table, categorical = as_table(x.requires_grad_())
    np.testing.assert_allclose(table[1], [3, 4, (2 + 8 + 11) / 3, 1])
    assert categorical == []


@pytest.mark.parametrize("gap", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("as_objects", [False, True])
def test_missing_numbers_become_the_mean_and_a_column_that_says_so(gap, as_objects):
    x = np.array([[1.0, 5.0, 2.0], [gap, 5.0, 3.0], [3.0, 5.0, gap], [8.0, 5.0, gap]])
    table, categorical = as_table(x.astype(object) if as_objects else x)
    expected = [[1, 5, 2, 0, 0], [4, 5, 3, 1, 0], [3, 5, 2.5, 0, 1], [8, 5, 2.5, 0, 1]]
    np.testing.assert_array_equal(table, expected)
    assert table.dtype == np.float64
    assert categorical == []


def test_a_column_without_any_number_is_zero():
    table, categorical = as_table(np.array([[1.0, np.nan], [2.0, np.nan]]))
    np.testing.assert_array_equal(table, [[1, 0, 1], [2, 0, 1]])
    assert categorical == []
    assert next(features_of(np.array([[1.0, None], [2.0, None]], dtype=object))[1]()).shape == (2, 1)


@pytest.mark.parametrize("kind", [str, object])
def test_columns_of_words_are_categories_and_numbers_in_words_are_not(kind):
    x = np.array([["red", "1.5", "7"], ["blue", "-2", "8"], ["red", "1e3", "x7"]]).astype(kind)
    table, categorical = as_table(x)
    assert categorical == [0, 2]
    assert same_levels(table[:, 0], ["red", "blue", "red"])
    np.testing.assert_array_equal(table[:, 1], [1.5, -2, 1000])
    assert same_levels(table[:, 2], ["7", "8", "x7"])


def test_bytes_and_mixed_objects():
    table, categorical = as_table(np.array([[b"a", b"2"], [b"b", b"3"]]))
    assert categorical == [0]
    np.testing.assert_array_equal(table, [[0, 2], [1, 3]])
    mixed = np.array([[1, "a", None], [None, None, "z"], [2.5, 3, "y"]], dtype=object)
    table, categorical = as_table(mixed)
    assert categorical == [1, 2]
    np.testing.assert_array_equal(table[:, 0], [1, 1.75, 2.5])
    assert same_levels(table[:, 1], ["a", "None", "3"])
    np.testing.assert_array_equal(table[:, 3], [0, 1, 0])


def test_dates_are_numbers_and_none_is_missing():
    days = np.array([["2020-01-01"], ["NaT"], ["2020-01-05"]], dtype="datetime64[D]")
    table, categorical = as_table(days)
    assert categorical == []
    np.testing.assert_array_equal(table[:, 0] - table[0, 0], [0, 2, 4])
    np.testing.assert_array_equal(table[:, 1], [0, 1, 0])


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
    given = frame()
    table, categorical = as_table(given)
    names = list(given.columns)
    assert [names[place] for place in categorical] == ["word", "truth", "declared", "maybe"]
    read = dict(zip(names, table.T, strict=False))
    np.testing.assert_array_equal(read["number"], [1, 4, 4, 7])
    assert same_levels(read["truth"], ["True", "False", "True", "True"])
    assert same_levels(read["declared"], [3, 1, 3, 2])
    assert len(set(read["word"])) == 3  # missing is a level
    assert read["word"][0] == read["word"][2]
    np.testing.assert_array_equal(read["whole"], [1, 3, 3, 5])
    np.testing.assert_array_equal(read["text"], [1, 2, 3, 4])
    assert read["day"][2] == (read["day"][0] + read["day"][1] + read["day"][3]) / 3
    assert len(set(read["maybe"])) == 3
    np.testing.assert_array_equal(read["small"], [1, 2, 3, 4])
    # where numbers, whole numbers and days were missing
    np.testing.assert_array_equal(table[:, len(names) :].T, [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]])


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
    parts = replace(tabular_features(torch.from_numpy(x)), block=block)
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
    torch.testing.assert_close(
        gather(replace(tabular_features(mapped), block=7)), gather(tabular_features(x)), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"matrix": np.zeros(5)}, r"matrix: expected shape \(n, columns\)"),
        ({"matrix": np.full((5, 2), np.nan)}, "matrix: expected finite numbers"),
        ({"matrix": np.ones((5, 2))}, "matrix: expected at least one column that varies"),
        ({"matrix": np.array([["a", 1], ["b", 2]], dtype=object)}, "name the columns that hold text in categorical"),
        ({"categorical": [2]}, "categorical: expected column numbers from 0 to 1, got 2"),
        ({"categorical": [-1]}, "categorical: expected column numbers from 0 to 1, got -1"),
    ],
)
def test_errors_say_what_to_do(arguments, words):
    call = {"matrix": draw(5, 2), **arguments}
    with pytest.raises(InputError, match=words):
        tabular_features(call.pop("matrix"), **call)
