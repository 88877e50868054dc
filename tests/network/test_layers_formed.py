"""Layers' Jacobians multiplied out: against dense Jacobians by plain autograd, and against the way without them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from giveaway.network import GaussNewton, InverseCurvature, Jacobian, Network, sketch_records
from giveaway.network import layers as module
from giveaway.network.layers import MOVED, ByLayers, FormedJacobian, FormingPlan, LayerCost, multiplied_out
from tests.network.cases import M, dense, network_of
from tests.network.test_products import close

N = 9


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


class Tokens(nn.Module):
    """Linear layers and a norm over tokens, with a mean at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 5, bias=False)
        self.head = nn.Linear(5, M)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.norm(self.first(x))))).mean((1, 2)))


def after(*layers: nn.Module, channels: int) -> nn.Module:
    """These layers, then a mean over the positions of each channel, and a head."""
    return nn.Sequential(
        *layers, nn.Tanh(), nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, M)
    )


IMAGE, LINE = (2, 6, 7), (2, 11)
CASES = {
    "stride": (lambda: after(nn.Conv2d(2, 4, 3, stride=(2, 1), padding=1), channels=4), IMAGE),
    "dilation": (lambda: after(nn.Conv2d(2, 4, (2, 3), dilation=(3, 2), padding=(0, 2)), channels=4), IMAGE),
    "same": (lambda: after(nn.Conv2d(2, 4, (2, 3), padding="same", dilation=(1, 2)), channels=4), IMAGE),
    "valid": (lambda: after(nn.Conv2d(2, 4, 3, padding="valid", bias=False), channels=4), IMAGE),
    "last": (lambda: after(nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last), channels=4), IMAGE),
    "line": (lambda: after(nn.Conv1d(2, 4, 4, stride=2, padding=3, dilation=2), channels=4), LINE),
    "same line": (lambda: after(nn.Conv1d(2, 4, 4, padding="same", bias=False), channels=4), LINE),
    "solid": (lambda: after(nn.Conv3d(2, 3, 2, padding=(1, 0, 1), stride=(1, 2, 1)), channels=3), (2, 3, 4, 3)),
    "groups": (lambda: after(nn.Conv2d(2, 4, 3, groups=2), channels=4), IMAGE),
    "circular": (lambda: after(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), channels=4), IMAGE),
    "batch norm": (
        lambda: after(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 2), channels=3),
        IMAGE,
    ),
    "group norm": (lambda: after(nn.Conv2d(2, 4, 3, bias=False), nn.GroupNorm(2, 4), channels=4), IMAGE),
    "tokens": (Tokens, (2, 7, 3)),
}


def case_of(name: str, **options) -> Network:
    build, shape = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model, x, y = build().double(), torch.randn(N, *shape).double(), torch.randint(0, M, (N,))
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                nn.init.uniform_(layer.running_mean, -1, 1)
                nn.init.uniform_(layer.running_var, 0.5, 2)
            if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
                nn.init.uniform_(layer.weight, 0.5, 2)
    return Network(model.eval(), (x, y), loss="cross_entropy", **options)


@pytest.mark.parametrize("name", CASES)
def test_the_matrices_are_the_jacobian_and_their_products_those_without_them(name):
    network = case_of(name)
    exact = dense(network)
    v, u = random(network.size, 40), random(40, N, M)
    with network.evaluating():
        plain = ByLayers(network, network.records.take(slice(0, N)))
        matrices = {tap.of_model(own): matrix for tap in plain.taps for own, matrix in multiplied_out(tap).items()}
        for parameter, place in network.parameters.places.items():
            expected = exact.jacobian[:, :, place].flatten(0, 1)
            torch.testing.assert_close(matrices[parameter], expected, rtol=1e-10, atol=1e-12)
        layers = [tap.name for tap in plain.taps]
        tangents = network.parameters.split(v.T)
        for names in ([], layers[:1], layers[1:], layers):
            mixed = FormedJacobian(plain, names)
            close(mixed.forward(tangents), plain.forward(tangents))
            back, expected = (network.parameters.join(way.backward(u)) for way in (mixed, plain))
            close(back, expected)
    product = GaussNewton(network, 0.3)
    assert product.jacobian.plan is not None
    assert product.jacobian.plan.able
    close(product(v), exact.damped(0.3) @ v)
    pushed = torch.cat([part for _, part in product.jacobian.push(v)], 1)
    close(pushed, torch.einsum("nmp,ps->snm", exact.jacobian, v))
    pulled = product.jacobian.pull(40, lambda piece: u[:, piece.rows])
    close(pulled, torch.einsum("nmp,snm->ps", exact.jacobian, u))


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("stride", ["0.bias"]),
        ("stride", ["0.weight"]),
        ("batch norm", ["0.weight", "1.bias"]),
        ("tokens", ["first.bias", "norm.weight"]),
    ],
)
def test_a_part_of_a_layer_s_parameters(name, some):
    network = case_of(name, parameters=some)
    exact = dense(network)
    v, product = random(network.size, 40), GaussNewton(network)
    assert product.jacobian.plan is not None
    close(product(v), exact.ggn @ v)


