from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import giveaway as ga
from giveaway.checks import InputError
from giveaway.extract import Batches, early_features, from_torch
from tests.conftest import refused
from tests.extract.examples import N, Records, Wrapped, snapshot

BATCH = 8


@pytest.fixture
def images(generator):
    return torch.randn(N, 2, 6, 6, generator=generator)


@pytest.fixture
def convolutional(generator):
    layers = {"conv": nn.Conv2d(2, 3, 3), "norm": nn.BatchNorm2d(3), "act": nn.ReLU(inplace=True)}
    layers |= {"drop": nn.Dropout(0.5), "flat": nn.Flatten(), "fc": nn.Linear(48, 3)}
    return trained(nn.Sequential(OrderedDict(layers)), generator)


def trained(net, generator):
    """`net` with other values in every parameter and floating-point buffer, as training leaves them."""
    with torch.no_grad():
        for value in [*net.parameters(), *net.buffers()]:
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=generator) + 0.1)
    return net


def whole(tensor):
    return tensor.detach().flatten(1).numpy()


@pytest.mark.parametrize("form", ["loader", "dataset", "list"])
def test_values_are_those_of_the_module_run_by_hand(model, x, y, form):
    records = TensorDataset(x, y)
    data = {"loader": DataLoader(records, batch_size=4), "dataset": records, "list": list(records)}[form]
    found = early_features(model, data, layer="body", batches=Batches(5))
    assert (found.dtype, found.shape, type(found)) == (np.float32, (N, 5), np.ndarray)
    np.testing.assert_allclose(found, model.body(x).detach(), rtol=1e-6, atol=1e-6)
    dropped = early_features(model, data, layer="drop")  # evaluation mode: dropout lets everything through
    np.testing.assert_allclose(dropped, model.body(x).relu().detach(), rtol=1e-6, atol=1e-6)


def test_maps_are_averaged_over_a_grid(convolutional, images, y):
    maps = convolutional.conv(images).detach().numpy()  # (N, 3, 4, 4)
    by_hand = maps.reshape(N, 3, 2, 2, 2, 2).mean(axis=(3, 5)).reshape(N, 12)
    records = TensorDataset(images, y)
    np.testing.assert_allclose(early_features(convolutional, records, layer="conv"), by_hand, atol=1e-5)
    one = early_features(convolutional, records, layer="conv", cells=1)
    np.testing.assert_allclose(one, maps.mean(axis=(2, 3)), atol=1e-5)
    for cells in (4, 9):  # no more cells than pixels
        found = early_features(convolutional, records, layer="conv", cells=cells)
        np.testing.assert_allclose(found, maps.reshape(N, 48), atol=1e-5)


