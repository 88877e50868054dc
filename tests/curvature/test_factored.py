"""Leverage blocks of a sketch against the exact ones of the same records, the sketch made from an explicit matrix and
with signs of NumPy's own."""

from functools import cache

import numpy as np
import pytest
import torch

from giveaway import Head
from giveaway.curvature.blocks import FactoredBlocks, LeaveOutStep
from giveaway.curvature.losses import Softmax
from tests import oracles
from tests.conftest import made_arrays
from tests.curvature.cases import arrays_of, explicit_curvature, explicit_root, terms

NAMES = (
    "gls_trace",
    "gls_frobenius",
    "gls_spectral",
    "gls_trace_logit",
    "gls_frobenius_logit",
    "gls_spectral_logit",
    "influence",
    "newton",
)


class Sketch:
    """U and signs of every record for `probes` probes, from the explicit H and A."""

    def __init__(self, head: Head, probes: int, seed: int = 0) -> None:
        self.head, self.probes = head, probes
        root = explicit_root(head)
        omega = np.random.default_rng(seed).choice([-1.0, 1.0], size=(len(root), probes))
        x, _, self.g, self.W, self.weight, _ = terms(head)
        z = oracles.pseudo_inverse(explicit_curvature(head)) @ (root.T @ omega)
        self.u = np.einsum("nd,dkq->nkq", x, z.reshape(head.width, head.m, probes))
        self.signs = omega[: head.n * head.m].reshape(head.n, head.m, probes)

    def blocks(self, probes: slice, size: int = 1, dtype: torch.dtype = torch.float64) -> FactoredBlocks:
        """Of groups of `size` consecutive records."""
        q = probes.stop - probes.start

        def grouped(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).view(-1, size, *array.shape[1:])

        loss = Softmax(self.head.m)
        curvature = loss.curvature(grouped(self.head.outputs.double().numpy()))
        u, own = grouped(self.u[:, :, probes] / q**0.5), grouped(self.signs[:, :, probes])
        return FactoredBlocks(u.to(dtype), own.to(dtype), curvature, grouped(self.weight), loss)

    def scores(self, probes: slice, size: int = 1, dtype: torch.dtype = torch.float64) -> dict[str, np.ndarray]:
        blocks = self.blocks(probes, size, dtype)
        g = torch.from_numpy(self.g).view(-1, size, self.head.m)
        image = blocks.image(torch.from_numpy(self.weight).view(-1, size, 1) * g)
        values = [
            blocks.trace(),
            blocks.frobenius(),
            blocks.spectral(),
            blocks.trace(logit=True),
            blocks.frobenius(logit=True),
            blocks.spectral(logit=True),
            (g * image).sum((1, 2)),
            (g * blocks.leave_out(image).step).sum((1, 2)),
        ]
        return {name: value.numpy() for name, value in zip(NAMES, values, strict=True)}

    def errors(self, exact: dict[str, np.ndarray], q: int, most: int = 4, **options) -> dict[str, np.ndarray]:
        """Relative errors (draws, rows) of each score by disjoint parts of q probes."""
        draws = [
            self.scores(slice(start, start + q), **options)
            for start in range(0, min(self.probes, most * q), q)
            if start + q <= self.probes
        ]
        return {name: np.stack([draw[name] for draw in draws]) / exact[name] - 1 for name in NAMES}


def rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


@cache
def some_head() -> Head:
    rng = np.random.default_rng(1)
    features, outputs = rng.normal(size=(12, 2)), 1.5 * rng.normal(size=(12, 4))
    options = {"loss": "cross_entropy", "l2": 0.3, "sample_weight": rng.random(12) + 0.3}
    return Head(features, outputs, rng.integers(0, 4, 12), **options)


def exact_scores(head: Head) -> dict[str, np.ndarray]:
    return oracles.head_scores(**arrays_of(head))


@cache
def many_probes() -> tuple[Sketch, dict[str, np.ndarray]]:
    return Sketch(some_head(), 20_480), exact_scores(some_head())


@cache
def all_scores(q: int) -> dict[str, np.ndarray]:
    sketch, exact = many_probes()
    return sketch.errors(exact, q)


@pytest.mark.parametrize("name", NAMES)
def test_errors_fall_with_the_root_of_the_probes(name):
    counts = [64, 256, 1024, 4096]
    errors = [rms(all_scores(q)[name]) for q in counts]
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert -0.6 <= slope <= -0.4, dict(zip(counts, errors, strict=True))
    # and are of the size that is promised
    assert 0.3 < errors[1] / (2 / 256) ** 0.5 < 1.6
    # of 20,480 probes √(2/q) is 1 %, and of 12 records none is four of those away
    assert np.abs(all_scores(20_480)[name]).max() < 0.04


