"""A user's torch model: its weights from a file, calls that leave it exactly as it was, and what its layers give."""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.utils.data import DataLoader

from giveaway.checks import check_finite, check_whole, fail, nearest
from giveaway.extract.reader import BatchKeys, RecordBatch, RecordReader, RowBuffer
from giveaway.extract.user_files import first_line, needs_pickle, reading

CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model")
WRAPPER_PREFIXES = ("_orig_mod.", "module.")  # torch.compile, and the parallel wrappers
RESETS = ("reset_parameters", "_reset_parameters")  # the second is what nn.MultiheadAttention has
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in what functions print; it differs between processes


def unwrapped(model: Any) -> nn.Module:
    """Return the module under torch.compile and the parallel wrappers, whose copies hooks would not reach."""
    if not isinstance(model, nn.Module):
        raise fail("model", "a torch.nn.Module", type(model).__name__, "for scikit-learn use from_sklearn")
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def device_of(model: nn.Module, requested: torch.device | str | None) -> torch.device:
    """Return the device for the model's inputs: `requested` if some parameter is there, else that of the first one."""
    present = list(dict.fromkeys(parameter.device for parameter in model.parameters())) or [torch.device("cpu")]
    if requested is None:
        return present[0]
    try:
        wanted = torch.device(requested)
    except RuntimeError as error:
        raise fail("device", "a torch device, as cpu or cuda:1", repr(requested), "check its spelling") from error
    match = next((d for d in present if d.type == wanted.type and wanted.index in (None, d.index)), None)
    if match is None:
        got = f"{wanted} for a model on {' and '.join(map(str, present))}"
        raise fail("device", "where the model is", got, "move it first with model.to(device)")
    return match


