"""Gradients and Jacobians of single records against backward passes one by one."""

import pytest
import torch

from giveaway.checks import InputError
from giveaway.network import RecordDerivatives
from tests.network.cases import DEPTHS, KINDS, dense, network_of
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
