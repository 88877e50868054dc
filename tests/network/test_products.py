"""Jacobian, Gauss–Newton and Hessian products against dense matrices, in every way there is."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from giveaway.checks import InputError
from giveaway.network import GaussNewton, Hessian, Jacobian, Network
from giveaway.network.jacobian import ColumnByColumn, Formed, ForwardMode, checked_rows
from giveaway.network.solves import forward_over_reverse, reverse_twice
from tests.network.cases import DEPTHS, KINDS, M, dense, made, network_of

LOSSES = ("cross_entropy", "squared", "binary_cross_entropy")


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)


def columns(size: int, count: int = 5) -> torch.Tensor:
    return torch.randn(size, count, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_gauss_newton(kind, depth, loss):
    network = network_of(kind, loss, depth)
    v, product = columns(network.size), GaussNewton(network, 0.3)
    close(product(v), dense(network, loss).damped(0.3) @ v)
    assert product.notes == []
    assert (product.jacobian.passes, product.jacobian.column_passes) == (1, 5)


@pytest.mark.parametrize("way", [Formed, ForwardMode, ColumnByColumn])
@pytest.mark.parametrize("kind", KINDS)
def test_every_way_gives_the_same(kind, way):
    layers = ["encoder.linear1", "encoder.norm1", "encoder.linear2", "embedding", "head"]
    network = network_of(kind, depth=layers if kind == "transformer" else "all")
    exact, v = dense(network), columns(network.size)
    jacobian = Jacobian(network, way)
    close(jacobian.curved(v), exact.ggn @ v)
    pushed = torch.cat([u for _, u in jacobian.push(v)], 1)
    close(pushed, torch.einsum("nmp,ps->snm", exact.jacobian, v))
    pulled = jacobian.pull(2, lambda piece: torch.stack([piece.outputs, piece.outputs**2]))
    u = torch.stack([exact.outputs, exact.outputs**2])
    close(pulled, torch.einsum("nmp,snm->ps", exact.jacobian, u))


@pytest.mark.parametrize("depth", ["head", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_hessian(kind, depth):
    network = network_of(kind, depth=depth)
    exact, v, product = dense(network, hessian=True), columns(network.size), Hessian(network, 0.3)
    assert exact.hessian is not None
    torch.testing.assert_close(product(v), exact.hessian @ v + 0.3 * v, rtol=1e-9, atol=1e-9)
    if depth == "all":
        assert float((exact.hessian - exact.ggn).abs().max()) > 1e-3  # it is no Gauss–Newton matrix
    assert product.notes == []
    assert product.way is forward_over_reverse


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


def seeded(model: Callable[[], nn.Module], **options) -> Network:
    """The records of the small dense network, and another model with random weights."""
    torch.manual_seed(0)
    return Network(model().double(), made("mlp")[1:], loss="cross_entropy", **options)


def cubed(function, **options) -> Network:
    return seeded(lambda: Cubed(function), **options)


@pytest.mark.parametrize(
    ("function", "way", "notes"),
    [
        (Cube, ColumnByColumn, ["forward mode: not possible"]),
        (WrongForward, ColumnByColumn, ["forward mode: differs from plain backward passes, so it is not used"]),
    ],
)
def test_layers_that_cannot_be_traced_fall_back_with_a_note(function, way, notes):
    network = cubed(function)
    exact = dense(network, hessian=True)
    v, product = columns(network.size), GaussNewton(network)
    assert product.jacobian.way is way
    assert len(product.notes) == len(notes)
    assert all(found.startswith(note) for found, note in zip(product.notes, notes, strict=True))
    close(product(v), exact.ggn @ v)
    assert exact.hessian is not None
    product = Hessian(network)
    torch.testing.assert_close(product(v), exact.hessian @ v, rtol=1e-9, atol=1e-9)
    assert product.way is reverse_twice
    assert product.notes[:-1] == GaussNewton(network).notes
    assert product.notes[-1].startswith("second derivatives forwards: ")


def test_the_hessian_of_layers_that_vmap_cannot_take_backwards_twice():
    def normed():
        layers = nn.Linear(4, 8), nn.Unflatten(1, (2, 2, 2)), nn.GroupNorm(2, 2), nn.Tanh(), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(8, M))

    network = seeded(normed)
    v, product, exact = columns(network.size), Hessian(network), dense(network, hessian=True).hessian
    assert exact is not None
    torch.testing.assert_close(product(v), exact @ v, rtol=1e-9, atol=1e-9)


def test_second_derivatives_that_are_wrong_are_refused():
    """As torch's of its own weight norm are, by more than half; a blank first record does not show it."""
    torch.manual_seed(0)
    _, x, y = made("mlp")
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, M)).double()
    x = torch.cat([torch.zeros_like(x[:1]), x[1:]])
    normed = Network(model, (x, y), loss="cross_entropy")
    with pytest.raises(InputError, match=r'finite, symmetric second derivatives, got others .*; use curvature="ggn"'):
        Hessian(normed)
    exact, v = dense(normed), columns(normed.size)
    close(GaussNewton(normed)(v), exact.ggn @ v)