def test_tokens_are_averaged_and_other_shapes_flattened(generator, y):
    tokens = torch.randn(N, 4, 6, generator=generator)
    net = Wrapped(nn.Linear(6, 5), lambda net, x: net(x).flatten(1))
    found = early_features(net, TensorDataset(tokens, y), layer="net")
    by_hand = np.stack([np.mean([net.net(token).detach().numpy() for token in record], axis=0) for record in tokens])
    np.testing.assert_allclose(found, by_hand, atol=1e-6)

    volume = torch.randn(N, 2, 3, 2, 2, generator=generator)
    cubes = nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(24, 3))
    found = early_features(cubes, TensorDataset(volume, y), layer="0")
    np.testing.assert_allclose(found, volume.tanh().reshape(N, 24), atol=1e-6)

    single = nn.Sequential(nn.Flatten(0), nn.Linear(1, 1))
    batches = DataLoader(TensorDataset(tokens[:, 0, 0], y), batch_size=5)
    first = Wrapped(single[0], lambda net, x: net(x))
    np.testing.assert_array_equal(early_features(first, batches, layer="net"), tokens[:, 0, :1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_become_float32(model, x, y, dtype):
    net = model.to(dtype)
    found = early_features(net, TensorDataset(x.to(dtype), y), layer="body")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, net.body(x.to(dtype)).float().detach(), rtol=1e-2, atol=1e-2)


def test_dict_batches_and_ids(model, x, y):
    net = Wrapped(model, lambda net, *, image: net(image))
    records = Records(lambda i: {"image": x[i], "label": y[i], "id": f"r{i}"})
    np.testing.assert_allclose(early_features(net, records, layer="net.body"), whole(model.body(x)), atol=1e-6)
    swapped = Records(lambda i: (y[i], i, x[i]))
    found = early_features(model, swapped, layer="body", batches=Batches(inputs=2, targets=0, ids=1))
    np.testing.assert_allclose(found, whole(model.body(x)), atol=1e-6)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_and_the_random_state_are_left_as_they_were(convolutional, images, y, fails):
    net = convolutional.train()
    net.drop.eval()
    net.fc.weight.grad = torch.full_like(net.fc.weight, 2.0)
    net.act.register_forward_hook(lambda *_: None)
    if fails:
        net.flat = nn.Flatten(2)  # the linear layer behind it refuses that
    loader = DataLoader(TensorDataset(images, y), batch_size=BATCH, generator=torch.Generator().manual_seed(1))
    before = snapshot(net, loader)
    if fails:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            early_features(net, loader, layer="conv")
    else:
        early_features(net, loader, layer="conv")
    assert snapshot(net, loader) == before


def test_arguments_that_cannot_be(model, x, y):
    records = TensorDataset(x, y)
    with pytest.raises(InputError, match=r"^layer: expected the name of a module .*, got 'bodi'; did you mean body\?$"):
        early_features(model, records, layer="bodi")
    refused(r"got ''; choose from body, act, drop, fc", early_features, model, records, layer="")
    refused("got 'fc'; the model has no modules inside", early_features, nn.Linear(6, 3), records, layer="fc")
    for cells in (0, 1.5, "2"):
        with pytest.raises(InputError, match=f"cells: expected a whole number of at least 1, got {cells!r}; 2 suits"):
            early_features(model, records, layer="body", cells=cells)
    refused("initial: expected a freshly built model in its place", early_features, model, records, initial=True)
    refused(r"model: expected a torch\.nn\.Module, got str", early_features, "model", records, layer="body")
    with pytest.raises(InputError, match="device: expected where the model is, got meta"):
        early_features(model, records, layer="body", device="meta")


NO_FEATURES = {
    "left out": (nn.Tanh(), lambda net, x: x, r"a layer that runs, got 'net', which the forward leaves out; name"),
    "twice": (nn.Tanh(), lambda net, x: net(net(x)), "a layer that runs once a record, got layer 'net', which runs 2 "),
    "tuple": (nn.GRU(6, 2), lambda net, x: net(x)[0], "a tensor of real numbers, got 'net', which gives a tuple"),
    "complex": (nn.Identity(), lambda net, x: net(x + 1j), "numbers, got 'net', which gives a complex tensor; name a"),
    "flat": (nn.Flatten(0), lambda net, x: net(x), r"a record in layer 'net', got shape \(48,\) for 8 targets"),
    "scalar": (nn.Identity(), lambda net, x: net(x.sum()), r"'net', got shape \(\) for 8 targets; name another"),
    "infinite": (nn.Identity(), lambda net, x: net(x / 0), "output of layer 'net': expected finite numbers, got NaN"),
}


@pytest.mark.parametrize("case", NO_FEATURES)
def test_layers_that_give_no_features(x, y, case):
    inner, forward, words = NO_FEATURES[case]
    refused(words, early_features, Wrapped(inner, forward), TensorDataset(x, y), layer="net", batches=Batches(BATCH))


def test_an_audit_takes_them_as_a_second_view(convolutional, generator):
    n = 120
    images = torch.randn(n, 2, 6, 6, generator=generator)
    records = TensorDataset(images, (images[:, 0].mean((1, 2)) > 0).long())
    seen = early_features(convolutional, records, layer="norm")
    table = ga.audit(replace(from_torch(convolutional, records, l2=1.0), inputs=seen))
    assert np.isfinite(table["fused"]).all()
    assert len(table["fused"]) == n
    view = table.meta.view
    assert (view.kind, view.columns, view.categorical) == ("tabular", 12, 0)
