"""Query search against dense grids, and every problem of a batch against itself alone."""

import numpy as np
import pytest
import torch

from giveaway.gp import query as module
from giveaway.gp.distinguishability import divergence_at, remove
from giveaway.gp.kernels import RBF, Linear, Sphere
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit
from giveaway.gp.query import HISTORY, SearchSpace, _quasi_newton, maximize, optimal_queries
from tests.conftest import refused
from tests.gp.test_posterior import draw


def removal_of(n=14, d=2, rows=(0, 1, 2), *, kernel=None, outputs=1, seed=0):
    x = 1.5 * draw(n, d, seed=seed)
    y = torch.sin(2 * x.sum(1, keepdim=True) + torch.arange(outputs))
    return remove(fit(kernel or RBF(1.0), x, y, 0.05), torch.as_tensor(rows))


def beside_removed(removal, starts, queries, noise):
    """Starts (R, starts, q, …) at removed records, with normal noise."""
    inputs, size = removal.inputs, removal.rows.shape[1]
    pick = torch.arange(starts * queries).view(starts, queries) % size
    points = inputs[removal.rows[:, pick]]
    return points + noise * inputs.std() * draw(*points.shape, seed=4)


def grid_values(removal, low, high, count):
    """Both distances at every point of a grid, (points, R)."""
    d = removal.posterior.inputs.shape[1]
    axis = torch.linspace(low, high, count, dtype=torch.float64)
    points = torch.cartesian_prod(*[axis] * d).reshape(-1, d)
    kl, mean = [], []
    for r in range(len(removal.rows)):
        alone = remove(removal.posterior, removal.rows[r].expand(len(points), -1))
        at = divergence_at(alone, points.unsqueeze(1))
        kl.append(at.kl)
        mean.append(at.mean)
    return {"kl": torch.stack(kl, 1), "mean": torch.stack(mean, 1)}


@pytest.mark.parametrize("objective", ["kl", "mean"])
@pytest.mark.parametrize(("d", "count"), [(1, 4001), (2, 81)])
def test_the_best_of_many_starts_is_the_best_of_a_dense_grid(d, count, objective):
    removal = removal_of(d=d)
    low, high = -4.0, 4.0
    best = grid_values(removal, low, high, count)[objective].amax(0)
    found = optimal_queries(removal, objective=objective, starts=24, bounds=(low, high), seed=0, steps=100)
    assert bool((found.value >= best * (1 - 1e-6)).all())
    assert bool((found.value <= best * (1.001 if d == 1 else 1.1)).all())
    again = divergence_at(removal, found.queries)
    torch.testing.assert_close(found.value, getattr(again, objective), rtol=1e-6, atol=0)
    assert bool((found.values <= found.value[:, None]).all())


@pytest.mark.parametrize("objective", ["kl", "mean"])
def test_an_optimum_at_the_border_of_the_box_is_that_of_the_grid_in_it(objective):
    removal = removal_of(rows=(0, 1, 2, 3, 4))
    inside = (removal.posterior.inputs[:5] > -0.7).all(1) & (removal.posterior.inputs[:5] < 0.2).all(1)
    assert not bool(inside.any())
    best = grid_values(removal, -0.7, 0.2, 91)[objective].amax(0)
    found = optimal_queries(removal, objective=objective, starts=12, bounds=(-0.7, 0.2), seed=3)
    assert bool(((found.ends >= -0.7) & (found.ends <= 0.2)).all())
    at_border = (found.queries == -0.7) | (found.queries == 0.2)
    assert int(at_border.any(2).sum()) >= 3
    # the border belongs to the grid, and what is left is one spacing of 0.01
    assert bool((found.value >= best * (1 - 1e-6)).all())
    assert bool((found.value <= best * 1.01).all())


def test_bounds_of_a_records_shape():
    removal = removal_of()
    low, high = torch.tensor([-1.0, 0.25]), torch.tensor([0.5, 0.75])
    found = optimal_queries(removal, objective="mean", starts=5, bounds=(low, high), seed=0)
    assert bool(((found.ends >= low) & (found.ends <= high)).all())
    assert bool((found.ends[..., 1] == 0.75).any())


