"""Features of a network's early layers, which training on the labels changed little, as a table of inputs."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from giveaway.checks import check_finite, check_whole, fail, nearest, renamed
from giveaway.extract.batches import MOVED, USUAL, Batches, RecordBatch
from giveaway.extract.reader import RecordReader, RowBuffer
from giveaway.extract.torch_model import call_watched, check_is_function, device_of, is_sampled, untouched, unwrapped


@renamed(MOVED | {"initial": "a freshly built model"})
def early_features(
    model: nn.Module,
    data: Any,
    *,
    layer: str,
    cells: int = 2,
    batches: Batches = USUAL,
    device: torch.device | str | None = None,
) -> np.ndarray:
    """Return the output of `layer` for each record, (n, k) in float32 and dataset order: a table for Head(inputs=).

    Features that were not trained on the labels show what the others say of a record: those of an early layer, or of a
    freshly built model. The model runs in evaluation mode and is left exactly as it was. Shuffled loaders are refused
    even with ids: the rows have no ids, so build the head from the same data in dataset order.

    data, batches, device : as in `from_torch`.
    layer : name of a module, as in model.named_modules(). Maps (batch, channels, h, w) are averaged over a grid of at
        most `cells` by `cells`, three axes, (batch, tokens, features), over tokens, and others are flattened.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2))
    >>> records = TensorDataset(torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 0, 1, 0]))
    >>> early_features(model, records, layer="0").shape
    (5, 16)
    """
    module = unwrapped(model)
    check_whole("cells", cells, remedy="2 suits most models")
    modules = {name: found for name, found in module.named_modules(remove_duplicate=False) if name}
    if layer not in modules:
        remedy = nearest(str(layer), modules) if modules else "the model has no modules inside"
        raise fail("layer", "the name of a module in the model", repr(layer), remedy)
    where = device_of(module, device)
    reader = RecordReader(data, batches, in_order=True)

    def rows_of(batch: RecordBatch) -> tuple[torch.Tensor]:
        inputs = batch.inputs_on(where)
        call = call_watched(module, *inputs, {layer: modules[layer]}, "name the block around it, or another")[1]
        if call is None:
            raise fail("layer", "a layer that runs", f"{layer!r}, which the forward leaves out", "name another")
        return (_one_row(layer, call.outputs, batch.rows, cells).cpu(),)

    features = RowBuffer("features", reader.total)
    with untouched(module, reader.loader):
        for number, batch in enumerate(reader.first_pass()):
            rows = rows_of(batch)
            if is_sampled(number, batch):
                check_is_function(module, rows_of, batch, rows)
            features.add(rows[0])
        reader.check_records()
    table = features.joined()
    check_finite(f"output of layer {layer!r}", table)
    return table.numpy()


def _one_row(name: str, output: Any, rows: int, cells: int) -> torch.Tensor:
    """Return what a layer gave as one row a record."""
    if not isinstance(output, torch.Tensor) or output.is_complex():
        kind = "complex tensor" if isinstance(output, torch.Tensor) else type(output).__name__
        got = f"{name!r}, which gives a {kind}"
        raise fail("layer", "a layer whose output is a tensor of real numbers", got, "name a layer inside or after it")
    shape = tuple(output.shape)
    if output.ndim == 0 or len(output) != rows or output.numel() == 0:
        got = f"shape {shape} for {rows} targets"
        raise fail("layer", f"one row of output a record in layer {name!r}", got, "name another")
    values = output.float()
    if values.ndim == 4:
        values = functional.adaptive_avg_pool2d(values, (min(cells, shape[2]), min(cells, shape[3])))
    elif values.ndim == 3:
        values = values.mean(dim=1)
    return values.reshape(rows, -1)
