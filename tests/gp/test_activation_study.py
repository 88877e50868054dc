"""The study of activations: against n separate solves, and the rates at which kernels tend to a constant."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import ndtr

from giveaway.checks import InputError
from giveaway.gp.activation_study import SETTINGS, activation_study, critical_variances, study_kernel
from giveaway.gp.activations import ACTIVATIONS, leaky_relu
from giveaway.gp.bounds import distance_to_constant
from giveaway.gp.kernels import kernel_matrix

NOISE = 0.1


def data(n=9, d=6, outputs=2):
    rng = np.random.default_rng(0)
    return rng.uniform(0.0, 1.0, size=(n, d)), rng.normal(size=(n, outputs))


def rectifier_by_hand(x, depth):
    """ReLU at σw² = 2 through the arc-cosine formula, in NumPy."""
    k = 2 * x @ x.T / x.shape[1]
    for _ in range(depth):
        size = np.sqrt(np.outer(k.diagonal(), k.diagonal()))
        angle = np.arccos(np.clip(k / size, -1.0, 1.0))
        k = size * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi
    return k


def gelu_by_hand(x, depth):
    """GELU at σw² = 2 by Gauss–Hermite quadrature of every pair."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    k = 2 * x @ x.T / x.shape[1]
    for _ in range(depth):
        after = np.empty_like(k)
        for i in range(len(k)):
            for j in range(len(k)):
                u = math.sqrt(k[i, i]) * nodes
                slope = k[i, j] / k[i, i]
                rest = math.sqrt(max(k[j, j] - slope * k[i, j], 0.0))
                v = slope * u[:, None] + rest * nodes
                after[i, j] = 2 * weights @ (u * ndtr(u) * ((v * ndtr(v)) @ weights))
        k = after
    return k


class Raised(type(ACTIVATIONS["identity"])):
    """x + 3."""

    name = "raised"

    def _dual(self, qx, qz, c):
        return super()._dual(qx, qz, c) + 9.0


def on_sphere(x):
    x = x - x.mean(1, keepdims=True)
    return x / np.sqrt((x**2).mean(1, keepdims=True))


def correlation(k):
    return k / np.sqrt(np.outer(k.diagonal(), k.diagonal()))


def separate_solves(k, y):
    """KL and mean distance of every record, from the posterior of the others and that of all."""
    n, outputs = y.shape
    kl, mean = np.empty(n), np.empty(n)
    for i in range(n):
        law = []
        for kept in (np.delete(np.arange(n), i), np.arange(n)):
            solved = np.linalg.solve(k[np.ix_(kept, kept)] + NOISE * np.eye(len(kept)), k[kept, i])
            law.append((solved @ y[kept], k[i, i] - solved @ k[kept, i]))
        (before, wide), (after, narrow) = law
        shift = ((before - after) ** 2).sum()
        kl[i] = 0.5 * (outputs * (math.log(narrow / wide) - 1 + wide / narrow) + shift / narrow)
        mean[i] = 0.5 * shift
    return kl, mean


@pytest.mark.parametrize("setting", ["sphere", "raw"])
def test_values_are_those_of_separate_solves(setting):
    x, y = data()
    study = activation_study(x, y, noise=NOISE, depths=[1, 2], activations=["gelu"], setting=setting)
    assert study.activations == ("relu", "gelu")
    rows = {(row.activation, row.depth): row for row in study.rows}
    for j, depth in enumerate((1, 2)):
        by_hand = {}
        for i, (name, kernel) in enumerate((("relu", rectifier_by_hand), ("gelu", gelu_by_hand))):
            k = correlation(kernel(on_sphere(x), depth)) if setting == "sphere" else kernel(x, depth)
            by_hand[name] = separate_solves(k, y)
            np.testing.assert_allclose(study.kl[i, j], by_hand[name][0], rtol=1e-7)
            np.testing.assert_allclose(study.mean[i, j], by_hand[name][1], rtol=1e-7)
            row = rows[name, depth]
            assert row.distance == pytest.approx(
                (k.max() - k.min()) / 2 if k.max() + k.min() > 0 else k.max(), rel=1e-9
            )
            assert row.kl == pytest.approx(by_hand[name][0].mean(), rel=1e-7)
        gelu = rows["gelu", depth]
        for measure, ratio, higher in ((0, gelu.kl_ratio, gelu.kl_higher), (1, gelu.mean_ratio, gelu.mean_higher)):
            ours, relus = by_hand["gelu"][measure], by_hand["relu"][measure]
            assert ratio == pytest.approx(ours.mean() / relus.mean(), rel=1e-7)
            assert higher == (ours > relus).mean()


