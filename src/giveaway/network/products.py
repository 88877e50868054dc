"""Curvature of the summed loss plus damping, as products with many columns: Gauss–Newton or the exact Hessian."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.func import grad, jvp, vjp, vmap

from giveaway.checks import check_choice, check_number, fail
from giveaway.extract.batches import RecordBatch
from giveaway.network.jacobian import Jacobian
from giveaway.network.linearize import CHECKED
from giveaway.network.network import Network, Values

BatchProduct = Callable[[Values], Values]


class GaussNewton:
    """V (P, s) ↦ Σ_j J_jᵀ W_j J_j V + λV."""

    kind = "ggn"

    def __init__(self, network: Network, damping: float = 0.0, jacobian: Jacobian | None = None) -> None:
        self.network, self.damping = network, _checked(damping)
        self.jacobian = Jacobian(network) if jacobian is None else jacobian

    @property
    def notes(self) -> list[str]:
        return self.jacobian.notes

    def __call__(self, right: torch.Tensor) -> torch.Tensor:
        return self.jacobian.curved(right).add_(right, alpha=self.damping)


class Hessian:
    """V (P, s) ↦ Σ_j ∇²ℓ_j V + λV. It can curve downwards where training has not ended in a minimum."""

    kind = "hessian"

    def __init__(self, network: Network, damping: float = 0.0, jacobian: Jacobian | None = None) -> None:
        self.network, self.damping = network, _checked(damping)
        self.jacobian = Jacobian(network) if jacobian is None else jacobian
        self._way, notes = _method_of(network)
        self.notes = [*self.jacobian.notes, *notes]

    def __call__(self, right: torch.Tensor) -> torch.Tensor:
        network, wide = self.network, right.T
        columns = network.work.columns(max(len(wide), 1))
        total = torch.zeros_like(wide)
        with network.evaluating():
            for _, batch in network.records.batches(network.work.rows(columns)):
                product = self._way(network, batch)
                for at, part in zip(total.split(columns), wide.split(columns), strict=True):
                    found = product(network.parameters.split(part))
                    at += network.parameters.join(found)
        self.jacobian.passes += 1
        self.jacobian.column_passes += len(wide)
        return total.add_(wide, alpha=self.damping).T


def curvature_of(network: Network, kind: str, damping: float) -> GaussNewton | Hessian:
    """The curvature by its name: "ggn" or "hessian"."""
    check_choice("curvature", kind, ("ggn", "hessian"))
    return GaussNewton(network, damping) if kind == "ggn" else Hessian(network, damping)


def _checked(damping: float) -> float:
    return check_number("damping", damping, minimum=0.0, remedy="in units of the summed loss, as n times weight decay")


def _gradient(network: Network, batch: RecordBatch) -> Callable[[Values], Values]:
    function = network.function(batch)
    return grad(lambda values: network.loss.value(function(values), batch.targets).sum())


def _forward_over_reverse(network: Network, batch: RecordBatch) -> BatchProduct:
    gradient, values = _gradient(network, batch), network.parameters.values
    return vmap(lambda tangent: jvp(gradient, (values,), (tangent,))[1])


def _reverse_over_reverse(network: Network, batch: RecordBatch) -> BatchProduct:
    backward = vjp(_gradient(network, batch), network.parameters.values)[1]
    return vmap(lambda tangent: backward(tangent)[0])


def _column_by_column(network: Network, batch: RecordBatch) -> BatchProduct:
    values = {name: value.clone().requires_grad_() for name, value in network.parameters.values.items()}
    with torch.enable_grad():
        total = network.loss.value(network.function(batch)(values), batch.targets).sum()
        leaves = list(values.values())
        first = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True, materialize_grads=True)

    def product(tangents: Values) -> Values:
        columns = []
        for k in range(len(next(iter(tangents.values())))):
            with torch.enable_grad():
                along = sum((part * tangents[name][k]).sum() for name, part in zip(values, first, strict=True))
            found = torch.autograd.grad(along, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)  # type: ignore[arg-type]
            columns.append(found)
        return {name: torch.stack(parts) for name, parts in zip(values, zip(*columns, strict=True), strict=True)}

    return product


HESSIAN_WAYS: dict[str, Callable[[Network, RecordBatch], BatchProduct]] = {
    "forward over reverse": _forward_over_reverse,
    "reverse over reverse": _reverse_over_reverse,
    "column by column": _column_by_column,
}


def _method_of(network: Network) -> tuple[Callable[[Network, RecordBatch], BatchProduct], list[str]]:
    """The first way that agrees with plain second derivatives, and a note for each that did not."""
    batch = network.records.take(slice(0, min(CHECKED, network.n)))
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2, network.size, generator=generator, dtype=torch.float64).to(network.device, network.dtype)
    tangents, notes = network.parameters.split(v), []
    expected: torch.Tensor | None = None
    loose = 10 * torch.finfo(network.dtype).eps ** 0.5
    for name in ("column by column", "forward over reverse", "reverse over reverse"):
        try:
            with network.evaluating():
                found = network.parameters.join(HESSIAN_WAYS[name](network, batch)(tangents))
        except Exception as error:  # what a layer raises under a transform is up to the layer
            if expected is None:
                got = f"layers that cannot ({type(error).__name__})"
                raise fail(
                    "curvature", "a model that can be differentiated twice", got, 'use curvature="ggn"'
                ) from error
            notes.append(f"{name}: not possible for this model ({type(error).__name__})")
            continue
        if expected is None:
            expected = found
        elif bool(((found - expected).norm(dim=1) <= loose * expected.norm(dim=1)).all()):
            return HESSIAN_WAYS[name], notes
        else:
            notes.append(f"{name}: differs from plain second derivatives, so it is not used")
    return _column_by_column, notes
