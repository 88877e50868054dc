"""What is checked before a network is trusted, that it is left as it was, and which parameters are chosen."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from giveaway.checks import InputError
from giveaway.network import GaussNewton, Hessian, InverseCurvature, Network, score_records
from tests.network.cases import made, network_of


class Function(nn.Module):
    """A linear layer and a function of its output."""

    def __init__(self, function) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(3, 2), function

    def forward(self, x):
        return self.function(self.linear(x))


X, Y = torch.arange(36.0).view(12, 3) / 10, torch.arange(12) % 2


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (nn.functional.dropout, "model: expected the same outputs in every call, .*turn off dropout"),
        (lambda f: f + torch.rand_like(f), "expected the same outputs in every call"),
        (lambda f: f - f.mean(0), "expected outputs that depend on a record alone"),
        (nn.BatchNorm1d(2, track_running_stats=False), "running statistics"),
        (lambda f: f * torch.nan, "model: expected finite outputs"),
        (lambda f: f.unsqueeze(1), r"model: expected outputs \(records, m\) for 8 records, got shape \(8, 1, 2\)"),
        (lambda f: (f, f), "got a tuple; wrap the model"),
    ],
)
def test_models_that_cannot_be_trusted(function, words):
    with pytest.raises(InputError, match=words):
        Network(Function(function), (X, Y), loss="cross_entropy")


def test_dropout_as_a_layer_is_switched_off():
    model = Function(nn.Dropout(0.5)).train()
    network = Network(model, (X, Y), loss="cross_entropy")
    assert torch.equal(network.outputs(), model.linear(X))


def test_the_model_is_left_as_it_was():
    model, x, y = made("cnn")
    model.train()
    model[3].eval()
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    state, fast = torch.get_rng_state(), torch.backends.mha.get_fastpath_enabled()
    network = Network(model, (x, y), loss="cross_entropy")
    score_records(InverseCurvature(network, damping=1.0), [0, 1])
    Hessian(network, 1.0)(torch.ones(network.size, 1, dtype=torch.float64))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None and value.requires_grad for value in model.parameters())
    assert [module.training for module in model.modules()] == modes
    assert [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()] == hooks
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert calls


class Keyed(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return {"x": X[i], "labels": Y[i]}


def test_every_form_of_data_gives_the_same():
    class Named(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    model = Named(3, 2)
    expected = model(X)
    sets = TensorDataset(X, Y)
    loader = DataLoader(sets, batch_size=5)
    for data in ((X, Y), (X.numpy(), Y.numpy()), ([X], Y), ({"x": X}, Y), sets, loader, Keyed(), DataLoader(Keyed())):
        network = Network(model, data, loss="cross_entropy")
        torch.testing.assert_close(network.outputs(), expected)
        assert torch.equal(network.records.targets, Y)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((X, Y[:5]), r"inputs of shape \(12, 3\) for 5 targets"),
        ((X * torch.inf, Y), "inputs: expected finite numbers"),
        (TensorDataset(X), "got a batch of 1 parts"),
        (X, "data: expected .inputs, targets., a Dataset or a DataLoader, got Tensor"),
        ((X[:0], Y[:0]), "at least one record"),
        ((X, Y + 1), "targets: expected class labels from 0 to 1"),
        ((X, torch.rand(12, 5)), "shape .12,. class indices or .12, 2. probabilities, got shape .12, 5."),
        ((X, torch.rand(12, 2) + 1), "labels between 0 and 1"),
    ],
)
def test_data_that_cannot_be_used(data, words):
    with pytest.raises(InputError, match=words):
        Network(nn.Linear(3, 2), data, loss="cross_entropy")


def test_another_precision_leaves_the_model_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    single = Network(model, (X, Y), loss="cross_entropy")
    double = Network(model, (X, Y), loss="cross_entropy", dtype=torch.float64)
    v = torch.randn(single.size, 3, generator=torch.Generator().manual_seed(0))
    close = GaussNewton(double, 0.1)(v.double())
    assert close.dtype == torch.float64
    assert model[0].weight.dtype == torch.float32
    torch.testing.assert_close(GaussNewton(single, 0.1)(v).double(), close, rtol=1e-4, atol=1e-5)
    half = Network(nn.Linear(3, 2).to(torch.bfloat16), (X, Y), loss="cross_entropy")
    assert half.dtype == torch.float32


def test_a_single_record_is_enough():
    network = Network(nn.Linear(3, 2).double(), (X[:1], Y[:1]), loss="cross_entropy")
    found = score_records(InverseCurvature(network, damping=1.0))
    assert bool((found["influence"] > 0).all())


class Crossed(nn.Module):
    """Layers declared in another order than they run in; one is frozen, two share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2)
        self.tied = nn.Linear(4, 4, bias=False)
        self.first = nn.Linear(3, 4)
        self.frozen = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.tied.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.tied(torch.tanh(self.first(x)))) + self.shift
        return self.out(torch.tanh(self.again(torch.tanh(self.frozen(h)))))


def chosen(which) -> list[str]:
    torch.manual_seed(0)
    data = (torch.randn(6, 3), torch.arange(6) % 2)
    return list(Network(Crossed(), data, loss="cross_entropy", parameters=which).parameters.values)


@pytest.mark.parametrize(
    ("which", "names"),
    [
        ("head", ["out.weight", "out.bias"]),
        ("last:1", ["out.weight", "out.bias"]),
        ("last:2", ["out.weight", "out.bias", "tied.weight", "again.bias"]),
        ("last:3", ["out.weight", "out.bias", "tied.weight", "again.bias"]),  # the third is frozen
        ("all", ["out.weight", "out.bias", "tied.weight", "first.weight", "first.bias", "again.bias"]),
        ("first", ["first.weight", "first.bias"]),
        ("first.bias", ["first.bias"]),
        ("again.weight", ["tied.weight"]),
        (["frozen", "out.bias"], ["out.bias", "frozen.weight", "frozen.bias"]),
        ("*.bias", ["out.bias", "first.bias", "again.bias"]),
        ("f*", ["first.weight", "first.bias"]),
    ],
)
def test_names_patterns_and_depths(which, names):
    assert chosen(which) == names


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("frist", "did you mean first"),
        ("last:9", "the model has 5 layers with parameters"),
        ("last:0", 'expected last:k, as "last:2"'),
        ("froz*", "frozen ones only; name their layer"),
    ],
)
def test_what_cannot_be_chosen(which, words):
    with pytest.raises(InputError, match=words.replace("*", r"\*")):
        chosen(which)


def test_parameters_used_by_a_parent_count_to_it():
    network = network_of("transformer", depth="last:6")
    # head, norm2, linear2, linear1, norm1, and the attention with the out_proj that it applies itself
    owners = {name.removeprefix("encoder.").split(".")[0] for name in network.parameters.values}
    assert owners == {"head", "norm2", "linear2", "linear1", "norm1", "self_attn"}
    assert "encoder.self_attn.out_proj.weight" in network.parameters.values


def test_vectors_are_the_parameters_one_after_another():
    network = network_of("mlp")
    parameters, rows = network.parameters, torch.arange(2.0 * network.size).view(2, -1)
    parts = parameters.split(rows)
    assert parts["0.weight"][1].flatten().tolist() == rows[1, :24].tolist()
    assert torch.equal(parameters.join(parts), rows)
