"""Kernels and their sums, products and wrappers: against formulas entry by entry."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.gp.kernels import (
    RBF,
    Correlation,
    FeatureKernel,
    Kernel,
    Laplace,
    Linear,
    Sphere,
    diagonal_of,
    kernel_matrix,
)
from giveaway.gp.nngp import NNGP


def records(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def entries(formula, x, z):
    """The kernel matrix of a formula of two NumPy vectors, one entry after the other."""
    x, z = (records.flatten(1).numpy() for records in (x, z))
    return torch.tensor([[formula(a, b) for b in z] for a in x], dtype=torch.float64)


def plain(X, Z):
    """A kernel that is only a function."""
    return (1.0 + X.flatten(1) @ Z.flatten(1).T) ** 2


FORMULAS = [
    (RBF(1.7), lambda a, b: math.exp(-((a - b) ** 2).sum() / (2 * 1.7**2))),
    (Laplace(1.7), lambda a, b: math.exp(-math.sqrt(((a - b) ** 2).sum()) / 1.7)),
    (Linear(2.0, 0.3), lambda a, b: 2.0 * a @ b + 0.3),
    (Correlation(Linear()), lambda a, b: a @ b / math.sqrt((a @ a) * (b @ b))),
    (Correlation(plain), lambda a, b: (1 + a @ b) ** 2 / ((1 + a @ a) * (1 + b @ b))),
    (Linear() + plain, lambda a, b: a @ b + (1 + a @ b) ** 2),
    (plain + Linear(), lambda a, b: a @ b + (1 + a @ b) ** 2),
    (Linear(1.0, 2.0) * RBF(3.0), lambda a, b: (a @ b + 2.0) * math.exp(-((a - b) ** 2).sum() / 18.0)),
    (plain * Linear(), lambda a, b: a @ b * (1 + a @ b) ** 2),
    (0.5 * Linear(), lambda a, b: 0.5 * a @ b),
    (Linear() * 3, lambda a, b: 3.0 * a @ b),
    (Sphere(Linear()), lambda a, b: len(a) * a @ b / math.sqrt((a @ a) * (b @ b))),
    (Sphere(Linear(), centre=True), lambda a, b: len(a) * np.corrcoef(a, b)[0, 1]),
    (FeatureKernel(lambda X: X.flatten(1).square()), lambda a, b: (a * a) @ (b * b)),
    (
        FeatureKernel(lambda X: X.flatten(1)[:, :2], RBF(2.0)),
        lambda a, b: math.exp(-((a - b)[:2] ** 2).sum() / 8.0),
    ),
]


@pytest.mark.parametrize(("kernel", "formula"), FORMULAS)
def test_kernels_against_their_formulas(kernel, formula):
    for shape in ((7,), (2, 3)):
        x, z = records(5, *shape), records(4, *shape, seed=1)
        expected = entries(formula, x, z)
        torch.testing.assert_close(kernel(x, z), expected, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(diagonal_of(kernel, x), entries(formula, x, x).diagonal(), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(kernel_matrix(kernel, x, z, block=3), expected, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(kernel_matrix(kernel, x), entries(formula, x, x), rtol=1e-12, atol=1e-13)
        assert torch.autograd.gradcheck(lambda q, z=z: kernel(q, z), x[:2].clone().requires_grad_())
        assert torch.autograd.gradcheck(lambda q: diagonal_of(kernel, q), x[:2].clone().requires_grad_())


@settings(deadline=None, max_examples=40)
@given(n=st.integers(0, 40), m=st.integers(0, 9), block=st.integers(1, 41), seed=st.integers(0, 99))
def test_block_by_block_equals_all_at_once(n, m, block, seed):
    x, z = records(n, 3, seed=seed), records(m, 3, seed=seed + 1)
    for kernel in (plain, NNGP(2), Sphere(RBF())):
        torch.testing.assert_close(kernel_matrix(kernel, x, z, block=block), kernel(x, z), rtol=1e-12, atol=1e-13)
        matrix = kernel_matrix(kernel, x, block=block)
        torch.testing.assert_close(matrix, kernel(x, x), rtol=1e-12, atol=1e-13)
        assert torch.equal(matrix, matrix.T)
        torch.testing.assert_close(diagonal_of(kernel, x), matrix.diagonal(), rtol=1e-12, atol=1e-13)


def test_a_symmetric_matrix_evaluates_lower_blocks_only_and_maps_a_record_once():
    calls, mapped = [], []

    def counted(X, Z):
        calls.append((len(X), len(Z)))
        assert not torch.is_grad_enabled()
        return X @ Z.T

    def features(X):
        mapped.append(len(X))
        return X

    x = records(10, 3).requires_grad_()
    matrix = kernel_matrix(FeatureKernel(features, counted), x, block=4)
    assert sum(rows * columns for rows, columns in calls) == 16 + 16 + 4 + 16 + 8 + 8
    assert sum(mapped) == 10
    assert not matrix.requires_grad
    torch.testing.assert_close(matrix, x.detach() @ x.detach().T)


def test_distances_of_near_records_do_not_cancel():
    x = 100.0 + records(3, 50)
    step = records(3, 50, seed=1)
    for size in (1e-1, 1e-4, 1e-7, 1e-9):
        near = x + size * step
        distance = (near - x).norm(dim=1)
        kernel = Laplace(float(distance.mean()))
        expected = torch.exp(-distance / distance.mean())
        torch.testing.assert_close(kernel(x, near).diagonal(), expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(Laplace(1e-9)(x, x.clone()).diagonal(), torch.ones(3).double())


@pytest.mark.parametrize("kernel", [RBF(0.7), Laplace(0.7), Correlation(NNGP(2)), Sphere(NNGP(2, "gelu"))])
def test_unit_kernels_are_stationary_at_a_record(kernel):
    x = records(3, 4)
    query = x[:2].clone().requires_grad_()
    own = kernel(query, x).diagonal()
    torch.testing.assert_close(torch.autograd.grad(own.sum(), query)[0], torch.zeros(2, 4).double(), atol=1e-12, rtol=0)
    mixed = torch.autograd.grad(kernel(query, x).sum(), query)[0]
    assert torch.isfinite(mixed).all()
    assert mixed.abs().max() > 1e-3


def test_records_of_zeros_stay_zero():
    x = torch.cat([torch.zeros(1, 4), torch.ones(1, 4)]).double().requires_grad_()
    for kernel in (Sphere(Linear()), Sphere(Linear(), centre=True), Correlation(Linear())):
        value = kernel(x, x)
        assert value[0].tolist() == [0.0, 0.0]
        assert torch.isfinite(torch.autograd.grad(value.sum(), x)[0]).all()


def test_a_module_keeps_its_mode_and_its_parameters_their_gradients():
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3), torch.nn.Tanh()).double().train()
    x = records(5, 2, 3)
    kernel = FeatureKernel(module, RBF())
    with torch.no_grad():
        expected = RBF()(module(x), module(x))
    torch.testing.assert_close(kernel_matrix(kernel, x, block=2), expected)
    assert module.training
    kernel(x, x[:1]).sum().backward()
    assert module[1].weight.grad.abs().max() > 0


def test_integers_and_arrays_become_float64():
    x = np.arange(12).reshape(4, 3)
    matrix = kernel_matrix(Linear(), x)
    assert matrix.dtype == torch.float64
    np.testing.assert_allclose(matrix, x @ x.T)
    assert kernel_matrix(Linear(), x.astype(np.float32)).dtype == torch.float32


def test_words_of_errors():
    x = records(3, 4)
    with pytest.raises(InputError, match="length: expected a positive number, got 0"):
        RBF(0)
    with pytest.raises(InputError, match="length: expected a finite number of at least 0, got -1"):
        Laplace(-1)
    with pytest.raises(InputError, match="bias_variance: expected a finite number of at least 0"):
        Linear(1.0, -0.1)
    with pytest.raises(InputError, match="factor: expected a finite number of at least 0, got -2"):
        -2 * Linear()
    with pytest.raises(InputError, match="Z: expected records of 4 numbers, as X has, got 2"):
        RBF()(x, x[:, :2])
    with pytest.raises(InputError, match=r"X: expected records as \(n, \.\.\.\)"):
        Linear()(x[0], x)
    with pytest.raises(InputError, match=r"features: expected one row of features a record, shape \(3, p\)"):
        FeatureKernel(lambda X: X[:, 0])(x, x)
    with pytest.raises(InputError, match="block: expected at least 1 row, got 0"):
        kernel_matrix(RBF(), x, block=0)
    with pytest.raises(TypeError):
        Linear() + "kernel"
    with pytest.raises(TypeError):
        Kernel()
