"""Arrays in batches: the head of the joined arrays, read again in each pass."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway import Head
from giveaway.checks import InputError
from giveaway.extract import from_batches
from giveaway.records import LinearRows, StreamedRows

N, D, M = 30, 4, 3
RNG = np.random.default_rng(8)
WEIGHT, BIAS = RNG.normal(size=(M, D)), RNG.normal(size=M)
ARRAYS = {
    "features": RNG.normal(size=(N, D)).astype(np.float32),
    "targets": np.arange(N) % M,
    "ids": np.array([f"p{i}" for i in range(N)]),
    "groups": np.arange(N) // 3,
    "sample_weight": np.linspace(1, 2, N),
}
ARRAYS["outputs"] = ARRAYS["features"].astype(np.float64) @ WEIGHT.T + BIAS


def cut(cuts, names=tuple(ARRAYS), arrays=ARRAYS):
    edges = [0, *sorted(cuts), N]
    return [{name: arrays[name][low:high] for name in names} for low, high in pairwise(edges)]


class Again:
    """Counts how often it is read."""

    def __init__(self, batches):
        self.batches, self.passes = batches, 0

    def __iter__(self):
        self.passes += 1
        return iter(self.batches)


def joined(head, size):
    windows = [head.window(part) for part in head.slices(size)]
    return [torch.cat([getattr(window, name) for window in windows]) for name in ("features", "outputs", "weights")]


@given(cuts=st.lists(st.integers(0, N), max_size=5), size=st.integers(1, N), given_weights=st.sampled_from([0, 1, 2]))
def test_any_batches_are_the_joined_arrays(cuts, size, given_weights):
    names = [name for name in ARRAYS if given_weights < 2 or name != "outputs"]
    weights = {"weight": WEIGHT, "bias": BIAS} if given_weights else {}
    source = Again(cut(cuts, names))
    head = from_batches(source, l2=0.2, **weights)
    before = source.passes
    assert before == (2 if given_weights == 1 else 1)  # one more to hold outputs against the weights
    features, outputs, weight = joined(head, size)
    assert source.passes <= before + 1
    held = Head(**ARRAYS, loss="cross_entropy", l2=0.2, **weights)
    assert torch.equal(features, held.features)
    torch.testing.assert_close(outputs, held.outputs, rtol=1e-12, atol=1e-12)
    assert torch.equal(weight, held.sample_weight)
    assert torch.equal(head.targets, held.targets)
    np.testing.assert_array_equal(head.ids, held.ids)
    np.testing.assert_array_equal(head.groups, held.groups)
    assert repr(head) == repr(held)
    assert isinstance(head.outputs, LinearRows if given_weights == 2 else StreamedRows)


def test_tuples_and_tensors():
    x, y = torch.from_numpy(ARRAYS["features"]), torch.from_numpy(ARRAYS["targets"])
    f = torch.from_numpy(ARRAYS["outputs"])
    linear = from_batches([(x[:9], y[:9]), (x[9:], y[9:])], weight=WEIGHT)
    assert not linear.intercept
    plain = from_batches([(x[:9], f[:9], y[:9]), (x[9:], f[9:], y[9:])])
    assert plain.intercept
    assert torch.equal(joined(plain, 7)[1], f)


REFUSED = {
    "an iterator": (lambda: iter(cut([9])), {}, "batches: expected something that can be read again, got an iterator"),
    "no batches": (lambda: [], {}, "data: expected at least 2 records, got 0"),
    "no targets": (
        lambda: cut([9], ["features", "outputs"]),
        {},
        "batches: expected targets in every batch, got a",
    ),
    "no outputs": (
        lambda: cut([9], ["features", "targets"]),
        {},
        "batches: expected outputs in every batch.*weight=",
    ),
    "a tensor": (lambda: [torch.ones(3, 2)], {}, "batches: expected dicts, or tuples .*, got a Tensor"),
    "some ids": (
        lambda: [*cut([9])[:1], *cut([9], ["features", "outputs", "targets", "groups", "sample_weight"])[1:]],
        {},
        "batches: expected the same arrays in every batch, got ids in some only",
    ),
    "rows that differ": (
        lambda: [cut([])[0] | {"targets": [0, 1]}],
        {},
        r"targets: expected one row a record in every batch, got shape \(2,\) beside 30 rows",
    ),
    "flat features": (
        lambda: [cut([])[0] | {"features": np.ones(N)}],
        {},
        r"features: expected shape \(records, features\), got shape \(30,\)",
    ),
    "other columns": (
        lambda: [cut([9])[0], cut([9])[1] | {"features": np.ones((N - 9, 5), np.float32)}],
        {},
        r"features: expected rows of shape \(4,\) and type float32 in every batch, got rows of shape \(5,\)",
    ),
    "repeated ids": (
        lambda: [cut([])[0] | {"ids": np.zeros(N, int)}],
        {},
        "ids in the batches: expected a different id for every record",
    ),
    "weights of another head": (
        lambda: cut([9]),
        {"weight": np.ones((M, 2))},
        r"weight: expected shape \(outputs, 4\), a column a feature",
    ),
    "bias alone": (lambda: cut([9]), {"bias": BIAS}, "bias: expected weight together with bias, got bias alone"),
    "outputs of other weights": (
        lambda: cut([9]),
        {"weight": 2 * WEIGHT, "bias": BIAS},
        r"outputs: expected features @ weight.T \+ bias, got a difference",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    make, options, words = REFUSED[case]
    with pytest.raises(InputError, match=words) as caught:
        joined(from_batches(make(), **options), 8)
    assert "\n" not in str(caught.value)


def test_batches_that_change_are_refused_where_they_do():
    source = Again(cut([9, 20]))
    head = from_batches(source)
    source.batches = cut([12])
    joined(head, 7)
    changed = ARRAYS | {"features": ARRAYS["features"].copy()}
    changed["features"][17, 2] += 1
    source.batches = cut([9, 20], arrays=changed)
    with pytest.raises(InputError, match=r"the same inputs and targets in every pass, got others .* in row 17"):
        joined(head, 7)
