"""All records from random projections: they converge to the exact scores, and say how far off they are."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from giveaway.checks import InputError
from giveaway.linalg.cg import Solution
from giveaway.network import InverseCurvature, Network, score_records, sketch_records
from tests.network.cases import KINDS, dense, network_of

NAMES = ("influence", "gls_trace", "newton")
NORMS = ("gls_trace", "gls_frobenius", "gls_spectral", "gls_trace_logit", "gls_frobenius_logit", "gls_spectral_logit")
TIGHT = {"tolerance": 1e-9, "most_steps": 2000}


@pytest.mark.parametrize("depth", ["head", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_more_probes_come_closer_and_the_error_is_told(kind, depth):
    network = network_of(kind, depth=depth)
    expected = dense(network).scores(2.0)
    inverse = InverseCurvature(network, damping=2.0, **TIGHT)
    errors = {}
    for probes in (16, 1024):
        found = sketch_records(inverse, probes=probes, scores=("influence", "gls_trace"), most_redone=0)
        for name in ("influence", "gls_trace"):
            relative = found[name] / expected[name] - 1
            errors[probes, name] = float(relative.square().mean().sqrt())
            told = found.report["sketch_error"][name]
            assert 0.3 * errors[probes, name] < told < 3 * errors[probes, name]
    for name in ("influence", "gls_trace"):
        assert errors[1024, name] < 0.07  # √(2/1024) = 0.044
        assert errors[1024, name] < 0.35 * errors[16, name]  # √(16/1024) = 0.125


def test_the_error_told_is_the_difference_of_the_two_halves_of_the_probes():
    """The first half is a sketch of its own, and the whole is the mean of both for what is linear in B."""
    network = network_of("mlp", depth="head")
    inverse = InverseCurvature(network, damping=2.0, **TIGHT)
    linear = ("influence", "gls_trace", "gls_trace_logit")
    half, whole = (sketch_records(inverse, probes=q, scores=linear, most_redone=0) for q in (32, 64))
    for name in linear:
        off = float((half[name] / whole[name] - 1).square().mean().sqrt())
        assert whole.report["sketch_error"][name] == pytest.approx(off, abs=2e-6)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy", "binary_cross_entropy"])
def test_norms_come_close_to_those_of_dense_solves(loss):
    """And are not too large or too small on average: softmax sees a constant in the outputs of deep layers."""
    network = network_of("cnn", loss)
    expected = dense(network, loss).scores(1.0)
    found = sketch_records(InverseCurvature(network, damping=1.0, **TIGHT), probes=1024, scores=NORMS, most_redone=0)
    for name in NORMS:
        relative = found[name] / expected[name] - 1
        assert float(relative.abs().max()) < 5 * (2 / 1024) ** 0.5
        assert abs(float(relative.mean())) < 0.04


def test_it_is_unbiased_over_seeds():
    network = network_of("mlp")
    expected = dense(network).scores(1.0)["influence"]
    inverse = InverseCurvature(network, damping=1.0, **TIGHT)
    found = torch.stack(
        [sketch_records(inverse, probes=32, seed=k, scores="influence", most_redone=0)["influence"] for k in range(40)]
    )
    deviation = (found.mean(0) - expected) / (found.std(0) / 40**0.5)
    assert float(deviation.abs().max()) < 4.5
    assert float(deviation.square().mean()) < 2.5


def test_records_of_high_leverage_are_scored_again_by_themselves():
    network = network_of("mlp")
    inverse = InverseCurvature(network, damping=0.1, **TIGHT)
    everything = score_records(inverse, scores=NAMES)
    found = sketch_records(inverse, probes=64, scores=NAMES)
    assert 0 < found.report["above_half"] == found.report["redone"]
    top = torch.argsort(everything["newton"], descending=True)[: network.n // 10]
    for name in NAMES:
        torch.testing.assert_close(found[name][top], everything[name][top], rtol=1e-6, atol=0)
    few = sketch_records(inverse, probes=64, scores=NAMES, most_redone=1)
    assert (few.report["redone"], few.report["above_half"]) == (1, found.report["above_half"])


def test_the_signs_belong_to_records_not_to_batches():
    found = []
    for memory in (None, 60_000):
        inverse = InverseCurvature(
            network_of("mlp", memory=memory), damping=5.0, tolerance=1e-11, preconditioner="none"
        )
        found.append(sketch_records(inverse, probes=8, scores="influence", most_redone=0, seed=7)["influence"])
    torch.testing.assert_close(found[0], found[1], rtol=1e-8, atol=0)


def test_the_cost_is_stated_in_passes():
    network = network_of("mlp", depth="head")
    inverse = InverseCurvature(network, damping=1.0, preconditioner="none")
    report = sketch_records(inverse, probes=8, most_redone=0).report
    # right sides, the steps and a look at the residual, the records
    assert report["passes"] == 1 + report["most_steps_taken"] + 1 + 1
    # right sides that say nothing new take no more part
    assert 8 * 4 < report["column_passes"] <= 8 * report["passes"]
    once = sketch_records(InverseCurvature(network, damping=1e9, preconditioner="none"), probes=8, most_redone=0).report
    assert (once["most_steps_taken"], once["passes"], once["column_passes"]) == (1, 4, 8 * 4)


class LeftAlong(InverseCurvature):
    """Exact solves, but for a part of every right side that is left along one direction."""

    def leave(self, damped: torch.Tensor, direction: torch.Tensor) -> None:
        self.damped, self.direction, self.off = damped, direction, []

    def __call__(self, right: torch.Tensor) -> Solution:
        left = torch.outer(self.direction, torch.linspace(0.5, 2.0, right.shape[1], dtype=torch.float64))
        self.off.append(torch.linalg.solve(self.damped, -left))
        x = torch.linalg.solve(self.damped, right) + self.off[-1]
        residual = (right - self.damped @ x).norm(dim=0) / right.norm(dim=0)
        return Solution(x, residual, 1, ("ran out of steps",) * right.shape[1])


@pytest.mark.parametrize("place", [-1, -4, -9])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_what_solves_leave_is_bounded_and_the_bound_is_met_where_damping_is_the_curvature(kind, place):
    network = network_of(kind)
    exact = dense(network)
    values, vectors = torch.linalg.eigh(ggn := exact.ggn)
    inverse = LeftAlong(network, damping=float(values[-4]), preconditioner="none")
    inverse.leave(exact.damped(float(values[-4])), vectors[:, place])
    found = sketch_records(inverse, probes=8, scores="gls_trace", most_redone=0, at_once=4)
    assert len(inverse.off) == 2
    off = sum((part * (ggn @ part)).sum() for part in inverse.off) / found["gls_trace"].sum()
    if place == -4:
        assert found.report["solve_error"] == pytest.approx(float(off.sqrt()), rel=1e-6)
    else:
        assert found.report["solve_error"] > 1.01 * float(off.sqrt()) > 0


def test_solves_that_end_early_stay_within_what_is_said():
    network = network_of("cnn", n=60)

    def found(steps: int) -> tuple[float, float]:
        inverse = InverseCurvature(
            network, damping=0.1, preconditioner="none", tolerance=1e-12, most_steps=steps, allow_unconverged=True
        )
        one = sketch_records(inverse, probes=8, scores="gls_trace", most_redone=0)
        return float(one["gls_trace"].sum()) ** 0.5, one.report["solve_error"]

    exact, said = found(400)
    assert said < 1e-9
    ended = [found(steps) for steps in (3, 5, 8)]
    for norm, said in ended:
        assert 1e-6 < abs(norm - exact) <= said * norm
    assert ended[0][1] > 2 * ended[2][1]


def test_what_a_sketch_cannot_take():
    network = network_of("mlp", depth="head")
    with pytest.raises(InputError, match='curvature: expected "ggn" for a sketch'):
        sketch_records(InverseCurvature(network, damping=1.0, curvature="hessian"))
    for probes in (3, 2, 7.5):
        with pytest.raises(InputError, match="probes: expected an even number of at least 4"):
            sketch_records(InverseCurvature(network, damping=1.0), probes=probes)


def memorized_digits(n: int) -> Network:
    """A network that has learned its records by heart, and is very sure of most of them."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images[:n] / 16.0), torch.tensor(labels[:n])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).double()
        step = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(300):
            step.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            step.step()
        with torch.no_grad():  # as much longer training would
            for value in model[2].parameters():
                value.mul_(2)
    return Network(model, (x, y), loss="cross_entropy", parameters="head")