@pytest.mark.parametrize(("objective", "queries"), [("kl", 1), ("mean", 1), ("kl", 2)])
def test_a_batch_gives_what_each_problem_gives_alone(objective, queries):
    removal = removal_of(rows=(0, 1, 2), outputs=2)
    starts = 1.5 * draw(3, 4, queries, 2, seed=5)
    steps = 12  # not to the end: on the way any influence of one problem on another still shows
    options = {"objective": objective, "queries": queries, "steps": steps}
    together = optimal_queries(removal, starts=starts, **options)
    for r in range(3):
        single = remove(removal.posterior, removal.rows[r : r + 1])
        for k in range(4):
            alone = optimal_queries(single, starts=starts[r : r + 1, k : k + 1], **options)
            torch.testing.assert_close(together.ends[r, k], alone.ends[0, 0], rtol=1e-6, atol=1e-8)
            torch.testing.assert_close(together.values[r, k], alone.values[0, 0], rtol=1e-6, atol=0)
            assert bool(together.converged[r, k] == alone.converged[0, 0])


def test_a_small_memory_changes_nothing_but_how_many_go_together(monkeypatch):
    removal = removal_of()
    starts = 1.5 * draw(6, 1, 2, seed=5)
    wide = optimal_queries(removal, starts=starts, steps=15)
    monkeypatch.setattr(module, "MEMORY", 1)
    narrow = optimal_queries(removal, starts=starts, steps=15)
    torch.testing.assert_close(wide.ends, narrow.ends, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "kernel", [RBF(2.0), Sphere(NNGP(3, "relu")), NNGP(2, "erf", bias_variance=0.1)], ids=["rbf", "sphere", "erf"]
)
@pytest.mark.parametrize("queries", [1, 2])
def test_the_optimal_divergence_is_reached_at_the_record_and_never_passed(kernel, queries):
    removal = removal_of(n=20, d=4, rows=range(6), kernel=kernel, outputs=2)
    starts = beside_removed(removal, 6, queries, 0.3)
    found = optimal_queries(removal, queries=queries, starts=starts, steps=120)
    assert bool((found.values[found.values.isfinite()] > 0).all())
    assert bool((found.values <= found.own[:, None] * (1 + 1e-6)).all())
    assert bool((found.value >= found.own * (1 - 1e-6)).all())


def test_starts_far_off_climb_back():
    removal = removal_of(kernel=RBF(1.0))
    far = removal.posterior.inputs[:3, None, None] + torch.tensor([[[9.0, -9.0]]])
    found = optimal_queries(removal, starts=far, steps=150)
    assert bool(found.converged.all())
    there = divergence_at(removal, far[:, 0]).kl
    assert bool((there < 1e-25).all())
    assert bool((found.value > 1e15 * there).all())
    assert float((found.queries - removal.posterior.inputs.mean(0)).norm(dim=2).max()) < 4.0


def test_the_scale_of_the_inputs_does_not_matter():
    x, y = draw(12, 2), draw(12, seed=1)
    small, large = (remove(fit(RBF(s), s * x, y, 0.05), torch.arange(3)) for s in (1.0, 255.0))
    starts = draw(4, 1, 2, seed=3)
    a = optimal_queries(small, starts=starts, steps=40)
    b = optimal_queries(large, starts=255.0 * starts, steps=40)
    torch.testing.assert_close(a.value, b.value, rtol=1e-5, atol=0)


def test_the_seed_and_only_the_seed_decides():
    removal = removal_of()
    torch.manual_seed(1)
    first = optimal_queries(removal, starts=4, seed=7, steps=10)
    torch.manual_seed(2)
    second = optimal_queries(removal, starts=4, seed=7, steps=10)
    other = optimal_queries(removal, starts=4, seed=8, steps=10)
    assert torch.equal(first.ends, second.ends)
    assert not torch.allclose(first.ends, other.ends)


