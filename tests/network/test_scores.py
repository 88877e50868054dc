"""Scores of chosen records: dense inverses, the head's closed form, and networks trained again with another label."""

import numpy as np
import pytest
import torch
from torch import nn

import giveaway as ga
from giveaway.checks import InputError
from giveaway.network import InverseCurvature, Network, score_records
from giveaway.scores.catalogue import CATALOGUE, OF_BATCH
from tests.network.cases import DEPTHS, KINDS, M, dense, made, network_of, targets_for

TIGHT = {"tolerance": 1e-9, "most_steps": 3000, "preconditioner": "none"}


@pytest.mark.parametrize("loss", ["cross_entropy", "squared", "binary_cross_entropy"])
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_record_against_dense_solves(kind, depth, loss):
    network = network_of(kind, loss, depth=depth)
    damping = 1.0 if depth == "all" else 0.1
    expected = dense(network, loss).scores(damping)
    inverse = InverseCurvature(network, damping=damping, **TIGHT)
    found = score_records(inverse)
    assert set(found.columns) == set(expected)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-6, atol=1e-10, msg=lambda text, name=name: name + text)
    assert float(expected["gls_trace"].max()) > 0.3  # the most influential ones are among them
    before = inverse.right_sides
    alone = score_records(inverse, scores="influence")
    torch.testing.assert_close(alone["influence"], expected["influence"], rtol=1e-6, atol=1e-10)
    assert alone.report["right_sides"] - before == network.n


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_head_alone_equals_its_closed_form(kind, loss):
    model, x, y = made(kind)
    y = targets_for(loss, y)
    seen = []
    head = model.head if kind == "transformer" else model[-1]
    handle = head.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    outputs = model(x).detach()
    handle.remove()
    network = Network(model, (x, y), loss=loss, parameters="head")
    found = score_records(InverseCurvature(network, damping=0.05, **TIGHT))
    linear = ga.Head(seen[0].numpy(), outputs.numpy(), y.numpy(), loss=loss, l2=0.05)
    table = ga.audit(linear, scores=list(found.columns))
    for name, values in found.columns.items():
        np.testing.assert_allclose(values.numpy(), table[name], rtol=1e-6, atol=1e-12, err_msg=name)
    assert set(found.columns) == {name for name in OF_BATCH if loss != "squared" or not CATALOGUE[name].classes}


def test_chosen_rows_come_in_the_order_asked():
    inverse = InverseCurvature(network_of("mlp"), damping=0.1, **TIGHT)
    everything, some = score_records(inverse), score_records(inverse, [7, 0, 12], scores=["newton", "gls_spectral"])
    assert list(some.columns) == ["newton", "gls_spectral"]
    torch.testing.assert_close(some["newton"], everything["newton"][[7, 0, 12]], rtol=1e-8, atol=0)
    assert some.rows.tolist() == [7, 0, 12]
    with pytest.raises(InputError, match="scores: expected a known name, got 'newten'; did you mean newton"):
        score_records(inverse, scores=["newten"])


def minimum(model: nn.Module, x: torch.Tensor, y: torch.Tensor, loss: str, l2: float) -> None:
    """Train to the minimum of the summed loss + l2/2·‖θ‖², by Newton steps with the whole Hessian."""
    names = [name for name, _ in model.named_parameters()]

    def objective(flat: torch.Tensor) -> torch.Tensor:
        values, start = {}, 0
        for name, value in model.named_parameters():
            values[name] = flat[start : start + value.numel()].view(value.shape)
            start += value.numel()
        f = torch.func.functional_call(model, values, (x,))
        fit = ((f - y) ** 2).sum() if loss == "squared" else -(y * torch.log_softmax(f, 1)).sum()
        return fit + l2 / 2 * flat.square().sum()

    flat = torch.cat([dict(model.named_parameters())[name].detach().flatten() for name in names])
    for _ in range(200):
        g = torch.func.grad(objective)(flat)
        if float(g.norm()) < 1e-11:
            break
        H = torch.autograd.functional.hessian(objective, flat)
        values, vectors = torch.linalg.eigh(H)
        step = vectors @ ((vectors.T @ g) / values.abs().clamp_min(1e-3))
        length = 1.0
        while float(objective(flat - length * step)) > float(objective(flat)) + 1e-13 and length > 1e-8:
            length /= 2
        flat = flat - length * step
    else:
        raise RuntimeError("no minimum found")
    nn.utils.vector_to_parameters(flat, model.parameters())


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_generalized_leverage_is_what_training_again_with_another_label_does(loss):
    torch.manual_seed(4)
    x, l2 = torch.randn(20, 2, dtype=torch.float64), 0.5
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, M)).double()
    y = torch.randn(20, M, dtype=torch.float64)
    y = torch.softmax(2 * y, 1) if loss == "cross_entropy" else y + 2 * torch.tanh(x[:, :1])
    minimum(model, x, y, loss, l2)
    network = Network(model, (x, y), loss=loss)
    inverse = InverseCurvature(network, damping=l2, curvature="hessian", **TIGHT)
    found = score_records(inverse)
    rows = [*found["gls_trace_logit"].argsort(descending=True)[:2].tolist(), 5]  # the most influential decile, and one
    start, step = [value.detach().clone() for value in model.parameters()], 1e-4
    off = torch.eye(M, dtype=torch.float64) - (1.0 / M if loss == "cross_entropy" else 0.0)
    for i in rows:
        moved = torch.zeros(M, M, dtype=torch.float64)
        for c in range(M):
            ends = []
            for sign in (1, -1):
                nn.utils.vector_to_parameters(torch.cat([value.flatten() for value in start]), model.parameters())
                other = y.clone()
                other[i] += sign * step * off[c]
                minimum(model, x, other, loss, l2)
                ends.append(off @ model(x[i : i + 1])[0].detach())
            moved[:, c] = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close(found["gls_trace_logit"][i], torch.trace(moved), rtol=2e-5, atol=1e-8)
        torch.testing.assert_close(found["gls_frobenius_logit"][i], moved.norm(), rtol=2e-5, atol=1e-8)
        torch.testing.assert_close(found["gls_spectral_logit"][i], torch.linalg.svdvals(moved)[0], rtol=2e-5, atol=1e-8)
        if loss == "cross_entropy":
            p = torch.softmax(network.outputs(torch.tensor([i])), 1)[0]
            W = torch.diag(p) - p.outer(p)
            torch.testing.assert_close(found["gls_trace"][i], torch.trace(W @ moved), rtol=2e-5, atol=1e-8)
