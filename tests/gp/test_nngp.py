"""Kernels of wide networks: against random networks, exact identities, finite differences."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from torch.nn import functional

from giveaway.gp import nngp
from giveaway.gp.activations import ACTIVATIONS
from giveaway.gp.kernels import Sphere, kernel_matrix
from giveaway.gp.nngp import NNGP, ConvNNGP
from tests.conftest import refused

WEIGHT, BIAS = 1.6, 0.3
SLOW = ("tanh",)  # on few numbers; its dual has tests of its own


def records(n=4, d=5, seed=0):
    x = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if n > 2:
        x[1] = 0.95 * x[0] + 0.1 * x[1]  # a pair of high correlation
        x[2] *= 3.0
    return x


class Network:
    """One random network in the parametrization of nngp.py, without its read-out; zeros are laid on by hand."""

    def __init__(self, sizes, strides, paddings, width, generator, channels=2):
        counts = [channels, *[width] * len(sizes)]
        self.strides, self.paddings = strides, paddings
        self.weights = [
            torch.randn(width, count, size, size, dtype=torch.float64, generator=generator)
            for size, count in zip(sizes, counts, strict=False)
        ]
        self.biases = [torch.randn(width, dtype=torch.float64, generator=generator) for _ in sizes]

    def hidden(self, x, activation):
        for w, b, stride, padding in zip(self.weights, self.biases, self.strides, self.paddings, strict=True):
            size = w.shape[-1]
            if padding == "same":
                x = functional.pad(x, [(size - 1) // 2, size // 2] * 2)
            scale = math.sqrt(WEIGHT / w[0].numel())
            x = activation(functional.conv2d(x, scale * w, math.sqrt(BIAS) * b, stride=stride))
        return x


DENSE = (1, 1), (1, 1), ("same", "same")  # a fully connected network sees images of one pixel


def pixel(x):
    return x[:, :, None, None]


def covariance_of_readout(h, readout="flatten"):
    """E over the read-out alone of f(x)f(z)."""
    h = h.flatten(1) if readout == "flatten" else h.mean((2, 3))
    return BIAS + WEIGHT * h @ h.T / h.shape[1]


def z_values(samples, expected):
    """Of the mean of (r, n, n) samples, for the entries on and below the diagonal."""
    rows, columns = torch.tril_indices(*expected.shape)
    error = samples.mean(0) - expected
    return (error / (samples.std(0) / math.sqrt(len(samples))))[rows, columns]


def assert_standard_normal(z):
    assert z.square().mean().sqrt() <= 1.2
    assert z.abs().max() < norm.isf(0.005 / z.numel())


def test_nngp_is_the_covariance_of_wide_networks():
    x = records()
    found = []
    for seed, (name, activation) in enumerate(ACTIVATIONS.items()):
        generator = torch.Generator().manual_seed(500 + seed)
        hidden = [Network(*DENSE, 384, generator, 5).hidden(pixel(x), activation) for _ in range(32)]
        draws = [covariance_of_readout(h) for h in hidden]
        kernel = NNGP(2, name, weight_variance=WEIGHT, bias_variance=BIAS)
        found.append(z_values(torch.stack(draws), kernel(x, x)))
        torch.testing.assert_close(kernel.diagonal(x), kernel(x, x).diagonal(), rtol=1e-12, atol=0)
    assert_standard_normal(torch.cat(found))


@pytest.mark.parametrize("depth", [1, 3, 7])
def test_linear_networks_exactly(depth):
    x, z = records(4), records(3, seed=1)
    product = x @ z.T / 5
    growth = sum(1.3**power for power in range(depth + 1))
    expected = 1.3 ** (depth + 1) * product + 0.2 * growth
    torch.testing.assert_close(NNGP(depth, "identity", weight_variance=1.3, bias_variance=0.2)(x, z), expected)


def test_relu_is_homogeneous_and_keeps_the_norm():
    x, z = records(4), records(3, seed=1)
    kernel = NNGP(6)
    torch.testing.assert_close(kernel(3.0 * x, 0.5 * z), 1.5 * kernel(x, z), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(kernel.diagonal(x), 2.0 * x.square().mean(1), rtol=1e-12, atol=0)


def differentiable(function, inputs, **tolerance):
    return torch.autograd.gradcheck(function, inputs.clone().requires_grad_(), fast_mode=True, **tolerance)


@pytest.mark.parametrize(
    ("name", "bias"),
    [*[(name, 0.3) for name in ACTIVATIONS if name not in SLOW], ("relu", 0.0), ("gelu", 0.0)]
    + [pytest.param(name, 0.3, marks=pytest.mark.slow) for name in SLOW],
)
def test_gradients_in_the_query_also_at_a_record(name, bias):
    z = records(3, d=3)
    far = records(2, d=3, seed=5)
    depth = 1 if name == "tanh" else 2  # tanh is slow on few numbers
    kernel = NNGP(depth, name, bias_variance=bias)
    for query in (far, z[:2], z[:2] + 1e-4, -z[:2]):
        assert differentiable(lambda q: kernel(q, z), query, atol=3e-6, rtol=1e-4)
    assert differentiable(kernel.diagonal, far)


def test_zero_records_have_a_kernel_and_a_finite_gradient():
    x = torch.zeros(1, 4, dtype=torch.float64).requires_grad_()
    z = records(3, d=4)
    for name in ACTIVATIONS:
        value = NNGP(2, name)(x, z)
        torch.testing.assert_close(value, torch.zeros_like(value), atol=1e-14, rtol=0)
        assert torch.isfinite(torch.autograd.grad(value.sum(), x)[0]).all()


@given(
    n=st.integers(1, 12),
    d=st.integers(1, 6),
    depth=st.integers(1, 5),
    name=st.sampled_from(["relu", "leaky_relu", "erf", "gelu", "identity"]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    bias=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
)
def test_matrices_are_positive_semidefinite_and_match_the_diagonal(n, d, depth, name, scale, bias, seed):
    x = scale * records(n, d, seed)
    kernel = NNGP(depth, name, bias_variance=bias)
    matrix = kernel_matrix(kernel, x)
    assert torch.equal(matrix, matrix.T)
    torch.testing.assert_close(matrix, kernel(x, x), rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(kernel(x, x.clone()).diagonal(), kernel.diagonal(x), rtol=1e-6, atol=1e-12)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-9 * matrix.diagonal().max()


def test_images_are_flattened():
    x = records(6, 12).reshape(6, 3, 2, 2)
    torch.testing.assert_close(NNGP(2)(x, x[:2]), NNGP(2)(x.flatten(1), x.flatten(1)[:2]))


def test_words_of_errors():
    refused("depth: expected a whole number of at least 1, got 0; use Linear", NNGP, 0)
    assert repr(NNGP(3, "erf", weight_variance=1)) == "NNGP(3, erf, weight_variance=1, bias_variance=0)"


READOUTS = ("flatten", "pool")
# activation, filter sizes, strides, paddings of two layers
NETWORKS = [
    ("relu", (3, 3), (1, 1), ("same", "same")),
    ("gelu", (3, 3), (2, 1), ("same", "same")),
    ("erf", (2, 3), (1, 2), ("valid", "same")),
    ("gelu", (3, 2), (2, 1), ("valid", "valid")),
    ("tanh", (2, 2), (1, 2), ("same", "valid")),
    ("leaky_relu", (1, 3), (2, 2), ("same", "same")),
    ("identity", (4, 2), (1, 1), ("same", "valid")),
]


def images(n=3, channels=2, height=6, width=5, seed=0):
    x = torch.randn(n, channels, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x[-1] = 0.9 * x[0] + 0.3 * x[-1]
    return x


def kernel_of(name, sizes, strides, paddings, **options):
    layers = {"filter_size": sizes, "stride": strides, "padding": paddings}
    return ConvNNGP(len(sizes), name, weight_variance=WEIGHT, bias_variance=BIAS, **layers, **options)


@pytest.mark.slow
def test_conv_nngp_is_the_covariance_of_networks_of_many_channels():
    x = images()
    found = []
    for seed, (name, *shape) in enumerate(NETWORKS):
        generator = torch.Generator().manual_seed(seed)
        draws = [Network(*shape, 192, generator).hidden(x, ACTIVATIONS[name]) for _ in range(24)]
        for readout in READOUTS:
            samples = torch.stack([covariance_of_readout(h, readout) for h in draws])
            found.append(z_values(samples, kernel_of(name, *shape, readout=readout)(x, x)))
    assert_standard_normal(torch.cat(found))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "gelu"])
def test_one_networks_error_falls_with_the_root_of_its_channels(name):
    x, (name, *shape) = (pixel(records()), ("relu", *DENSE)) if name == "dense" else (images(), NETWORKS[1])
    for readout in READOUTS:
        expected = kernel_of(name, *shape, readout=readout)(x, x)
        error = {}
        for width in (16, 144):
            generator = torch.Generator().manual_seed(width)
            networks = [Network(*shape, width, generator, x.shape[1]) for _ in range(60)]
            draws = [covariance_of_readout(each.hidden(x, ACTIVATIONS[name]), readout) for each in networks]
            error[width] = (torch.stack(draws) - expected).square().mean(0).sqrt()
        assert 0.7 * 3 < (error[16] / error[144]).mean() < 1.4 * 3


@pytest.mark.parametrize("readout", READOUTS)
def test_one_position_is_a_fully_connected_network(readout):
    x = records(4, 6)
    image = x[:, :, None, None]
    for options in ({"filter_size": 1}, {"filter_size": 1, "stride": 2, "padding": "valid"}):
        kernel = ConvNNGP(3, "gelu", bias_variance=0.2, readout=readout, **options)
        torch.testing.assert_close(kernel(image, image[:2]), NNGP(3, "gelu", bias_variance=0.2)(x, x[:2]))
        torch.testing.assert_close(kernel.diagonal(image), NNGP(3, "gelu", bias_variance=0.2).diagonal(x))


def test_linear_pooling_by_hand():
    # one 3 x 3 "same" layer: the sum over output positions of the filter's inputs is a fixed linear map of the image
    x = images(channels=1)
    one = functional.conv2d(torch.ones_like(x[:1]), torch.ones(1, 1, 3, 3).double(), padding=1)
    patches = functional.unfold(x, 3, padding=1).mean(2)  # (n, 9): mean over positions, one number a filter weight
    expected = 1.3 * 1.3 * patches @ patches.T / 9
    kernel = ConvNNGP(1, "identity", weight_variance=1.3, readout="pool")
    torch.testing.assert_close(kernel(x, x), expected)
    assert one.min() == 4.0  # corners see four pixels and are still divided by nine


@pytest.mark.parametrize("readout", READOUTS)
def test_blocks_change_nothing(readout):
    x, z = images(3), images(2, seed=2)
    shape = NETWORKS[1]
    whole, pair_by_pair, some = (kernel_of(*shape, readout=readout, memory=m) for m in (2**28, 1, 200_000))
    for kernel in (pair_by_pair, some):
        torch.testing.assert_close(kernel(x, z), whole(x, z), rtol=1e-13, atol=0)
        torch.testing.assert_close(kernel.diagonal(x), whole.diagonal(x), rtol=1e-13, atol=0)
        gradients = []
        for each in (kernel, whole):
            query = x[:3].clone().requires_grad_()
            total = each(query, z).square().sum() + each.diagonal(query).sum()
            gradients.append(torch.autograd.grad(total, query)[0])
        torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(whole.diagonal(x), whole(x, x.clone()).diagonal(), rtol=1e-7, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_blocks_of_one_size_are_compiled_and_tell_the_same(activation, readout, monkeypatch):
    """Traced here, and run as traced; benchmarks/lood_images.py compares what a GPU compiles. Edges are filled."""
    memory = 200_000 if readout == "pool" else 4_000
    kernel = ConvNNGP(2, activation, readout=readout, bias_variance=0.1, stride=(1, 2), memory=memory)
    x, z = images(11), images(7, seed=2)
    sizes, compile_ = [], torch.compile

    def compiled(function, **options):
        fused = compile_(function, backend="eager", fullgraph=True, **options)
        return lambda x, left, z, right: sizes.append((len(x), len(z))) or fused(x, left, z, right)

    monkeypatch.setattr(nngp, "can_compile", lambda device: True)
    monkeypatch.setattr(nngp, "COMPILED_FROM", 1)
    monkeypatch.setattr(torch, "compile", compiled)
    with torch.no_grad():
        found = kernel(x, z)
    monkeypatch.undo()
    assert len(sizes) > 1
    assert len(set(sizes)) == 1
    torch.testing.assert_close(found, kernel(x, z), rtol=1e-12, atol=0)


@pytest.mark.parametrize("readout", READOUTS)
def test_gradients_of_convolutions_also_at_a_record(readout):
    x = images(3, height=4, width=3)
    for name in ("relu", "gelu"):
        kernel = ConvNNGP(2, name, readout=readout, bias_variance=0.1, stride=(1, 2))
        assert differentiable(lambda q, k=kernel: k(q, x), images(2, height=4, width=3, seed=4))
        assert differentiable(lambda q, k=kernel: k(q, x), x[:2], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("readout", READOUTS)
def test_matrices_are_positive_semidefinite(readout):
    x = images(9)
    kernel = Sphere(ConvNNGP(3, "relu", readout=readout, stride=(1, 2, 1)), centre=True)
    matrix = kernel_matrix(kernel, x)
    torch.testing.assert_close(matrix, kernel(x, x), rtol=1e-7, atol=1e-9)
    assert torch.linalg.eigvalsh(matrix).min() > 0


def test_blank_borders_have_no_effect_on_the_rest():
    x = images(2)
    x[:, :, 0] = 0.0  # a row of zeros: variances of zero with "valid" one-pixel filters
    kernel = ConvNNGP(2, "relu", filter_size=1, readout="pool")
    query = x.clone().requires_grad_()
    value = kernel(query, x)
    assert torch.isfinite(torch.autograd.grad(value.sum(), query)[0]).all()
    # zero pixels stay zero without biases, so only the number of positions differs
    torch.testing.assert_close(value, kernel(x[:, :, 1:], x[:, :, 1:]) * (25 / 30) ** 2, rtol=1e-7, atol=0)


def test_words_of_errors_of_convolutions():
    x = images()
    refused(r"X: expected images as \(n, c, h, w\), got shape \(3, 60\)", ConvNNGP(1), x.flatten(1), x)
    words = "layer 2's 3 x 3 filter fits into, got 2 x 2 positions there"
    refused(words, ConvNNGP(2, padding="valid", stride=2), images(height=6, width=5), x)
    refused("Z: expected records of shape", ConvNNGP(1), x, x[:, :1])
    refused("stride: expected a whole number of at least 1, got 0", ConvNNGP, 1, stride=0)
    words = "filter_size: expected one value, or one for each of 3 layers, got 2 values"
    refused(words, ConvNNGP, 3, filter_size=(3, 5))
