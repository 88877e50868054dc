"""Streams of a model: nothing is kept, each pass runs the network once, and the model stays the user's in between."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from giveaway import audit
from giveaway.checks import InputError
from giveaway.extract import from_torch
from giveaway.records import StreamedRows
from tests.extract.torch_examples import N, Records


@pytest.fixture
def counted(model):
    rows = []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    return model, rows


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
    head = from_torch(model, loader, l2=0.5, stream=True)
    assert isinstance(head.features, StreamedRows)
    assert sum(rows) == min(batch_size, N)  # the first batch shows which layer it is
    rows.clear()
    for passes in (1, 2):
        features, outputs = read(head, size)
        assert sum(rows) == (passes * N if size < N else N)  # one window of all rows is still held
        assert torch.equal(features, held.features)
        assert torch.equal(outputs, held.outputs)
    assert repr(head) == repr(held)
    assert torch.equal(head.weight, held.weight)
    assert torch.equal(head.inputs, held.inputs)


def test_scores_are_those_of_the_held_head(model, x, y):
    scores = ["leverage", "influence", "newton"]
    heads = [from_torch(model, TensorDataset(x, y), l2=0.5, batch_size=7, stream=stream) for stream in (False, True)]
    held, streamed = (audit(head, scores=scores) for head in heads)
    for name in scores:
        np.testing.assert_allclose(streamed[name], held[name], rtol=1e-9)


def test_between_batches_the_model_is_the_users(model, x, y):
    model.train()
    head = from_torch(model, DataLoader(TensorDataset(x, y), 4), stream=True)
    state = torch.get_rng_state()
    head.window(slice(0, 6))  # a pass is under way
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    loss = model(x).sum()
    loss.backward()
    assert model.fc.weight.grad is not None


def test_weights_that_change_between_passes_are_refused(model, x, y):
    head = from_torch(model, TensorDataset(x, y), stream=True)
    read(head, 5)
    with torch.no_grad():
        model.body.weight += 1e-3
    with pytest.raises(InputError, match=r"model: expected the same model in every pass, got weights that .*cache="):
        read(head, 5)


def test_inputs_that_change_between_passes_are_refused(model, x, y):
    x = x.clone()
    head = from_torch(model, DataLoader(TensorDataset(x, y), 4), stream=True)
    read(head, 5)
    x[9] += 1
    words = r"data: expected the same inputs and targets in every pass, got others in a later pass, the first in row 9;"
    with pytest.raises(InputError, match=words):
        read(head, 5)
    with pytest.raises(InputError, match="the first in row 0; turn off random augmentation"):
        from_torch(nn.Linear(6, 3), Records(lambda i: (torch.rand(6), y[i])), stream=True)


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
    head = from_torch(model, data, batch_size=4, stream=True)
    Changing.count = rows
    with pytest.raises(InputError, match=f"data: expected 23 records in every pass, {words}"):
        read(head, 5)


def test_shuffling_loaders_are_refused_with_ids_or_without(model, x, y):
    named = Records(lambda i: {"inputs": x[i], "labels": y[i], "ids": i})
    loader = DataLoader(named, 5, shuffle=True, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="batches without ids"):
        from_torch(model, DataLoader(TensorDataset(x, y), 5, shuffle=True), stream=True)
    with pytest.raises(InputError, match=r"others in a later pass, .*turn off random augmentation and shuffling"):
        from_torch(model, loader, input_key="inputs", stream=True)


def test_rows_of_another_kind_are_refused(x, y):
    class Drifts(nn.Linear):
        """Sees features in double precision after its first call."""

        def forward(self, inputs):
            return super().forward(inputs.float())

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.calls = Drifts(6, 3), 0

        def forward(self, inputs):
            self.calls += 1
            return self.fc(inputs.double() if self.calls > 2 else inputs)

    head = from_torch(Outer(), DataLoader(TensorDataset(x, y), 10), stream=True)
    head.window(slice(0, 10))
    words = r"features: expected rows of shape \(6,\) and type float32 in every batch, got rows .* type float64"
    with pytest.raises(InputError, match=words):
        head.window(slice(10, 20))


def test_stream_and_cache_are_two_ways(tmp_path, model, x, y):
    with pytest.raises(InputError, match=r"stream: expected stream=True or cache=, not both, got both; drop one"):
        from_torch(model, TensorDataset(x, y), stream=True, cache=tmp_path)


def test_streams_of_the_same_model_and_data_have_one_name(model, x, y):
    names = [from_torch(model, TensorDataset(*d), stream=True).features.identity for d in ((x, y), (x, y), (x + 1, y))]
    assert names[0] == names[1] != names[2]
