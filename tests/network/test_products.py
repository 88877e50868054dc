"""Jacobian, Gauss–Newton and Hessian products against dense matrices, in every way there is."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from giveaway.checks import InputError
from giveaway.network import GaussNewton, Hessian, Jacobian, Network
from giveaway.network.jacobian import ColumnByColumn, DoubleBackward, ForwardMode
from giveaway.network.layers import ByLayers
from tests.network.cases import DEPTHS, KINDS, M, dense, made, targets_for

LOSSES = ("cross_entropy", "squared", "binary_cross_entropy")


def columns(size: int, count: int = 5) -> torch.Tensor:
    return torch.randn(size, count, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def network_of(kind: str, loss: str, depth, **options) -> tuple[Network, tuple]:
    model, x, y = made(kind)
    y = targets_for(loss, y)
    network = Network(model, (x, y), loss=loss, parameters=depth, **options)
    return network, (model, x, y, loss, list(network.parameters.values))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_gauss_newton(kind, depth, loss):
    network, case = network_of(kind, loss, depth)
    v, product = columns(network.size), GaussNewton(network, 0.3)
    expected = dense(*case).ggn @ v + 0.3 * v
    torch.testing.assert_close(product(v), expected, rtol=1e-10, atol=1e-11)
    assert product.notes == []
    assert (product.jacobian.passes, product.jacobian.column_passes) == (1, 5)


@pytest.mark.parametrize("way", [ByLayers, ForwardMode, DoubleBackward, ColumnByColumn])
@pytest.mark.parametrize("kind", KINDS)
def test_every_way_gives_the_same(kind, way):
    layers = ["encoder.linear1", "encoder.norm1", "encoder.linear2", "embedding", "head"]
    network, case = network_of(kind, "cross_entropy", layers if kind == "transformer" else "all")
    exact, v = dense(*case), columns(network.size)
    jacobian = Jacobian(network, way)
    torch.testing.assert_close(jacobian.curved(v), exact.ggn @ v, rtol=1e-10, atol=1e-11)
    pushed = torch.cat([u for _, u in jacobian.push(v)], 1)
    torch.testing.assert_close(pushed, torch.einsum("nmp,ps->snm", exact.jacobian, v), rtol=1e-10, atol=1e-11)
    pulled = jacobian.pull(2, lambda piece: torch.stack([piece.outputs, piece.outputs**2]))
    u = torch.stack([exact.outputs, exact.outputs**2])
    torch.testing.assert_close(pulled, torch.einsum("nmp,snm->ps", exact.jacobian, u), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("depth", ["head", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_hessian(kind, depth):
    network, case = network_of(kind, "cross_entropy", depth)
    exact, v, product = dense(*case, hessian=True), columns(network.size), Hessian(network, 0.3)
    assert exact.hessian is not None
    torch.testing.assert_close(product(v), exact.hessian @ v + 0.3 * v, rtol=1e-9, atol=1e-9)
    if depth == "all":
        assert float((exact.hessian - exact.ggn).abs().max()) > 1e-3  # it is no Gauss–Newton matrix
    assert product.notes == []


def test_a_loss_of_the_user_s():
    def huber(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.logaddexp(f - y, y - f).sum(1)

    model, x, y = made("mlp")
    y = targets_for("squared", y)
    network = Network(model, (x, y), loss=huber)
    names, v = list(network.parameters.values), columns(network.size)
    exact = dense(model, x, y, "squared", names)
    W = torch.diag_embed(1 - torch.tanh(exact.outputs - y) ** 2)
    expected = sum(J.T @ (w @ (J @ v)) for J, w in zip(exact.jacobian, W, strict=True))
    torch.testing.assert_close(GaussNewton(network)(v), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_neither_batches_nor_their_order_change_a_product(kind):
    model, x, y = made(kind)
    whole = Network(model, (x, y), loss="cross_entropy")
    v = columns(whole.size, 7)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    small = Network(
        model, (x[order], y[order]), loss="cross_entropy", memory=80 * whole.work.activations
    )  # five records
    assert (small.work.rows(1), small.work.columns(7)) == (5, 1)
    assert (whole.work.rows(7), whole.work.columns(7)) == (18, 7)
    for curvature in (GaussNewton, Hessian):
        torch.testing.assert_close(curvature(small, 0.1)(v), curvature(whole, 0.1)(v), rtol=1e-10, atol=1e-12)


class Cube(torch.autograd.Function):
    """Written the old way: neither vmap nor forward mode can trace it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class WrongForward(torch.autograd.Function):
    """Its forward-mode rule has a sign error; its backward rule is right."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def jvp(ctx, tangent):
        (x,) = ctx.saved_tensors
        return -3 * x**2 * tangent


class Cubed(nn.Module):
    """The parameter of the root keeps this from being taken layer by layer."""

    def __init__(self, function) -> None:
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.tensor(0.7)), nn.Linear(4, 5)
        self.head, self.function = nn.Linear(5, M), function

    def forward(self, x):
        return self.head(self.function.apply(self.scale * torch.tanh(self.linear(x))))


@pytest.mark.parametrize(
    ("function", "way", "notes"),
    [
        (Cube, ColumnByColumn, ["forward mode: not possible", "double backward: not possible"]),
        (WrongForward, DoubleBackward, ["forward mode: differs from plain backward passes, so it is not used"]),
    ],
)
def test_layers_that_cannot_be_traced_fall_back_with_a_note(function, way, notes):
    _, x, y = made("mlp")
    torch.manual_seed(0)
    model = Cubed(function).double()
    network = Network(model, (x, y), loss="cross_entropy")
    exact = dense(model, x, y, "cross_entropy", list(network.parameters.values), hessian=True)
    v, product = columns(network.size), GaussNewton(network)
    assert product.jacobian.way is way
    assert len(product.notes) == len(notes)
    assert all(found.startswith(note) for found, note in zip(product.notes, notes, strict=True))
    torch.testing.assert_close(product(v), exact.ggn @ v, rtol=1e-10, atol=1e-11)
    hessian = Hessian(network)
    assert exact.hessian is not None
    assert any("forward over reverse" in note for note in hessian.notes)
    torch.testing.assert_close(hessian(v), exact.hessian @ v, rtol=1e-9, atol=1e-9)


class Borrowed(nn.Module):
    """A weight that is used outside of its own layer too, which no hook on the layer sees."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(4, 4), nn.Linear(4, M)

    def forward(self, x):
        return self.head(torch.tanh(nn.functional.linear(torch.tanh(self.linear(x)), self.linear.weight)))