@pytest.mark.parametrize("n", [100, pytest.param(250, marks=pytest.mark.slow)])
def test_very_sure_records_do_not_switch_off_the_safeguard(n):
    """Rounding makes the smallest eigenvalue of W negative where logits are 18 apart: no root may depend on it."""
    network = memorized_digits(n)
    top = torch.topk(network.outputs(), 2).values
    assert float((top[:, 0] - top[:, 1]).max()) > 18
    exact = score_records(InverseCurvature(network, damping=1e-5, tolerance=1e-6, most_steps=3000), scores="newton")
    probes = 256
    found = sketch_records(InverseCurvature(network, damping=1e-5, most_steps=3000), probes=probes, scores="newton")
    expected, newton = exact["newton"].numpy(), found["newton"].numpy()
    assert (newton >= 0).all()
    assert found.report["redone"] > 0
    stated = max(found.report["sketch_error"]["newton"], (2 / probes) ** 0.5)
    assert (newton <= expected * (1 + 5 * stated)).all()
    ranks = [np.argsort(np.argsort(values)) for values in (expected, newton)]
    assert np.corrcoef(*ranks)[0, 1] >= 0.999
    # and what is not redone, however high its leverage, is as accurate as anything else
    alone = sketch_records(
        InverseCurvature(network, damping=1e-5, most_steps=3000), probes=probes, scores="newton", most_redone=0
    )
    errors = alone["newton"].numpy() / expected - 1
    assert np.sqrt(np.mean(errors**2)) < 1.6 * (2 / probes) ** 0.5
    assert np.abs(errors).max() < 0.6
