"""Influence through a whole network: the Hessian's root against explicit matrices; solves that stop by their error."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarks.reproduce.__main__ import main
from benchmarks.reproduce.per_sample import whole
from benchmarks.reproduce.per_sample.whole import OFF, SOLVED, rooted, sketched, spectrum
from torch.func import functional_call, grad, vmap

from giveaway.network import Network


@pytest.fixture(scope="module")
def fitted():
    """A network, its records' gradients (n, P) and the Hessian of the summed loss, which is negative somewhere."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()
    x, y = torch.randn(60, 4, dtype=torch.float64), torch.randint(0, 3, (60,))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=30)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y, reduction="sum")
        loss.backward()
        return loss

    optimizer.step(closure)
    values = {name: value.detach() for name, value in model.named_parameters()}

    def loss(values, row, label):
        return torch.nn.functional.cross_entropy(functional_call(model, values, (row[None],)), label[None])

    each = vmap(grad(loss), (None, 0, 0))(values, x, y)
    gradients = torch.cat([each[name].flatten(1) for name in values], 1)

    def total(flat):
        parts = flat.split([value.numel() for value in values.values()])
        shaped = {name: part.view_as(values[name]) for name, part in zip(values, parts, strict=True)}
        return torch.nn.functional.cross_entropy(functional_call(model, shaped, (x,)), y, reduction="sum")

    flat = torch.cat([value.flatten() for value in values.values()])
    return Network(model, (x, y), loss="cross_entropy"), gradients, torch.autograd.functional.hessian(total, flat)


@pytest.mark.parametrize("damping", [1.5, 600.0])
def test_the_hessians_root_gives_the_influence_of_every_record(fitted, damping):
    network, gradients, hessian = fitted
    exact = torch.einsum(
        "ip,pq,iq->i", gradients, torch.linalg.inv(hessian + damping * torch.eye(len(hessian))), gradients
    )
    found, report = rooted(network, damping, 2_000, spectrum(network))
    assert report["off"] <= OFF
    assert float((found / exact - 1).square().mean().sqrt()) < 1.3 * (2 / 2_000) ** 0.5 + OFF
    assert np.argmax(found.numpy()) == np.argmax(exact.numpy())


def test_a_hessian_that_curves_downwards_has_no_such_score(fitted):
    network, _, hessian = fitted
    truth = torch.linalg.eigvalsh(hessian)
    ends = spectrum(network)
    low, high = ends["smallest_eigenvalue"], ends["largest_eigenvalue"]
    assert low == pytest.approx(float(truth[0]), rel=1e-6)
    assert high == pytest.approx(float(truth[-1]), rel=1e-6)
    found, report = rooted(network, -0.9 * low, 4, ends)
    assert found is None
    assert report["smallest_eigenvalue"] == pytest.approx(low)
    assert "off" not in report
    found, report = rooted(network, -1.21 * low, 4, ends)
    assert found is None
    assert report["off"] > OFF


def test_the_spectrum_is_searched_until_it_is_seen_below_the_damping(fitted, monkeypatch):
    network, _, hessian = fitted
    truth = torch.linalg.eigvalsh(hessian)
    monkeypatch.setattr(whole, "LANCZOS", 3)
    below = spectrum(network, least=-0.01)
    assert truth[0] < below["smallest_eigenvalue"] < -0.01
    never = spectrum(network, least=-9.0)
    assert never["steps"] > below["steps"]
    assert never["smallest_eigenvalue"] == pytest.approx(float(truth[0]), rel=1e-6)
    monkeypatch.setattr(whole, "MOST_LANCZOS", 5)
    assert spectrum(network, least=-9.0)["steps"] == 5


@pytest.mark.parametrize("outliers", [[4.8e5, 3e5], []])
def test_a_bulk_that_is_narrow_beside_outliers_is_seen_to_its_end(outliers, monkeypatch):
    """In single precision, where steps beside the largest eigenvalue look small before anything has converged."""
    diagonal = torch.tensor([*outliers, -58.2, *torch.linspace(-40, 100, 61).tolist()])
    network = SimpleNamespace(size=len(diagonal), device=torch.device("cpu"), dtype=torch.float32)
    monkeypatch.setattr(whole, "Hessian", lambda network: lambda right: diagonal[:, None] * right)
    ends = spectrum(network)
    assert ends["smallest_eigenvalue"] == pytest.approx(-58.2, rel=1e-2)
    assert ends["largest_eigenvalue"] == pytest.approx(float(diagonal.max()), rel=1e-5)
    two = SimpleNamespace(size=2, device=network.device, dtype=torch.float64)
    monkeypatch.setattr(
        whole, "Hessian", lambda network: lambda right: torch.diag(torch.tensor([16.0, 24.0])).double() @ right
    )
    ends = spectrum(two)
    assert (ends["smallest_eigenvalue"], ends["largest_eigenvalue"]) == pytest.approx((16, 24))


def test_a_network_that_does_not_bend_has_its_gradients_over_the_damping():
    torch.manual_seed(0)
    head = torch.nn.Linear(2, 2, bias=False).double()
    x, y = torch.zeros(5, 2, dtype=torch.float64), torch.arange(5) % 2
    x[:, 0] = 1e-9
    found, report = rooted(network := Network(head, (x, y), loss="cross_entropy"), 10.0, 2_000, spectrum(network))
    slopes = torch.softmax(head(x), 1) - torch.nn.functional.one_hot(y, 2)
    torch.testing.assert_close(found, (slopes.square().sum(1) * 1e-18 / 10).detach(), rtol=0.1, atol=0)
    assert report["off"] <= OFF


def test_a_sketch_is_solved_until_its_error_is_small(fitted):
    network, _, _ = fitted
    _, report = sketched(network, 0.01, probes=8, tolerance=0.9)
    assert report["solve_error"] <= SOLVED
    assert report["tolerance"] < 0.9


@pytest.mark.slow
def test_a_small_run_scores_targets_in_every_way(tmp_path):
    run = ["--small", "--work", str(tmp_path), "--device", "cpu"]
    assert main(["run", "california_mlp", *run]) == main(["run", "california_mlp_whole", *run]) == 0
    result = json.loads((tmp_path / "california_mlp_whole-small" / "california_mlp_whole.json").read_text())
    for name in ("last layer", "ggn, summed", "ggn, mean", "hessian, mean"):
        assert len(result[name]["targets"]) == 2
    assert all(report["solve_error"] <= SOLVED for report in result["ggn, summed"]["report"])
    with pytest.raises(SystemExit, match="is of another seed: take another folder"):
        main(["run", "california_mlp_whole", *run, "--seed", "1"])
