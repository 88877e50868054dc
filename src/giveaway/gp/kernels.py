"""Kernels: callables (X, Z) -> K (n, m) for records X (n, ...) and Z (m, ...), differentiable in both.

Any callable of that form is a kernel. Those built here also know their `diagonal`. Records may have any shape; what a
kernel does not need the shape for is flattened.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from giveaway.checks import as_tensor, check_number, check_positive, fail
from giveaway.gp.activations import inverse_root, square_root
from giveaway.text import OnStage, quiet

KernelLike = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

BLOCK_ON_CPU = 512  # a block and its temporaries stay near the processor
BLOCK_ON_DEVICE = 4096
DIAGONAL_BLOCK = 16  # small: all but the diagonal of a block is thrown away
MAP_ROWS = 1024
NEAR = 1e-6  # squared distances below this share of the squared norms are recomputed from differences
NEAR_ENTRIES = 2**22


class Kernel(ABC):
    """A kernel that knows its diagonal."""

    @abstractmethod
    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        """Return K (n, m)."""

    @abstractmethod
    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        """Return K(x, x) for every record, (n,)."""

    def __repr__(self) -> str:
        given = vars(self).items()
        said = (f"{k}={v:g}" if isinstance(v, float) else f"{k}={getattr(v, '__name__', repr(v))}" for k, v in given)
        return f"{type(self).__name__.lstrip('_')}({', '.join(said)})"


class _ByDistance(Kernel):
    """A kernel of ‖x − z‖ and a length, 1 at distance 0."""

    def __init__(self, length: float = 1.0) -> None:
        remedy = "give a length such as the typical distance"
        self.length = check_positive("length", length, expected="a positive number", remedy=remedy)

    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        return X.new_ones(len(X))


class RBF(_ByDistance):
    """exp(−‖x − z‖² / (2 length²))."""

    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        return torch.exp(_squared_distances(X, Z) * (-0.5 / self.length**2))


class Laplace(_ByDistance):
    """exp(−‖x − z‖ / length) with the Euclidean distance; its gradient at x = z is given as 0."""

    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        return torch.exp(square_root(_squared_distances(X, Z)) * (-1.0 / self.length))


class Linear(Kernel):
    """weight_variance·⟨x, z⟩ + bias_variance: a Bayesian linear model. Nothing is divided by the dimension."""

    def __init__(self, weight_variance: float = 1.0, bias_variance: float = 0.0) -> None:
        self.weight_variance, self.bias_variance = check_variances(weight_variance, bias_variance)

    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        x, z = flat_pair(X, Z)
        return self.weight_variance * (x @ z.T) + self.bias_variance

    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        return self.weight_variance * X.flatten(1).square().sum(1) + self.bias_variance


class Mapped(Kernel):
    """kernel(map(X), map(Z)) for a map that treats every record by itself."""

    kernel: KernelLike

    @abstractmethod
    def map(self, X: torch.Tensor) -> torch.Tensor:
        """Return the records as the inner kernel sees them."""

    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        x = self.map(X)
        return self.kernel(x, x if Z is X else self.map(Z))

    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        return diagonal_of(self.kernel, self.map(X))


class Sphere(Mapped):
    """The kernel of records put on the sphere ‖x‖² = d, less their own mean with `centre`; zeros stay zero."""

    def __init__(self, kernel: KernelLike, *, centre: bool = False) -> None:
        self.kernel, self.centre = kernel, centre

    def map(self, X: torch.Tensor) -> torch.Tensor:
        x = X.flatten(1)
        if self.centre:
            x = x - x.mean(1, keepdim=True)
        return (x * inverse_root(x.square().mean(1, keepdim=True))).reshape(X.shape)


def diagonal_of(kernel: KernelLike, X: torch.Tensor) -> torch.Tensor:
    """Evaluate K(x, x) (n,) of any kernel by its `diagonal` method, or from the diagonals of small blocks."""
    diagonal = getattr(kernel, "diagonal", None)
    if callable(diagonal):
        return diagonal(X)
    return torch.cat([kernel(rows, rows).diagonal() for rows in X.split(DIAGONAL_BLOCK)])


@torch.no_grad()
def kernel_matrix(kernel: KernelLike, X: Any, on_stage: OnStage = quiet) -> torch.Tensor:
    """Evaluate K(X, X) (n, n), exactly symmetric, in blocks of rows and columns, without gradients."""
    x = as_tensor("X", X)
    x = x if x.is_floating_point() else x.double()
    while isinstance(kernel, Mapped):
        x, kernel = torch.cat([kernel.map(rows) for rows in x.split(MAP_ROWS)]), kernel.kernel
    most = BLOCK_ON_CPU if x.device.type == "cpu" else BLOCK_ON_DEVICE
    blocks = -(-len(x) // most) or 1
    size = -(-len(x) // blocks) or 1  # no small block is last, for which compiling would not pay
    matrix = x.new_empty(len(x), len(x))
    for i in range(0, len(x), size):
        rows = slice(i, i + size)
        for j in range(0, i, size):
            on_stage("Gaussian process, kernel", i * i + 2 * j * size, len(x) ** 2)
            matrix[rows, j : j + size] = kernel(x[rows], x[j : j + size])
        lower = kernel(x[rows], x[rows]).tril()
        matrix[rows, rows] = lower + lower.tril(-1).T
        matrix[:i, rows] = matrix[rows, :i].T
    if callable(getattr(kernel, "diagonal", None)):
        matrix.diagonal().copy_(diagonal_of(kernel, x))
    return matrix


def flat_pair(X: torch.Tensor, Z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flatten both sets of records to (n, d) and (m, d)."""
    for name, records in (("X", X), ("Z", Z)):
        if records.ndim < 2:
            raise fail(name, "records as (n, ...)", f"shape {tuple(records.shape)}", "give a single record as x[None]")
    x, z = X.flatten(1), Z.flatten(1)
    if x.shape[1] != z.shape[1]:
        expected = f"records of {x.shape[1]} numbers, as X has"
        raise fail("Z", expected, f"{z.shape[1]} numbers a record", "give both the same preprocessing")
    return x, x if Z is X else z


def check_variances(weight_variance: float, bias_variance: float) -> tuple[float, float]:
    return (
        check_number("weight_variance", weight_variance, minimum=0.0, remedy="give a variance such as 1 or 2"),
        check_number("bias_variance", bias_variance, minimum=0.0, remedy="give a variance, 0 for no biases"),
    )


def _squared_distances(X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
    """Compute ‖x − z‖² (n, m) as one matrix product; pairs so close that it would cancel are taken from x − z."""
    x, z = flat_pair(X, Z)
    origin = z.detach().mean(0) if len(z) else 0.0
    x = x - origin
    z = x if Z is X else z - origin
    norms = x.square().sum(1)[:, None] + z.square().sum(1)
    square = torch.addmm(norms, x, z.T, alpha=-2.0)
    rows, columns = (square.detach() <= NEAR * norms.detach()).nonzero(as_tuple=True)
    step = max(1, NEAR_ENTRIES // max(1, x.shape[1]))
    for i, j in zip(rows.split(step), columns.split(step), strict=True):
        square = square.index_put((i, j), (x[i] - z[j]).square().sum(1))
    return square
