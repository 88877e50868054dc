"""A user's model: unwrapped, called in evaluation mode, watched by hooks, and left exactly as it was."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from giveaway.checks import fail

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
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch `model` to evaluation mode inside; put the modes and all global random states back on the way out."""
    modes = [(module, module.training) for module in model.modules()]
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 (the user's, kept as it is)
    cuda = sorted({value.device.index for value in model.parameters() if value.is_cuda})
    with torch.random.fork_rng(devices=cuda):
        try:
            for module, _ in modes:
                # The flag itself: eval() may be overridden (merging adapters, freezing) with effects of its own.
                module.training = False
            yield
        finally:
            for module, training in modes:
                module.training = training
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


@contextmanager
def untouched(model: nn.Module, loader: DataLoader[Any]) -> Iterator[None]:
    """Evaluate without gradients inside; put back buffers and the loader's random generators as well."""
    buffers = [(module, dict(module._buffers), _copies(module._buffers)) for module in model.modules()]
    generators = [(generator, generator.get_state()) for generator in _generators(loader)]
    # no_grad, not inference_mode: a tensor the model caches in its forward must stay usable in training.
    with evaluation_mode(model), torch.no_grad():
        try:
            yield
        finally:
            for module, originals, values in buffers:
                _restore(module, originals, values)
            for generator, state in generators:
                generator.set_state(state)


@dataclass(frozen=True)
class LayerCall:
    """What the last of the watched layers to run was given and returned in one forward pass, as copies."""

    name: str
    inputs: Any
    outputs: Any


def call_watched(
    model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], layers: Mapping[str, nn.Module], remedy: str
) -> tuple[Any, LayerCall | None]:
    """Run `model` and return its result with the call of the last of `layers` to run; None if none ran.

    A layer that runs several times in the pass is refused with `remedy`.
    """
    runs: Counter[str] = Counter()
    calls: list[LayerCall] = []

    def hook_of(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            runs[name] += 1
            # Copies: an operation in place further on (relu_, softmax_) would change both.
            calls[:] = [LayerCall(name, _copy(args[0] if args else kwargs.get("input")), _copy(output))]

        return hook

    handles = [layer.register_forward_hook(hook_of(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        result = model(*arguments, **keywords)
    finally:
        for handle in handles:
            handle.remove()
    for call in calls:
        if runs[call.name] > 1:
            got = f"layer {call.name!r}, which runs {runs[call.name]} times in one forward pass"
            raise fail("layer", "a layer that runs once a record", got, remedy)
    return result, next(iter(calls), None)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    holders = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    known = {id(g): g for holder in holders if isinstance(g := getattr(holder, "generator", None), torch.Generator)}
    return list(known.values())


def _copies(buffers: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    return {name: buffer.detach().clone() for name, buffer in buffers.items() if buffer is not None}


def _restore(module: nn.Module, originals: dict[str, torch.Tensor | None], values: dict[str, torch.Tensor]) -> None:
    module._buffers.clear()
    module._buffers.update(originals)
    for name, value in values.items():
        buffer = originals[name]
        if buffer is not None and not torch.equal(buffer, value):
            buffer.copy_(value)
