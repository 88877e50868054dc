"""Kernels, their wrappers and names: against formulas entry by entry."""

import math
import re
from dataclasses import fields
from unittest.mock import patch

import numpy as np
import pytest
import torch
from benchmarks.reproduce.lood.activations import Correlation
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist

from giveaway.gp import kernels, nngp
from giveaway.gp.kernels import (
    RBF,
    Kernel,
    Laplace,
    Linear,
    Mapped,
    Sphere,
    diagonal_of,
    kernel_matrix,
)
from giveaway.gp.nngp import KINDS, NNGP, ConvNNGP, KernelChoice, median_distance
from tests.conftest import refused
from tests.gp.test_posterior import draw


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
    (plain, lambda a, b: (1 + a @ b) ** 2),
    (Linear(2.0, 0.3), lambda a, b: 2.0 * a @ b + 0.3),
    (Correlation(Linear()), lambda a, b: a @ b / math.sqrt((a @ a) * (b @ b))),
    (Correlation(plain), lambda a, b: (1 + a @ b) ** 2 / ((1 + a @ a) * (1 + b @ b))),
    (Sphere(Linear()), lambda a, b: len(a) * a @ b / math.sqrt((a @ a) * (b @ b))),
    (Sphere(Linear(), centre=True), lambda a, b: len(a) * np.corrcoef(a, b)[0, 1]),
]


