"""Convolutional kernels: against random networks of many channels, empirical tangents, and each other."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from giveaway.checks import InputError
from giveaway.gp.activations import ACTIVATIONS
from giveaway.gp.conv_nngp import ConvNNGP, ConvNTK
from giveaway.gp.kernels import Sphere, kernel_matrix
from giveaway.gp.nngp import NNGP, NTK
from tests.gp.test_nngp import assert_standard_normal, differentiable, records, z_values

WEIGHT, BIAS = 1.6, 0.3
READOUTS = ("flatten", "pool")
# activation, filter sizes, strides, paddings of two layers
NETWORKS = [
    ("relu", (3, 3), (1, 1), ("same", "same")),
    ("gelu", (3, 3), (2, 1), ("same", "same")),
    ("erf", (2, 3), (1, 2), ("valid", "same")),
    ("elu", (3, 2), (2, 1), ("valid", "valid")),
    ("tanh", (2, 2), (1, 2), ("same", "valid")),
    ("leaky_relu", (1, 3), (2, 2), ("same", "same")),
    ("identity", (4, 2), (1, 1), ("same", "valid")),
]


def images(n=3, channels=2, height=6, width=5, seed=0):
    x = torch.randn(n, channels, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    x[-1] = 0.9 * x[0] + 0.3 * x[-1]
    return x


class Network:
    """One random convolutional network, its zeros laid on by hand."""

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


def output_covariance(h, readout):
    """E over the read-out alone of f(x)f(z)."""
    h = h.flatten(1) if readout == "flatten" else h.mean((2, 3))
    return BIAS + WEIGHT * h @ h.T / h.shape[1]


def kernel_of(kind, name, sizes, strides, paddings, **options):
    return kind(
        len(sizes),
        name,
        filter_size=sizes,
        stride=strides,
        padding=paddings,
        weight_variance=WEIGHT,
        bias_variance=BIAS,
        **options,
    )


def test_conv_nngp_is_the_covariance_of_networks_of_many_channels():
    x = images()
    found = []
    for seed, (name, *shape) in enumerate(NETWORKS):
        generator = torch.Generator().manual_seed(seed)
        draws = [Network(*shape, 192, generator).hidden(x, ACTIVATIONS[name]) for _ in range(24)]
        for readout in READOUTS:
            samples = torch.stack([output_covariance(h, readout) for h in draws])
            found.append(z_values(samples, kernel_of(ConvNNGP, name, *shape, readout=readout)(x, x)))
    assert_standard_normal(torch.cat(found))


def test_one_networks_error_falls_with_the_root_of_its_channels():
    x = images()
    name, *shape = NETWORKS[1]
    for readout in READOUTS:
        expected = kernel_of(ConvNNGP, name, *shape, readout=readout)(x, x)
        error = {}
        for width in (16, 144):
            generator = torch.Generator().manual_seed(width)
            draws = [Network(*shape, width, generator).hidden(x, ACTIVATIONS[name]) for _ in range(60)]
            samples = torch.stack([output_covariance(h, readout) for h in draws])
            error[width] = (samples - expected).square().mean(0).sqrt()
        assert 0.7 * 3 < (error[16] / error[144]).mean() < 1.4 * 3


def test_conv_ntk_is_the_gram_matrix_of_parameter_gradients():
    x = images()
    found = []
    for seed, (name, *shape) in enumerate([NETWORKS[0], NETWORKS[1], NETWORKS[3]]):
        generator = torch.Generator().manual_seed(50 + seed)
        samples = {readout: [] for readout in READOUTS}
        for _ in range(24):
            network = Network(*shape, 128, generator)
            parameters = [p.requires_grad_() for p in (*network.weights, *network.biases)]
            hidden = network.hidden(x, ACTIVATIONS[name])
            for readout in READOUTS:
                h = hidden.flatten(1) if readout == "flatten" else hidden.mean((2, 3))
                last = torch.randn(h.shape[1], dtype=torch.float64, generator=generator)
                outputs = h @ last * math.sqrt(WEIGHT / h.shape[1])
                gradients = [torch.autograd.grad(f, parameters, retain_graph=True) for f in outputs]
                flat = torch.stack([torch.cat([part.flatten() for part in row]) for row in gradients])
                # the read-out's own weights and bias contribute its covariance
                samples[readout].append(flat @ flat.T + output_covariance(h.detach()[:, :, None, None], readout))
        for readout in READOUTS:
            expected = kernel_of(ConvNTK, name, *shape, readout=readout)(x, x)
            found.append(z_values(torch.stack(samples[readout]), expected))
    assert_standard_normal(torch.cat(found))


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize(("convolutional", "dense"), [(ConvNNGP, NNGP), (ConvNTK, NTK)])
def test_one_position_is_a_fully_connected_network(convolutional, dense, readout):
    x = records(4, 6)
    image = x[:, :, None, None]
    for options in ({"filter_size": 1}, {"filter_size": 1, "stride": 2, "padding": "valid"}):
        kernel = convolutional(3, "gelu", bias_variance=0.2, readout=readout, **options)
        torch.testing.assert_close(kernel(image, image[:2]), dense(3, "gelu", bias_variance=0.2)(x, x[:2]))
        torch.testing.assert_close(kernel.diagonal(image), dense(3, "gelu", bias_variance=0.2).diagonal(x))


@pytest.mark.parametrize("kind", [ConvNNGP, ConvNTK])
def test_linear_pooling_by_hand(kind):
    # one 3 x 3 "same" layer: the sum over output positions of the filter's inputs is a fixed linear map of the image
    x = images(channels=1)
    one = functional.conv2d(torch.ones_like(x[:1]), torch.ones(1, 1, 3, 3).double(), padding=1)
    patches = functional.unfold(x, 3, padding=1).mean(2)  # (n, 9): mean over positions, one number a filter weight
    expected = 1.3 * 1.3 * patches @ patches.T / 9
    kernel = kind(1, "identity", weight_variance=1.3, readout="pool")
    torch.testing.assert_close(kernel(x, x), expected * (2.0 if kind is ConvNTK else 1.0))
    assert one.min() == 4.0  # corners see four pixels and are still divided by nine


@pytest.mark.parametrize("kind", [ConvNNGP, ConvNTK])
@pytest.mark.parametrize("readout", READOUTS)
def test_blocks_change_nothing(kind, readout):
    x, z = images(5), images(4, seed=2)
    shape = NETWORKS[1]
    whole, pair_by_pair, some = (kernel_of(kind, *shape, readout=readout, memory=m) for m in (2**28, 1, 200_000))
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


@pytest.mark.parametrize("kind", [ConvNNGP, ConvNTK])
@pytest.mark.parametrize("readout", READOUTS)
def test_gradients_in_the_query_also_at_a_record(kind, readout):
    x = images(3, height=4, width=3)
    for name in ("relu", "gelu"):
        kernel = kind(2, name, readout=readout, bias_variance=0.1, stride=(1, 2))
        assert differentiable(lambda q, k=kernel: k(q, x), images(2, height=4, width=3, seed=4))
        if kind is ConvNNGP or name == "gelu":
            assert differentiable(lambda q, k=kernel: k(q, x), x[:2], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("readout", READOUTS)
def test_matrices_are_positive_semidefinite(readout):
    x = images(9)
    for kind in (ConvNNGP, ConvNTK):
        kernel = Sphere(kind(3, "relu", readout=readout, stride=(1, 2, 1)), centre=True)
        matrix = kernel_matrix(kernel, x, block=4)
        torch.testing.assert_close(matrix, kernel(x, x), rtol=1e-7, atol=1e-9)
        assert torch.linalg.eigvalsh(matrix).min() > 0


def test_blank_borders_have_no_effect_on_the_rest():
    x = images(2)
    x[:, :, 0] = 0.0  # a row of zeros: variances of zero with "valid" one-pixel filters
    kernel = ConvNTK(2, "relu", filter_size=1, readout="pool")
    query = x.clone().requires_grad_()
    value = kernel(query, x)
    assert torch.isfinite(torch.autograd.grad(value.sum(), query)[0]).all()
    # zero pixels stay zero without biases, so only the number of positions differs
    torch.testing.assert_close(value, kernel(x[:, :, 1:], x[:, :, 1:]) * (25 / 30) ** 2, rtol=1e-7, atol=0)


def test_words_of_errors():
    x = images()
    with pytest.raises(InputError, match=r"X: expected images as \(n, c, h, w\), got shape \(3, 60\)"):
        ConvNNGP(1)(x.flatten(1), x)
    with pytest.raises(InputError, match="layer 2's 3 x 3 filter fits into, got 2 x 2 positions there"):
        ConvNNGP(2, padding="valid", stride=2)(images(height=6, width=5), x)
    with pytest.raises(InputError, match="Z: expected records of shape"):
        ConvNNGP(1)(x, x[:, :1])
    with pytest.raises(InputError, match="padding: expected a known name, got 'full'"):
        ConvNNGP(1, padding="full")
    with pytest.raises(InputError, match="readout: expected a known name, got 'max'"):
        ConvNTK(1, readout="max")
    with pytest.raises(InputError, match="stride: expected whole numbers of at least 1, got 0"):
        ConvNNGP(1, stride=0)
    with pytest.raises(InputError, match="filter_size: expected one value, or one for each of 3 layers, got 2 values"):
        ConvNNGP(3, filter_size=(3, 5))
    with pytest.raises(InputError, match="depth: expected a whole number"):
        ConvNNGP(0)
