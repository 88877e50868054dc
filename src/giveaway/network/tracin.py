"""TracIn: what a record's own gradient steps did to its loss, summed over checkpoints of the training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from giveaway.checks import check_number, fail
from giveaway.network.gradients import RecordDerivatives, row_numbers
from giveaway.network.network import Network, Values

Checkpoint = tuple[Values, float]  # a state_dict and its learning rate


def tracin(network: Network, checkpoints: Sequence[Checkpoint], rows: Any = None) -> torch.Tensor:
    """Σ_c η_c ‖∇ℓ_i(θ_c)‖² (k,): the self-influence of records, by default of all."""
    total: torch.Tensor | float = 0.0
    for at, rate in _checked(network, checkpoints):
        parts = [part.double().square().sum(1) for _, part in RecordDerivatives(at).gradients(rows)]
        total = total + rate * torch.cat(parts)
    assert isinstance(total, torch.Tensor)
    return total


def tracin_between(network: Network, checkpoints: Sequence[Checkpoint], rows: Any, others: Any = None) -> torch.Tensor:
    """Σ_c η_c ∇ℓ_i(θ_c)ᵀ∇ℓ_j(θ_c) (k, l) of the records `rows` with `others` (by default all)."""
    total: torch.Tensor | float = 0.0
    for at, rate in _checked(network, checkpoints):
        derivatives = RecordDerivatives(at)
        own = torch.cat([part for _, part in derivatives.gradients(row_numbers(network, rows))])
        parts = [own @ part.T for _, part in derivatives.gradients(others)]
        total = total + rate * torch.cat(parts, 1).double()
    assert isinstance(total, torch.Tensor)
    return total


def _checked(network: Network, checkpoints: Sequence[Checkpoint]) -> Iterable[tuple[Network, float]]:
    if not checkpoints:
        raise fail("checkpoints", "at least one (state_dict, learning rate)", "none", "save some during training")
    for state, rate in checkpoints:
        remedy = "pass the learning rate of that part of the training"
        yield network.at(state), check_number("checkpoints", rate, minimum=0.0, remedy=remedy)
