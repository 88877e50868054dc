"""from_torch: the linear head of a torch model, read off while the model runs over its training data."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from giveaway.checks import check_choice, fail
from giveaway.extract.batches import BatchKeys, batches
from giveaway.extract.kept_inputs import KeptInputs
from giveaway.extract.linear_layer import (
    REDUCTIONS,
    check_is_model_output,
    check_not_tied,
    linear_layers,
    named_layer,
    one_row_a_record,
    storable,
    watch,
)
from giveaway.extract.row_identity import (
    RowTrail,
    check_nothing_dropped,
    expected_rows,
    order_error,
    why_order_is_unknown,
)
from giveaway.extract.rows import Rows
from giveaway.extract.untouched import untouched
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
    keep_inputs: bool | None = None,
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
    keep_inputs : keep what the model is given of each record as `head.inputs`, on the CPU and up to 2 GiB. None keeps
        images, tables (one tensor of floats or uint8 a batch) and strings, and nothing where that cannot be; True says
        why not, False never keeps.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> records = TensorDataset(torch.eye(3).repeat(2, 1), torch.tensor([0, 1, 0, 1, 0, 1]))
    >>> from_torch(model, records, l2=0.1)
    Head(n=6, d=4, m=2, loss='cross_entropy', l2=0.1, inputs=(3,))
    """
    module = _unwrapped(model)
    loader = _as_loader(data, batch_size)
    if reduction is not None:
        check_choice("reduction", reduction, REDUCTIONS)
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise fail("autocast", "None, torch.bfloat16 or torch.float16", str(autocast), "choose one of these")
    layers = linear_layers(module) if layer is None else named_layer(module, layer)
    where = _device_of(module, device)
    keys = BatchKeys(input_key, target_key, id_key)
    check_nothing_dropped(loader)
    unknown_order, total = why_order_is_unknown(loader), expected_rows(loader)

    first, second = RowTrail(total), RowTrail(total)
    features, outputs, targets = (Rows(name, total) for name in ("features", "outputs", "targets"))
    inputs = KeptInputs(keep_inputs, total)
    with untouched(module, loader, where):
        for number, batch in enumerate(batches(loader, keys)):
            if unknown_order and batch.ids is None:
                raise order_error(unknown_order)
            if batch.ids is not None and ids is not None:
                raise fail("ids", "ids in the batches or ids=, not both", "both", "drop ids=")
            first.add(batch)
            inputs.add(batch)  # before the model runs, which may change them in place
            with nullcontext() if autocast is None else torch.autocast(where.type, dtype=autocast):
                result, seen = watch(layers, module, *batch.inputs_on(where))
            if layer is None:
                seen = check_is_model_output(result, seen, reduction)
                layers = {seen.name: layers[seen.name]}
            elif seen is None:
                raise fail("layer", "a layer that runs", f"{layer!r}, which the forward leaves out", "name another")
            if number == 0:
                check_not_tied(module, seen.name, layers[seen.name])
            x, f = one_row_a_record(seen, len(batch.targets), reduction)
            features.add(x)
            outputs.add(f)
            targets.add(batch.targets)
        first.check_complete()
        batch_ids = first.ids
        for batch in batches(loader, keys):
            second.add(batch)
        first.check_repeated_by(second)
        (linear,) = layers.values()
        # Read inside: a parametrized weight (spectral norm) may change when it is read in training mode.
        weight = storable(linear.weight).clone()
        bias = None if linear.bias is None else storable(linear.bias).clone()

    names = ids if batch_ids is None else batch_ids
    y, f = targets.joined(), outputs.joined()
    return Head(
        features=features.joined(),
        outputs=f,
        targets=y,
        loss=infer_loss(y, f) if loss == "auto" else loss,
        l2=l2,
        intercept=bias is not None,
        penalize_intercept=penalize_intercept,
        weight=weight,
        bias=bias,
        sample_weight=_in_row_order("sample_weight", sample_weight, names, unknown_order),
        ids=names,
        groups=_in_row_order("groups", groups, names, unknown_order),
        inputs=inputs.joined(),
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


def _as_loader(data: Any, batch_size: int) -> DataLoader[Any]:
    if isinstance(data, DataLoader):
        return data
    indexable = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping | str)
    if isinstance(data, Dataset) or (indexable and not isinstance(data, torch.Tensor | np.ndarray)):
        if not isinstance(batch_size, int) or batch_size < 1:
            raise fail("batch_size", "a whole number of at least 1", repr(batch_size), "256 suits most models")
        return DataLoader(data, batch_size=batch_size, shuffle=False)
    raise fail("data", "a DataLoader or a Dataset", type(data).__name__, "wrap arrays in a TensorDataset")


def _unwrapped(model: Any) -> nn.Module:
    """The module under torch.compile and the parallel wrappers, whose copies our hooks would not reach."""
    if not isinstance(model, nn.Module):
        raise fail("model", "a torch.nn.Module", type(model).__name__, "for scikit-learn use from_sklearn")
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    return _unwrapped(inner) if isinstance(inner, nn.Module) else model


def _device_of(model: nn.Module, asked: torch.device | str | None) -> torch.device:
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
