"""Digests of records: the same for the same contents, whatever holds them, and another for every other row."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from giveaway.records import row_digests
from giveaway.records.row_digests import RowDigests
from tests.conftest import refused

X = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
TEXTS = ["", "a", "é", "a b", "1", "nan", "ab"]
AUDIT = RowDigests({}, "", b"k" * 32)


def of(**contents: object) -> dict[str, list[int]]:
    return {kind: values.tolist() for kind, values in AUDIT.again(**contents).of.items()}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (X, X.astype(np.float64)),
        (X, torch.from_numpy(X)),
        (X, sparse.csr_matrix(X)),
        (X, pd.DataFrame(X)),
        (X, X.tolist()),
        (X.round() * 0.0, -(X.round() * 0.0)),
        ((X > 0).astype(np.uint8), (X > 0).astype(np.float64)),
        (TEXTS, np.array(TEXTS)),
        (TEXTS, pd.Series(TEXTS)),
    ],
)
def test_what_holds_the_inputs_does_not_matter(one, other):
    assert of(inputs=one) == of(inputs=other)
    assert len(of(inputs=one)) == 1


@pytest.mark.parametrize("inputs", [sparse.csr_matrix(X), X, torch.from_numpy(X), TEXTS])
def test_wide_rows_are_read_a_few_at_a_time(inputs, monkeypatch):
    whole, sizes, hashed = of(inputs=inputs), [], row_digests._hashed
    monkeypatch.setattr(row_digests, "CHECK_BYTES", 2 * 4 * X.shape[1])
    monkeypatch.setattr(row_digests, "_hashed", lambda block, key: sizes.append(block) or hashed(block, key))
    assert of(inputs=inputs) == whole
    assert len(sizes) == (2 if inputs is TEXTS else 4)


def test_targets_are_classes_where_they_are_whole_numbers():
    y = [0, 1, 2, 1, 0, 2, 1]
    same = [y, np.array(y, np.float64), torch.tensor(y).reshape(-1, 1), np.array(y, np.int8)]
    assert len({str(of(targets=each)) for each in same}) == 1
    assert list(of(targets=y)) == ["classes"]
    assert list(of(targets=[-1.0, 1.0])) == ["targets (1,)"]
    assert of(targets=[[2.0, 2.0], [1.0, 3.0]]) != of(targets=[[0.5, 0.5], [0.25, 0.75]])
    assert of(targets=["no", "yes"]) == of(targets=None) == {}


@pytest.mark.parametrize("contents", [X, TEXTS, pd.DataFrame({"a": TEXTS, "b": range(7)})])
def test_every_changed_row_is_told_and_no_other(contents):
    whole = AUDIT.again(inputs=contents)
    order = np.array([0, 1, 5, 3, 4, 2, 6])
    moved = contents.iloc[order] if hasattr(contents, "iloc") else [contents[row] for row in order]
    assert whole.compared(AUDIT.again(inputs=moved)) == (False, "other inputs in 2 of them, first in row 2")
    assert whole.at(order).compared(AUDIT.again(inputs=moved)) == (True, "")


def test_only_what_both_know_under_one_key_is_compared():
    y = np.array([0, 1, 0, 1, 0, 1, 0])
    audit = AUDIT.again(targets=y, inputs=X, features=2 * X)
    assert audit.compared(AUDIT.again(targets=y)) == (False, "")  # classes alone prove nothing
    assert audit.compared(AUDIT.again(targets=y + 1)) == (False, "other classes in 7 of them, first in row 0")
    assert audit.compared(AUDIT.again(targets=X[:, 0])) == (False, "")
    for own in (X, 2 * X):  # a training may know the records as either
        assert audit.compared(AUDIT.again(targets=y, inputs=own, features=own)) == (True, "")
    assert audit.compared(AUDIT.again(inputs=3 * X, features=3 * X))[1].startswith("other inputs in 7")
    assert audit.compared(AUDIT.again(inputs=X[:, :2])) == (False, "")  # another shape
    other = RowDigests({}, "", b"j" * 32).again(targets=y, inputs=X)
    assert audit.compared(other) == (False, "")
    assert not set(other.of["classes"]) & set(audit.of["classes"])
    refused("digests: expected 6 of 64 bits", audit.check, 6)
    refused("digests: expected those of an audit, with their key", replace(audit, key=None).again, targets=y)
