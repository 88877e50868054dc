"""The LOOD settings: small runs on synthetic data, their oracles, and the part of the page they lead to."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.reproduce.claims import NOT_RUN
from benchmarks.reproduce.job import Job, OutOfTime
from benchmarks.reproduce.lood.influence import empirical_kernel, left_out, tracin, train_with_checkpoints
from benchmarks.reproduce.lood.measures import attack_auc, correlation, distances, largest_at, where_largest
from benchmarks.reproduce.lood.networks import (
    SCALE,
    SMALL,
    build_network,
    cars_and_planes,
    chosen_records,
    made_pictures,
    perturbed,
    retrain,
    ten_classes,
)
from benchmarks.reproduce.lood.pictures import beside_the_record
from benchmarks.reproduce.lood.searches import by_step, details, pixels
from benchmarks.reproduce.lood.toys import at_queries, domain, normal_places, placed, slopes, steepest
from benchmarks.reproduce.page import section
from benchmarks.stacked import train_stacked
from torch import nn

from giveaway.attacks.shadow_store import model_seed
from giveaway.gp.kernels import RBF
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit
from giveaway.network import InverseCurvature, Network, score_records

TINY = replace(SMALL, records=24, held_out=8, chosen=3, rounds=2, width=8, epochs=2, batch=8)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Small runs of the settings that depend on one another, in one folder."""
    root = tmp_path_factory.mktemp("lood")
    for name in ("retrained", "influence", "activations", "correlation", "searches", "toys"):
        _job(root, f"lood_{name}").run()
    kept = root / "results"
    kept.mkdir()
    for file in [*root.glob("*-small/lood_*.json"), *root.glob("*-small/lood_*.npz")]:
        (kept / file.name).write_bytes(file.read_bytes())
    return root, {file.stem: json.loads(file.read_text()) for file in kept.glob("*.json")}


def _job(root: Path, name: str, **options) -> Job:
    work = root / f"{name}-small"
    work.mkdir(parents=True, exist_ok=True)
    return Job(setting=name, data=None, work=work, models=8, small=True, out=work, **options)


@pytest.mark.slow
def test_small_runs_leave_results_that_the_page_states(measured):
    _, results = measured
    page = section("lood", results)
    told = results["lood_retrained"]
    assert told["trainings"] == told["rounds"] * (1 + told["chosen"])
    pearson = f"{told['correlation_with_auc']['nngp_auc']['pearson']:.2f}".replace("-", "−")
    assert f"Pearson {pearson}" in page
    assert f"{told['times_faster']:,.0f} ×" in page
    difference = f"{results['lood_activations']['networks']['mean_difference']:+.3f}".replace("-", "−")
    assert f"mean difference {difference} ±" in page
    assert f"KL {results['lood_correlation']['correlation_with_auc']['rbf']['images']['kl']['spearman']:.3f}" in page
    ends, placed_at = results["lood_searches"]["cars_and_planes"], results["lood_toys"]["placed"]
    assert f"| {ends['found']} of {ends['chosen']}; the record is the nearest" in page
    assert f"at most {placed_at['-5']['offset_of_the_largest'][2]:g} and" in page
    assert page.count(NOT_RUN) == 2  # lood_queries
    assert all("nan" not in line.lower() for line in page.splitlines())


def test_a_round_leaves_each_chosen_record_out_and_a_second_command_goes_on(tmp_path):
    pictures = made_pictures(TINY.records, TINY.held_out)
    chosen = np.array([5, 0, 23])
    queries = perturbed(pictures.inputs[chosen], np.ones((3, pictures.inputs.shape[1])), np.array([-10, 0, 10]))
    job = _job(tmp_path, "lood_retrained")
    answers = retrain(job, pictures, chosen, queries, "relu", TINY)
    first = job.work / "relu" / "round_000.npz"
    first.unlink()
    with pytest.raises(OutOfTime):
        retrain(replace(job, deadline=0.0), pictures, chosen, queries, "relu", TINY)
    again = retrain(job, pictures, chosen, queries, "relu", TINY)
    np.testing.assert_array_equal(answers.without, again.without)
    with pytest.raises(SystemExit, match="is of another epochs: take another folder"):
        retrain(job, pictures, chosen, queries, "relu", replace(TINY, epochs=3))


