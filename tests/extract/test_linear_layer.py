import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from giveaway.checks import InputError
from giveaway.extract import from_torch
from tests.extract.torch_examples import N, Wrapped


def test_layer_names(model, x, y):
    with pytest.raises(
        InputError, match=r"layer: expected the name of an nn.Linear .*, got 'bdy'; did you mean body\?"
    ):
        from_torch(model, TensorDataset(x, y), layer="bdy")
    with pytest.raises(InputError, match=r"layer: expected an nn.Linear, got 'act', a ReLU; choose from body, fc"):
        from_torch(model, TensorDataset(x, y), layer="act")
    with pytest.raises(InputError, match=r"got 'fc'; the model has no nn.Linear"):
        from_torch(nn.Flatten(), TensorDataset(x, y), layer="fc")
    unused = Wrapped(nn.ModuleList([model, nn.Linear(2, 2)]), lambda nets, x: nets[0](x))
    with pytest.raises(InputError, match=r"a layer that runs, got 'net.1', which the forward leaves out"):
        from_torch(unused, TensorDataset(x, y), layer="net.1")


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: net(x).softmax(1),
        lambda net, x: net(x) * 2,
        lambda net, x: (net.fc(torch.relu(net.body(x))), net.fc(torch.relu(net.body(x))))[0] * 0,
        lambda net, x: {"a": net(x), "b": net(x)},
    ],
    ids=["softmax", "scaled", "zeroed", "two outputs"],
)
def test_what_follows_the_last_layer_is_refused(model, x, y, forward):
    words = "head is not linear|which runs 2 times in one forward pass"
    with pytest.raises(InputError, match=words):
        from_torch(Wrapped(model, forward), TensorDataset(x, y))


def test_a_model_without_linear_layers_is_refused(x, y):
    words = r"a model whose head is not linear \(no nn.Linear ran\); return raw outputs \(no softmax\), name the layer"
    words += r" with layer=, or build Head \(a black box: features=None\)$"
    with pytest.raises(InputError, match=words):
        from_torch(nn.Sequential(nn.Unflatten(1, (6, 1)), nn.Conv1d(6, 3, 1), nn.Flatten()), TensorDataset(x, y))


def test_a_layer_that_runs_twice_is_refused(model, x, y):
    twice = Wrapped(nn.Linear(6, 6), lambda net, x: net(net(x)))
    for layer in (None, "net"):
        with pytest.raises(InputError, match="a layer that runs once a record, got layer 'net', which runs 2 times"):
            from_torch(twice, TensorDataset(x, y), layer=layer)


@pytest.mark.parametrize("tie", ["parameter", "memory"])
def test_a_tied_weight_is_refused(tie):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            if tie == "parameter":
                self.out.weight = self.embedding.weight
            else:
                self.out.weight.data = self.embedding.weight.data

        def forward(self, tokens):
            return self.out(self.embedding(tokens).mean(1))

    tokens = torch.arange(N * 2).reshape(N, 2) % 7
    with pytest.raises(InputError, match=r"layer 'out', whose weight is tied to 'embedding.weight'; untie them"):
        from_torch(Tied(), TensorDataset(tokens, tokens[:, 0]))


class TokenModel(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.pool = pool

    def forward(self, tokens):
        return self.pool(self.fc(tokens))


REDUCE = {"mean": lambda t: t.mean(1), "first": lambda t: t[:, 0], "last": lambda t: t[:, -1]}


@pytest.mark.parametrize("reduction", REDUCE)
@pytest.mark.parametrize("pooled", [True, False])
def test_tokens_are_reduced_as_named(generator, y, reduction, pooled):
    tokens = torch.randn(N, 4, 6, generator=generator)
    net = TokenModel(REDUCE[reduction] if pooled else nn.Identity())
    with pytest.raises(InputError, match=r"'last', since layer 'fc' sees \(batch, tokens, features\), got None"):
        from_torch(net, TensorDataset(tokens, y))
    head = from_torch(net, TensorDataset(tokens, y), reduction=reduction)
    torch.testing.assert_close(head.features, REDUCE[reduction](tokens))
    torch.testing.assert_close(head.outputs, REDUCE[reduction](net.fc(tokens)).detach())


def test_reductions_that_do_not_fit(generator, model, x, y):
    tokens = torch.randn(N, 4, 6, generator=generator)
    net = TokenModel(REDUCE["first"])
    with pytest.raises(InputError, match="reduction: expected a known name, got 'men'; did you mean mean"):
        from_torch(net, TensorDataset(tokens, y), reduction="men")
    with pytest.raises(InputError, match="head is not linear"):
        from_torch(net, TensorDataset(tokens, y), reduction="last")
    with pytest.raises(
        InputError, match=r"reduction: expected None, since layer 'fc' sees one row a record, got 'mean'"
    ):
        from_torch(model, TensorDataset(x, y), reduction="mean")
    with pytest.raises(InputError, match=r"reduction: expected 'mean' or 'first' or 'last', since layer 'fc' sees"):
        from_torch(net, TensorDataset(tokens, y), layer="fc")
    flat = Wrapped(nn.Linear(6, 3), lambda net, t: net(t.reshape(-1, 6)))
    with pytest.raises(
        InputError, match=r"one row of features a record in layer 'net', got shape \(92, 6\) for 23 targets"
    ):
        from_torch(flat, TensorDataset(tokens, y))


def test_a_linear_layer_that_does_not_multiply_by_its_weight_is_refused(x, y):
    class Cosine(nn.Linear):
        def forward(self, x):
            return super().forward(nn.functional.normalize(x))

    with pytest.raises(
        InputError, match=r"outputs: expected features @ weight.T \+ bias, got a difference of .* in row \d+ where"
    ):
        from_torch(Cosine(6, 3), TensorDataset(3 * x, y))
