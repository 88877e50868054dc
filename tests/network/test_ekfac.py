"""EKFAC: exact where its assumptions hold, near elsewhere, and open about what it leaves out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from giveaway.checks import InputError
from giveaway.network import Network, ekfac_records
from tests.network.cases import dense, network_of


@pytest.mark.parametrize("kind", ["mlp", "cnn", "transformer"])
def test_exact_for_one_linear_layer_and_squared_loss(kind):
    network = network_of(kind, "squared", depth="head")
    found, expected = ekfac_records(network, damping=0.2), dense(network, "squared").scores(0.2)
    torch.testing.assert_close(found["influence"], expected["influence"])
    torch.testing.assert_close(found["gls_trace"], expected["gls_trace"])
    assert found.report["passes"] == 3
    assert found.report["notes"] == []


def test_exact_for_softmax_where_all_records_look_alike():
    torch.manual_seed(0)
    model = nn.Linear(3, 4).double()
    x = torch.randn(1, 3, dtype=torch.float64).repeat(10, 1)
    y = torch.arange(10) % 4
    network = Network(model, (x, y), loss="cross_entropy")
    expected = dense(network).scores(0.2)["influence"]
    torch.testing.assert_close(ekfac_records(network, damping=0.2)["influence"], expected)


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_layers_add_up_along_their_own_directions(kind):
    """Against dense blocks that are made diagonal in the eigenvectors of the dense Kronecker factors."""
    network = network_of(kind)
    model, (x,) = network.model, network.records.arguments
    expected = torch.zeros(network.n, dtype=torch.float64)
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear | nn.Conv2d):
            continue
        exact = dense(network, names=[f"{name}.weight", f"{name}.bias"])
        o = len(module.bias)
        J = torch.cat([exact.jacobian[:, :, :-o].unflatten(2, (o, -1)), exact.jacobian[:, :, -o:, None]], 3)
        a, g = kronecker_factors(model, module, x, exact)
        q, p = torch.linalg.eigh(a)[1], torch.linalg.eigh(g)[1]
        turned = p.T @ J @ q
        diagonal = torch.einsum("nmoi,nmk,nkoi->oi", turned, exact.W, turned)
        slopes = torch.einsum("nm,nmoi->noi", exact.g, turned)
        expected += (slopes.square() / (diagonal + 0.3)).sum((1, 2))
    found = ekfac_records(network, damping=0.3)
    torch.testing.assert_close(found["influence"], expected, rtol=1e-7, atol=1e-10)


def kronecker_factors(model, module, x, exact):
    """Σ a aᵀ and Σ δ W δᵀ over records and positions, from a layer's input and plain backward passes."""
    seen = []
    handle = module.register_forward_hook(lambda _m, args, out: seen.append((args[0].detach(), out)) or out.clone())
    f = model(x)
    handle.remove()
    a, z = seen[0]
    if isinstance(module, nn.Conv2d):
        if module.padding == "same":
            a, pad = nn.functional.pad(a, (0, 1, 0, 1)), 0
        else:
            pad = module.padding
        a = nn.functional.unfold(a, module.kernel_size, padding=pad, stride=module.stride).mT
    else:
        a = a.unsqueeze(1)
    a = torch.cat([a, torch.ones_like(a[..., :1])], 2).flatten(0, 1)
    rows = torch.stack([torch.autograd.grad(f[:, c].sum(), z, retain_graph=True)[0] for c in range(f.shape[1])], 1)
    rows = rows.flatten(3).mT if isinstance(module, nn.Conv2d) else rows.unsqueeze(2)  # (n, m, T, o)
    return a.T @ a, torch.einsum("nmto,nmk,nktp->op", rows, exact.W, rows)


def test_other_layers_are_left_out_with_a_note():
    network = network_of("transformer")
    (note,) = ekfac_records(network, damping=0.3).report["notes"]
    assert note == f"EKFAC: {network.size - 73} of {network.size} parameters are in other layers, and left out"
    with pytest.raises(InputError, match="parameters: expected linear or convolutional layers for EKFAC, got none"):
        ekfac_records(network_of("transformer", depth="embedding"), damping=0.3)
