"""The model, data and device that a user hands over, as torch objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from giveaway.checks import fail


def as_loader(data: Any, batch_size: int) -> DataLoader[Any]:
    """A DataLoader as it is, a Dataset in order."""
    if isinstance(data, DataLoader):
        return data
    indexable = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping | str)
    if isinstance(data, Dataset) or (indexable and not isinstance(data, torch.Tensor | np.ndarray)):
        if not isinstance(batch_size, int) or batch_size < 1:
            raise fail("batch_size", "a whole number of at least 1", repr(batch_size), "256 suits most models")
        return DataLoader(data, batch_size=batch_size, shuffle=False)
    raise fail("data", "a DataLoader or a Dataset", type(data).__name__, "wrap arrays in a TensorDataset")


def unwrapped(model: Any) -> nn.Module:
    """The module under torch.compile and the parallel wrappers, whose copies our hooks would not reach."""
    if not isinstance(model, nn.Module):
        raise fail("model", "a torch.nn.Module", type(model).__name__, "for scikit-learn use from_sklearn")
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def device_of(model: nn.Module, asked: torch.device | str | None) -> torch.device:
    """Where the model's inputs go: as asked, if some of its parameters are there, else to its first parameter."""
    present = list(dict.fromkeys(parameter.device for parameter in model.parameters())) or [torch.device("cpu")]
    if asked is None:
        return present[0]
    try:
        wanted = torch.device(asked)
    except RuntimeError as error:
        raise fail("device", "a torch device, as cpu or cuda:1", repr(asked), "check its spelling") from error
    match = next((d for d in present if d.type == wanted.type and wanted.index in (None, d.index)), None)
    if match is None:
        got = f"{wanted} for a model on {' and '.join(map(str, present))}"
        raise fail("device", "where the model is", got, "move it first with model.to(device)")
    return match
