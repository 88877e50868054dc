"""Which parameters are chosen, by layers, patterns and depth."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from giveaway.checks import InputError
from giveaway.network import Network
from tests.network.cases import made


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
    model, x, y = made("transformer")
    network = Network(model, (x, y), loss="cross_entropy", parameters="last:6")
    # head, norm2, linear2, linear1, norm1, and the attention with the out_proj that it applies itself
    owners = {name.removeprefix("encoder.").split(".")[0] for name in network.parameters.values}
    assert owners == {"head", "norm2", "linear2", "linear1", "norm1", "self_attn"}
    assert "encoder.self_attn.out_proj.weight" in network.parameters.values


def test_vectors_are_the_parameters_one_after_another():
    model, x, y = made("mlp")
    parameters = Network(model, (x, y), loss="cross_entropy").parameters
    rows = torch.arange(2.0 * parameters.count).view(2, -1)
    parts = parameters.split(rows)
    assert parts["0.weight"][1].flatten().tolist() == rows[1, :24].tolist()
    assert torch.equal(parameters.join(parts), rows)
