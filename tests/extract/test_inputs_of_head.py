"""from_torch keeps the records themselves: which, in which order and type, up to which size."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import giveaway.extract.model_records as model_records
from giveaway.extract import Batches, InMemory, from_torch
from tests.extract.examples import N, Records, Wrapped, named_stream

IMAGES = torch.arange(N * 3 * 4 * 4).reshape(N, 3, 4, 4)
TEXTS = ["x" * (row % 5) for row in range(N)]


def flat(net, x):
    return net(x.flatten(1).float())


@pytest.fixture
def images_model():
    return Wrapped(nn.Linear(48, 3), flat)


@pytest.fixture
def text_model():
    return Wrapped(nn.Linear(1, 3), lambda net, texts: net(torch.tensor([[float(len(t))] for t in texts])))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64, torch.bfloat16])
def test_images_are_kept_in_row_order_and_their_own_type(images_model, y, dtype):
    images = IMAGES.to(dtype)
    head = from_torch(images_model, DataLoader(TensorDataset(images, y), batch_size=4))
    assert head.inputs.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)  # NumPy has no bfloat16
    assert torch.equal(head.inputs, images)
    assert repr(head).endswith("inputs=(3, 4, 4))")


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    n=st.integers(4, 12),
    batch_size=st.integers(1, 13),
    sized=st.booleans(),
)
def test_any_shape_and_batch_size(shape, n, batch_size, sized):
    x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(0))
    y = torch.arange(n) % 2
    net = Wrapped(nn.Linear(x[0].numel(), 2), flat)
    data = TensorDataset(x, y) if sized else named_stream(x, y)
    head = from_torch(net, DataLoader(data, batch_size=batch_size))
    assert torch.equal(head.inputs, x)


def test_rows_follow_a_shuffled_loader(model, x, y, generator):
    records = Records(lambda i: {"x": x[i], "y": y[i], "id": i})
    loader = DataLoader(records, batch_size=4, shuffle=True, generator=generator)
    head = from_torch(model_by_keyword(model), loader)
    assert not np.array_equal(head.ids, np.arange(N))
    assert torch.equal(head.inputs, x[head.ids])


def model_by_keyword(model):
    return Wrapped(model, lambda net, x: net(x))


def test_a_model_that_writes_into_its_inputs(model, x, y):
    greedy = Wrapped(model, lambda net, x: net(x.zero_()))
    blocks = [(x[i : i + 6].clone(), y[i : i + 6]) for i in range(0, N, 6)]
    for data in (TensorDataset(x, y), named_stream(x, y)):
        head = from_torch(greedy, DataLoader(data, batch_size=6))
        assert torch.equal(head.inputs, torch.cat([block for block, _ in blocks]))


def test_strings_are_kept(text_model, y):
    for texts in (TEXTS, [text + "é" for text in TEXTS]):
        head = from_torch(text_model, Records(lambda i, texts=texts: (texts[i], y[i])), batches=Batches(5))
        assert head.inputs == texts


def test_arrays_are_kept_as_tensors(model, x, y):
    def collate(rows):
        return np.stack([row[0].numpy() for row in rows]), torch.stack([row[1] for row in rows])

    net = Wrapped(model, lambda net, x: net(torch.from_numpy(x)))
    head = from_torch(net, DataLoader(TensorDataset(x, y), batch_size=4, collate_fn=collate))
    assert torch.equal(head.inputs, x)


def test_integers_may_be_tokens_and_are_not_kept(y):
    tokens = torch.arange(N * 4).reshape(N, 4)
    assert from_torch(Wrapped(nn.Linear(4, 3), flat), TensorDataset(tokens, y)).inputs is None
    single = Wrapped(nn.Linear(1, 3), lambda net, x: net(x.unsqueeze(1)))
    assert from_torch(single, TensorDataset(torch.linspace(0, 1, N), y)).inputs is None


def test_false_never_keeps(model, x, y):
    head = from_torch(model, TensorDataset(x, y), keep=InMemory(inputs=False))
    assert head.inputs is None
    assert "inputs" not in repr(head)


def test_several_inputs_are_not_kept(model, x, y):
    joins = Wrapped(model, lambda net, left, right: net(torch.cat([left, right], dim=1)))
    assert from_torch(joins, Records(lambda i: ((x[i, :2], x[i, 2:]), y[i]))).inputs is None
    nested = Wrapped(model, lambda net, parts: net(parts["x"]))
    assert from_torch(nested, Records(lambda i: {"parts": {"x": x[i]}, "y": y[i]})).inputs is None


def test_rows_that_differ_from_batch_to_batch_are_not_kept(y):
    net = Wrapped(nn.Linear(1, 3), lambda net, x: net(x.mean(1, keepdim=True)))
    loader = DataLoader(Records(lambda i: (torch.ones(2 if i < 4 else 3), y[i])), batch_size=4)
    assert from_torch(net, loader).inputs is None


def test_inputs_of_other_rows_are_not_kept(x, y):
    def collate(rows):
        return torch.cat([row[0] for row in rows]), torch.stack([row[1] for row in rows])

    net = Wrapped(nn.Linear(6, 3), lambda net, x: net(x.reshape(-1, 6)))
    assert from_torch(net, DataLoader(TensorDataset(x, y), batch_size=4, collate_fn=collate)).inputs is None


def test_numbers_that_are_not_finite_are_not_kept(model, x, y):
    x[5, 2] = torch.nan
    net = Wrapped(model, lambda net, x: net(x.nan_to_num()))
    assert from_torch(net, TensorDataset(x, y)).inputs is None


@pytest.mark.parametrize("sized", [True, False])
def test_more_than_the_limit_is_not_kept(model, x, y, sized, monkeypatch):
    data = DataLoader(TensorDataset(x, y) if sized else named_stream(x, y), batch_size=4)
    monkeypatch.setattr(model_records, "INPUT_BYTES", x.nbytes)
    assert torch.equal(from_torch(model_by_keyword(model), data).inputs, x)
    monkeypatch.setattr(model_records, "INPUT_BYTES", x.nbytes - 1)
    assert from_torch(model_by_keyword(model), data).inputs is None


def test_a_known_size_is_too_large_in_the_first_batch(x, y, monkeypatch):
    monkeypatch.setattr(model_records, "INPUT_BYTES", x.nbytes - 1)
    collector = model_records.InputCollector(True, N)
    collector.add(model_records.RecordBatch((x[:4],), {}, y[:4]))
    assert collector.joined() is None


def test_strings_count_by_their_length(text_model, y, monkeypatch):
    data = Records(lambda i: (TEXTS[i], y[i]))
    monkeypatch.setattr(model_records, "INPUT_BYTES", sum(map(len, TEXTS)))
    assert from_torch(text_model, data).inputs == TEXTS
    monkeypatch.setattr(model_records, "INPUT_BYTES", sum(map(len, TEXTS)) - 1)
    assert from_torch(text_model, data).inputs is None