@pytest.mark.parametrize(
    ("name", "most"), [(name, 0.0) for name in ("gls_trace", "gls_trace_logit", "influence")]
    + [("gls_frobenius", 0.03), ("gls_frobenius_logit", 0.03)]
    + [("gls_spectral", 0.04), ("gls_spectral_logit", 0.04), ("newton", 0.03)],
)  # fmt: skip
def test_bias(name, most):
    """The mean over 30 draws of 128 probes: that of an unbiased score is off by its standard error alone."""
    errors = bias_draws()[name]
    bias, spread = errors.mean(0), errors.std(0, ddof=1) / len(errors) ** 0.5
    assert (np.abs(bias) < most + 4.0 * spread).all(), (bias / spread).round(1)
    assert abs(bias.mean()) < most / 2 + 4.0 * rms(spread) / 2


@cache
def bias_draws() -> dict[str, np.ndarray]:
    sketch, exact = many_probes()
    return sketch.errors(exact, 128, most=30)


def left_out(sketch: Sketch, probes: slice) -> LeaveOutStep:
    blocks = sketch.blocks(probes)
    return blocks.leave_out(blocks.image(torch.from_numpy(sketch.g).unsqueeze(1)))


def one_high(leverage: float, m: int = 4, n: int = 40) -> Head:
    """A head whose first record has nearly all of the curvature in its direction."""
    rng = np.random.default_rng(2)
    features = rng.normal(size=(n, 3))
    outputs = 0.5 * rng.normal(size=(n, m))
    targets = rng.integers(0, m, n)
    features[0] *= 3 * np.sqrt(n * leverage / (1 - leverage)) / np.linalg.norm(features[0])
    return Head(features, outputs, targets, loss="cross_entropy", intercept=False, l2=1e-6)


@pytest.mark.parametrize("leverage", [0.5, 0.99, 0.9999])
def test_newton_at_high_leverage_is_as_accurate_as_anywhere(leverage):
    """I − W B by a difference would be off by √(2/q)/(1 − h); by the record's own signs it is not."""
    head = one_high(leverage)
    assert oracles.top_eigenvalues(**arrays_of(head))[0] > leverage
    q = 128
    sketch = Sketch(head, 16 * q)
    found = [left_out(sketch, slice(start, start + q)) for start in range(0, 16 * q, q)]
    assert not any(one.capped.any() for one in found)
    steps = [(sketch.g * one.step[:, 0].numpy()).sum(1) for one in found]
    errors = np.stack(steps) / exact_scores(head)["newton"] - 1
    assert 0.4 * (2 / q) ** 0.5 < rms(errors[:, 0]) < 1.8 * (2 / q) ** 0.5
    assert abs(errors[:, 0].mean()) < 0.08
    assert rms(errors[:, 1:]) < 1.6 * (2 / q) ** 0.5


def test_norms_are_never_below_what_the_trace_says():
    """Of records that the model is very sure of, and that have high leverage, noise may say a norm of 0."""
    rng = np.random.default_rng(0)
    head = Head(rng.normal(size=(60, 40)), 6 * rng.normal(size=(60, 6)), np.arange(60) % 6, "cross_entropy", l2=1e-6)
    blocks, exact = Sketch(head, 32).blocks(slice(0, 32)), exact_scores(head)
    left, right, scale = blocks._factors(False)
    one, other = (left[..., half] @ right[..., half].mT * 2 for half in (slice(0, 16), slice(16, None)))
    unbounded = scale * (one * other).sum((1, 2)).clamp_min(0).sqrt()
    assert (unbounded.numpy() < 0.1 * exact["gls_frobenius"]).any()
    assert (blocks.frobenius().numpy() > 0.4 * exact["gls_frobenius"]).all()
    assert (blocks.frobenius() >= blocks.trace() / 5**0.5).all()
    assert (blocks.spectral() >= blocks.trace() / 5).all()


def test_the_top_leverage_is_told():
    head = one_high(0.9)
    found = left_out(Sketch(head, 4096), slice(0, 4096))
    np.testing.assert_allclose(found.leverage, oracles.top_eigenvalues(**arrays_of(head)), rtol=0.15)


