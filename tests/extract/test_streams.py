"""Streams of a model and of arrays in batches: nothing is kept, and each pass gives the same rows."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from giveaway import Head
from giveaway.checks import InputError
from giveaway.extract import Batches, Streamed, from_batches, from_torch
from giveaway.records import LinearRows, StreamedRows
from tests.conftest import refused
from tests.extract.examples import N, Records, tried


def read(head, size):
    windows = [head.window(part) for part in head.slices(size)]
    return torch.cat([window.features for window in windows]), torch.cat([window.outputs for window in windows])


@pytest.mark.parametrize("size", [1, 5, 23])
@pytest.mark.parametrize("batch_size", [3, 4, 50])
def test_windows_are_those_of_the_held_head_whatever_the_batches(counted, x, y, batch_size, size):
    model, rows = counted
    loader = DataLoader(TensorDataset(x, y), batch_size)
    held = from_torch(model, loader, l2=0.5)
    rows.clear()
    head = from_torch(model, loader, l2=0.5, keep=Streamed())
    assert isinstance(head.features, StreamedRows)
    assert sum(rows) == N + tried(N)  # to see that the model is a function
    rows.clear()
    for passes in (1, 2):
        features, outputs = read(head, size)
        assert sum(rows) == (passes * N if size < N else N)  # one window of all rows is still held
        assert torch.equal(features, held.features)
        assert torch.equal(outputs, held.outputs)
    assert repr(head) == repr(held)
    assert torch.equal(head.weight, held.weight)
    assert torch.equal(head.inputs, held.inputs)


def test_between_batches_the_model_is_the_users(model, x, y):
    model.train()
    head = from_torch(model, DataLoader(TensorDataset(x, y), 4), keep=Streamed())
    state = torch.get_rng_state()
    head.window(slice(0, 6))  # a pass is under way
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    loss = model(x).sum()
    loss.backward()
    assert model.fc.weight.grad is not None


def test_weights_that_change_between_passes_are_refused(model, x, y):
    head = from_torch(model, TensorDataset(x, y), keep=Streamed())
    read(head, 5)
    with torch.no_grad():
        model.body.weight += 1e-3
    refused(r"model: expected the same model in every pass, got weights that .*keep=Cached", read, head, 5)


def test_inputs_that_change_between_passes_are_refused(model, x, y):
    x = x.clone()
    head = from_torch(model, DataLoader(TensorDataset(x, y), 4), keep=Streamed())
    read(head, 5)
    x[9] += 1
    words = r"data: expected the same inputs and targets in every pass, got others in a later pass, the first in row 9;"
    refused(words, read, head, 5)
    with pytest.raises(InputError, match="the first in row 0; turn off random augmentation"):
        from_torch(nn.Linear(6, 3), Records(lambda i: (torch.rand(6), y[i])), keep=Streamed())


@pytest.mark.parametrize(("rows", "words"), [(20, "got 20 in another"), (30, "got more than 23 rows in another")])
def test_other_numbers_of_rows_in_a_later_pass(model, x, y, rows, words):
    class Changing(Records):
        count = N

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            if index >= self.count:
                raise IndexError
            return x[index % N], y[index % N]

    data = Changing(None)
    head = from_torch(model, data, batches=Batches(4), keep=Streamed())
    Changing.count = rows
    refused(f"data: expected 23 records in every pass, {words}", read, head, 5)


def test_shuffling_loaders_are_refused_with_ids_or_without(model, x, y):
    named = Records(lambda i: {"inputs": x[i], "labels": y[i], "ids": i})
    loader = DataLoader(named, 5, shuffle=True, generator=torch.Generator().manual_seed(0))
    refused("batches without ids", from_torch, model, DataLoader(TensorDataset(x, y), 5, shuffle=True), keep=Streamed())
    with pytest.raises(InputError, match=r"others in a later pass, .*turn off random augmentation and shuffling"):
        from_torch(model, loader, batches=Batches(inputs="inputs"), keep=Streamed())


def test_rows_of_another_kind_are_refused(x, y):
    class Drifts(nn.Linear):
        """Sees features in double precision after some calls."""

        def forward(self, inputs):
            return super().forward(inputs.float())

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.calls = Drifts(6, 3), 0

        def forward(self, inputs):
            self.calls += 1
            return self.fc(inputs.double() if self.calls > 19 else inputs)  # three batches six times, and one

    head = from_torch(Outer(), DataLoader(TensorDataset(x, y), 10), keep=Streamed())
    head.window(slice(0, 10))
    words = r"features: expected rows of shape \(6,\) and type float32 in every batch, got rows .* type float64"
    refused(words, head.window, slice(10, 20))


def test_streams_of_the_same_model_and_data_have_one_name_and_no_cache(tmp_path, model, x, y):
    names = [
        from_torch(model, TensorDataset(*d), keep=Streamed()).features.identity for d in ((x, y), (x, y), (x + 1, y))
    ]
    assert names[0] == names[1] != names[2]


ROWS, WIDTH, M = 30, 4, 3
RNG = np.random.default_rng(8)
WEIGHT, BIAS = RNG.normal(size=(M, WIDTH)), RNG.normal(size=M)
ARRAYS = {
    "features": RNG.normal(size=(ROWS, WIDTH)).astype(np.float32),
    "targets": np.arange(ROWS) % M,
    "ids": np.array([f"p{i}" for i in range(ROWS)]),
    "groups": np.arange(ROWS) // 3,
    "sample_weight": np.linspace(1, 2, ROWS),
}
ARRAYS["outputs"] = ARRAYS["features"].astype(np.float64) @ WEIGHT.T + BIAS


def cut(cuts, names=tuple(ARRAYS), arrays=ARRAYS):
    edges = [0, *sorted(cuts), ROWS]
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


@given(
    cuts=st.lists(st.integers(0, ROWS), max_size=5), size=st.integers(1, ROWS), given_weights=st.sampled_from([0, 1, 2])
)
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


NAMES = ["features", "outputs", "targets", "groups", "sample_weight"]
ONE = cut([])[0]
NARROW = cut([9])[1] | {"features": np.ones((ROWS - 9, 5), np.float32)}
BATCHES = {
    "batches: expected something that can be read again, got an iterator": iter(cut([9])),
    "data: expected at least 2 records, got 0": [],
    "batches: expected targets in every batch, got a": cut([9], NAMES[:2]),
    "batches: expected outputs in every batch.*weight=": cut([9], ["features", "targets"]),
    "batches: expected dicts, or tuples .*, got a Tensor": [torch.ones(3, 2)],
    "the same arrays in every batch, got ids in some only": [*cut([9])[:1], *cut([9], NAMES)[1:]],
    r"targets: expected one row .*, got shape \(2,\) beside 30 rows": [ONE | {"targets": [0, 1]}],
    r"expected shape \(records, features\), got shape \(30,\)": [ONE | {"features": np.ones(ROWS)}],
    r"features: expected rows of shape \(4,\) and .*, got rows of shape \(5,\)": [cut([9])[0], NARROW],
    "ids in the batches: expected a different id for every record": [ONE | {"ids": np.zeros(ROWS, int)}],
}
OPTIONS = {
    r"weight: expected shape \(outputs, 4\), a column a feature": {"weight": np.ones((M, 2))},
    "bias: expected weight together with bias, got bias alone": {"bias": BIAS},
    r"outputs: expected features @ weight.T \+ bias, got a diff": {"weight": 2 * WEIGHT, "bias": BIAS},
}


@pytest.mark.parametrize("words", [*BATCHES, *OPTIONS])
def test_what_is_refused(words):
    refused(words, lambda: joined(from_batches(BATCHES.get(words, cut([9])), **OPTIONS.get(words, {})), 8))


def test_batches_that_change_are_refused_where_they_do():
    source = Again(cut([9, 20]))
    head = from_batches(source)
    source.batches = cut([12])
    joined(head, 7)
    changed = ARRAYS | {"features": ARRAYS["features"].copy()}
    changed["features"][17, 2] += 1
    source.batches = cut([9, 20], arrays=changed)
    refused(r"the same inputs and targets in every pass, got others .* in row 17", joined, head, 7)
