"""Each record's own loss under torch's criteria, computed for many batches at once."""

import copy
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import torch
from torch import nn

OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
CRITERIA = (*OF_CLASSES, nn.BCEWithLogitsLoss, nn.BCELoss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)

# what a model said of a batch: the plain criterion of its losses, outputs, targets
Outputs = tuple[Any, torch.Tensor, torch.Tensor]


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
    for kind, alike in groupby(batches, _kind):
        if kind is None:
            found += alike  # type: ignore[arg-type]
        else:
            criteria, outputs, targets = zip(*alike, strict=True)
            found.append(_own_losses(criteria[0], torch.cat(outputs), torch.cat(targets)))
    return found


def _kind(batch: torch.Tensor | Outputs) -> tuple[Any, ...] | None:
    """Return what two batches of outputs must share to be joined; None of losses."""
    if isinstance(batch, torch.Tensor):
        return None
    criterion, *tensors = batch
    return (id(criterion), *((tensor.shape[1:], tensor.dtype, tensor.device) for tensor in tensors))


def _own_losses(criterion: Any, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean of each record's losses (b,) over its outputs or tokens, NaN where all of them are ignored."""
    targets = targets.detach()
    soft = targets.is_floating_point()
    each = criterion(outputs.float(), targets.float() if soft else targets)
    if type(criterion) in OF_CLASSES and not soft:
        counted = targets != criterion.ignore_index
        return each / counted if each.ndim == 1 else each.flatten(1).sum(1) / counted.flatten(1).sum(1)
    return each if each.ndim == 1 else each.flatten(1).mean(1)
