"""Steps of chosen records by right sides of their own, against every group's own dense solve."""

import numpy as np
import pytest
import torch

from giveaway import Head
from giveaway.curvature import sketch as module
from giveaway.curvature.optimum import gradient_sum
from giveaway.curvature.sketch import ExactSteps, Sketch, SketchedCurvature, exact_steps
from tests import oracles
from tests.conftest import made_arrays, made_head
from tests.curvature.cases import terms

KINDS = ["squared_many", "one_logit", "two_classes", "classes", "soft_labels", "multi_label"]
OPTIONS = {
    "plain": {"l2": 0.3},
    "weighted": {"l2": 0.3, "sample_weight": np.random.default_rng(3).random(60) + 0.1},
    "free intercept": {"l2": 0.3, "penalize_intercept": False},
    "no penalty": {"l2": 0.0, "intercept": False},
}


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    """Solved far enough for the formulas to show; what the usual tolerance costs is a test of its own."""
    monkeypatch.setattr(module, "OWN_TOLERANCE", 1e-9)


def steps_of(head: Head, rows: np.ndarray, size: int, *, converged: bool = True) -> ExactSteps:
    """Of groups of `size` consecutive `rows`."""
    curvature = SketchedCurvature(head, Sketch(probes=32, precision="float64"))
    window = head.window(torch.from_numpy(rows))
    loss = curvature.loss
    gradient = loss.gradient(window.outputs.double(), loss.targets(window.targets)).view(-1, size, head.m)
    total = drift = None
    if not converged:
        total = gradient_sum(head).total
        drift = SketchedCurvature(head, Sketch(probes=32, precision="float64", tolerance=1e-10)).solve(total)
    return exact_steps(curvature, window, gradient, total, drift)


def dense_steps(head: Head, rows: np.ndarray, size: int, theta: np.ndarray | None = None):
    """B s g, and what leaving out moves the outputs by (less the drift, where theta is given), by inverses formed anew
    for every group."""
    x, _, g, W, s, kind = terms(head)
    Q = oracles.output_basis(kind, head.m)
    g, W = g @ Q, np.array([Q.T @ one @ Q for one in W])
    penalty = oracles.penalty_vector(head.width, Q.shape[1], head.l2, head.intercept, head.penalize_intercept)
    inverse = oracles.pseudo_inverse(oracles.curvature(x, W, s, penalty))
    G = np.zeros(len(penalty))
    if theta is not None:
        G = penalty * (theta @ Q).ravel() + sum(s[j] * np.kron(x[j], g[j]) for j in range(head.n))
    images, steps = [], []
    for members in rows.reshape(-1, size):
        own = sum(s[j] * np.kron(x[j], g[j]) for j in members)
        keep = np.setdiff1d(np.arange(head.n), members)
        without = np.linalg.inv(oracles.curvature(x[keep], W[keep], s[keep], penalty))
        moved = without @ (own - G) + inverse @ G
        images.append([x[j] @ (inverse @ own).reshape(head.width, -1) @ Q.T for j in members])
        steps.append([x[j] @ moved.reshape(head.width, -1) @ Q.T for j in members])
    return np.array(images), np.array(steps)


def assert_same(found: ExactSteps, image: np.ndarray, step: np.ndarray, head: Head, error: float = 1e-5) -> None:
    """Softmax up to a constant added to all outputs."""
    softmax = oracles.kind_of(head.loss, head.m) == "softmax"
    for got, expected in ((found.image, image), (found.left_out.step, step)):
        got = got.numpy() - got.numpy().mean(2, keepdims=True) if softmax else got.numpy()
        size = np.linalg.norm(expected, axis=(1, 2))
        assert (np.linalg.norm(got - expected, axis=(1, 2)) <= error * size).all()
    assert float(found.residual.max()) <= module.OWN_TOLERANCE
    assert not found.left_out.capped.any()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_records(kind, options):
    head = made_head(kind, **OPTIONS[options])
    rows = np.array([0, 1, 2, 3, 17, 30, 59])  # those far out, and others
    assert_same(steps_of(head, rows, 1), *dense_steps(head, rows, 1), head)


