"""Gaussian processes of infinitely wide networks: fully connected ones, and convolutional ones of (n, c, h, w) images.

A network has `depth` hidden layers of width N, each followed by φ, and a read-out. A dense layer is

    z^{l+1} = √(σw²/N_l) W^{l+1} φ(z^l) + σb b^{l+1},    W, b standard normal, φ(z⁰) the input and N_0 its numbers;

a convolution with a filter of f² places δ and stride s is

    z^{l+1}_{o,p} = √(σw²/(N_l f²)) Σ_{i,δ} W_{o,i,δ} φ(z^l)_{i, s p + δ} + σb b_o.

As N grows the output is a Gaussian process. Its covariance starts at the second moments ⟨x, z⟩/N_0 of the input and
goes through every layer as K^{l+1} = σb² + σw² A(E[φ(u)φ(v)]) for (u, v) ~ N(0, K^l), where A averages over the filter
(it is the identity in a dense layer) and a read-out is one more such step.

The divisor of a convolution is the full N_l f² at every position: "same" padding adds zeros, (f − 1)//2 before and f//2
after each axis, and they count, as they do in a network with He's scaling; the output has ⌈h/s⌉ rows. "valid" adds
none: ⌊(h − f)/s⌋ + 1 rows. Read-outs, over P positions: "flatten" gives every position its own weights (divisor N·P);
"pool" averages the positions first. The covariance of two images is one number for every two positions (p, p'). A
convolution averages it over the shifts (p + δ, p' + δ), so that "flatten" only ever needs p = p'; "pool" needs all P².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from giveaway.checks import check_choice, check_whole, fail
from giveaway.gp.activations import Activation, as_activation
from giveaway.gp.kernels import Kernel, check_variances, flat_pair

TENSORS_AT_ONCE = 8  # covariances, tangents and temporaries of one layer that live together


class _Dense:
    """A dense layer has nothing to average over."""

    def average(self, moments: torch.Tensor) -> torch.Tensor:
        return moments


class _Convolution(NamedTuple):
    filter_size: int
    stride: int
    padding: str

    def positions(self, size: int) -> int:
        """Count the output positions along an axis of `size`, 0 when the filter does not fit."""
        if self.padding == "same":
            return -(-size // self.stride)
        return max(0, (size - self.filter_size) // self.stride + 1)

    def average(self, field: torch.Tensor) -> torch.Tensor:
        """Average a field over positions (..., h, w) over the filter."""
        return self._along(self._along(field, (-2,)), (-1,))

    def average_pairs(self, field: torch.Tensor) -> torch.Tensor:
        """Average a field over pairs of positions (..., h, w, h', w') over shifts of both at once."""
        return self._along(self._along(field, (-4, -2)), (-3, -1))

    def _along(self, field: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
        """Average over shifts of all `axes` together, at every stride-th place; outside are zeros."""
        count = self.positions(field.shape[axes[0]])
        if self.padding == "same":
            widths = [0] * (-2 * min(axes))  # torch lists them from the last axis on
            for axis in axes:
                widths[-2 * axis - 2 : -2 * axis] = (self.filter_size - 1) // 2, self.filter_size // 2
            field = functional.pad(field, widths)
        total = self._shifted(field, axes, 0, count).clone()
        for shift in range(1, self.filter_size):
            total.add_(self._shifted(field, axes, shift, count))
        return total.div_(self.filter_size)

    def _shifted(self, field: torch.Tensor, axes: tuple[int, ...], shift: int, count: int) -> torch.Tensor:
        index = [slice(None)] * field.ndim
        for axis in axes:
            index[axis] = slice(shift, shift + (count - 1) * self.stride + 1, self.stride)
        return field[tuple(index)]


class _WideNetwork(Kernel):
    """The covariance of the outputs of random networks, taken from layer to layer."""

    layers: Sequence[Any]

    def __init__(self, depth: int, activation: str | Activation, weight_variance: float, bias_variance: float) -> None:
        self.depth = check_whole("depth", depth, remedy="use Linear for no hidden layer")
        self.activation = as_activation(activation)
        self.weight_variance, self.bias_variance = check_variances(weight_variance, bias_variance)

    def _through_layers(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """Compute the kernel from the inputs' second moments: qx and qz of the records, c of the pairs.

        Leading axes broadcast and stay; positions of images follow them. c is overwritten.
        """
        for layer in self.layers:
            qx, qz, c = self._enter(layer, qx, qz, c)
            c = self.activation.dual(*self._beside(qx, qz), c)
            qx, qz = self._activated(qx, qz)
        return self._scaled(self._mean(c))

    def _enter(self, layer: Any, *moments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Turn second moments of a layer's inputs into covariances of its pre-activations."""
        *variances, c = moments
        qx, qz = (layer.average(q) * self.weight_variance + self.bias_variance for q in variances)
        return qx, qz, self._scaled(self._average(layer, c))

    def _activated(self, qx: torch.Tensor, qz: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.activation.dual(qx, qx, qx), self.activation.dual(qz, qz, qz)

    def _scaled(self, second_moment: torch.Tensor) -> torch.Tensor:
        """Return σb² + σw² times a moment that nobody else holds, in place."""
        return second_moment.mul_(self.weight_variance).add_(self.bias_variance)

    def _average(self, layer: Any, c: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = layer.average(c)
        return result

    def _beside(self, qx: torch.Tensor, qz: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Shape the variances as they stand beside the covariances."""
        return qx, qz

    def _mean(self, c: torch.Tensor) -> torch.Tensor:
        """Average over the positions that the read-out sees."""
        return c

    def _shown(self) -> str:
        return ""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.depth}, {self.activation}, {self._shown()}"
            f"weight_variance={self.weight_variance:g}, bias_variance={self.bias_variance:g})"
        )


class _Tangent(_WideNetwork):
    """The neural tangent kernel ⟨∂f(x), ∂f(z)⟩ of the same networks, over all W and b as parametrized above.

    Beside the covariances K^l of pre-activations goes Θ^l, with Θ¹ = K¹ and
    Θ^{l+1} = K^{l+1} + σw² A(Θ^l E[φ'(u)φ'(v)]), and at the read-out the mean over positions in place of A.
    """

    def _through_layers(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        tangent = None
        for layer in self.layers:
            qx, qz, c = self._enter(layer, qx, qz, c)
            before = c if tangent is None else c + self.weight_variance * self._average(layer, tangent)
            left, right = self._beside(qx, qz)
            tangent = before * self.activation.dual_derivative(left, right, c)
            c = self.activation.dual(left, right, c)
            qx, qz = self._activated(qx, qz)
        assert tangent is not None  # there is at least one layer
        return self._scaled(self._mean(c)) + self.weight_variance * self._mean(tangent)


class NNGP(_WideNetwork):
    """The covariance of the outputs of fully connected networks.

    >>> x = torch.eye(2, dtype=torch.float64)
    >>> NNGP(1, "relu", weight_variance=2.0)(x, x).round(decimals=4)
    tensor([[1.0000, 0.3183],
            [0.3183, 1.0000]], dtype=torch.float64)
    """

    def __init__(
        self,
        depth: int,
        activation: str | Activation = "relu",
        *,
        weight_variance: float = 2.0,
        bias_variance: float = 0.0,
    ) -> None:
        super().__init__(depth, activation, weight_variance, bias_variance)
        self.layers = [_Dense()] * depth

    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        x, z = flat_pair(X, Z)
        qx = x.square().mean(1)
        qz = qx if z is x else z.square().mean(1)
        return self._through_layers(qx[:, None], qz[None], x @ z.T / x.shape[1])

    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        q = flat_pair(X, X)[0].square().mean(1)
        return self._through_layers(q, q, q)


class NTK(_Tangent, NNGP):
    """The neural tangent kernel of fully connected networks."""


class ConvNNGP(_WideNetwork):
    """The covariance of the outputs of convolutional networks.

    `filter_size`, `stride` and `padding` are one for all layers or a sequence of one a layer. A call walks its pairs of
    records in blocks whose tensors take about `memory` bytes together (a single pair may exceed that). With gradients
    each block is recomputed in the backward pass, so that the bound holds there too.
    """

    def __init__(
        self,
        depth: int,
        activation: str | Activation = "relu",
        *,
        filter_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        padding: str | Sequence[str] = "same",
        readout: str = "flatten",
        weight_variance: float = 2.0,
        bias_variance: float = 0.0,
        memory: int = 2**28,
    ) -> None:
        super().__init__(depth, activation, weight_variance, bias_variance)
        sizes = [check_whole("filter_size", size) for size in _each("filter_size", filter_size, depth)]
        strides = [check_whole("stride", step) for step in _each("stride", stride, depth)]
        paddings = [check_choice("padding", name, ("same", "valid")) for name in _each("padding", padding, depth)]
        self.layers = [_Convolution(*layer) for layer in zip(sizes, strides, paddings, strict=True)]
        self.readout = check_choice("readout", readout, ("flatten", "pool"))
        self.memory = check_whole("memory", memory, remedy="give bytes, such as 2**28")

    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        self._check("X", X)
        self._check("Z", Z)
        if X.shape[1:] != Z.shape[1:]:
            expected = f"records of shape {tuple(X.shape[1:])}, as X has"
            raise fail("Z", expected, f"{tuple(Z.shape[1:])}", "crop or resize them")
        pairs = self._pairs_at_once(X)
        columns = max(1, min(len(Z), math.isqrt(pairs)))
        rows = max(1, min(len(X), pairs // columns))
        columns = max(1, min(len(Z), pairs // rows))
        if rows >= len(X) and columns >= len(Z):
            return self._pairs(X, Z)
        if torch.is_grad_enabled() and (X.requires_grad or Z.requires_grad):
            lines = [[_recomputed(self._pairs, x, z) for z in Z.split(columns)] for x in X.split(rows)]
            return torch.cat([torch.cat(line, dim=1) for line in lines])
        matrix = X.new_empty(len(X), len(Z))
        for i in range(0, len(X), rows):
            for j in range(0, len(Z), columns):
                matrix[i : i + rows, j : j + columns] = self._pairs(X[i : i + rows], Z[j : j + columns])
        return matrix

    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        self._check("X", X)
        if len(X) == 0:
            return X.new_zeros(0)
        parts = X.split(self._pairs_at_once(X))
        if len(parts) > 1 and torch.is_grad_enabled() and X.requires_grad:
            return torch.cat([_recomputed(self._each_with_itself, x) for x in parts])
        return torch.cat([self._each_with_itself(x) for x in parts])

    def _pairs(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        """Compute the kernel of all pairs at once, (n, m)."""
        formula = "nchw,mcij->nmhwij" if self._pools else "nchw,mchw->nmhw"
        products = torch.einsum(formula, X, Z / X.shape[1])
        return self._through_layers(X.square().mean(1)[:, None], Z.square().mean(1)[None], products)

    def _each_with_itself(self, X: torch.Tensor) -> torch.Tensor:
        """Compute the kernel of every record with itself, (n,)."""
        q = X.square().mean(1)
        products = torch.einsum("nchw,ncij->nhwij", X, X / X.shape[1]) if self._pools else q
        return self._through_layers(q, q, products)

    def _average(self, layer: _Convolution, c: torch.Tensor) -> torch.Tensor:
        return layer.average_pairs(c) if self._pools else layer.average(c)

    def _beside(self, qx: torch.Tensor, qz: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (qx[..., None, None], qz[..., None, None, :, :]) if self._pools else (qx, qz)

    def _mean(self, c: torch.Tensor) -> torch.Tensor:
        return c.mean((-4, -3, -2, -1) if self._pools else (-2, -1))

    @property
    def _pools(self) -> bool:
        return self.readout == "pool"

    def _pairs_at_once(self, X: torch.Tensor) -> int:
        border = max(layer.filter_size for layer in self.layers) - 1
        pixels = (X.shape[2] + border) * (X.shape[3] + border)
        numbers = pixels**2 if self._pools else pixels
        return max(1, self.memory // (numbers * X.element_size() * TENSORS_AT_ONCE))

    def _check(self, name: str, images: torch.Tensor) -> None:
        if images.ndim != 4:
            raise fail(name, "images as (n, c, h, w)", f"shape {tuple(images.shape)}", "reshape or add a channel axis")
        height, width = images.shape[2:]
        for number, layer in enumerate(self.layers, 1):
            if not layer.positions(height) or not layer.positions(width):
                raise fail(
                    name,
                    f"images that layer {number}'s {layer.filter_size} x {layer.filter_size} filter fits into",
                    f"{height} x {width} positions there (images of {images.shape[2]} x {images.shape[3]})",
                    'use padding="same", a smaller filter or stride, or fewer layers',
                )
            height, width = layer.positions(height), layer.positions(width)

    def _shown(self) -> str:
        return f"readout={self.readout!r}, "


class ConvNTK(_Tangent, ConvNNGP):
    """The neural tangent kernel of convolutional networks."""


def _recomputed(function: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """Evaluate function(*inputs) now and again in the backward pass, so that only its inputs are held between."""
    result: torch.Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result


def _each(name: str, value: Any, depth: int) -> list[Any]:
    """Repeat one value for every layer, or check that there is one a layer."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value] * depth
    if len(value) != depth:
        raise fail(name, f"one value, or one for each of {depth} layers", f"{len(value)} values", "change the depth")
    return list(value)
