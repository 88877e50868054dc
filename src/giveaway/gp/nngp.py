"""Gaussian processes of infinitely wide fully connected networks.

A network of `depth` hidden layers of width N has pre-activations

    z¹ = √(σw²/d) W¹ x + σb b¹,    z^{l+1} = √(σw²/N) W^{l+1} φ(z^l) + σb b^{l+1},    l = 1 … depth,

with standard normal W and b, and its output is z^{depth+1}. As N grows the output is a Gaussian process with

    K⁰ = σw² ⟨x, z⟩/d + σb²,    K^{l+1} = σb² + σw² E[φ(u)φ(v)]  for (u, v) ~ N(0, K^l),

taken `depth` times, where d counts the numbers of a record.
"""

from __future__ import annotations

import torch

from giveaway.checks import fail
from giveaway.gp.activations import as_activation
from giveaway.gp.duals import Activation
from giveaway.gp.kernels import Kernel, check_variances, flat_pair


class NNGP(Kernel):
    """The covariance of the outputs of random networks: K^depth.

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
        self.depth = check_depth(depth)
        self.activation = as_activation(activation)
        self.weight_variance, self.bias_variance = check_variances(weight_variance, bias_variance)

    def __call__(self, X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
        x, z = flat_pair(X, Z)
        qx = self._scaled(x.square().mean(1))
        qz = qx if z is x else self._scaled(z.square().mean(1))
        return self._through_layers(qx[:, None], qz[None], self._scaled(x @ z.T / x.shape[1]))

    def diagonal(self, X: torch.Tensor) -> torch.Tensor:
        q = self._scaled(flat_pair(X, X)[0].square().mean(1))
        return self._through_layers(q, q, q)

    def _through_layers(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """The kernel for first-layer variances qx and qz and covariance c, which broadcast."""
        for layer in range(1, self.depth + 1):
            c = self._after(qx, qz, c)
            if layer < self.depth:
                qx, qz = self._variances_after(qx, qz)
        return c

    def _after(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """The next layer's covariance."""
        return self._scaled(self.activation.dual(qx, qz, c))

    def _variances_after(self, qx: torch.Tensor, qz: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        next_x = self._after(qx, qx, qx)
        return next_x, next_x if qz is qx else self._after(qz, qz, qz)

    def _scaled(self, second_moment: torch.Tensor) -> torch.Tensor:
        """σb² + σw² times a moment that nobody else holds."""
        return second_moment.mul_(self.weight_variance).add_(self.bias_variance)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.depth}, {self.activation}, weight_variance={self.weight_variance:g}, "
            f"bias_variance={self.bias_variance:g})"
        )


class NTK(NNGP):
    """The neural tangent kernel ⟨∂f(x), ∂f(z)⟩ of the same networks, over all W and b as parametrized above:

    Θ⁰ = K⁰,    Θ^{l+1} = K^{l+1} + σw² Θ^l E[φ'(u)φ'(v)].
    """

    def _through_layers(self, qx: torch.Tensor, qz: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        tangent = c
        for layer in range(1, self.depth + 1):
            slope = self.activation.dual_derivative(qx, qz, c)
            c = self._after(qx, qz, c)
            tangent = c + self.weight_variance * tangent * slope
            if layer < self.depth:
                qx, qz = self._variances_after(qx, qz)
        return tangent


def check_depth(depth: int) -> int:
    """A whole number of hidden layers, at least one."""
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise fail("depth", "a whole number of hidden layers, at least 1", repr(depth), "use Linear for none")
    return depth