@pytest.mark.parametrize(("kernel", "formula"), FORMULAS)
def test_kernels_against_their_formulas(kernel, formula):
    for shape in ((7,), (2, 3)):
        x, z = draw(5, *shape), draw(4, *shape, seed=1)
        expected = entries(formula, x, z)
        torch.testing.assert_close(kernel(x, z), expected, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(diagonal_of(kernel, x), entries(formula, x, x).diagonal(), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(kernel_matrix(kernel, x), entries(formula, x, x), rtol=1e-12, atol=1e-13)
        assert torch.autograd.gradcheck(lambda q, z=z: kernel(q, z), x[:2].clone().requires_grad_())
        assert torch.autograd.gradcheck(lambda q: diagonal_of(kernel, q), x[:2].clone().requires_grad_())


@pytest.mark.slow
@settings(max_examples=20)
@given(n=st.integers(0, 40), block=st.integers(1, 41), seed=st.integers(0, 99))
def test_block_by_block_equals_all_at_once(n, block, seed):
    x = draw(n, 3, seed=seed)
    for kernel in (plain, NNGP(2), Sphere(RBF())):
        with patch.object(kernels, "BLOCK_ON_CPU", block):
            matrix = kernel_matrix(kernel, x)
        torch.testing.assert_close(matrix, kernel(x, x), rtol=1e-12, atol=1e-13)
        assert torch.equal(matrix, matrix.T)
        torch.testing.assert_close(diagonal_of(kernel, x), matrix.diagonal(), rtol=1e-12, atol=1e-13)


def test_a_symmetric_matrix_evaluates_lower_blocks_only_and_maps_a_record_once(monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK_ON_CPU", 4)
    calls, mapped = [], []

    def counted(X, Z):
        calls.append((len(X), len(Z)))
        assert not torch.is_grad_enabled()
        return X @ Z.T

    class Noted(Mapped):
        kernel = staticmethod(counted)

        def map(self, X):
            mapped.append(len(X))
            return X

    x = draw(10, 3).requires_grad_()
    matrix = kernel_matrix(Noted(), x)
    assert sum(rows * columns for rows, columns in calls) == 16 + 16 + 4 + 16 + 8 + 8
    assert sum(mapped) == 10
    assert not matrix.requires_grad
    torch.testing.assert_close(matrix, x.detach() @ x.detach().T)


def test_distances_of_near_records_do_not_cancel():
    x = 100.0 + draw(3, 50)
    step = draw(3, 50, seed=1)
    for size in (1e-1, 1e-4, 1e-7, 1e-9):
        near = x + size * step
        distance = (near - x).norm(dim=1)
        kernel = Laplace(float(distance.mean()))
        expected = torch.exp(-distance / distance.mean())
        torch.testing.assert_close(kernel(x, near).diagonal(), expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(Laplace(1e-9)(x, x.clone()).diagonal(), torch.ones(3).double())


@pytest.mark.parametrize("kernel", [RBF(0.7), Laplace(0.7), Correlation(NNGP(2)), Sphere(NNGP(2, "gelu"))])
def test_unit_kernels_are_stationary_at_a_record(kernel):
    x = draw(3, 4)
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


def test_integers_and_arrays_become_float64():
    x = np.arange(12).reshape(4, 3)
    matrix = kernel_matrix(Linear(), x)
    assert matrix.dtype == torch.float64
    np.testing.assert_allclose(matrix, x @ x.T)
    assert kernel_matrix(Linear(), x.astype(np.float32)).dtype == torch.float32


def test_words_of_errors():
    x = draw(3, 4)
    refused("length: expected a positive number, got 0", RBF, 0)
    refused("length: expected a finite number of at least 0, got -1", Laplace, -1)
    refused("bias_variance: expected a finite number of at least 0", Linear, 1.0, -0.1)
    refused("weight_variance: expected a finite number of at least 0, got -1", NNGP, 1, weight_variance=-1)
    refused("Z: expected records of 4 numbers, as X has, got 2", RBF(), x, x[:, :2])
    refused(r"X: expected records as \(n, \.\.\.\)", Linear(), x[0], x)
    with pytest.raises(TypeError):
        Kernel()


def arc_cosine(x: np.ndarray, depth: int, *, weight: float = 2.0, bias: float = 0.0) -> np.ndarray:
    """The NNGP of a ReLU network between all rows, from the formula of Cho and Saul."""
    k = weight * x @ x.T / x.shape[1] + bias
    for _ in range(depth):
        scale = np.sqrt(np.outer(np.diag(k), np.diag(k)))
        angle = np.arccos(np.clip(k / scale, -1.0, 1.0))
        np.fill_diagonal(angle, 0.0)
        k = bias + weight * scale * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    return k


def on_sphere(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(1, keepdims=True)
    return centred * np.sqrt(x.shape[1]) / np.linalg.norm(centred, axis=1, keepdims=True)


def agree(found: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("name", "kind"), [("nngp", NNGP), ("conv_nngp", ConvNNGP)])
def test_networks_take_every_option_of_theirs(name, kind):
    x = draw(4, 2, 9, 9)
    own = {"weight_variance": 1.3, "bias_variance": 0.4}
    if name.startswith("conv"):
        own |= {"filter_size": 2, "stride": 2, "padding": "valid", "readout": "pool"}
    found = KernelChoice(name, depth=2, activation="gelu", **own).kernel(x)
    assert type(found) is kind
    agree(found(x, x), kind(2, "gelu", **own)(x, x).numpy())
    plain = KernelChoice(name).kernel(x)
    assert type(plain) is kind
    agree(plain(x, x), kind(3)(x, x).numpy())
    assert not torch.allclose(plain(x, x), found(x, x), rtol=0.1)
    # every option moves the kernel: none is dropped on the way
    for option in own:
        others = {key: value for key, value in own.items() if key != option}
        without = KernelChoice(name, depth=2, activation="gelu", **others).kernel(x)
        assert not torch.allclose(without(x, x), found(x, x), rtol=1e-3), option


def test_on_the_sphere_records_are_centred_and_scaled_first():
    x = draw(9, 6)
    mapped = on_sphere(x.numpy())
    np.testing.assert_allclose((mapped**2).sum(1), 6.0)
    agree(KernelChoice("nngp", sphere=True).kernel(x)(x, x), arc_cosine(mapped, 3))
    agree(KernelChoice("linear", sphere=True).kernel(x)(x, x), mapped @ mapped.T)
    # the typical length is that of the records as the kernel sees them
    length = np.median(pdist(mapped))
    agree(KernelChoice("rbf", sphere=True).kernel(x)(x, x), np.exp(-(cdist(mapped, mapped) ** 2) / (2 * length**2)))
    assert isinstance(KernelChoice("rbf", sphere=True).kernel(x), Sphere)
    # neither brightness nor contrast of a record matters then
    changed = 3.0 * x + draw(9, 1, seed=1)
    agree(
        KernelChoice("rbf", sphere=True).kernel(x)(changed, changed), KernelChoice("rbf", sphere=True).kernel(x)(x, x)
    )


@given(n=st.integers(2, 30), d=st.integers(1, 4), seed=st.integers(0, 999))
def test_the_typical_length_is_the_median_of_all_distances(n, d, seed):
    x = draw(n, d, seed=seed)
    assert median_distance(x) == pytest.approx(np.median(pdist(x.numpy())), rel=1e-9)


def test_repeated_records_do_not_count_and_one_record_has_length_one():
    x = draw(5, 2)
    repeated = torch.cat([x[:1].expand(40, -1), x[1:]])
    apart = pdist(repeated.numpy())
    assert median_distance(repeated) == pytest.approx(np.median(apart[apart > 0]), rel=1e-9)
    assert median_distance(x[:1]) == 1.0
    assert median_distance(x[:1].expand(7, -1)) == 1.0


@pytest.mark.parametrize("n", [20, 21, 39, 40, 45, 200])
def test_of_many_records_an_even_sample_is_measured(monkeypatch, n):
    monkeypatch.setattr(nngp, "SAMPLED", 20)
    x = torch.zeros(n, 1, dtype=torch.float64)
    x[:, 0] = torch.arange(n) ** 2.0  # sorted, and denser at the start: the first rows alone would mislead
    sampled, everything = median_distance(x), float(np.median(pdist(x.numpy())))
    assert sampled == pytest.approx(everything, rel=0.15)


OPTIONS = {
    "length": 0.5,
    "depth": 2,
    "activation": "erf",
    "weight_variance": 1.0,
    "bias_variance": 0.0,  # 0 and False are given, not left out
    "filter_size": 3,
    "stride": 1,
    "padding": "same",
    "readout": "pool",
}


VARIANCES, LAYERS = {"weight_variance", "bias_variance"}, {"depth", "activation"}
IMAGES = {"filter_size", "stride", "padding", "readout"}
TAKES = {"rbf": {"length"}, "laplace": {"length"}, "linear": VARIANCES}
TAKES |= {"nngp": VARIANCES | LAYERS, "conv_nngp": VARIANCES | LAYERS | IMAGES}


def test_every_option_is_known_here():
    assert {field.name for field in fields(KernelChoice)} == {"name", "sphere", *OPTIONS}
    assert TAKES.keys() == KINDS.keys()
    assert set.union(*TAKES.values()) == set(OPTIONS)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", KINDS)
def test_an_option_is_taken_or_refused_in_words(name, option):
    choice = KernelChoice(name, **{option: OPTIONS[option]})
    if option in TAKES[name]:
        assert choice.options() == {option: OPTIONS[option]}
        return
    takers = ", ".join(other for other in KINDS if option in TAKES[other])
    words = f"{option}: expected one of the kernels {takers}, got {name}; drop {option}, or choose another kernel"
    assert refused(f"^{option}: ", choice.options) == words
    refused(f"^{option}: ", choice.kernel, draw(3, 1, 4, 4))


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (KernelChoice("rbg"), "kernel: expected a known name, got 'rbg'; did you mean rbf?"),
        (KernelChoice(""), "kernel: expected a known name, got ''; choose from rbf, laplace"),
        (KernelChoice("nngp", depth=0), "depth: expected a whole number of at least 1, got 0"),
        (KernelChoice("nngp", activation="rellu"), "activation: expected one of relu, leaky_relu, erf"),
        (KernelChoice("conv_nngp", readout="max"), "readout: expected a known name, got 'max'"),
        (KernelChoice("conv_nngp", padding="full"), "padding: expected a known name, got 'full'"),
    ],
)
def test_bad_choices(choice, words):
    refused(f"^{re.escape(words)}", choice.kernel, draw(3, 1, 4, 4))
