"""Gradients and Jacobians of single records, and TracIn over checkpoints, against backward passes one by one."""

import copy

import pytest
import torch
from torch import nn

from giveaway.checks import InputError
from giveaway.network import Network, RecordDerivatives, tracin
from tests.network.cases import DEPTHS, KINDS, dense, made, network_of
from tests.network.test_products import Cube, cubed


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_records_one_by_one(kind, depth):
    network = network_of(kind, depth=depth, memory=400_000)
    exact = dense(network)
    derivatives = RecordDerivatives(network)
    pieces = list(derivatives.gradients())
    assert torch.cat([numbers for numbers, _ in pieces]).tolist() == list(range(18))
    torch.testing.assert_close(torch.cat([part for _, part in pieces]), exact.gradients(), rtol=1e-10, atol=1e-12)
    found = torch.cat([part for _, part in derivatives.jacobians([5, 0, 7])])
    torch.testing.assert_close(found, exact.jacobian[[5, 0, 7]], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(derivatives.norms(), exact.gradients().norm(dim=1), rtol=1e-10, atol=0)
    assert derivatives.notes == []


def test_layers_that_vmap_cannot_trace():
    network = cubed(Cube)
    exact = dense(network)
    derivatives = RecordDerivatives(network)
    assert derivatives.notes[0].startswith("vmap over records: not possible for this model")
    found = torch.cat([part for _, part in derivatives.gradients()])
    torch.testing.assert_close(found, exact.gradients(), rtol=1e-10, atol=1e-12)
    found = torch.cat([part for _, part in derivatives.jacobians([3, 0])])
    torch.testing.assert_close(found, exact.jacobian[[3, 0]], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", [[18], [-1], [], [0.5], [[1]]])
def test_rows_that_are_none(rows):
    network = network_of("mlp")
    with pytest.raises(InputError, match="rows: expected record numbers from 0 to 17"):
        RecordDerivatives(network).norms(rows)


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
def test_tracin_against_a_loop(kind):
    model, x, y = made(kind)
    saved, network = checkpoints(model, x, y), Network(model, (x, y), loss="cross_entropy")
    expected = torch.zeros(len(y), dtype=torch.float64)
    other = copy.deepcopy(model).eval()
    for state, rate in saved:
        other.load_state_dict(state)
        for i in range(len(y)):
            loss = nn.functional.cross_entropy(other(x[i : i + 1]), y[i : i + 1])
            expected[i] += rate * sum(part.square().sum() for part in torch.autograd.grad(loss, [*other.parameters()]))
    torch.testing.assert_close(tracin(network, saved), expected, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(tracin(network, saved, [4, 1]), expected[[4, 1]], rtol=1e-9, atol=1e-14)


def test_checkpoints_that_are_none():
    network = network_of("mlp")
    with pytest.raises(InputError, match="checkpoints: expected at least one"):
        tracin(network, [])
    with pytest.raises(InputError, match="checkpoints: expected a finite number of at least 0, got -1"):
        tracin(network, [(network.model.state_dict(), -1)])
