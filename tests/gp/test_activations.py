"""Duals of activations: against quadrature in polar coordinates, finite differences, and where correlations are ±1."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import erf as np_erf
from scipy.special import ndtr

from giveaway.gp.activations import ACTIVATIONS, as_activation, leaky_relu
from tests.conftest import refused

ROOT_PI = math.sqrt(math.pi)


def density(x):
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


# φ, φ', φ'' written out in NumPy; the kinked ones have no φ'' as a function
FUNCTIONS = {
    "relu": (lambda x: np.maximum(x, 0.0), lambda x: (x > 0) * 1.0, None),
    "leaky_relu": (lambda x: np.where(x > 0, x, 0.01 * x), lambda x: np.where(x > 0, 1.0, 0.01), None),
    "erf": (np_erf, lambda x: 2 / ROOT_PI * np.exp(-x * x), lambda x: -4 * x / ROOT_PI * np.exp(-x * x)),
    "gelu": (
        lambda x: x * ndtr(x),
        lambda x: ndtr(x) + x * density(x),
        lambda x: (2 - x * x) * density(x),
    ),
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2, lambda x: -2 * np.tanh(x) / np.cosh(x) ** 2),
    "identity": (lambda x: x, np.ones_like, np.zeros_like),
}
SMOOTH = [name for name, (_, _, second) in FUNCTIONS.items() if second is not None]
VARIANCES = [(1e-3, 1e-3), (1e-3, 100.0), (100.0, 100.0), (3.0, 0.5)]


def panels(low, high, count, nodes):
    x, w = np.polynomial.legendre.leggauss(nodes)
    edges = np.linspace(low, high, count + 1)
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (1 + x)).ravel(), (half * w).ravel()


class Quadrature:
    """E[f(u)g(v)] in polar coordinates (u = a r cos t, v = b r cos(t − angle)), cut where u or v changes sign."""

    def __init__(self, qx, qz, rho):
        a, b = math.sqrt(qx), math.sqrt(qz)
        if abs(rho) == 1:
            g, w = (np.concatenate(both) for both in zip(panels(-10, 0, 20, 30), panels(0, 10, 20, 30), strict=True))
            self.u, self.v, self.weight = a * g, b * rho * g, w * density(g)
            return
        angle = math.acos(rho)
        r, wr = panels(0, 10, 18, 24)
        cuts = sorted([-math.pi / 2, math.pi / 2, angle - math.pi / 2, angle + math.pi / 2, 3 * math.pi / 2])
        arcs = [panels(low, high, 6, 30) for low, high in pairwise(cuts) if high > low]
        t, wt = (np.concatenate(both) for both in zip(*arcs, strict=True))
        self.u, self.v = a * np.outer(r, np.cos(t)), b * np.outer(r, np.cos(t - angle))
        self.weight = np.outer(wr * r * np.exp(-r * r / 2), wt) / (2 * math.pi)

    def of(self, functions):
        """The table E[f_i(u) f_j(v)]."""
        left = [f(self.u) * self.weight for f in functions]
        right = [f(self.v) for f in functions]
        return [[np.vdot(f, g) for g in right] for f in left]


def numbers(*values):
    return [torch.tensor([value], dtype=torch.float64) for value in values]


@pytest.mark.parametrize("rho", [-1.0, -0.999, 0.0, 0.7, 0.9999, 1.0])
@pytest.mark.parametrize(("qx", "qz"), VARIANCES)
def test_duals_and_their_gradients_against_quadrature(qx, qz, rho):
    expectation = Quadrature(qx, qz, rho)
    for name, (phi, first, second) in FUNCTIONS.items():
        activation = ACTIVATIONS[name]
        tx, tz, tc = (value.requires_grad_() for value in numbers(qx, qz, rho * math.sqrt(qx * qz)))
        dual = activation.dual(tx, tz, tc)
        # an expectation of steps (φ' of ReLU) is known to √ε only where the correlation is ±1
        step = 1e-10 if second is not None or abs(rho) < 1 else 3e-8
        moment = expectation.of([phi, first, *([second] if second else [])])
        assert dual.item() == pytest.approx(moment[0][0], abs=1e-10), name
        by_x, by_z, by_c = torch.autograd.grad(dual, (tx, tz, tc))
        assert by_c.item() == pytest.approx(moment[1][1], abs=step), name
        if second is not None:
            assert by_x.item() == pytest.approx(0.5 * moment[2][0], abs=1e-10), name
            assert by_z.item() == pytest.approx(0.5 * moment[0][2], abs=1e-10), name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_against_finite_differences(name):
    generator = torch.Generator().manual_seed(3)
    qx, qz = (0.2 + 3 * torch.rand(shape, dtype=torch.float64, generator=generator) for shape in ((3, 1), (1, 2)))
    c = 0.95 * (2 * torch.rand((3, 2), dtype=torch.float64, generator=generator) - 1) * (qx * qz).sqrt()
    inputs = [value.requires_grad_() for value in (qx, qz, c)]
    assert torch.autograd.gradcheck(ACTIVATIONS[name].dual, inputs)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("qx", "qz", "c"), [(0.0, 2.0, 0.0), (0.0, 0.0, 0.0), (2.0, 2.0, 2.0), (2.0, 2.0, -2.0)])
def test_nothing_is_infinite_at_the_corners(name, qx, qz, c):
    inputs = [value.requires_grad_() for value in numbers(qx, qz, c)]
    value = ACTIVATIONS[name].dual(*inputs)
    assert torch.isfinite(value).all()
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(value, inputs))
    if qx == 0:
        assert value.item() == pytest.approx(0.0, abs=1e-15) == FUNCTIONS[name][0](np.zeros(1))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_covariances_beyond_the_bound_count_as_on_it(name):
    activation = ACTIVATIONS[name]
    qx, qz, bound = numbers(2.0, 3.0, math.sqrt(6.0))
    for sign in (1.0, -1.0):
        on, beyond = sign * bound, (sign * bound * (1 + 1e-15)).requires_grad_()
        dual = activation.dual(qx, qz, beyond)
        torch.testing.assert_close(dual, activation.dual(qx, qz, on), rtol=1e-14, atol=1e-14)
        # the gradient is not cut off there
        slope = activation.moment((1, 1), qx, qz, on)
        torch.testing.assert_close(torch.autograd.grad(dual.sum(), beyond)[0], slope, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_broadcasting(name):
    activation = ACTIVATIONS[name]
    x = torch.linspace(-4, 4, 41, dtype=torch.float64)
    np.testing.assert_allclose(activation(x), FUNCTIONS[name][0](x.numpy()), atol=1e-13)
    qx, qz, c = numbers(1.5)[0], torch.tensor([[2.0], [3.0]], dtype=torch.float64), torch.tensor([0.3, -0.8]).double()
    full = [value.contiguous() for value in torch.broadcast_tensors(qx, qz, c)]
    for dual in (activation.dual, partial(activation.moment, (1, 1)), partial(activation.moment, (2, 0))):
        torch.testing.assert_close(dual(qx, qz, c), dual(*full), rtol=1e-14, atol=0)
        torch.testing.assert_close(dual(qx, qz[:, 0], c[0]), dual(*full)[:, 0], rtol=1e-14, atol=0)


def test_single_precision_and_vmap():
    q = torch.tensor([1.0, 2.0])
    for activation in ACTIVATIONS.values():
        single, double = (activation.dual(a, a, 0.5 * a) for a in (q, q.double()))
        assert single.dtype == torch.float32
        torch.testing.assert_close(single, double.float(), rtol=1e-5, atol=1e-6)
        slope = torch.func.vmap(torch.func.grad(lambda c, a=activation: a.dual(q[0], q[0], c)))(0.5 * q)
        torch.testing.assert_close(slope, activation.moment((1, 1), q[0], q[0], 0.5 * q), rtol=1e-5, atol=1e-6)


def test_leaky_relu_goes_from_relu_to_the_identity():
    qx, qz, c = numbers(2.0, 0.7, -0.5)
    for slope, other in ((0.0, "relu"), (1.0, "identity")):
        torch.testing.assert_close(leaky_relu(slope).dual(qx, qz, c), ACTIVATIONS[other].dual(qx, qz, c))
    # |x| is the leaky ReLU of slope −1: E|uv| at correlation 0 is (2/π) √(qx qz)
    assert leaky_relu(-1.0).dual(qx, qz, 0 * c).item() == pytest.approx(2 / math.pi * math.sqrt(1.4), rel=1e-14)


def test_words_of_errors():
    refused("activation: expected one of relu, leaky_relu, erf, gelu, tanh, identity", as_activation, "selu")
    refused("slope: expected a finite number", leaky_relu, math.nan)
    assert as_activation("gelu") is ACTIVATIONS["gelu"]
    assert as_activation(ACTIVATIONS["tanh"]) is ACTIVATIONS["tanh"]
