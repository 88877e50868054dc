"""The Jacobian formed: against dense ones by plain autograd, where it pays, and against passes through the model."""

import pytest
import torch
from torch import nn

from giveaway.network import GaussNewton, InverseCurvature, Jacobian, Network, sketch_records
from giveaway.network import jacobian as module
from giveaway.network.jacobian import COLUMN, Formed, forming_pays, of_each_record
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


IMAGE = (2, 6, 7)
CASES = {
    "same": (lambda: after(nn.Conv2d(2, 4, (2, 3), padding="same", dilation=(1, 2)), channels=4), IMAGE),
    "line": (lambda: after(nn.Conv1d(2, 4, 4, stride=2, padding=3, dilation=2), channels=4), (2, 11)),
    "groups": (lambda: after(nn.Conv2d(2, 4, 3, groups=2), channels=4), IMAGE),
    "batch norm": (
        lambda: after(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 2), channels=3),
        IMAGE,
    ),
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
def test_j_itself_is_the_dense_jacobian(name):
    network = case_of(name)
    exact, v, u = dense(network), random(network.size, 40), random(40, N, M)
    jacobian = Jacobian(network, Formed)
    close(jacobian.curved(v), exact.ggn @ v)
    close(torch.cat([part for _, part in jacobian.push(v)], 1), torch.einsum("nmp,ps->snm", exact.jacobian, v))
    close(jacobian.pull(40, lambda piece: u[:, piece.rows]), torch.einsum("nmp,snm->ps", exact.jacobian, u))


@pytest.mark.parametrize("some", [["0.bias"], ["0.weight", "1.bias"]])
def test_a_part_of_a_layer_s_parameters(some):
    network = case_of("batch norm", parameters=some)
    v, product = random(network.size, 40), GaussNewton(network)
    assert product.jacobian.formed is not None
    close(product(v), dense(network).ggn @ v)


def test_it_is_formed_where_it_takes_fewer_operations_than_the_model():
    """By hand: a convolution 2 → 4 of 3 × 3 over 5 × 5 positions, and a head of its 100 numbers."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.Flatten(), nn.Linear(100, M, bias=False)).double()
    operations = COLUMN * 2 * (72 * 25 + 100 * M)
    for parameters, size in (("0", 72), ("2", 100 * M), ("all", 72 + 100 * M)):
        network = Network(model, (random(N, 2, 7, 7), torch.arange(N) % M), loss="cross_entropy", parameters=parameters)
        assert forming_pays(network) == (2 * M * size <= operations)
    assert {forming_pays(network_of("cnn")), forming_pays(network_of("mlp"))} == {True, False}


def test_it_is_formed_for_many_columns_or_held_where_it_fits(monkeypatch):
    made = []

    def counted(network, batch, *, jacobians):
        made.append(batch.rows)
        return of_each_record(network, batch, jacobians=jacobians)

    monkeypatch.setattr(module, "of_each_record", counted)
    whole = network_of("cnn")
    exact, numbers = dense(whole), whole.n * whole.m * whole.size * 8
    for memory, holds in ((4 * numbers, True), (4 * numbers - 1, False)):
        jacobian = Jacobian(network_of("cnn", memory=memory))
        made.clear()
        for columns in (M, M + 1, 40):
            close(jacobian.curved(v := random(whole.size, columns)), exact.ggn @ v)
        assert sum(made) == (1 if holds else 2) * whole.n
    few = Jacobian(network_of("cnn", memory=20_000))  # less than eight records of it
    assert few.formed is None
    close(few.curved(v), exact.ggn @ v)


@pytest.mark.parametrize("fault", ["wrong", "impossible"])
def test_where_it_cannot_be_had_the_model_is_gone_through(monkeypatch, fault):
    network = case_of("batch norm")
    exact, v = dense(network), random(network.size, 40)

    def faulty(network, batch, *, jacobians):
        if fault == "impossible":
            raise RuntimeError
        return 1.01 * of_each_record(network, batch, jacobians=jacobians)

    monkeypatch.setattr(module, "of_each_record", faulty)
    product = GaussNewton(network)
    assert product.jacobian.formed is None
    told = {"wrong": ["formed: differs from plain backward passes, so it is not used"], "impossible": []}
    assert product.notes == told[fault]
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
        if not forming:
            monkeypatch.setattr(module, "forming_pays", lambda network: False)
        inverse = InverseCurvature(network_of("cnn"), damping=1.0, tolerance=1e-11, most_steps=500)
        assert (inverse.jacobian.formed is not None) == forming
        found.append(sketch_records(inverse, probes=16, scores="influence", most_redone=0)["influence"])
    torch.testing.assert_close(found[0], found[1], rtol=1e-8, atol=0)