def test_a_weight_that_is_used_behind_its_layer_s_back():
    _, x, y = made("mlp")
    torch.manual_seed(0)
    model = Borrowed().double()
    network = Network(model, (x, y), loss="cross_entropy")
    v, product = columns(network.size), GaussNewton(network)
    assert product.notes == ["layer by layer: differs from plain backward passes, so it is not used"]
    exact = dense(model, x, y, "cross_entropy", list(network.parameters.values))
    torch.testing.assert_close(product(v), exact.ggn @ v, rtol=1e-10, atol=1e-11)


def test_a_layer_that_runs_twice_and_a_shared_weight():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, M)
            self.other.weight = self.step.weight

        def forward(self, x):
            return self.head(torch.tanh(self.other(torch.tanh(self.step(torch.tanh(self.step(x)))))))

    _, x, y = made("mlp")
    torch.manual_seed(0)
    model = Twice().double()
    network = Network(model, (x, y), loss="cross_entropy")
    assert list(network.parameters.values) == ["step.weight", "step.bias", "head.weight", "head.bias"]
    v, product = columns(network.size), GaussNewton(network)
    exact = dense(model, x, y, "cross_entropy", list(network.parameters.values))
    torch.testing.assert_close(product(v), exact.ggn @ v, rtol=1e-10, atol=1e-11)
    assert product.notes == []


def test_a_layer_without_second_derivatives_is_refused_where_it_matters():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.tanh(x)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return (1 - torch.tanh(x) ** 2) * g

    _, x, y = made("mlp")
    torch.manual_seed(0)
    model = Cubed(Once).double()
    with pytest.raises(InputError, match=r"differentiated forwards, or twice backwards.*parameters='head'"):
        GaussNewton(Network(model, (x, y), loss="cross_entropy"))
    head = Network(model, (x, y), loss="cross_entropy", parameters="head")
    exact = dense(model, x, y, "cross_entropy", list(head.parameters.values))
    v = columns(head.size)
    torch.testing.assert_close(GaussNewton(head)(v), exact.ggn @ v, rtol=1e-10, atol=1e-11)


def test_what_the_damping_may_be():
    network, _ = network_of("mlp", "cross_entropy", "head")
    with pytest.raises(InputError, match="damping: expected a finite number of at least 0, got -1"):
        GaussNewton(network, -1)