def test_more_outputs_than_probes():
    rng = np.random.default_rng(4)
    n, m, q = 20, 40, 32
    outputs = 3 * rng.normal(size=(n, m))
    targets = np.where(rng.random(n) < 0.5, outputs.argmax(1), rng.integers(0, m, n))
    head = Head(rng.normal(size=(n, 2)), outputs, targets, loss="cross_entropy", l2=0.3)
    sketch = Sketch(head, 8 * q)
    errors = sketch.errors(exact_scores(head), q, most=4)
    for name in NAMES:
        assert np.isfinite(errors[name]).all()
        # the largest of forty nearly equal numbers is overrated by so few probes
        assert rms(errors[name]) < (4 if name == "gls_spectral_logit" else 1.7) * (2 / q) ** 0.5, name
    for name in ("gls_trace", "influence"):
        assert abs(errors[name].mean()) < 0.08
    # both ways round, the smaller size and the larger, give the same norms
    few, many = sketch.blocks(slice(0, q)), sketch.blocks(slice(0, 8 * q))
    for blocks in (few, many):
        for logit in (False, True):
            left, right, scale = blocks._factors(logit)
            half = left.shape[2] // 2
            one, other = (left[..., part] @ right[..., part].mT * 2 for part in (slice(0, half), slice(half, None)))
            expected = scale * (one * other).sum((1, 2)).clamp_min(0).sqrt()
            expected = expected.maximum(blocks.trace(logit=logit) / (m - 1) ** 0.5)
            torch.testing.assert_close(blocks.frobenius(logit=logit), expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("size", [2, 3])
def test_groups_against_dense_blocks_of_groups(size):
    sketch, _ = many_probes()
    exact = oracles.group_scores(**arrays_of(sketch.head), groups=np.arange(sketch.head.n) // size)
    errors = sketch.errors(exact, 512, size=size)
    for name in NAMES:
        assert np.median(np.abs(errors[name])) < (2 if name == "newton" else 1) * (2 / 512) ** 0.5, name
        assert np.median(np.abs(errors[name].mean(0))) < 0.05, name


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_curvature_form(dtype, size):
    sketch, _ = many_probes()
    head = sketch.head
    v = np.random.default_rng(5).normal(size=(head.n, head.m))
    expected = (sketch.weight * np.einsum("na,nab,nb->n", v, sketch.W, v)).reshape(-1, size).sum(1)
    found = sketch.blocks(slice(0, 64), size, dtype).curvature_form(torch.from_numpy(v).view(-1, size, head.m))
    np.testing.assert_allclose(found, expected, rtol=1e-10 if dtype == torch.float64 else 1e-4)


def sure_head(lead: float) -> Head:
    """Half of the records sure by `lead`; the others carry the curvature."""
    arrays = made_arrays("classes", n=20, d=2)
    outputs = np.random.default_rng(6).normal(size=(20, 5))
    outputs[::2] += lead * np.eye(5)[arrays["targets"][::2]]
    return Head(**arrays | {"outputs": outputs}, l2=0.1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("lead", "dtype"), [(50.0, torch.float32), (60.0, torch.float64), (60.0, torch.float32)])
def test_sure_records_are_as_accurate_as_the_others(name, lead, dtype):
    """Relative to numbers as small as e^-120."""
    errors = sure_errors(lead, dtype)[name]
    assert np.isfinite(errors).all()
    assert rms(errors[:, ::2]) < 1.6 * (2 / 256) ** 0.5


@cache
def sure_errors(lead: float, dtype: torch.dtype) -> dict[str, np.ndarray]:
    head = sure_head(lead)
    sketch = Sketch(head, 3 * 256)
    # the oracle's own gradient p − y has no digits here
    p = torch.softmax(head.outputs, 1)
    own = head.targets.unsqueeze(1)
    others = p.scatter(1, own, 0.0)
    g = others.scatter(1, own, -others.sum(1, keepdim=True))
    sketch.g = g.numpy()
    exact = sure_exact(head, g.numpy(), p.numpy())
    return sketch.errors(exact, 256, dtype=dtype)


def sure_exact(head: Head, g: np.ndarray, p: np.ndarray) -> dict[str, np.ndarray]:
    """The scores with B in contrast to the leading class, where nothing cancels."""
    inverse = oracles.pseudo_inverse(explicit_curvature(head))
    x = head.window(slice(0, head.n)).rows().numpy()
    exact = {name: np.empty(head.n) for name in NAMES}
    m = head.m
    for i in range(head.n):
        lift = np.kron(x[i][:, None], np.eye(m))
        projection = np.eye(m) - 1 / m
        B = projection @ lift.T @ inverse @ lift @ projection
        top = p[i].argmax()
        contrast = np.eye(m)
        contrast[:, top] -= 1.0
        C = contrast @ B @ contrast.T  # B up to constants in rows and columns
        mean = p[i] @ C
        left = C - mean  # centred by p on the left
        WB = p[i][:, None] * (left - left.mean(1, keepdims=True))
        exact["gls_trace"][i] = p[i] @ (np.diag(C) - mean)
        exact["gls_frobenius"][i] = np.sqrt(((WB / WB.max()) ** 2).sum()) * WB.max()
        exact["gls_spectral"][i] = np.linalg.svd(WB / WB.max(), compute_uv=False)[0] * WB.max()
        exact["gls_trace_logit"][i] = np.trace(B)
        exact["gls_frobenius_logit"][i] = np.linalg.norm(B)
        exact["gls_spectral_logit"][i] = np.linalg.eigvalsh(B)[-1]
        exact["influence"][i] = g[i] @ C @ g[i]
        W = np.diag(p[i]) - np.outer(p[i], p[i])
        W[top, top] = -np.delete(W[top], top).sum()
        exact["newton"][i] = g[i] @ C @ np.linalg.solve(np.eye(m) - W @ C, g[i])
    return exact


def test_leverage_of_one_is_capped_and_finite():
    """A record alone with its feature, unpenalized: leaving it out loses a direction."""
    arrays = made_arrays("classes", n=30, d=3)
    features = np.column_stack([arrays["features"], np.zeros(30)])
    features[7, 3] = 2.0
    found = left_out(Sketch(Head(**arrays | {"features": features}), 256), slice(0, 256))
    assert found.capped.tolist() == [i == 7 for i in range(30)]
    assert found.step.isfinite().all()
    assert float(found.step[7].abs().max()) > 1e6
    assert float(found.leverage[7]) == pytest.approx(1.0, abs=0.3)