def model_digest(model: nn.Module) -> str:
    """Return the SHA-256 of what the model prints and of its parameters and buffers; code in a forward is not seen."""
    digest = hashlib.sha256(ADDRESS.sub("", repr(model)).encode())
    for name, value in itertools.chain(model.named_parameters(), model.named_buffers()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        values = value.detach()
        dense = values if values.layout == torch.strided else values.to_dense()
        if dense.numel():
            digest.update(dense.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@contextmanager
def same_random_states(loader: DataLoader[Any] | None = None, cuda: Sequence[int] = ()) -> Iterator[None]:
    """Put all global random states, and the generators of `loader`, back on the way out."""
    batches = getattr(loader, "batch_sampler", None)
    holders = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    known = {id(g): g for holder in holders if isinstance(g := getattr(holder, "generator", None), torch.Generator)}
    generators = [(generator, generator.get_state()) for generator in known.values()]
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 (the user's, kept as it is)
    with torch.random.fork_rng(devices=cuda):
        try:
            yield
        finally:
            for generator, state in generators:
                generator.set_state(state)
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


@contextmanager
def evaluation_mode(model: nn.Module, loader: DataLoader[Any] | None = None) -> Iterator[None]:
    """Switch `model` to evaluation mode inside; put modes and random states back on the way out."""
    modes = [(module, module.training) for module in model.modules()]
    cuda = sorted({value.device.index for value in model.parameters() if value.is_cuda})
    with same_random_states(loader, cuda):
        try:
            for module, _ in modes:
                # The flag itself: eval() may be overridden (merging adapters, freezing) with effects of its own.
                module.training = False
            yield
        finally:
            for module, training in modes:
                module.training = training


@contextmanager
def untouched(model: nn.Module, loader: DataLoader[Any]) -> Iterator[None]:
    """Evaluate without gradients inside; leave the model, its buffers and the loader exactly as they were."""
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    values = [
        (buffer, buffer.detach().clone()) for _, held in buffers for buffer in held.values() if buffer is not None
    ]
    # no_grad, not inference_mode: a tensor the model caches in its forward must stay usable in training.
    with evaluation_mode(model, loader), torch.no_grad():
        try:
            yield
        finally:
            for module, held in buffers:
                module._buffers.clear()
                module._buffers.update(held)
            for buffer, value in values:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


class LayerCall(NamedTuple):
    """What the last of the watched layers to run was given and returned in one forward pass, as copies."""

    name: str
    inputs: Any
    outputs: Any


def call_watched(
    model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], layers: Mapping[str, nn.Module], remedy: str
) -> tuple[Any, LayerCall | None]:
    """Run `model`; return its result and the call of the last of `layers` to run, which may run only once."""
    runs: Counter[str] = Counter()
    last: LayerCall | None = None

    def watch(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        nonlocal last
        runs[name] += 1
        # Copies: an operation in place further on (relu_, softmax_) would change both.
        values = (args[0] if args else kwargs.get("input"), output)
        last = LayerCall(name, *(v.detach().clone() if isinstance(v, torch.Tensor) else v for v in values))

    handles = [layer.register_forward_hook(partial(watch, name), with_kwargs=True) for name, layer in layers.items()]
    try:
        result = model(*arguments, **keywords)
    finally:
        for handle in handles:
            handle.remove()
    if last is not None and runs[last.name] > 1:
        got = f"layer {last.name!r}, which runs {runs[last.name]} times in one forward pass"
        raise fail("layer", "a layer that runs once a record", got, remedy)
    return result, last


def storable(values: torch.Tensor) -> torch.Tensor:
    """Return `values` on the CPU, bfloat16 as float32: NumPy, and so every file, has no bfloat16."""
    return values.detach().to("cpu", torch.float32 if values.dtype == torch.bfloat16 else values.dtype)


def load_weights(model: nn.Module, path: str | os.PathLike[str], *, allow_pickle: bool = False) -> nn.Module:
    """Load the weights in `path` into `model`, and return it. Only with `allow_pickle` are files read that run code:
    whole modules, TorchScript and .pt2."""
    if not isinstance(model, nn.Module):
        raise fail("model", "a torch.nn.Module", type(model).__name__, "return the model from the function")
    safe = Path(path).suffix == ".safetensors"
    with reading("weights", path, "safetensors file" if safe else "file of torch.save") as file:
        if safe:
            from safetensors.torch import load_file

            stored: Any = load_file(file)
        else:
            stored = _load_torch(file, allow_pickle)
    if isinstance(stored, nn.Module):
        stored = stored.state_dict()
    if isinstance(stored, Mapping):
        stored = next((stored[key] for key in CHECKPOINT_KEYS if isinstance(stored.get(key), Mapping)), stored)
    if not isinstance(stored, Mapping) or not all(isinstance(name, str) for name in stored):
        raise fail("weights", "a state dict", f"a {type(stored).__name__}", "save model.state_dict()")
    state, expected = dict(stored), model.state_dict()
    if not state.keys() & expected.keys():
        for prefix in WRAPPER_PREFIXES:
            consume_prefix_in_state_dict_if_present(state, prefix)
    try:
        model.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        got = _difference(expected, state) or first_line(error)
        remedy = "use the function that made the model of these weights"
        raise fail("weights", f"the parameters of {type(model).__name__}", got, remedy) from error
    return model


def _load_torch(file: Path, allow_pickle: bool) -> Any:
    refusal = needs_pickle("weights", "a plain state dict", file, "save model.state_dict()")
    if file.suffix == ".pt2":
        if not allow_pickle:
            raise refusal
        return torch.export.load(file).state_dict
    try:
        return torch.load(file, map_location="cpu", weights_only=not allow_pickle)
    except Exception as error:
        if not allow_pickle and any(word in str(error) for word in ("GLOBAL", "TorchScript")):
            raise refusal from error
        raise


def _difference(expected: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    kinds = {
        "missing": [name for name in expected if name not in stored],
        "unknown": [name for name in stored if name not in expected],
        "of another shape": [n for n in expected if n in stored and np.shape(stored[n]) != np.shape(expected[n])],
    }
    return ", ".join(f"{len(names)} {kind} (first {names[0]})" for kind, names in kinds.items() if names)


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
    """Return the output of `layer` for each record, (n, k) in float32 and dataset order: a table for Head(inputs=).

    Features that were not trained on the labels show what the others say of a record: those of a random network
    (`initial`), or of an early layer, where training changed little. The model runs in evaluation mode and is left
    exactly as it was. Shuffled loaders are refused even with ids: the rows have no ids, so build the head from the
    same data in dataset order.

    data, batch_size, input_key, target_key, id_key, device : as in `from_torch`.
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
    reader = RecordReader(data, batch_size, BatchKeys(input_key, target_key, id_key), in_order=True)
    features = RowBuffer("features", reader.total)
    try:
        network = copy.deepcopy(module) if initial else module
    except (RuntimeError, TypeError) as error:
        got = f"a {type(module).__name__} that copy.deepcopy refuses ({' '.join(str(error).split())[:60]} …)"
        remedy = "run a freshly built model with initial=False"
        raise fail("initial", "a model that can be copied", got, remedy) from error
    with untouched(network, reader.loader):
        first = reader.first_pass()
        if initial:
            _draw_again(network, seed)
            _set_norm_statistics(network, first, where)
        for _ in first:
            pass
        for batch in reader.second_pass():
            features.add(_rows_of(layer, network, batch, where, cells).cpu())
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
        raise fail("batch_size", "batches of at least 2 for batch-norm statistics", "1", "use larger batches")
    for norm in norms:
        norm.training = False
