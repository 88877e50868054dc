"""The records themselves in a Head: which forms they have, what is refused, and that they are saved and replaced."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import sparse

import giveaway.records.examples as inputs_module
from giveaway import Head
from tests.conftest import refused

N = 6
WORDS = ["a", "Straße", "", "two words", "b\nc", "a"]


def head_of(inputs, **options) -> Head:
    x = np.arange(N * 2.0).reshape(N, 2)
    return Head(x, x, np.arange(N) % 2, "cross_entropy", inputs=inputs, **options)


def refusal(inputs) -> str:
    return refused("; ", head_of, inputs)


TYPES = [np.uint8, np.int64, np.float16, np.float32, np.float64, np.bool_]
NUMBERS = st.tuples(array_shapes(min_dims=0, max_dims=3, max_side=4), st.sampled_from(TYPES)).flatmap(
    lambda kind: arrays(
        kind[1], (N, *kind[0]), elements={} if kind[1] in TYPES[:2] + TYPES[5:] else {"max_value": 9, "min_value": -9}
    )
)


@given(values=NUMBERS, as_tensor=st.booleans())
def test_numbers_are_held_as_given_and_saved(tmp_path_factory, values, as_tensor):
    given = torch.from_numpy(values) if as_tensor else values
    head = head_of(given)
    assert type(head.inputs) is type(given)
    assert (head.inputs.data_ptr() if as_tensor else head.inputs.ctypes.data) == values.ctypes.data
    assert repr(head) == f"Head(n=6, d=2, m=2, loss='cross_entropy', l2=0, inputs={values.shape[1:]})"
    path = tmp_path_factory.mktemp("head") / "head.npz"
    head.save(path)
    again = Head.load(path).inputs
    assert again.dtype == values.dtype
    np.testing.assert_array_equal(again, values)


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=N, max_size=N)
)
def test_strings_become_a_list_however_given(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("head") / "head.npz"
    for form in (texts, tuple(texts), np.array(texts), np.array(texts, dtype=object), pd.Series(texts)):
        head = head_of(form)
        assert type(head.inputs) is list
        assert head.inputs == texts
    assert repr(head).endswith("l2=0, inputs=text)")
    head.save(path)
    assert Head.load(path).inputs == texts


def test_lists_of_numbers_become_an_array():
    rows = [[row, row / 2] for row in range(N)]
    np.testing.assert_array_equal(head_of(rows).inputs, np.array(rows))
    assert head_of(list(range(N))).inputs.shape == (N,)
    np.testing.assert_array_equal(head_of(pd.Series(range(N))).inputs, np.arange(N))


def test_tables_are_held_as_given(tmp_path):
    mixed = np.array([[word, row] for row, word in enumerate(WORDS)], dtype=object)
    frame = pd.DataFrame({"word": WORDS, "row": range(N), "gap": [np.nan] * N})
    for form, shape in ((mixed, (2,)), (frame, (3,)), (mixed.astype(str), (2,))):
        head = head_of(form)
        assert head.inputs is form
        assert f"inputs={shape}" in repr(head)
    head_of(mixed.astype(str)).save(tmp_path / "head.npz")
    np.testing.assert_array_equal(Head.load(tmp_path / "head.npz").inputs, mixed.astype(str))


def test_memory_maps_stay_memory_maps_and_a_tensor_loses_its_gradient(tmp_path):
    assert not head_of(torch.ones(N, 2, requires_grad=True)).inputs.requires_grad
    np.save(tmp_path / "x.npy", np.ones((N, 3, 4, 4), dtype=np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert head_of(mapped).inputs is mapped


def test_inputs_survive_replacing_and_other_parameters():
    head = replace(head_of(WORDS), weight=np.eye(2), bias=np.zeros(2))
    assert head.inputs == WORDS
    assert head.with_parameters(torch.zeros(3, 2, dtype=torch.float64)).inputs == WORDS
    assert replace(head, inputs=None).inputs is None
    assert "inputs" not in repr(replace(head, inputs=None))


@pytest.mark.parametrize(
    ("inputs", "rows"),
    [
        (np.ones((5, 2)), "5 rows"),
        (torch.ones(7, 2), "7 rows"),
        (WORDS[:4], "4 rows"),
        (pd.DataFrame({"a": range(3)}), "3 rows"),
        ([], "0 rows"),
        (np.array(3.0), "shape ()"),
        (torch.tensor(3.0), "shape ()"),
    ],
)
def test_other_lengths_are_refused(inputs, rows):
    assert refusal(inputs) == f"inputs: expected 6 rows, one a record, got {rows}; align them with the outputs"


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, lambda x: x.astype(np.float16), lambda x: x.tolist()])
def test_numbers_must_be_finite(kind):
    values = np.ones((N, 2))
    values[4, 1] = np.inf
    assert refusal(kind(values)).startswith("inputs: expected finite numbers, got NaN or infinity first in row 4")


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        ("abcdef", "str"),
        (dict.fromkeys(range(N)), "dict"),
        (sparse.eye_array(N), "dia_array"),
        (iter(WORDS), "list_iter"),
    ],
)
def test_things_that_are_no_rows(inputs, kind):
    assert refusal(inputs).startswith(f"inputs: expected an array, a DataFrame or a list of strings, got a {kind}")


def test_rows_of_several_lengths_and_values_that_no_error_names():
    assert "4711" not in refusal(["patient-4711"])
    assert "4711" not in refusal([["4711"], ["a", "b"], *(["x"],) * 4])
    words = "inputs: expected rows that make one array, got rows of several shapes or of other things; make all"
    assert refusal([[1, 2]] * (N - 1) + [[1]]).startswith(words)


@pytest.mark.parametrize(
    ("inputs", "got"),
    [
        (np.array([[1, "a"]] * N, dtype=object), "dtype object"),
        (np.array([[b"a"]] * N), "dtype |S1"),
        (pd.DataFrame({"a": range(N)}), "a DataFrame"),
        (["a\0"] * N, "strings that are too long, or end in zeros"),
    ],
)
def test_what_needs_pickle_is_not_saved(tmp_path, inputs, got):
    head = head_of(inputs)
    assert refused("; ", head.save, tmp_path / "head.npz") == (
        f"inputs: expected numbers or strings, which need no pickle, got {got}; save dataclasses.replace(head, "
        "inputs=None), and the records apart"
    )
    assert list(tmp_path.iterdir()) == []
    replace(head, inputs=None).save(tmp_path / "head.npz")


def test_strings_are_saved_up_to_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs_module, "TEXT_BYTES", 4 * N * 9)
    head_of(WORDS).save(tmp_path / "head.npz")
    refused("got strings that are too long", head_of([*WORDS[1:], "ten letters"]).save, tmp_path / "head.npz")
