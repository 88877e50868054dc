"""Each record's own loss under torch's criteria, computed for many batches at once."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import nn

OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
CRITERIA = (*OF_CLASSES, nn.BCEWithLogitsLoss, nn.BCELoss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)


class Outputs(NamedTuple):
    """What a model said of a batch, and the criterion of `plain` under which its losses are still to be computed."""

    criterion: Any
    outputs: torch.Tensor
    targets: torch.Tensor

    def alike(self) -> tuple[Any, ...]:
        """What two batches must share to be joined."""
        tensors = (self.outputs, self.targets)
        return (id(self.criterion), *((tensor.shape[1:], tensor.dtype, tensor.device) for tensor in tensors))


def plain(criterion: Any) -> Any:
    """Return one of torch's criteria with one value a record or output, without weights and smoothing."""
    made = copy.copy(criterion)
    made._buffers = dict.fromkeys(criterion._buffers)
    made.reduction, made.label_smoothing = "none", 0.0
    return made


@torch.no_grad()
def computed(batches: Iterable[torch.Tensor | Outputs]) -> list[torch.Tensor]:
    """Return losses in the order of the batches; those of outputs are computed, alike ones together."""
    found: list[torch.Tensor] = []
    for _, alike in groupby(batches, lambda batch: batch.alike() if isinstance(batch, Outputs) else None):
        members = list(alike)
        if isinstance(members[0], Outputs):
            outputs, targets = (torch.cat([member[place] for member in members]) for place in (1, 2))
            members = [_own_losses(members[0].criterion, outputs, targets)]
        found += members  # type: ignore[arg-type]
    return found


def _own_losses(criterion: Any, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean of each record's losses (b,) over its outputs or tokens, NaN where all of them are ignored."""
    targets = targets.detach()
    soft = targets.is_floating_point()
    each = criterion(outputs.float(), targets.float() if soft else targets)
    if type(criterion) in OF_CLASSES and not soft:
        counted = targets != criterion.ignore_index
        return each / counted if each.ndim == 1 else each.flatten(1).sum(1) / counted.flatten(1).sum(1)
    return each if each.ndim == 1 else each.flatten(1).mean(1)
