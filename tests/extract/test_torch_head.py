import copy
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from giveaway import Head
from giveaway.checks import InputError
from giveaway.extract import from_torch
from tests.extract.torch_examples import N, Wrapped, assert_is_head_of, expected


@pytest.mark.parametrize("form", ["loader", "dataset", "list"])
def test_features_outputs_and_parameters_in_dataset_order(model, x, y, form):
    records = TensorDataset(x, y)
    data = {"loader": DataLoader(records, batch_size=4), "dataset": records, "list": list(records)}[form]
    head = from_torch(model, data, l2=0.5, batch_size=5, groups=np.arange(N) // 2, sample_weight=torch.ones(N))
    assert_is_head_of(head, model, x)
    assert torch.equal(head.targets, y)
    assert (head.loss, head.l2, head.intercept, head.features.dtype) == ("cross_entropy", 0.5, True, torch.float32)
    assert head.groups[4] == 2


def test_a_head_without_bias_has_no_intercept(x, y):
    head = from_torch(nn.Linear(6, 3, bias=False), TensorDataset(x, y))
    assert not head.intercept
    torch.testing.assert_close(head.features, x)


@pytest.mark.parametrize("frozen", [False, True])
def test_whether_the_layers_below_are_frozen_is_said_and_not_guessed(model, x, y, frozen):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert from_torch(model, TensorDataset(x, y), frozen=frozen).frozen is frozen


def test_float_targets_are_regression_and_outputs_may_be_squeezed(model, x):
    squeezed = Wrapped(nn.Linear(6, 1), lambda net, x: net(x).squeeze(1).double())
    head = from_torch(squeezed, TensorDataset(x, x[:, 0] * 2), l2=1.0, penalize_intercept=False)
    assert (head.loss, head.m, head.penalize_intercept) == ("squared", 1, False)


def test_a_named_layer_gives_its_own_outputs(model, x, y):
    softmax = nn.Sequential(OrderedDict(net=model, out=nn.Softmax(dim=1)))
    assert_is_head_of(from_torch(softmax, TensorDataset(x, y), layer="net.fc"), model, x)
    inner = from_torch(model, TensorDataset(x, x[:, :5] * 2), layer="body", loss="squared")
    torch.testing.assert_close(inner.features, x)


def test_the_last_layer_is_the_last_to_run_not_the_last_defined(x, y):
    class Reversed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)
            self.body = nn.Linear(6, 4)

        def forward(self, x):
            return self.head(input=self.body(x))

    net = Reversed()
    head = from_torch(net, TensorDataset(x, y))
    assert torch.equal(head.weight, net.head.weight.detach())
    torch.testing.assert_close(head.features, net.body(x).detach())


def test_later_operations_in_place_do_not_reach_what_was_kept(model, x, y):
    in_place = Wrapped(model, lambda net, x: net(x).sigmoid_())
    with pytest.raises(InputError, match="head is not linear"):
        from_torch(in_place, TensorDataset(x, y))
    assert_is_head_of(from_torch(in_place, TensorDataset(x, y), layer="net.fc"), model, x)


def test_compiled_and_parallel_wrappers_are_looked_through(model, x, y):
    compiled = torch.compile(model, backend="eager")
    head = from_torch(nn.DataParallel(compiled), TensorDataset(x, y), layer="fc")
    assert_is_head_of(head, model.cpu(), x)  # DataParallel moves its module to the GPU where there is one


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_features_keep_their_precision_but_bfloat16_becomes_float32(model, x, y, dtype, tmp_path):
    net = model.to(dtype)
    head = from_torch(net, TensorDataset(x.to(dtype), y))
    kept = torch.float32 if dtype == torch.bfloat16 else dtype
    assert {head.features.dtype, head.outputs.dtype, head.weight.dtype, head.bias.dtype} == {kept}
    torch.testing.assert_close(head.features.to(dtype), expected(net, x.to(dtype))[0])
    head.save(tmp_path / "head.npz")
    torch.testing.assert_close(Head.load(tmp_path / "head.npz").weight.to(dtype), net.fc.weight.detach())


def test_autocast(model, x, y):
    head = from_torch(model, TensorDataset(x, y), autocast=torch.bfloat16)
    exact = from_torch(model, TensorDataset(x, y))
    assert head.features.dtype == torch.float32
    assert 0 < (head.features - exact.features).abs().max() < 0.1
    with pytest.raises(InputError, match=r"autocast: expected None, torch.bfloat16 or torch.float16, got torch.int8"):
        from_torch(model, TensorDataset(x, y), autocast=torch.int8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("autocast", [None, torch.float16])
def test_a_model_on_the_gpu(model, x, y, autocast):
    net = copy.deepcopy(model).cuda()
    state = torch.cuda.get_rng_state()
    head = from_torch(net, DataLoader(TensorDataset(x, y), batch_size=4), autocast=autocast)
    tolerance = 1e-5 if autocast is None else 3e-2
    torch.testing.assert_close(head.features.float(), expected(model, x)[0], atol=tolerance, rtol=tolerance)
    assert head.features.device.type == head.weight.device.type == "cpu"
    assert all(parameter.is_cuda for parameter in net.parameters())
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_devices_and_batch_sizes_that_cannot_be(model, x, y):
    records = TensorDataset(x, y)
    assert_is_head_of(from_torch(model, records, device="cpu"), model, x)
    with pytest.raises(InputError, match=r"device: expected a torch device, as cpu or cuda:1, got 'gpu'; check"):
        from_torch(model, records, device="gpu")
    with pytest.raises(
        InputError,
        match=r"device: expected where the model is, got meta for a model on cpu; move it first with model.to",
    ):
        from_torch(model, records, device="meta")
    for size in (0, -1, 2.5):
        with pytest.raises(InputError, match=f"batch_size: expected a whole number of at least 1, got {size}; 256"):
            from_torch(model, records, batch_size=size)


def test_one_record_is_refused(model, x, y):
    with pytest.raises(InputError, match="features: expected at least 2 records, got 1"):
        from_torch(model, TensorDataset(x[:1], y[:1]))
