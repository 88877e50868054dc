"""Gaussian processes of wide networks: dense, and convolutional of (n, c, h, w) images (docs/derivations.md)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from giveaway.checks import check_choice, check_whole, fail
from giveaway.gp.activations import Activation, as_activation
from giveaway.gp.kernels import RBF, Kernel, Laplace, Linear, Sphere, check_variances, flat_pair
from giveaway.linalg.processes import can_compile

DEPTH = 3
SAMPLED = 1_000  # records whose distances give the typical length
COMPILED_FROM, LARGER = 64, 8  # blocks on a GPU from which compiling pays, and how much larger they are there
TENSORS_AT_ONCE = 8  # covariances and temporaries of one layer that live together


class _Convolution(NamedTuple):
    filter_size: int
    stride: int
    padding: str

    def positions(self, size: int) -> int:
        """Count the output positions along an axis of `size`, 0 when the filter does not fit."""
        if self.padding == "same":
            return -(-size // self.stride)
        return max(0, (size - self.filter_size) // self.stride + 1)

    def average(self, field: torch.Tensor, *, pairs: bool) -> torch.Tensor:
        """Average (..., h, w) over the filter, or `pairs` of positions (..., h, w, h', w') over shifts of both."""
        if pairs:
            return self._along(self._along(field, (-4, -2)), (-3, -1))
        border, uneven = (self.filter_size - 1) // 2, 1 - self.filter_size % 2
        if self.padding == "valid":
            border = uneven = 0
        images = functional.pad(field, [0, uneven, 0, uneven]) if uneven else field
        averaged = functional.avg_pool2d(images.flatten(0, -3).unsqueeze(1), self.filter_size, self.stride, border)
        return averaged.view(*field.shape[:-2], *averaged.shape[-2:])

    def _along(self, field: torch.Tensor, axes: tuple[int, int]) -> torch.Tensor:
        """Average over shifts of both axes together, at every stride-th place; outside are zeros."""
        reach = (self.positions(field.shape[axes[0]]) - 1) * self.stride + 1
        if self.padding == "same":
            widths = [0] * (-2 * min(axes))  # torch lists them from the last axis on
            for axis in axes:
                widths[-2 * axis - 2 : -2 * axis] = (self.filter_size - 1) // 2, self.filter_size // 2
            field = functional.pad(field, widths)
        total = torch.zeros(())
        for shift in range(self.filter_size):
            index = [slice(None)] * field.ndim
            for axis in axes:
                index[axis] = slice(shift, shift + reach, self.stride)
            total = total.add_(field[tuple(index)]) if shift else field[tuple(index)].clone()
        return total.div_(self.filter_size)


class NNGP(Kernel):
    """The covariance of the outputs of fully connected networks.

    >>> x = torch.eye(2, dtype=torch.float64)
    >>> NNGP(1, "relu", weight_variance=2.0)(x, x).round(decimals=4)
    tensor([[1.0000, 0.3183],
            [0.3183, 1.0000]], dtype=torch.float64)
    """

    _positions: tuple[int, ...] = ()  # axes of a covariance that are positions of an image, or of two (`_in_pairs`)
    _in_pairs = False

    def __init__(
        self,
        depth: int,
        activation: str | Activation = "relu",
        *,
        weight_variance: float = 2.0,
        bias_variance: float = 0.0,
    ) -> None:
        self.depth = check_whole("depth", depth, remedy="use Linear for no hidden layer")
        self.activation = as_activation(activation)
        self.weight_variance, self.bias_variance = check_variances(weight_variance, bias_variance)
        self.layers: list[_Convolution | None] = [None] * self.depth

    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        x, z = flat_pair(X, Z)
        left = self._variances(x)
        right = left if z is x else self._variances(z)
        return self._of_pairs([q[:, None] for q in left], [q[None] for q in right], x @ z.T / x.shape[1])

    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        x = flat_pair(X, X)[0]
        variances = self._variances(x)
        return self._of_pairs(variances, variances, x.square().mean(1))

    def _variances(self, X: torch.Tensor) -> list[torch.Tensor]:
        """Compute the variance of every layer's pre-activations, of records and, in images, of their positions."""
        q, found = X.square().mean(1), []
        for layer in self.layers:
            q = self._variance(layer, q)
            found.append(q)
            q = self.activation.dual(q, q, q)
        return found

    def _variance(self, layer: _Convolution | None, q: torch.Tensor) -> torch.Tensor:
        return (layer.average(q, pairs=False) if layer else q) * self.weight_variance + self.bias_variance

    def _of_pairs(
        self,
        left: Sequence[Any],
        right: Sequence[Any],
        c: torch.Tensor,
        dual: Callable[[Any, Any, torch.Tensor], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Compute the kernel from the variances of every layer on both sides (as `dual` takes them) and the second
        moments c of the inputs (overwritten). Leading axes broadcast and stay; positions of images follow them."""
        for layer, x, z in zip(self.layers, left, right, strict=True):
            c = self._scaled(layer.average(c, pairs=self._in_pairs) if layer else c)
            c = (dual or self.activation.dual)(x, z, c)
        return self._scaled(c.mean(self._positions) if self._positions else c)

    def _scaled(self, second_moment: torch.Tensor) -> torch.Tensor:
        """Return σb² + σw² times a moment that nobody else holds, in place."""
        return second_moment.mul_(self.weight_variance).add_(self.bias_variance)

    def __repr__(self) -> str:
        readout = f"readout={self.readout!r}, " if isinstance(self, ConvNNGP) else ""
        variances = f"weight_variance={self.weight_variance:g}, bias_variance={self.bias_variance:g}"
        return f"{type(self).__name__}({self.depth}, {self.activation}, {readout}{variances})"


class ConvNNGP(NNGP):
    """The covariance of the outputs of convolutional networks; `filter_size`, `stride` and `padding` are one for all
    layers or one a layer. Pairs of records are walked in blocks of about `memory` bytes, recomputed in a backward pass;
    on a GPU blocks are eight times as large, and many of them are compiled."""

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
        super().__init__(depth, activation, weight_variance=weight_variance, bias_variance=bias_variance)
        sizes = [check_whole("filter_size", size) for size in _each("filter_size", filter_size, depth)]
        strides = [check_whole("stride", step) for step in _each("stride", stride, depth)]
        paddings = [check_choice("padding", name, ("same", "valid")) for name in _each("padding", padding, depth)]
        self.layers = [_Convolution(*layer) for layer in zip(sizes, strides, paddings, strict=True)]
        self.readout = check_choice("readout", readout, ("flatten", "pool"))
        self._in_pairs = readout == "pool"
        self._positions = (-4, -3, -2, -1) if self._in_pairs else (-2, -1)
        self.memory = check_whole("memory", memory, remedy="give bytes, such as 2**28")

    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        pairs = self._pairs_at_once("X", X)
        self._pairs_at_once("Z", Z)
        if X.shape[1:] != Z.shape[1:]:
            expected = f"records of shape {tuple(X.shape[1:])}, as X has"
            raise fail("Z", expected, f"{tuple(Z.shape[1:])}", "crop or resize them")
        if len(X) * len(Z) >= COMPILED_FROM * pairs and not torch.is_grad_enabled() and can_compile(X.device):
            return self._compiled(X, Z, 1 << int(math.log2(pairs) / 2))
        columns = max(1, min(len(Z), math.isqrt(pairs)))
        rows = max(1, min(len(X), pairs // columns))
        columns = max(1, min(len(Z), pairs // rows))
        if rows >= len(X) and columns >= len(Z):
            return self._pairs(X, Z)
        parts = Z.split(columns)
        return torch.cat([torch.cat([_recomputed(self._pairs, x, z) for z in parts], 1) for x in X.split(rows)])

    def _compiled(self, X: torch.Tensor, Z: torch.Tensor, side: int) -> torch.Tensor:
        """Compute the kernel in square blocks of one size, compiled once: blank images fill those at the edges. A power
        of two divides the blocks of large matrices nearly evenly."""

        @partial(torch.compile, dynamic=False)
        def block(x: torch.Tensor, left: list[Any], z: torch.Tensor, right: list[Any]) -> torch.Tensor:
            return self._of_pairs(left, right, self._products(x, z), self.activation.of_pairs)

        def parts(images: torch.Tensor, shaped: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[Any, ...]]:
            blank = images.new_zeros(-len(images) % side, *images.shape[1:])
            return [
                (part, [[shaped(told) for told in self.activation.prepared(q)] for q in self._variances(part)])
                for part in torch.cat([images, blank]).split(side)
            ]

        rows, columns = parts(X, lambda q: self._first(q)[:, None]), parts(Z, lambda q: self._second(q)[None])
        whole = torch.cat([torch.cat([block(*row, *column) for column in columns], 1) for row in rows])
        return whole[: len(X), : len(Z)]

    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        blocks = X.split(self._pairs_at_once("X", X))
        if len(blocks) == 1:
            return self._each_with_itself(X)
        return torch.cat([_recomputed(self._each_with_itself, x) for x in blocks])

    def _pairs(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        """Compute the kernel of all pairs at once, (n, m)."""
        left = [self._first(q)[:, None] for q in self._variances(X)]
        right = [self._second(q)[None] for q in self._variances(Z)]
        return self._of_pairs(left, right, self._products(X, Z))

    def _products(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        formula = "nchw,mcij->nmhwij" if self._in_pairs else "nchw,mchw->nmhw"
        return torch.einsum(formula, X, Z / X.shape[1])

    def _each_with_itself(self, X: torch.Tensor) -> torch.Tensor:
        variances = self._variances(X)
        left, right = map(self._first, variances), map(self._second, variances)
        products = torch.einsum("nchw,ncij->nhwij", X, X / X.shape[1]) if self._in_pairs else X.square().mean(1)
        return self._of_pairs(list(left), list(right), products)

    def _first(self, q: torch.Tensor) -> torch.Tensor:
        """Give variances at positions the axes of covariances, which are of one position or of two."""
        return q[..., None, None] if self._in_pairs else q

    def _second(self, q: torch.Tensor) -> torch.Tensor:
        return q[..., None, None, :, :] if self._in_pairs else q

    def _pairs_at_once(self, name: str, images: torch.Tensor) -> int:
        """Check that every filter fits into the images, and return how many pairs of them `memory` holds."""
        if images.ndim != 4:
            raise fail(name, "images as (n, c, h, w)", f"shape {tuple(images.shape)}", "reshape or add a channel axis")
        height, width = images.shape[2:]
        border = 0
        for number, layer in enumerate(self.layers, 1):
            assert layer is not None
            border = max(border, layer.filter_size - 1)
            if not layer.positions(height) or not layer.positions(width):
                expected = f"images that layer {number}'s {layer.filter_size} x {layer.filter_size} filter fits into"
                got = f"{height} x {width} positions there (images of {images.shape[2]} x {images.shape[3]})"
                raise fail(name, expected, got, 'use padding="same", a smaller filter or stride, or fewer layers')
            height, width = layer.positions(height), layer.positions(width)
        pixels = (images.shape[2] + border) * (images.shape[3] + border)
        numbers = pixels**2 if self._in_pairs else pixels
        memory = LARGER * self.memory if images.is_cuda else self.memory
        return max(1, memory // (numbers * images.element_size() * TENSORS_AT_ONCE))


def _recomputed(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """Evaluate the function, holding no more than the inputs until the backward pass, where it is evaluated again."""
    if not torch.is_grad_enabled() or not any(given.requires_grad for given in inputs):
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


def _each(name: str, value: Any, depth: int) -> list[Any]:
    """Repeat one value for every layer, or check that there is one a layer."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value] * depth
    if len(value) != depth:
        raise fail(name, f"one value, or one for each of {depth} layers", f"{len(value)} values", "change the depth")
    return list(value)


KINDS: dict[str, type[Kernel]] = {"rbf": RBF, "laplace": Laplace, "linear": Linear, "nngp": NNGP, "conv_nngp": ConvNNGP}


@dataclass(frozen=True)
class KernelChoice:
    """A kernel in words; None is a default (`length`: the median distance); `sphere` centres and scales records."""

    name: str
    length: float | None = None
    depth: int | None = None
    activation: str | None = None
    weight_variance: float | None = None
    bias_variance: float | None = None
    filter_size: int | None = None
    stride: int | None = None
    padding: str | None = None
    readout: str | None = None
    sphere: bool = False

    def options(self) -> dict[str, Any]:
        """Return what was given beside the name; refuse what the kernel does not take."""
        check_choice("kernel", self.name, KINDS)
        named = {name: value for name, value in vars(self).items() if name not in ("name", "sphere")}
        given = {name: value for name, value in named.items() if value is not None}
        for name in given:
            if name not in signature(KINDS[self.name]).parameters:
                fit = ", ".join(kernel for kernel, kind in KINDS.items() if name in signature(kind).parameters)
                raise fail(name, f"one of the kernels {fit}", self.name, f"drop {name}, or choose another kernel")
        return given

    def kernel(self, inputs: torch.Tensor) -> Kernel:
        """Make the kernel for these inputs (n, …)."""
        options, takes = self.options(), signature(KINDS[self.name]).parameters
        if "length" in takes and "length" not in options:
            options["length"] = median_distance(Sphere(Linear(), centre=True).map(inputs) if self.sphere else inputs)
        if "depth" in takes:
            options.setdefault("depth", DEPTH)
        made = KINDS[self.name](**options)
        return Sphere(made, centre=True) if self.sphere else made


def median_distance(inputs: torch.Tensor) -> float:
    """Return the median distance between up to 1,000 evenly spaced records that are apart; 1 where none are."""
    distances = torch.pdist(inputs[:: -(-len(inputs) // SAMPLED)].flatten(1).to(torch.float64))
    apart = distances[distances > 0]
    return float(apart.quantile(0.5)) if len(apart) else 1.0
