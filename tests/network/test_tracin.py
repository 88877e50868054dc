"""TracIn over checkpoints against a loop of backward passes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from giveaway.checks import InputError
from giveaway.network import Network, tracin, tracin_between
from tests.network.cases import made


def checkpoints(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list:
    """Three states of a training with a falling rate."""
    model, found = copy.deepcopy(model).eval(), []
    for rate in (0.1, 0.05, 0.01):
        step = torch.optim.SGD(model.parameters(), lr=rate)
        step.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        step.step()
        found.append((copy.deepcopy(model.state_dict()), rate))
    return found


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_against_a_loop(kind):
    model, x, y = made(kind)
    saved = checkpoints(model, x, y)
    network = Network(model, (x, y), loss="cross_entropy")
    expected = torch.zeros(len(y), len(y), dtype=torch.float64)
    other = copy.deepcopy(model).eval()
    for state, rate in saved:
        other.load_state_dict(state)
        rows = []
        for i in range(len(y)):
            loss = nn.functional.cross_entropy(other(x[i : i + 1]), y[i : i + 1])
            gradients = torch.autograd.grad(loss, list(other.parameters()))
            rows.append(torch.cat([part.flatten() for part in gradients]))
        stacked = torch.stack(rows)
        expected += rate * stacked @ stacked.T
    torch.testing.assert_close(tracin(network, saved), expected.diagonal(), rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(tracin(network, saved, [4, 1]), expected.diagonal()[[4, 1]], rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(tracin_between(network, saved, [4, 1]), expected[[4, 1]], rtol=1e-9, atol=1e-13)
    some = tracin_between(network, saved, [4, 1], [0, 2])
    torch.testing.assert_close(some, expected[[4, 1]][:, [0, 2]], rtol=1e-9, atol=1e-13)


def test_checkpoints_that_are_none():
    model, x, y = made("mlp")
    network = Network(model, (x, y), loss="cross_entropy")
    with pytest.raises(InputError, match="checkpoints: expected at least one"):
        tracin(network, [])
    with pytest.raises(InputError, match="checkpoints: expected a finite number of at least 0, got -1"):
        tracin(network, [(model.state_dict(), -1)])