def test_a_matrix_is_formed_once_a_batch_and_where_it_pays(monkeypatch):
    formed = []

    def counted(tap):
        formed.append(tap.name)
        return multiplied_out(tap)

    monkeypatch.setattr(module, "multiplied_out", counted)
    whole = network_of("cnn")
    exact = dense(whole)
    for memory, batches in ((None, 1), (150 * whole.work.activations * 8, 2)):
        product = GaussNewton(network_of("cnn", memory=memory))
        plan = product.jacobian.plan
        assert plan is not None
        assert plan.names(80) == plan.able == {"0", "1", "3", "4"}  # the head has one position
        assert plan.names(2) < plan.able
        for columns in (M + 1, 40):
            formed.clear()
            v = random(whole.size, columns)
            close(product(v), exact.ggn @ v)
            assert sorted(formed) == sorted(batches * list(plan.names(2 * columns)))


def test_memory_decides_which_layers_are_formed():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = after(nn.Conv2d(2, 6, 3), nn.Tanh(), nn.Conv2d(6, 24, 3), channels=24).double()
    x, y = random(20, *IMAGE), torch.arange(20) % M
    whole = Network(model, (x, y), loss="cross_entropy")
    v = random(whole.size, 40)
    expected = dense(whole).ggn @ v
    every = {}
    for memory in (100_000_000, 1_500_000, 700_000, 400_000, 50_000):
        network = Network(model, (x, y), loss="cross_entropy", memory=memory)
        jacobian = Jacobian(network)
        plan = jacobian.plan
        every[memory] = set() if plan is None else set(plan.able)
        if plan is not None:
            assert 8 <= jacobian.rows <= memory // (2 * 8 * plan.numbers)
        close(jacobian.curved(v), expected)
    # the second convolution has more parameters and fewer positions
    assert list(every.values()) == [{"0", "2"}, {"0", "2"}, {"0"}, {"0"}, set()]


def test_operations_are_counted():
    """By hand, for a convolution 2 → 4 of 3 × 3 over 5 × 5 positions, three outputs and ten columns."""
    cost = LayerCost(parameters=72, outputs=100, through=72 * 25)
    multiplied = 10 * (72 * 25 + 3 * 100) - (3 * 72 * 25 + 10 * 3 * 72)
    assert cost.saved(3, 10, moved=0) == multiplied
    assert cost.saved(3, 10, moved=2) == multiplied - 2 * 3 * 72
    model = nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.Flatten(), nn.Linear(100, M)).double()
    network = Network(model, (random(N, 2, 7, 7), torch.arange(N) % M), loss="cross_entropy", parameters="0")
    with network.evaluating():
        (tap,) = ByLayers(network, network.records.take(slice(0, N))).taps
    assert LayerCost.of(tap) == cost


@pytest.mark.parametrize(
    ("width", "side", "columns", "pays"),
    [(512, 4, 32, False), (512, 4, 16, False), (256, 8, 16, False), (128, 16, 16, True), (64, 32, 16, True)],
)
def test_late_layers_of_a_large_network_are_left_alone_on_a_gpu(width, side, columns, pays):
    """Convolutions of a ResNet-18, ten outputs. The matrix of a last one saves a fifth of the multiplications of 32
    columns, and took 3.6 s where 1.3 were enough (H200, 40,000 records)."""
    parameters, positions = 9 * width * width, side * side
    cost = LayerCost(parameters, width * positions, parameters * positions)
    assert (cost.saved(10, 2 * columns, 3 * MOVED["cuda"]) > 0) == pays
    assert cost.saved(10, 64, moved=0) > 0


def test_a_matrix_that_is_read_for_a_few_columns_at_a_time_pays_less():
    """Where memory holds few columns of all parameters, every part of them reads the matrix again."""
    parameters, positions = 9 * 256 * 256, 64
    plan = FormingPlan(
        10, {"conv": LayerCost(parameters, 256 * positions, parameters * positions)}, frozenset({"conv"}), 64
    )
    assert plan.names(64, 1 + 2) == {"conv"}
    assert plan.names(64, 1 + 2 * 5) == set()


@pytest.mark.parametrize("fault", ["wrong", "impossible"])
def test_a_layer_whose_matrix_cannot_be_had_goes_without(monkeypatch, fault):
    network = case_of("batch norm")
    exact, v = dense(network), random(network.size, 40)

    def faulty(tap):
        if tap.name == "1" and fault == "impossible":
            raise RuntimeError
        return {name: 1.01 * value if tap.name == "1" else value for name, value in multiplied_out(tap).items()}

    monkeypatch.setattr(module, "multiplied_out", faulty)
    product = GaussNewton(network)
    assert product.jacobian.plan is not None
    assert product.jacobian.plan.able == {"0", "3"}
    close(product(v), exact.ggn @ v)


def test_slopes_that_vmap_gets_wrong():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = after(nn.Conv2d(2, 4, 3), nn.PReLU(4), channels=4).double()
    network = Network(model, (random(N, *IMAGE), torch.arange(N) % M), loss="cross_entropy")
    v = random(network.size, 40)
    close(GaussNewton(network)(v), dense(network).ggn @ v)


def test_sketch_and_preconditioner_go_the_same_way(monkeypatch):
    found = []
    for forming in (True, False):
        network = network_of("cnn")
        if not forming:
            monkeypatch.setitem(MOVED, "cpu", 10**9)
        inverse = InverseCurvature(network, damping=1.0, tolerance=1e-11, most_steps=500)
        assert (inverse.jacobian.plan is not None) == forming
        found.append(sketch_records(inverse, probes=16, scores="influence", most_redone=0)["influence"])
    torch.testing.assert_close(found[0], found[1], rtol=1e-8, atol=0)