def test_starts_are_drawn_where_they_are_said_to_be(monkeypatch):
    removal = removal_of(n=8, rows=[[0, 7], [3, 2]])
    x = removal.posterior.inputs
    stay = {"steps": 1, "seed": 0, "starts": 60}
    monkeypatch.setattr(module, "SCATTER", 0.0)
    ends = optimal_queries(removal, **stay).ends[:, :, 0]
    for r, rows in enumerate(removal.rows.tolist()):
        distance = (ends[r].unsqueeze(1) - x).norm(dim=2)
        assert float(distance.amin(1).max()) < 1e-12
        assert set(distance.argmin(1).tolist()) == set(range(8)) - set(rows)
    ends = optimal_queries(removal, bounds=(2.0, 3.0), **stay).ends
    assert 2.0 <= float(ends.min()) < 2.1
    assert 2.9 < float(ends.max()) <= 3.0


def test_a_start_without_a_distance_stays_and_leaves_the_others_alone():
    removal = removal_of(kernel=Sphere(RBF(1.0)))
    starts = draw(3, 1, 2, seed=2)
    twice = torch.cat([starts, starts], 1) + torch.tensor([[[0.0, 0.0], [0.5, -0.5]]])
    twice[1, 1] = twice[1, 0]  # one query asked twice has no divergence
    found = optimal_queries(removal, queries=2, starts=twice, steps=40)
    assert bool(found.values[:, 1].isnan().all())
    assert not bool(found.converged[:, 1].any())
    torch.testing.assert_close(found.ends[:, 1], twice[1].expand(3, -1, -1))
    assert bool((found.values[:, [0, 2]] > 0).all())
    assert bool((found.value > 0).all())


def test_records_of_any_shape():
    x = draw(10, 2, 3, 3)
    removal = remove(fit(RBF(3.0), x, draw(10, seed=1), 0.1), torch.arange(2))
    starts = beside_removed(removal, 3, 2, 0.2)
    found = optimal_queries(removal, queries=2, starts=starts)
    assert found.queries.shape == (2, 2, 2, 3, 3)
    torch.testing.assert_close(found.value, found.own, rtol=1e-5, atol=0)
    flat = remove(fit(RBF(3.0), x.flatten(1), draw(10, seed=1), 0.1), torch.arange(2))
    same = optimal_queries(flat, queries=2, starts=starts.flatten(3))
    torch.testing.assert_close(found.ends.flatten(3), same.ends, rtol=1e-6, atol=1e-8)


def test_a_curved_valley_in_a_box():
    """Rosenbrock's function, whose maximum inside (1, 1), and on the border x = 0.5 at y = 0.25, are known."""

    def climb(_, z):
        return -((1 - z[:, 0]) ** 2) - 20 * (z[:, 1] - z[:, 0] ** 2) ** 2

    start = torch.tensor([[-1.2, 1.0], [0.0, -1.0]], dtype=torch.float64)
    wide = torch.full((2,), 3.0, dtype=torch.float64)
    narrow = torch.tensor([0.5, 3.0], dtype=torch.float64)
    for unit in (1.0, 0.25):  # of length; the points and bounds are the same
        for high, optimum in ((wide, [1.0, 1.0]), (narrow, [0.5, 0.25])):
            space = SearchSpace(-wide, high, unit, True)
            points, values, converged = maximize(climb, start, space, steps=600, tolerance=1e-6, together=1)
            truth = torch.tensor([optimum, optimum], dtype=torch.float64)
            torch.testing.assert_close(points, truth, rtol=0, atol=1e-4)
            torch.testing.assert_close(values, climb(None, truth).exp(), rtol=0, atol=1e-6)
            assert bool(converged.all())


