"""Features of a network's own early or random layers, which were not trained on the labels, as a table of inputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from giveaway.checks import check_finite, check_whole, fail, nearest, renamed
from giveaway.extract.batches import MOVED, USUAL, Batches, RecordBatch
from giveaway.extract.reader import RecordReader, RowBuffer
from giveaway.extract.torch_model import call_watched, check_is_function, device_of, untouched, unwrapped

RESETS = ("reset_parameters", "_reset_parameters")  # the second is what nn.MultiheadAttention has


@renamed(MOVED)
def early_features(
    model: nn.Module,
    data: Any,
    *,
    layer: str,
    initial: bool = False,
    seed: int = 0,
    cells: int = 2,
    batches: Batches = USUAL,
    device: torch.device | str | None = None,
) -> np.ndarray:
    """Return the output of `layer` for each record, (n, k) in float32 and dataset order: a table for Head(inputs=).

    Features that were not trained on the labels show what the others say of a record: those of a random network
    (`initial`), or of an early layer, where training changed little. The model runs in evaluation mode and is left
    exactly as it was. Shuffled loaders are refused even with ids: the rows have no ids, so build the head from the
    same data in dataset order.

    data, batches, device : as in `from_torch`.
    layer : name of a module, as in model.named_modules(). Maps (batch, channels, h, w) are averaged over a grid, three
        axes are taken as (batch, tokens, features) and averaged over tokens, and others are flattened.
    initial : run a copy of the model whose parameters every module has drawn again with its reset_parameters, and
        whose batch-norm statistics are those of `data`, averaged over its batches of two records or more. Buffers
        that no module resets stay as they are.
    seed : of that draw.
    cells : the grid is at most `cells` by `cells`.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2))
    >>> records = TensorDataset(torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 0, 1, 0]))
    >>> early_features(model, records, layer="0", initial=True).shape
    (5, 16)
    """
    module = unwrapped(model)
    check_whole("cells", cells, remedy="2 suits most models")
    check_whole("seed", seed, 0, remedy="any will do")
    names = [known for known, _ in module.named_modules(remove_duplicate=False) if known]
    if layer not in names:
        remedy = nearest(str(layer), names) if names else "the model has no modules inside"
        raise fail("layer", "the name of a module in the model", repr(layer), remedy)
    where = device_of(module, device)
    reader = RecordReader(data, batches, in_order=True)
    features = RowBuffer("features", reader.total)
    try:
        network = copy.deepcopy(module) if initial else module
    except (RuntimeError, TypeError) as error:
        got = f"a {type(module).__name__} that copy.deepcopy refuses ({type(error).__name__})"
        remedy = "run a freshly built model with initial=False"
        raise fail("initial", "a model that can be copied", got, remedy) from error

    def rows_of(batch: RecordBatch) -> tuple[torch.Tensor]:
        return (_rows_of(layer, network, batch, where, cells),)

    with untouched(network, reader.loader, proved=not initial):
        first = reader.first_pass()
        if initial:
            _draw_again(network, seed)
            _set_norm_statistics(network, first, where)
        for _ in first:
            pass
        reader.check_records()
        for number, batch in enumerate(reader.later_pass()):
            rows = rows_of(batch)
            if number == 0:
                check_is_function(network, rows_of, batch, rows)
            features.add(rows[0].cpu())
    table = features.joined()
    check_finite(f"output of layer {layer!r}", table)
    return table.numpy()


def _rows_of(name: str, model: nn.Module, batch: RecordBatch, device: torch.device, cells: int) -> torch.Tensor:
    """Return one row a record of what the module called `name` gives while `model` runs on `batch`."""
    layers = {name: model.get_submodule(name)}
    _, call = call_watched(model, *batch.inputs_on(device), layers, "name the block around it, or another")
    if call is None:
        raise fail("layer", "a layer that runs", f"{name!r}, which the forward leaves out", "name another")
    output = call.outputs
    if not isinstance(output, torch.Tensor) or output.is_complex():
        kind = "complex tensor" if isinstance(output, torch.Tensor) else type(output).__name__
        got = f"{name!r}, which gives a {kind}"
        raise fail("layer", "a layer whose output is a tensor of real numbers", got, "name a layer inside or after it")
    shape = tuple(output.shape)
    if output.ndim == 0 or len(output) != batch.rows or output.numel() == 0:
        got = f"shape {shape} for {batch.rows} targets"
        raise fail("layer", f"one row of output a record in layer {name!r}", got, "name another")
    values = output.float()
    if values.ndim == 4:
        values = functional.adaptive_avg_pool2d(values, (min(cells, shape[2]), min(cells, shape[3])))
    elif values.ndim == 3:
        values = values.mean(dim=1)
    return values.reshape(batch.rows, -1)


def _draw_again(model: nn.Module, seed: int) -> None:
    """Draw every parameter of `model` again from `seed`; refuse modules that leave one of theirs as it was."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.fill_(torch.nan)  # whatever is not drawn again shows
    devices = list({parameter.device for parameter in model.parameters() if parameter.is_cuda})
    with torch.random.fork_rng(devices=devices):
        # Not torch.manual_seed, which would also seed devices that are not put back.
        torch.default_generator.manual_seed(seed)
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        for module in reversed(list(model.modules())):  # the parts first: the whole may have its own way with them
            if (reset := _reset_of(module)) is not None:
                reset()
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            if bool(parameter.isnan().any()):
                what = f"module {name!r}" if name else "the model itself"
                why = f"no {RESETS[0]}" if _reset_of(module) is None else f"a {RESETS[0]} that leaves {key!r} out"
                got = f"{what}, a {type(module).__name__}, with {why}"
                remedy = "write one, or run a freshly built model with initial=False"
                raise fail("initial", "modules that can draw their parameters again", got, remedy)


def _reset_of(module: nn.Module) -> Any:
    return next((reset for name in RESETS if callable(reset := getattr(module, name, None))), None)


def _set_norm_statistics(model: nn.Module, batches: Iterator[RecordBatch], device: torch.device) -> None:
    """Give batch norms the statistics of one pass, every record counting alike; a batch of one record has none."""
    means = ((module, getattr(module, "running_mean", None)) for module in model.modules())
    norms: list[Any] = [m for m, mean in means if hasattr(m, "momentum") and isinstance(mean, torch.Tensor)]
    if not norms:
        return
    count = 0
    for norm in norms:
        norm.training = True
    for batch in batches:
        if batch.rows < 2:
            continue
        count += batch.rows
        for norm in norms:
            norm.momentum = batch.rows / count
        arguments, keywords = batch.inputs_on(device)
        model(*arguments, **keywords)
    if count == 0:
        raise fail("batches.size", "batches of at least 2 for batch-norm statistics", "1", "use larger batches")
    for norm in norms:
        norm.training = False