def test_the_networks_answers_are_those_of_networks_trained_alone(tmp_path):
    pictures = made_pictures(TINY.records, TINY.held_out)
    chosen = np.array([5, 0])
    queries = pictures.inputs[chosen][:, None]
    answers = retrain(_job(tmp_path, "lood_retrained"), pictures, chosen, queries, "gelu", replace(TINY, rounds=1))
    seed = model_seed(0, seed=0)
    members = np.ones((2, TINY.records), dtype=bool)
    members[1, 0] = False

    def make() -> nn.Module:
        return build_network(TINY.depth, TINY.width, "gelu", pictures.inputs.shape[1])

    alone = dict(
        train_stacked(
            make, pictures.inputs, pictures.targets, members, TINY.training, seeds=[seed] * 2, models_at_once=1
        )
    )
    np.testing.assert_allclose(answers.with_record[0, :, 0], alone[0][chosen, 0], rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(answers.without[0, 1, 0], alone[1][0, 0], rtol=2e-3, atol=1e-4)
    assert abs(alone[1][0, 0] - alone[0][0, 0]) > 1e-2  # or the comparison says nothing


def test_checkpoints_end_where_the_stacked_training_does():
    pictures = made_pictures(TINY.records, 0)
    x, y = torch.from_numpy(pictures.inputs), torch.from_numpy(pictures.targets)
    torch.manual_seed(3)
    network = build_network(TINY.depth, TINY.width, "relu", x.shape[1])
    start = {name: value.clone() for name, value in network.state_dict().items()}
    kept = train_with_checkpoints(network, x, y, TINY, seed=9)

    def make() -> nn.Module:
        made = build_network(TINY.depth, TINY.width, "relu", x.shape[1])
        made.load_state_dict(start)
        return made

    members = np.ones((1, len(x)), dtype=bool)
    _, outputs = next(train_stacked(make, x, y, members, TINY.training, seeds=[9]))
    with torch.no_grad():
        np.testing.assert_allclose(network(x).numpy(), outputs, rtol=1e-4, atol=1e-5)
    assert torch.equal(kept[-1][0]["0.weight"], network.state_dict()["0.weight"])
    assert sum(rate for _, rate in kept) == pytest.approx(sum(TINY.training.rates(TINY.epochs * 3)))


def test_tracin_against_a_loop():
    torch.manual_seed(0)
    network = build_network(2, 6, "relu", 5).double()
    x, y, rows = torch.randn(9, 5, dtype=torch.float64), torch.randn(9, dtype=torch.float64), torch.tensor([4, 1, 8])
    states = [{name: value + 0.1 * k for name, value in network.state_dict().items()} for k in range(3)]
    kept, expected = list(zip(states, (0.1, 0.05, 0.01), strict=True)), torch.zeros(3, dtype=torch.float64)
    other = copy.deepcopy(network)
    for state, rate in kept:
        other.load_state_dict(state)
        for place, row in enumerate(rows.tolist()):
            loss = (other(x[row : row + 1])[0, 0] - y[row]).square()
            gradients = torch.autograd.grad(loss, [*other.parameters()])
            expected[place] += rate * sum(part.square().sum() for part in gradients)
    torch.testing.assert_close(tracin(network, x, y, kept, rows), expected, rtol=1e-9, atol=1e-14)
    assert torch.equal(network.state_dict()["0.weight"], states[-1]["0.weight"])


def test_influence_by_the_records_kernel_is_that_of_the_parameters():
    torch.manual_seed(0)
    network = build_network(2, 6, "relu", 5).double()
    x, y = torch.randn(12, 5, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
    gram, outputs = empirical_kernel(network, x)
    rows = torch.func.jacrev(lambda values: torch.func.functional_call(network, values, (x,))[:, 0])(
        dict(network.named_parameters())
    )
    jacobian = torch.cat([value.flatten(1) for value in rows.values()], 1).detach()
    torch.testing.assert_close(gram, jacobian @ jacobian.T)
    influence, newton = left_out(gram, outputs, y, damping=0.7)
    records = Network(network, (x, y[:, None]), loss="squared")
    found = score_records(InverseCurvature(records, damping=0.7, tolerance=1e-10), scores=("leverage", "influence"))
    residual = y - outputs
    torch.testing.assert_close(influence, found["leverage"] * residual, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(2 * influence * residual, found["influence"], rtol=1e-6, atol=1e-9)
    # linearized at its parameters, the network without a record is a ridge regression without it
    kept = torch.arange(12) != 3
    damped = 2 * jacobian[kept].T @ jacobian[kept] + 0.7 * torch.eye(jacobian.shape[1], dtype=torch.float64)
    step = torch.linalg.solve(damped, 2 * jacobian[3] * (outputs[3] - y[3]))
    assert float(-jacobian[3] @ step) == pytest.approx(float(newton[3]), rel=1e-6)


def test_process_change_is_that_of_a_fit_without_the_record():
    pictures = made_pictures(20, 0)
    found = distances(NNGP(2), pictures, torch.device("cpu"))
    x, y = (torch.from_numpy(part).double() for part in (pictures.inputs, pictures.targets))
    kernel, kept = NNGP(2)(x, x), torch.arange(20) != 7

    def mean(rows: torch.Tensor) -> float:
        inside = kernel[rows][:, rows] + 0.05 * torch.eye(int(rows.sum()), dtype=torch.float64)
        return float(kernel[7, rows] @ torch.linalg.solve(inside, y[rows]))

    change = mean(torch.ones(20, dtype=torch.bool)) - mean(kept)
    assert found.change[7] == pytest.approx(change, rel=1e-8)
    assert found.mean[7] == pytest.approx(change**2 / 2, rel=1e-8)


def test_measures():
    targets = np.array([1.0, -1.0])
    inside = np.array([[[0.9], [-0.2]], [[0.8], [0.4]]])  # rounds, records, offsets
    outside = np.array([[[0.1], [-0.3]], [[0.2], [0.5]]])
    np.testing.assert_allclose(attack_auc(inside, outside, targets)[:, 0], [1.0, 0.5])
    values = np.array([[0.1, 0.9, 0.9], [0.3, 0.2, 0.1]])
    np.testing.assert_allclose(largest_at(values, np.array([-10, 0, 10])), [5.0, -10.0])
    told = where_largest(values, np.array([-10, 0, 10]))
    assert (told["at_the_record"], told["within_10"], told["mean"]) == (1, 2, -2.5)
    assert correlation([1, 2, 3], [1, 1, 1])["pearson"] == 0.0
    told = correlation([1, 2, 4, 3], [2, 4, 8, 9])
    assert told["pearson"] == pytest.approx(np.corrcoef([1, 2, 4, 3], [2, 4, 8, 9])[0, 1], abs=1e-4)
    assert told["spearman"] == 0.8


def test_cars_and_planes_of_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (200, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, 200)
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=labels)
    job = replace(_job(tmp_path, "lood_retrained"), data=tmp_path)
    found = cars_and_planes(job, 10, 4)
    assert found.inputs.shape == (14, 3072)
    assert found.targets[:10].sum() == found.targets[10:].sum() == 0
    pixels = images.reshape(200, -1)
    for row, target in zip(found.inputs, found.targets, strict=True):
        source = np.flatnonzero((np.abs(row * SCALE + 127.5 - pixels) < 0.01).all(1))
        assert labels[source].tolist() == [1 if target > 0 else 0]
    with pytest.raises(FileNotFoundError, match="cifar10"):
        cars_and_planes(replace(job, data=tmp_path / "none"), 10, 4)


def _naive_posterior(kernel, x, y, noise, queries):
    """Means (q, C) and variances (q,) from an inverse matrix."""
    inverse = np.linalg.inv(kernel(x, x) + noise * np.eye(len(x)))
    cross = kernel(queries, x)
    variance = np.array([kernel(q[None], q[None])[0, 0] for q in queries]) - np.einsum(
        "qi,ij,qj->q", cross, inverse, cross
    )
    return cross @ inverse @ y, variance


def _naive_lood(kernel, x, y, noise, left_out, queries):
    """Mean distance, log ratio of variances and KL at each query, one by one, from two posteriors."""
    kept = np.arange(len(x)) != left_out
    (mean, variance), (mean_with, variance_with) = (
        _naive_posterior(kernel, x[rows], y[rows], noise, queries) for rows in (kept, np.ones(len(x), dtype=bool))
    )
    squares = ((mean - mean_with) ** 2).sum(1)
    ratio = variance / variance_with
    return squares / 2, np.log(ratio), (y.shape[1] * (ratio - 1 - np.log(ratio)) + squares / variance_with) / 2


def _rbf(a, b):
    return np.exp(-((a[:, None, 0] - b[None, :, 0]) ** 2) / 2)


def test_what_is_seen_on_a_sine_is_that_of_two_posteriors():
    x, record = normal_places(3), torch.tensor([2.5], dtype=torch.float64)
    queries = torch.linspace(-4.0, 4.0, 33, dtype=torch.float64)
    found = at_queries(x, record, queries)
    places = torch.cat([x, record]).numpy()[:, None]
    naive = _naive_lood(_rbf, places, np.sin(places), 0.01, 10, queries.numpy()[:, None])
    for ours, theirs in zip(found.values(), naive, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-9)
    assert found["kl"].max() > 1  # or the comparison says nothing


def test_the_slope_that_algorithm_1_climbs_is_that_of_the_mean_distance():
    x, step = normal_places(3), 1e-5
    for record in (-3.0, 2.2, 3.9):
        places = np.append(x.numpy(), record)[:, None]
        beside = np.array([[record - step], [record + step]])
        low, high = _naive_lood(_rbf, places, np.sin(places), 0.01, 10, beside)[0]
        before = fit(RBF(1.0), x[:, None], x.sin()[:, None], 0.01)
        found = slopes(before, torch.tensor([record], dtype=torch.float64))[0]
        assert found == pytest.approx(abs(high - low) / (2 * step), rel=1e-4)


def test_the_sine_examples(tmp_path):
    job = _job(tmp_path, "lood_toys")
    arrays, told = domain(job)
    assert told["kl_largest_at_the_record"] == told["draws"]
    grid = np.linspace(-5, 5, len(arrays["kl"]))
    assert abs(grid[arrays["kl"].argmax()] - arrays["record"][0]) < 0.03
    arrays, told = steepest(job)
    assert told["kl_largest_at_the_record"] == told["mean_largest_elsewhere"] == told["draws"]
    assert told["no_slope_of_the_grid_is_steeper"] == told["draws"]
    assert abs(grid[arrays["slope"].argmax()] - told["shown"]["steepest"]) < 0.03
    assert abs(grid[arrays["mean"].argmax()] - told["shown"]["mean_largest_at"]) < 0.03
    assert told["at_the_mean_optimum_over_the_record"]["kl"][2] < 1
    _, told = placed(job)
    naive = []
    queries = np.linspace(-8, 8, 2_001)[:, None]
    for number in range(told["draws"]):
        places = np.append(normal_places(number).numpy(), -5.0)[:, None]
        naive.append(_naive_lood(_rbf, places, np.sin(places), 0.01, 10, queries)[0].max())
    np.testing.assert_allclose(told["-5"]["largest_mean_distance"], np.quantile(naive, (0, 0.5, 1)), rtol=1e-3)


@pytest.mark.slow
def test_a_search_by_steps_climbs_to_what_two_posteriors_say(tmp_path):
    job = _job(tmp_path, "lood_searches")
    arrays, told = by_step(job)
    assert (np.diff(arrays["share"], axis=2) >= -1e-12).all()  # each search goes on where the shorter one ended
    assert arrays["share"].max() <= 1 + 1e-9
    flat, labels = ten_classes(job, told["records"], seed=21)
    x, y = 4 * (flat - 0.5), np.eye(10)[labels] - 0.1
    row = int(chosen_records(told["records"], told["chosen"], job.seed)[0])
    np.testing.assert_array_equal(arrays["record"], pixels(torch.from_numpy(x[row : row + 1])))
    query = (arrays["queries"][-1].reshape(1, -1) - 127.5) / SCALE

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return NNGP(told["depth"])(torch.from_numpy(a), torch.from_numpy(b)).numpy()

    at_query, at_record = _naive_lood(kernel, x, y, 0.05, row, np.concatenate([query, x[row : row + 1]]))[2]
    assert at_query / at_record == pytest.approx(told["shown"]["20"], rel=0.01)  # whole pixel values


def test_details_tell_shapes_and_their_negatives():
    rng = np.random.default_rng(5)
    images = torch.from_numpy(rng.normal(size=(3, 32 * 32 * 3)))
    found = details(images)
    picture = images[1].numpy().reshape(32, 32, 3)
    naive = np.empty_like(picture)
    for row in range(32):
        for column in range(32):
            around = picture[max(0, row - 2) : row + 3, max(0, column - 2) : column + 3]
            naive[row, column] = picture[row, column] - around.mean((0, 1))
    naive = naive.transpose(2, 0, 1).ravel() / np.linalg.norm(naive)
    np.testing.assert_allclose(found[1].numpy(), naive, atol=1e-12)
    flipped = details(0.3 - 0.5 * images)  # brightness and contrast do not matter
    torch.testing.assert_close((found * flipped).sum(1), -torch.ones(3, dtype=torch.float64))


def test_records_that_tie_are_drawn_in_their_order():
    auc = np.ones((70, 3))
    auc[:, 0] = np.arange(70) / 100
    arrays = {"offsets": np.array([-10.0, 0.0, 10.0]), "auc": auc, "nngp_auc_along": auc}
    lines = beside_the_record({}, arrays).axes[0].lines[70:75]
    assert [line.get_ydata()[0] for line in lines] == [0.0, 0.01, 0.02, 0.03, 0.04]
