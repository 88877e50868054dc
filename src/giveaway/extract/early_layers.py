"""early_features: what a layer of a torch model makes of each record, as trained or with its weights drawn again."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase

from giveaway.checks import check_finite, fail, nearest
from giveaway.extract.batches import Batch, BatchKeys, batches
from giveaway.extract.row_identity import ORDERED, RowTrail, check_nothing_dropped, expected_rows, why_order_is_unknown
from giveaway.extract.rows import Rows
from giveaway.extract.torch_arguments import as_loader, device_of, unwrapped
from giveaway.extract.untouched import untouched

RESETS = ("reset_parameters", "_reset_parameters")  # the second is what nn.MultiheadAttention has


def early_features(
    model: nn.Module,
    data: Any,
    *,
    layer: str,
    initial: bool = False,
    seed: int = 0,
    cells: int = 2,
    batch_size: int = 256,
    input_key: str | int | None = None,
    target_key: str | int | None = None,
    id_key: str | int | None = None,
    device: torch.device | str | None = None,
) -> np.ndarray:
    """The output of `layer` for each record, (n, k) in float32 and in dataset order: a table for audit(inputs=).

    Features that were not trained on the labels show what the others say of a record: those of a random network
    (`initial`), or of an early layer, where training changed little. The model runs in evaluation mode and is left
    exactly as it was. Shuffled loaders are refused even with ids: the rows have no ids, so build the head from the
    same data in dataset order.

    Parameters
    ----------
    data, batch_size, input_key, target_key, id_key, device : as in `from_torch`.
    layer : name of a module, as in model.named_modules(). Maps (batch, channels, h, w) are averaged over a grid, three
        axes are taken as (batch, tokens, features) and averaged over tokens, and others are flattened.
    initial : run a copy of the model whose parameters every module has drawn again with its reset_parameters, and
        whose batch-norm statistics are those of `data`, averaged over its batches of two records or more. Buffers
        that no module resets stay as they are.
    seed : of that draw.
    cells : the grid is at most `cells` by `cells`.

    Examples
    --------
    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2))
    >>> records = TensorDataset(torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 0, 1, 0]))
    >>> early_features(model, records, layer="0", initial=True).shape
    (5, 16)
    """
    module = unwrapped(model)
    loader = as_loader(data, batch_size)
    _check_whole("cells", cells, minimum=1, remedy="2 suits most models")
    _check_whole("seed", seed, minimum=0, remedy="any will do")
    _check_named(module, layer)
    where = device_of(module, device)
    keys = BatchKeys(input_key, target_key, id_key)
    check_nothing_dropped(loader)
    if unknown_order := why_order_is_unknown(loader):
        raise fail("data", ORDERED, unknown_order, "use shuffle=False and no sampler, as for the head")
    total = expected_rows(loader)
    first, second, features = RowTrail(total), RowTrail(total), Rows("features", total)
    subject = _copied(module) if initial else module
    with untouched(subject, loader, where):
        if initial:
            _draw_again(subject, seed)
        earlier = _followed(batches(loader, keys), first)
        if initial and (norms := _norms(subject)):
            _settle(norms, subject, earlier, where)
        for _ in earlier:
            pass
        first.check_complete()
        for batch in _followed(batches(loader, keys), second):
            output = _output_of(layer, subject, *batch.inputs_on(where))
            features.add(_one_row_a_record(layer, output, len(batch.targets), cells).cpu())
        first.check_repeated_by(second)
    table = features.joined()
    check_finite(f"output of layer {layer!r}", table)
    return table.numpy()


def _followed(passing: Iterator[Batch], trail: RowTrail) -> Iterator[Batch]:
    for batch in passing:
        trail.add(batch)
        yield batch


def _output_of(name: str, model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor:
    """What the module called `name` gives while `model` runs; it must run once."""
    outputs: list[Any] = []

    def keep(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        # A copy: an operation in place further on (relu_) would change it under our hands.
        outputs.append(output.detach().clone() if isinstance(output, torch.Tensor) else output)

    handle = model.get_submodule(name).register_forward_hook(keep)
    try:
        model(*arguments, **keywords)
    finally:
        handle.remove()
    if not outputs:
        raise fail("layer", "a layer that runs", f"{name!r}, which the forward leaves out", "name another")
    if len(outputs) > 1:
        got = f"{name!r}, which runs {len(outputs)} times in one forward pass"
        raise fail("layer", "a layer that runs once a record", got, "name the block around it, or another")
    (output,) = outputs
    if not isinstance(output, torch.Tensor) or output.is_complex():
        kind = "complex tensor" if isinstance(output, torch.Tensor) else type(output).__name__
        got = f"{name!r}, which gives a {kind}"
        raise fail("layer", "a layer whose output is a tensor of real numbers", got, "name a layer inside or after it")
    return output


def _one_row_a_record(name: str, output: torch.Tensor, rows: int, cells: int) -> torch.Tensor:
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


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        got = f"a {type(model).__name__} that copy.deepcopy refuses ({' '.join(str(error).split())[:60]} …)"
        remedy = "run a freshly built model with initial=False"
        raise fail("initial", "a model that can be copied", got, remedy) from error


def _draw_again(model: nn.Module, seed: int) -> None:
    """Every parameter of `model` anew from `seed`; the random states are put back, and what stays is refused."""
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
            reset = _reset_of(module)
            if reset is not None:
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
    return next((found for name in RESETS if callable(found := getattr(module, name, None))), None)


def _norms(model: nn.Module) -> list[_NormBase]:
    return [m for m in model.modules() if isinstance(m, _NormBase) and m.running_mean is not None]


def _settle(norms: list[_NormBase], model: nn.Module, passing: Iterator[Batch], where: torch.device) -> None:
    """Give `norms` the statistics of one pass, every record counting alike; a record alone in its batch has none."""
    seen = 0
    for norm in norms:
        norm.training = True
    for batch in passing:
        rows = len(batch.targets)
        if rows < 2:
            continue
        seen += rows
        for norm in norms:
            norm.momentum = rows / seen
        arguments, keywords = batch.inputs_on(where)
        model(*arguments, **keywords)
    if seen == 0:
        raise fail("batch_size", "batches of at least 2 for batch-norm statistics", "1", "use larger batches")
    for norm in norms:
        norm.training = False


def _check_named(model: nn.Module, name: str) -> None:
    names = [known for known, _ in model.named_modules(remove_duplicate=False) if known]
    if name not in names:
        remedy = nearest(str(name), names) if names else "the model has no modules inside"
        raise fail("layer", "the name of a module in the model", repr(name), remedy)


def _check_whole(argument: str, value: Any, *, minimum: int, remedy: str) -> None:
    if not isinstance(value, int | np.integer) or value < minimum:
        raise fail(argument, f"a whole number of at least {minimum}", repr(value), remedy)