@pytest.mark.parametrize("held", [[], [1, 4]])
def test_the_direction_is_that_of_dense_bfgs_over_the_free_coordinates(held):
    d, pairs, problems = 5, HISTORY + 3, 2
    root = draw(problems, d, d)
    curvature = root @ root.mT + torch.eye(d)
    kept = []
    for k in range(pairs):
        step = draw(problems, d, seed=k + 1)
        kept.append((step, (curvature @ step.unsqueeze(2))[..., 0]))
    inward = draw(problems, d, seed=99)
    inward[:, held] = 0.0
    found, known = _quasi_newton(*(torch.stack(each[-HISTORY:], 1) for each in zip(*kept, strict=True)), inward)
    free = [i for i in range(d) if i not in held]
    for p in range(problems):
        recent = [(s[p, free], y[p, free]) for s, y in kept[-HISTORY:] if float(s[p, free] @ y[p, free]) > 0]
        s, y = recent[-1]
        inverse = (s @ y) / (y @ y) * torch.eye(len(free), dtype=torch.float64)
        for s, y in recent:
            turn = torch.eye(len(free)) - torch.outer(s, y) / (s @ y)
            inverse = turn @ inverse @ turn.T + torch.outer(s, s) / (s @ y)
        torch.testing.assert_close(found[p, free], inverse @ inward[p, free])
        assert bool((found[p, held] == 0).all())
    assert bool(known.all())


def test_starts_outside_the_box_are_put_into_it():
    removal = removal_of()
    starts = torch.tensor([[[5.0, 0.1]]], dtype=torch.float64)
    found = optimal_queries(removal, starts=starts, bounds=(-1.0, 1.0), steps=1)
    torch.testing.assert_close(found.queries, torch.tensor([[[1.0, 0.1]]]).double().expand(3, 1, 2))
    torch.testing.assert_close(found.value, divergence_at(removal, found.queries).kl)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": "kll"}, "objective: expected a known name, got 'kll'; did you mean kl"),
        ({"queries": 0}, "queries: expected a whole number of at least 1, got 0"),
        ({"starts": 0}, "starts: expected a whole number of at least 1, got 0"),
        ({"bounds": (1.0, 1.0)}, "bounds: expected low below high, got low 1 and high 1; give"),
        ({"bounds": (torch.zeros(2), torch.tensor([1.0, -1.0]))}, "bounds: expected low below high, got low 0 and hi"),
        ({"bounds": (torch.zeros(3), 1.0)}, r"bounds: expected numbers, or tensors of shape \(2,\), got low of shape"),
        ({"starts": torch.zeros(4, 1, 3)}, r"starts: expected shape \(starts, 1, 2\) or \(3, starts, 1, 2\), got sha"),
        ({"starts": torch.zeros(2, 4, 1, 2)}, r"starts: expected shape .*, got shape \(2, 4, 1, 2\)"),
        ({"starts": torch.full((1, 1, 2), torch.nan)}, "starts: expected finite numbers"),
        ({"seed": None}, "seed: expected an integer, for the starts are drawn, got None"),
        ({"bounds": (0.0, np.inf)}, "bounds: expected a finite box to draw starts from, got an infinite one"),
        ({"steps": 0}, "steps: expected a whole number of at least 1"),
        ({"tolerance": -1.0}, "tolerance: expected a finite number of at least 0"),
    ],
)
def test_wrong_options_are_refused(options, words):
    refused(words, optimal_queries, removal_of(), **{"seed": 0, **options})


def test_no_records_kept_to_start_from():
    removal = remove(fit(Linear(), draw(2, 2), draw(2), 0.1), torch.tensor([[0, 1]]))
    words = "bounds: expected a box to draw starts from, got none, with every record removed"
    refused(words, optimal_queries, removal, seed=0)


def test_numpy_counts_are_counts_and_a_vector_of_starts_is_refused():
    removal = remove(fit(RBF(), draw(6, 2), draw(6, seed=1), 0.1), torch.arange(2))
    one, other = (optimal_queries(removal, starts=count, seed=0, steps=3) for count in (4, np.int64(4)))
    assert torch.equal(one.ends, other.ends)
    words = r"starts: expected shape \(starts, 1, 2\) or \(2, starts, 1, 2\), got shape \(3,\)"
    refused(words, optimal_queries, removal, starts=torch.zeros(3))
