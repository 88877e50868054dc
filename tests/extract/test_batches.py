from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from giveaway.checks import InputError
from giveaway.extract import from_torch
from tests.extract.torch_examples import N, Records, Wrapped, assert_is_head_of


@pytest.mark.parametrize("target", ["labels", "label", "targets", "target", "y"])
def test_dict_batches_go_to_the_model_by_keyword(model, x, y, target):
    data = Records(lambda i: {"pixels": x[i], target: y[i], "id": f"r{i}"})
    head = from_torch(Wrapped(model, lambda net, pixels: net(pixels)), data)
    assert_is_head_of(head, model, x)
    assert head.ids[7] == "r7"


def test_keys_name_the_parts_of_a_batch(model, x, y):
    data = Records(lambda i: {"image": x[i], "diagnosis": y[i], "patient": i + 50, "note": "text"})
    head = from_torch(model, data, input_key="image", target_key="diagnosis", id_key="patient")
    assert_is_head_of(head, model, x)
    assert head.ids.tolist() == list(range(50, 50 + N))
    head = from_torch(model, Records(lambda i: (i, y[i], "text", x[i])), target_key=1, id_key=0, input_key=-1)
    assert_is_head_of(head, model, x)


def test_two_dimensional_ids_are_inputs(model, x, y):
    data = Records(lambda i: {"ids": x[i], "y": y[i]})
    head = from_torch(Wrapped(model, lambda net, ids: net(ids)), data)
    assert_is_head_of(head, model, x)
    assert head.ids.tolist() == list(range(N))


@pytest.mark.parametrize(
    "inputs", [lambda x: (x[:2], x[2:]), lambda x: [x[:2], x[2:]], lambda x: {"left": x[:2], "right": x[2:]}]
)
def test_several_inputs_are_unpacked(model, x, y, inputs):
    joins = Wrapped(model, lambda net, left, right: net(torch.cat([left, right], dim=1)))
    assert_is_head_of(from_torch(joins, Records(lambda i: (inputs(x[i]), y[i]))), model, x)
    assert_is_head_of(from_torch(joins, Records(lambda i: (x[i, :2], x[i, 2:], y[i])), target_key=2), model, x)


@pytest.mark.parametrize(
    "pack",
    [lambda f: {"logits": f, "loss": 0}, lambda f: {"out": f}, lambda f: SimpleNamespace(logits=f), lambda f: (f, 1)],
)
def test_outputs_that_are_packed(model, x, y, pack):
    assert_is_head_of(from_torch(Wrapped(model, lambda net, x: pack(net(x))), TensorDataset(x, y)), model, x)


def test_batches_that_cannot_be_read(model, x, y):
    with pytest.raises(InputError, match=r"batches \(inputs, targets\), or .* with id_key=2, got a batch of 3 parts"):
        from_torch(model, TensorDataset(x, y, y))
    with pytest.raises(InputError, match="one of the keys labels, label, targets, target, y, got keys x, kind; name"):
        from_torch(model, Records(lambda i: {"x": x[i], "kind": y[i]}))
    with pytest.raises(InputError, match="got keys label, y; name the targets with target_key="):
        from_torch(model, Records(lambda i: {"x": x[i], "y": y[i], "label": y[i]}))
    with pytest.raises(InputError, match=r"target_key: expected a key of the batch, got 'knd'; did you mean kind\?"):
        from_torch(model, Records(lambda i: {"x": x[i], "kind": y[i]}), target_key="knd")
    with pytest.raises(InputError, match="id_key: expected a position in the batch, 0 to 1, got 5"):
        from_torch(model, TensorDataset(x, y), id_key=5)
    with pytest.raises(InputError, match=r"expected .* or dicts, got Tensor; return the targets as well"):
        from_torch(model, Records(lambda i: x[i]))
    with pytest.raises(InputError, match="one target a record, got a single target; give the DataLoader a batch_size"):
        from_torch(model, DataLoader(TensorDataset(x, y), batch_size=None))
    with pytest.raises(InputError, match="data: expected a DataLoader or a Dataset, got dict"):
        from_torch(model, {"x": x})
    with pytest.raises(InputError, match="data: expected at least 2 records, got 0"):
        from_torch(model, TensorDataset(x[:0], y[:0]))
    with pytest.raises(InputError, match=r"model: expected a torch.nn.Module, got str; for scikit-learn use from_skl"):
        from_torch("model", TensorDataset(x, y))
    with pytest.raises(InputError, match="cannot be compared between two passes"):
        from_torch(model, DataLoader(TensorDataset(x, y), collate_fn=lambda rows: (object(), torch.zeros(1))))
    uneven = DataLoader(
        TensorDataset(x, y), 4, collate_fn=lambda rows: (x[: len(rows)], torch.zeros(len(rows), len(rows)))
    )
    with pytest.raises(
        InputError,
        match=r"targets: expected rows of shape \(4,\) and type float32 in every batch, got rows of shape \(3,",
    ):
        from_torch(model, uneven)
    mixed = Records(lambda i: (x[i], 1 if i < 8 else 1.5))
    with pytest.raises(
        InputError, match=r"targets: expected rows .* type int64 in every batch, got rows .* type float64"
    ):
        from_torch(model, mixed, batch_size=4)