def test_relu_beside_itself():
    x, y = data()
    study = activation_study(x, y[:, 0], noise=NOISE, depths=[3], activations=[leaky_relu(0.2), "relu"])
    assert study.activations == ("relu", "leaky_relu(0.2)")
    first = study.rows[0]
    assert (first.kl_ratio, first.kl_higher, first.mean_ratio, first.mean_higher) == (1.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize(("name", "phi"), [("gelu", lambda u: u * ndtr(u)), ("tanh", np.tanh)])
def test_critical_variances_by_quadrature(name, phi):
    def moment(function):
        return quad(lambda u: function(u) ** 2 * math.exp(-u * u / 2) / math.sqrt(math.tau), -12, 12, epsabs=1e-12)[0]

    weight, bias = critical_variances(name)
    step = 1e-5
    assert weight * moment(lambda u: (phi(u + step) - phi(u - step)) / (2 * step)) == pytest.approx(1.0, rel=1e-8)
    assert bias + weight * moment(phi) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh", "elu", "erf"])
def test_unit_variance_at_every_depth(name):
    x = torch.from_numpy(data()[0])
    for setting in ("sphere", "critical"):
        for depth in (1, 5):
            diagonal = kernel_matrix(study_kernel(setting, depth, name), x).diagonal()
            torch.testing.assert_close(diagonal, torch.ones_like(diagonal), rtol=0, atol=1e-12)


# by theory 1 − correlation tends to (9π²/2)/L² for ReLU: slopes approach −2 and −1 from the side of shallower depths
@pytest.mark.parametrize(("name", "slope"), [("relu", -2.0), ("gelu", -1.0), ("erf", -1.0)])
def test_rates_of_proposition_h1(name, slope):
    x = torch.from_numpy(data(n=4)[0])
    depths = np.array([200, 400, 800])
    distances = [distance_to_constant(kernel_matrix(study_kernel("critical", int(d), name), x))[1] for d in depths]
    fitted = np.polyfit(np.log(depths), np.log(distances), 1)[0]
    assert fitted == pytest.approx(slope, abs=0.08)
    if name == "relu":
        assert 2 * distances[-1] * depths[-1] ** 2 == pytest.approx(4.5 * math.pi**2, rel=0.1)


def test_a_smooth_activation_off_the_critical_line_keeps_its_distance():
    x = torch.from_numpy(data(n=4)[0])
    shallow, deep = (distance_to_constant(kernel_matrix(study_kernel("sphere", d, "erf"), x))[1] for d in (50, 200))
    assert deep > 0.9 * shallow
    assert deep > 0.1


def test_text():
    x, y = data()
    study = activation_study(x, y, noise=NOISE, depths=[2], activations=["erf"], setting="critical")
    read = list(csv.DictReader(io.StringIO(study.to_csv())))
    assert [row["activation"] for row in read] == ["relu", "erf"]
    assert float(read[1]["kl_ratio"]) == study.rows[1].kl_ratio
    assert {row["setting"] for row in read} == {"critical"}
    assert f"| erf | 2 | {study.rows[1].kl:.4g} | {study.rows[1].kl_ratio:.4g} |" in study.to_markdown()


def test_words_of_errors():
    x, y = data()
    with pytest.raises(InputError, match="setting"):
        activation_study(x, y, noise=NOISE, depths=[1], activations=["gelu"], setting="cube")
    with pytest.raises(InputError, match=r"depths: .*at least one depth"):
        activation_study(x, y, noise=NOISE, depths=[], activations=["gelu"])
    with pytest.raises(InputError, match=r"inputs: .*records as"):
        activation_study(x[0], y, noise=NOISE, depths=[1], activations=["gelu"])
    with pytest.raises(InputError, match="activation"):
        activation_study(x, y, noise=NOISE, depths=[1], activations=["swish"])
    with pytest.raises(InputError, match="unit variance"):
        critical_variances(Raised())
    assert SETTINGS == ("sphere", "critical", "raw")