@pytest.mark.parametrize("kind", KINDS)
def test_groups(kind):
    head = made_head(kind, **OPTIONS["weighted"])
    rows = np.array([0, 1, 20, 5, 40, 41, 2, 3, 59])
    assert_same(steps_of(head, rows, 3), *dense_steps(head, rows, 3), head)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["squared_many", "one_logit", "classes", "multi_label"])
def test_heads_before_their_optimum(kind, size):
    arrays = made_arrays(kind, seed=3)
    theta = np.random.default_rng(4).normal(size=(5, arrays["outputs"].shape[1]))
    arrays["outputs"] = np.column_stack([arrays["features"], np.ones(60)]) @ theta
    head = Head(**arrays, l2=0.5, weight=theta[:-1].T, bias=theta[-1])
    rows = np.array([0, 1, 2, 3, 30, 59])
    centred = theta - theta.mean(1, keepdims=True) if kind == "classes" else theta
    image, step = dense_steps(head, rows, size, centred)
    assert_same(steps_of(head, rows, size, converged=False), image, step, head, error=5e-5)
    plain = dense_steps(head, rows, size)[1]
    assert np.abs(plain - step).max() > 0.005 * np.abs(step).max()


def high_head(kind: str, leverage: float) -> Head:
    """Record 5 has nearly all of the curvature in its direction."""
    arrays = made_arrays(kind)
    rng = np.random.default_rng(6)
    arrays["outputs"] = 0.3 * rng.normal(size=arrays["outputs"].shape)
    features = rng.normal(size=arrays["features"].shape)
    features[5] *= 1.4 * np.sqrt(60 * leverage / (1 - leverage)) / np.linalg.norm(features[5])
    arrays["features"] = features
    top = oracles.top_eigenvalues(**arrays, intercept=False, l2=1e-3)
    assert leverage < top[5] < 1 - 1e-5
    return Head(**arrays, intercept=False, l2=1e-3)


@pytest.mark.parametrize("leverage", [0.5, 0.99, 0.999])
@pytest.mark.parametrize("kind", ["squared_many", "one_logit", "classes"])
def test_high_leverage(kind, leverage):
    head, rows = high_head(kind, leverage), np.array([5, 6])
    # the cap on eigenvalues, 1e-8 of them, weighs 1e-8/(1 − h)
    assert_same(steps_of(head, rows, 1), *dense_steps(head, rows, 1), head, error=3e-8 / (1 - leverage) + 1e-7)


def test_leverage_of_one_is_capped():
    """A record alone with its feature, unpenalized: there is no step without it."""
    arrays = made_arrays("classes")
    features = np.column_stack([arrays["features"], np.zeros(60)])
    features[7, 4] = 2.0
    head = Head(**arrays | {"features": features})
    found = steps_of(head, np.array([7, 8]), 1)
    assert found.left_out.capped.tolist() == [True, False]
    assert found.left_out.step.isfinite().all()
    assert float(found.left_out.step[0].abs().max()) > 1e6


@pytest.mark.parametrize("leverage", [0.5, 0.99, 0.999])
def test_what_the_usual_tolerance_costs(monkeypatch, leverage):
    """Of newton's score, gᵀ times the step: a thousandth at most."""
    monkeypatch.undo()
    head = high_head("classes", leverage)
    rows = np.array([5, 6, 7])
    found = steps_of(head, rows, 1)
    _, step = dense_steps(head, rows, 1)
    g = terms(head).g
    newton = (g[rows] * found.left_out.step[:, 0].numpy()).sum(1)
    np.testing.assert_allclose(newton, (g[rows] * step[:, 0]).sum(1), rtol=1e-3)
    assert found.residual.shape == (3,)
    assert (found.residual > 0).all()
    assert (found.residual <= module.OWN_TOLERANCE).all()
