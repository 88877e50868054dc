"""Solves against dense inverses, their preconditioners, and what they say when they do not end."""

import pytest
import torch
from torch import nn

from giveaway.checks import InputError
from giveaway.linalg.cg import SolveError
from giveaway.network import InverseCurvature, Jacobian, Network, score_records
from giveaway.network.solves import VECTORS, Steepest, rank_for
from tests.network.cases import KINDS, dense, network_of


def right_sides(size: int, count: int = 4) -> torch.Tensor:
    return torch.randn(size, count, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("preconditioner", ["none", "nystrom"])
@pytest.mark.parametrize("kind", KINDS)
def test_against_a_dense_inverse(kind, preconditioner):
    network = network_of(kind)
    H, b = dense(network).damped(0.2), right_sides(network.size)
    inverse = InverseCurvature(network, damping=0.2, preconditioner=preconditioner, tolerance=1e-11, most_steps=2000)
    solution = inverse(b)
    torch.testing.assert_close(solution.x, torch.linalg.solve(H, b), rtol=1e-7, atol=1e-9)
    true = (b - H @ solution.x).norm(dim=0) / b.norm(dim=0)
    torch.testing.assert_close(solution.residual, true, rtol=0.1, atol=1e-13)
    report = inverse.report
    assert (report["unsolved"], report["right_sides"]) == (0, 4)
    assert report["worst_residual"] <= 1e-11
    assert report["passes"] >= report["most_steps_taken"]


def test_right_sides_are_taken_in_blocks_that_fit():
    whole = network_of("mlp")
    small = network_of("mlp", memory=2 * VECTORS * 8 * whole.size)
    b = right_sides(whole.size, 5)
    options = {"damping": 0.2, "tolerance": 1e-11}
    few, many = InverseCurvature(small, **options), InverseCurvature(whole, **options)
    assert (few.columns, many.columns) == (2, many.columns)
    one, other = few(b), many(b)
    torch.testing.assert_close(one.x, other.x, rtol=1e-7, atol=1e-9)
    assert len(one.status) == len(one.residual) == 5


def test_the_steepest_directions():
    network = network_of("mlp")
    exact = dense(network).ggn
    # 18 records of rank 2: half of the parameters hold all of the curvature
    found = Steepest(Jacobian(network), rank=1000)
    assert len(found.curvature) == 36
    identity = torch.eye(36, dtype=torch.float64)
    torch.testing.assert_close(found.directions @ found.directions.T, identity, rtol=0, atol=1e-6)
    rebuilt = found.directions.T @ (found.curvature.unsqueeze(1) * found.directions)
    torch.testing.assert_close(rebuilt, exact, rtol=1e-6, atol=1e-6)
    b = right_sides(network.size)
    inverse = InverseCurvature(network, damping=0.1, tolerance=1e-6)
    plain = InverseCurvature(network, damping=0.1, tolerance=1e-6, preconditioner="none")
    assert inverse(b).steps <= 3 < plain(b).steps


@pytest.mark.slow
def test_many_parameters_leave_the_steepest_directions_sharp():
    """What guards against rounding is added along every parameter: too much of it drowns the curvature."""
    torch.manual_seed(0)
    x = torch.randn(24, 600) * 10.0 ** torch.linspace(0, -2, 24).unsqueeze(1)
    model = nn.Sequential(nn.Linear(600, 800), nn.Tanh(), nn.Linear(800, 3))  # half a million
    y = torch.randint(0, 3, (24,))
    network = Network(model, (x, y), loss="cross_entropy")
    found = Steepest(Jacobian(network), rank=40)
    double = Steepest(Jacobian(Network(model.double(), (x.double(), y), loss="cross_entropy")), rank=40)
    assert len(found.curvature) == len(double.curvature) == 40
    assert double.curvature[-1] > 1_000 * double.curvature[0]
    torch.testing.assert_close(found.curvature.double(), double.curvature, rtol=0.25, atol=0)
    torch.testing.assert_close(found.curvature[10:].double(), double.curvature[10:], rtol=0.05, atol=0)
    identity = torch.eye(40, dtype=torch.float64)
    torch.testing.assert_close((found.directions @ found.directions.T).double(), identity, rtol=0, atol=1e-3)


def test_directions_are_worth_more_to_more_right_sides():
    assert [rank_for(count) for count in (1, 32, 33, 64, 128, 10**6)] == [128, 128, 132, 256, 512, 512]


def untrained() -> Network:
    """Random labels and random weights: no minimum."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x = torch.randn(18, 4, dtype=torch.float64)
    return Network(model, (x, torch.randint(0, 3, (18,))), loss="cross_entropy")


def test_negative_curvature_is_found_and_the_remedies_work():
    network = untrained()
    b = right_sides(network.size)
    inverse = InverseCurvature(network, damping=1e-3, curvature="hessian", preconditioner="none")
    with pytest.raises(SolveError, match=r"nowhere negative.*use the Gauss-Newton curvature, more damping"):
        inverse(b)
    allowed = InverseCurvature(
        network, damping=1e-3, curvature="hessian", preconditioner="none", allow_unconverged=True
    )
    solution = allowed(b)
    assert "negative curvature" in solution.status
    assert allowed.report["unsolved"] > 0
    assert bool(solution.x.isfinite().all())
    for remedy in ({"curvature": "ggn", "damping": 1e-3}, {"curvature": "hessian", "damping": 50.0}):
        assert set(InverseCurvature(network, most_steps=2000, **remedy)(b).status) == {"converged"}


def test_running_out_of_steps():
    network = untrained()
    with pytest.raises(SolveError, match=r"expected a residual of 1e-08 .* after 2 steps; allow more steps"):
        score_records(InverseCurvature(network, damping=0.01, most_steps=2, tolerance=1e-8), [0])
    allowed = InverseCurvature(network, damping=0.01, most_steps=2, tolerance=1e-8, allow_unconverged=True)
    report = score_records(allowed, [0, 1]).report
    assert report["unsolved"] > 0
    assert report["worst_residual"] > 1e-8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"curvature": "fisher"}, "curvature: expected a known name"),
        ({"preconditioner": "kfac"}, "preconditioner: expected a known name"),
        ({"tolerance": 0}, "tolerance: expected a finite number of at least"),
        ({"rank": 0}, "rank: expected a whole number of at least 1"),
        ({"most_steps": 0}, "most_steps: expected a whole number of at least 1"),
    ],
)
def test_options_that_are_none(options, words):
    with pytest.raises(InputError, match=words):
        InverseCurvature(untrained(), damping=1.0, **options)
