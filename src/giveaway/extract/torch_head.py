"""from_torch: the linear head of a torch model, read off while the model runs over its training data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from giveaway.checks import fail
from giveaway.extract.batches import BatchKeys
from giveaway.extract.feature_cache import opened
from giveaway.extract.row_identity import check_nothing_dropped
from giveaway.extract.torch_arguments import as_loader, device_of, unwrapped
from giveaway.extract.torch_passes import TorchPasses
from giveaway.extract.untouched import untouched
from giveaway.extract.watched_layer import WatchedLayer
from giveaway.records.head import Head
from giveaway.records.targets import infer_loss


def from_torch(
    model: nn.Module,
    data: Any,
    *,
    layer: str | None = None,
    loss: str = "auto",
    l2: float = 0.0,
    penalize_intercept: bool = True,
    reduction: str | None = None,
    batch_size: int = 256,
    input_key: str | int | None = None,
    target_key: str | int | None = None,
    id_key: str | int | None = None,
    device: torch.device | str | None = None,
    autocast: torch.dtype | None = None,
    sample_weight: Any = None,
    ids: Any = None,
    groups: Any = None,
    frozen: bool = False,
    keep_inputs: bool | None = None,
    cache: str | os.PathLike[str] | None = None,
    stream: bool = False,
) -> Head:
    """The linear head of `model` and what it sees of each record in `data`, in the loader's order.

    The model runs once over `data` in evaluation mode and is left exactly as it was. The data are read twice:
    rows are records only if both passes agree, so shuffling, dropping and random augmentation are refused,
    unless (for shuffling) the batches carry ids.

    Parameters
    ----------
    data : a DataLoader, or a Dataset (read in order, `batch_size` records at a time). Batches are (inputs, targets),
        (inputs, targets, ids) with id_key=2, or dicts: targets under labels, label, targets, target or y, ids under
        ids or id, the rest given to the model by keyword. A tuple or dict of inputs is unpacked.
    layer : name of the nn.Linear to take; by default the last to run, which must give the model's output.
    loss, l2, penalize_intercept : as in `Head`. Weight decay wd on a mean cross-entropy is l2 = n * wd.
    reduction : "mean", "first" or "last" token, for a layer that sees (batch, tokens, features); padding counts.
    input_key, target_key, id_key : where the batch keeps its parts, if not in the usual place.
    device : which of the model's devices takes the inputs (default: that of its first parameter).
    autocast : torch.bfloat16 or torch.float16, to run the model in mixed precision.
    sample_weight, ids, groups : one a record in dataset order, or (weights, groups) a dict from id to value.
    frozen : as in `Head`: whether nothing before the layer was trained on these records.
    keep_inputs : keep what the model is given of each record as `head.inputs`, on the CPU and up to 2 GiB. None keeps
        images, tables (one tensor of floats or uint8 a batch) and strings, and nothing where that cannot be; True says
        why not, False never keeps.
    cache : a folder for features and outputs, which are then never held in memory as a whole. The model runs once; a
        later call with the same model and data reads the data to see that they are, and runs nothing.
    stream : keep nothing: the model runs again over `data` in each pass of an audit, which holds a window of rows.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> records = TensorDataset(torch.eye(3).repeat(2, 1), torch.tensor([0, 1, 0, 1, 0, 1]))
    >>> from_torch(model, records, l2=0.1)
    Head(n=6, d=4, m=2, loss='cross_entropy', l2=0.1, inputs=(3,))
    """
    module, loader = unwrapped(model), as_loader(data, batch_size)
    if stream and cache is not None:
        raise fail("stream", "stream=True or cache=, not both", "both", "drop one of them")
    where, keys = device_of(module, device), BatchKeys(input_key, target_key, id_key)
    watched = WatchedLayer(module, layer, reduction=reduction, device=where, autocast=autocast)
    check_nothing_dropped(loader)
    passes = TorchPasses(loader, keys, watched, keep_inputs, named=ids is not None)
    with untouched(module, loader, where):
        if stream:
            features, outputs, targets = passes.streamed()
        elif cache is not None:
            with opened(cache) as store:
                features, outputs, targets = passes.cached(store)
        else:
            features, outputs, targets = passes.held()
        # Read inside: a parametrized weight (spectral norm) may change when it is read in training mode.
        weight, bias = watched.parameters()
    names = ids if passes.ids is None else passes.ids
    return Head(
        features=features,
        outputs=outputs,
        targets=targets,
        loss=infer_loss(targets, outputs) if loss == "auto" else loss,
        l2=l2,
        intercept=bias is not None,
        penalize_intercept=penalize_intercept,
        weight=weight,
        bias=bias,
        sample_weight=_in_row_order("sample_weight", sample_weight, names, passes.unknown_order),
        ids=names,
        groups=_in_row_order("groups", groups, names, passes.unknown_order),
        inputs=passes.inputs,
        frozen=frozen,
    )


def _in_row_order(argument: str, value: Any, names: Any, unknown_order: str | None) -> Any:
    if isinstance(value, Mapping):
        if names is None:
            raise fail(argument, "one value a record", "a dict without ids", "pass ids=, or ids in the batches")
        rows = names.tolist() if isinstance(names, np.ndarray | torch.Tensor) else list(names)
        missing = sum(name not in value for name in rows)
        if missing:
            raise fail(argument, "a value for every id", f"none for {missing} of {len(rows)}", "add the missing ids")
        return np.array([value[name] for name in rows])
    if value is not None and unknown_order:
        got = f"an array, with rows in the order of {unknown_order}"
        raise fail(argument, "a dict from id to value", got, "key the values by id, or use a loader without shuffling")
    return value
