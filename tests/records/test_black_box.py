"""A Head without a linear head: what it holds, which words refuse it, and that it saves, loads and is replaced."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as made

from giveaway import Head
from tests.conftest import KINDS, made_arrays, refused

N, M = 12, 3


def outputs(m: int = M) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, m))


def black_box(**options) -> Head:
    given = {"features": None, "outputs": outputs(), "targets": np.arange(N) % M, "loss": "cross_entropy"}
    return Head(**given | options)


def refusal(**options) -> str:
    return refused("; ", black_box, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_black_box_has_outputs_and_no_design(kind):
    given = made_arrays(kind)
    linear, head = Head(**given), Head(**given | {"features": None})
    assert (linear.linear, head.linear) == (True, False)
    assert (head.n, head.m, head.width, head.intercept, head.l2) == (60, linear.m, 0, False, 0.0)
    assert head.features.shape == (60, 0)
    assert head.features.dtype == torch.float64
    assert torch.equal(head.outputs, linear.outputs)
    assert torch.equal(head.targets, linear.targets)
    assert [part.stop for part in head.slices(25)] == [25, 50, 60]
    assert head.window(slice(0, 7)).rows().shape == (7, 0)
    assert head.window(slice(0, 7)).columns().shape == (0, 7)
    assert torch.equal(head.window(slice(0, 7)).row_norms(), torch.zeros(7, dtype=torch.float64))


def test_a_head_of_the_bias_alone_is_linear_and_others_say_that_they_are_not():
    head = Head(np.empty((N, 0)), outputs(), np.arange(N) % M, "cross_entropy")
    assert (head.linear, head.width) == (True, 1)
    assert repr(black_box()) == "Head(n=12, black box, m=3, loss='cross_entropy')"
    people = black_box(groups=np.arange(N) // 2, inputs=np.ones((N, 3, 8, 8)))
    assert repr(people) == "Head(n=12, black box, m=3, loss='cross_entropy', people=6, inputs=(3, 8, 8))"


def test_what_belongs_to_a_linear_head_is_refused():
    words = "{0}: expected no {0} for a black box (features=None), got {1}; drop {0}=, or pass the features of a linear"
    assert refusal(l2=0.5).startswith(words.format("l2", "0.5"))
    assert refusal(weight=np.ones((M, 0))).startswith(words.format("weight", "a weight"))
    assert refusal(bias=np.ones(M)).startswith(words.format("bias", "a bias"))
    assert refusal(l2=-1.0).startswith("l2: expected a finite number of at least 0, got -1")
    refused("head: expected a linear head, got a black box; pass the features", black_box().parameters)
    refused(r"l2: expected no l2 for a black box", replace, black_box(), l2=0.5)


def test_records_are_counted_by_outputs():
    assert refusal(outputs=outputs()[:1], targets=[0]).startswith("outputs: expected at least 2 records, got 1")
    assert refusal(outputs=np.array(1.0)).startswith("outputs: expected shape (records, outputs), got shape ()")
    assert refusal(targets=np.arange(5) % 3).startswith("targets: expected 12 rows, one a record, got shape (5,)")


# ------------------------------------------------------------------------------------------------ probabilities


@given(
    p=st.integers(2, 5).flatmap(lambda m: made(np.float64, (N, m), elements=st.floats(0.0, 1.0))),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_probabilities_are_refused_and_their_logarithms_taken(p, dtype):
    p = p + 1e-3
    p = p / p.sum(1, keepdims=True)
    words = "outputs: expected logits, got probabilities, rows that sum to 1; pass their logarithms: np.log(np.clip(p, "
    targets = np.arange(N) % p.shape[1]
    assert refusal(outputs=p.astype(dtype), targets=targets).startswith(words)
    head = black_box(outputs=np.log(np.clip(p, 1e-12, None)), targets=targets)
    np.testing.assert_allclose(head.outputs.softmax(1).numpy(), p, rtol=1e-9, atol=1e-12)


def test_certain_probabilities():
    certain = np.eye(M)[np.arange(N) % M]
    assert "pass their logarithms: np.log(np.clip(p, 1e-12, None))" in refusal(outputs=certain)
    with np.errstate(divide="ignore"):
        message = refusal(outputs=np.log(certain))
    assert message == (
        "outputs: expected finite logits, got minus infinity first in row 0; clip them: np.log(np.clip(p, 1e-12, None))"
    )
    assert "NaN or infinity first in row 2" in refusal(outputs=np.where(np.arange(N)[:, None] == 2, np.nan, outputs()))


@pytest.mark.parametrize(
    "options",
    [
        {"outputs": np.full((N, M), 0.4)},  # in [0, 1], no sum of 1
        {"outputs": np.full((N, M), [3.0, -1.0, -1.0])},  # a sum of 1, not in [0, 1]
        {"outputs": np.full((N, 1), 1.0), "targets": np.arange(N) % 2},
        {"outputs": np.full((N, M), 1 / 3), "targets": outputs(), "loss": "squared"},
        {"outputs": np.full((N, M), 1 / 3), "targets": np.eye(M)[np.arange(N) % M], "loss": "binary_cross_entropy"},
    ],
)
def test_what_is_not_taken_for_probabilities(options):
    given = options["outputs"]
    np.testing.assert_array_equal(black_box(**options).outputs.numpy(), given)


# ------------------------------------------------------------------------------------------------ saving, replacing


def test_saved_loaded_and_replaced(tmp_path):
    head = black_box(
        outputs=torch.from_numpy(outputs()).float(),
        ids=[f"p{i}" for i in range(N)],
        groups=np.arange(N) // 3,
        sample_weight=np.linspace(0, 1, N),
        inputs=np.arange(N * 2).reshape(N, 2),
    )
    head.save(tmp_path / "head.npz")
    with np.load(tmp_path / "head.npz") as stored:
        assert "features" not in stored.files
    for again in (Head.load(tmp_path / "head.npz"), replace(head, ids=head.ids)):
        assert repr(again) == repr(head)
        assert not again.linear
        assert again.outputs.dtype == torch.float32
        for name in ("outputs", "targets", "features", "sample_weight"):
            assert torch.equal(getattr(again, name), getattr(head, name))
        for name in ("ids", "groups", "inputs"):
            np.testing.assert_array_equal(getattr(again, name), getattr(head, name))
    assert replace(head, features=np.ones((N, 2)), intercept=True).linear
