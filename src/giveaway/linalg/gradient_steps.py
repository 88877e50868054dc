"""Leverage and Newton steps from gradients alone: of each unit (a document, a person) its gradient g, and those of s
sets of labels that the model drew itself, whose outer products average to the unit's curvature H_i.

H = Σ H_i + λD is never formed: H_i becomes the outer products of s gradients, the sum is taken over `chosen` units and
scaled to all, and what is asked of H⁻¹ follows from products between gradients (docs/derivations.md).
"""

from collections.abc import Sequence

import torch

from giveaway.linalg.precision import Precision

Columns = dict[str, torch.Tensor]
AT_ONCE = 4096  # units that are solved for together


class GradientProducts:
    """Products between the gradients of n units, added up over pieces of the parameters.

    adaptive : D is the root of the mean squared gradient, as Adam takes its steps; else the identity.
    damping : λ, in units of the mean over units of trace(D⁻¹ H_i).
    """

    def __init__(
        self, units: int, chosen: torch.Tensor, probes: int, precision: Precision, adaptive: bool, damping: float
    ) -> None:
        self._chosen, self._probes, self._precision, self._adaptive = chosen, probes, precision, adaptive
        self._damping, self._units = damping, units
        self._own = torch.zeros(units, 1 + probes, 1 + probes, dtype=precision.dtype, device=chosen.device)
        self._cross = self._own.new_zeros(units * (1 + probes), len(chosen) * probes)

    def add(self, gradients: torch.Tensor) -> None:
        """Add the products over a piece (units, 1 + probes, parameters); the tensor is overwritten."""
        if self._adaptive:
            squared = gradients[:, 0].square().mean(0)
            gradients *= torch.where(squared > 0, squared.clamp_min(torch.finfo(squared.dtype).tiny) ** -0.25, 0.0)
        self._own.baddbmm_(gradients, gradients.mT)
        drawn = self._precision.parts(gradients[self._chosen, 1:].flatten(0, 1).T)
        self._precision.add_product(self._cross, self._precision.parts(gradients.flatten(0, 1)), drawn)

    def columns(self) -> Columns:
        """Return leverage, influence and newton (units,), and `newton_error`: what the drawn labels leave open."""
        own, probes = self._own.double(), range(self._probes)
        damping = self._damping * float(own[:, 1:, 1:].diagonal(dim1=1, dim2=2).mean())
        whole = self._from(own, probes, damping)
        halves = [self._from(own, some, damping)["newton"] for some in (probes[::2], probes[1::2])]
        spread, shift = (halves[0] - halves[1]) / 2, whole["newton"] - (halves[0] + halves[1]) / 2
        return {**whole, "newton_error": torch.hypot(spread, shift)}

    def _from(self, own: torch.Tensor, probes: Sequence[int], damping: float) -> Columns:
        """Return the columns by some of the labels drawn."""
        few, many = len(probes), self._units / len(self._chosen)
        kept = torch.tensor([0, *(1 + probe for probe in probes)], device=own.device)
        scale = torch.tensor([1.0] + [few**-0.5] * few, dtype=torch.float64, device=own.device)
        among = self._products(self._chosen, kept, scale)[:, 1:].flatten(2).flatten(0, 1) * many**0.5
        among.diagonal().add_(damping)
        root = torch.linalg.cholesky((among + among.T) / 2)
        inverse = own[:, kept][:, :, kept] * scale * scale[:, None]
        for first in range(0, self._units, AT_ONCE):
            some = self._products(slice(first, first + AT_ONCE), kept, scale)
            solved = torch.linalg.solve_triangular(root, some.flatten(2).flatten(0, 1).T, upper=False)
            solved = solved.T.unflatten(0, (len(some), -1))
            inverse[first : first + AT_ONCE] -= solved @ solved.mT
        inverse /= damping
        at = inverse[self._chosen]  # these units are part of H: take their own share out
        ones = torch.eye(few, dtype=torch.float64, device=own.device)
        inverse[self._chosen] = at + at[:, :, 1:] @ torch.linalg.solve(ones / many - at[:, 1:, 1:], at[:, 1:])
        step, drawn = inverse[:, :1, 1:], inverse[:, 1:, 1:]
        newton = inverse[:, 0, 0]
        shrunk = torch.linalg.solve(ones + drawn, torch.cat([step.mT, drawn], 2))
        leverage = shrunk[:, :, 1:].diagonal(dim1=1, dim2=2).sum(1)
        return {"leverage": leverage, "influence": newton - (step @ shrunk[:, :, :1]).flatten(), "newton": newton}

    def _products(self, rows: slice | torch.Tensor, kept: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return the products (k, 1 + few, chosen, few) of some units' rows with those that make H."""
        few, many = len(kept) - 1, self._units / len(self._chosen)
        of_units = self._cross.view(self._units, -1, len(self._chosen), self._probes)[rows]
        some = of_units[:, kept][..., kept[1:] - 1].double()
        return some * scale[:, None, None] * (many / few) ** 0.5