def test_padding_that_the_first_records_lack_is_noticed():
    """Forward mode moves the row of an embedding that stands for padding; backward passes leave it alone."""
    torch.manual_seed(0)
    words = torch.randint(1, 9, (30, 5))
    words[3:, 2:] = 0
    model = nn.Sequential(nn.Embedding(9, 4, padding_idx=0), nn.Tanh(), nn.Flatten(), nn.Linear(20, M)).double()
    product = GaussNewton(Network(model, (words, torch.arange(30) % M), loss="cross_entropy"))
    assert product.notes == ["forward mode: differs from plain backward passes, so it is not used"]


def test_fewer_records_are_checked_where_memory_is_short():
    wide = network_of("mlp")
    assert checked_rows(wide).tolist() == [0, 2, 5, 7, 10, 12, 15, 17]
    assert checked_rows(network_of("mlp", memory=1_000)).tolist() == [0, 8, 17]


def test_a_network_that_is_very_sure_of_its_first_record_is_not_refused():
    """The second derivatives of that record's loss are rounding, and not symmetric."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, M)), torch.randn(30, 4)
    with torch.no_grad():
        model[2].weight *= 20
    order = model(x).sort(1).values.diff(dim=1)[:, -1].argsort(descending=True)
    x, y = x[order], model(x[order]).argmax(1)
    network = Network(model.eval(), (x, nn.functional.one_hot(y, M).float()), loss="cross_entropy")
    with network.evaluating():
        one = reverse_twice(network, network.records.take(slice(0, 1)))(torch.eye(network.size))
    assert (one - one.T).norm() > 0.01 * one.norm()
    assert Hessian(network).notes == []


def test_second_derivatives_that_are_not_finite_and_memory_that_is_short_are_said_as_they_are():
    class Distance(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[:, None] - self.weight).norm(dim=2)

    x = torch.randn(9, 4, dtype=torch.float64)
    model = nn.Sequential(Distance(4, M, bias=False, dtype=torch.float64), nn.Linear(M, M, dtype=torch.float64))
    with torch.no_grad():
        model[0].weight[0] = x[0]
    with pytest.raises(InputError, match=r'finite, symmetric second derivatives, got others .*; use curvature="ggn"'):
        Hessian(Network(model, (x, torch.arange(9) % M), loss="cross_entropy"))

    class Short(nn.Linear):
        left = 1_000

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Short.left -= 1
            if Short.left < 0:
                raise MemoryError
            return super().forward(x)

    network = Network(Short(4, M, dtype=torch.float64), (x, torch.arange(9) % M), loss="cross_entropy")
    jacobian = Jacobian(network)
    Short.left = 0
    with pytest.raises(MemoryError):
        Hessian(network, jacobian=jacobian)


def test_a_layer_that_runs_twice_and_a_shared_weight():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, M)
            self.other.weight = self.step.weight

        def forward(self, x):
            return self.head(torch.tanh(self.other(torch.tanh(self.step(torch.tanh(self.step(x)))))))

    network = seeded(Twice)
    assert list(network.parameters.values) == ["step.weight", "step.bias", "head.weight", "head.bias"]
    v, product = columns(network.size), GaussNewton(network)
    exact = dense(network)
    close(product(v), exact.ggn @ v)
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

    with pytest.raises(InputError, match=r"differentiated forwards, or twice backwards.*parameters='head'"):
        GaussNewton(cubed(Once))
    head = cubed(Once, parameters="head")
    exact = dense(head)
    v = columns(head.size)
    close(GaussNewton(head)(v), exact.ggn @ v)


def test_what_the_damping_may_be():
    network = network_of("mlp", depth="head")
    with pytest.raises(InputError, match="damping: expected a finite number of at least 0, got -1"):
        GaussNewton(network, -1)
