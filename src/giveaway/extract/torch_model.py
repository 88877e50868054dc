"""A user's torch model: called in evaluation mode, left exactly as it was, and read at its last linear layer."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from giveaway.checks import check_choice, fail, nearest
from giveaway.extract.batches import RecordBatch

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda tokens: tokens.mean(dim=1),
    "first": lambda tokens: tokens[:, 0],
    "last": lambda tokens: tokens[:, -1],
}
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
    generators = [(generator, generator.get_state()) for generator in _generators(loader)]
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
    buffers = [(module, dict(module._buffers), _copies(module._buffers)) for module in model.modules()]
    # no_grad, not inference_mode: a tensor the model caches in its forward must stay usable in training.
    with evaluation_mode(model, loader), torch.no_grad():
        try:
            yield
        finally:
            for module, originals, values in buffers:
                _restore(module, originals, values)


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


class HeadLayer:
    """The nn.Linear called `requested`, or the last to run, which must give the model's output.

    Call it inside `untouched`.
    """

    def __init__(
        self,
        model: nn.Module,
        requested: str | None,
        *,
        reduction: str | None,
        device: torch.device,
        autocast: torch.dtype | None,
    ) -> None:
        if reduction is not None:
            check_choice("reduction", reduction, REDUCTIONS)
        if autocast not in (None, torch.bfloat16, torch.float16):
            raise fail("autocast", "None, torch.bfloat16 or torch.float16", str(autocast), "choose one of these")
        self.model, self._device, self._reduction, self._autocast = model, device, reduction, autocast
        self._requested = requested
        self.name: str | None = None  # known after the first batch
        self._candidates = _linear_layers(model) if requested is None else _named_layer(model, requested)

    def rows_of(self, batch: RecordBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model on a batch; return features and outputs of its records on the CPU."""
        remedy = "name another with layer=, or build Head"
        with nullcontext() if self._autocast is None else torch.autocast(self._device.type, dtype=self._autocast):
            result, call = call_watched(self.model, *batch.inputs_on(self._device), self._candidates, remedy)
        if self._requested is None:
            call = self._checked_output(result, call)
        elif call is None:
            got = f"{self._requested!r}, which the forward leaves out"
            raise fail("layer", "a layer that runs", got, "name another")
        if self.name is None:
            self.choose(call.name)
        self._check_reduction(call)
        features, outputs = (self._reduced(value) for value in (call.inputs, call.outputs))
        if features.ndim != 2 or len(features) != batch.rows:
            got = f"shape {tuple(features.shape)} for {batch.rows} targets"
            raise fail("layer", f"one row of features a record in layer {call.name!r}", got, "name another with layer=")
        return storable(features), storable(outputs)

    def choose(self, name: str) -> None:
        """From here on read the layer called `name` alone; refuse one whose weight another module shares."""
        layer = self._candidates.get(name) or _named_layer(self.model, name)[name]
        _check_not_tied(self.model, name, layer)
        self._candidates, self.name = {name: layer}, name

    def parameters(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return copies of the layer's weight and bias on the CPU."""
        assert self.name is not None
        layer = self._candidates[self.name]
        bias = None if layer.bias is None else storable(layer.bias).clone()
        return storable(layer.weight).clone(), bias

    def options(self) -> dict[str, str | None]:
        """Return what the rows depend on besides model and data."""
        precision = None if self._autocast is None else str(self._autocast).removeprefix("torch.")
        return {"layer": self._requested, "reduction": self._reduction, "autocast": precision}

    def _checked_output(self, result: Any, call: LayerCall | None) -> LayerCall:
        """Refuse a model whose output is not what its last linear layer returned."""
        expected = "a linear layer whose output is the model's output"
        remedy = (
            "return raw outputs (no softmax), name the layer with layer=, or build Head (a black box: features=None)"
        )
        if call is None:
            raise fail("model", expected, "a model whose head is not linear (no nn.Linear ran)", remedy)
        self._check_reduction(call)
        final, outputs = _main_output(result), [call.outputs, self._reduced(call.outputs)]
        if final is None or not any(_same_values(final, output) for output in outputs):
            got = f"a model whose head is not linear (its last nn.Linear is {call.name!r}, its output is another)"
            raise fail("model", expected, got, remedy)
        return call

    def _check_reduction(self, call: LayerCall) -> None:
        """Refuse tokens without a reduction, and a reduction without tokens."""
        shape = tuple(call.inputs.shape)
        if len(shape) > 2 and self._reduction is None:
            choices = " or ".join(map(repr, REDUCTIONS))
            expected = f"{choices}, since layer {call.name!r} sees (batch, tokens, features)"
            remedy = "name how a record's tokens become one row, or pool them before the head"
            raise fail("reduction", expected, f"None with shape {shape}", remedy)
        if len(shape) <= 2 and self._reduction is not None:
            expected = f"None, since layer {call.name!r} sees one row a record"
            raise fail("reduction", expected, f"{self._reduction!r} with shape {shape}", "drop reduction=")

    def _reduced(self, tokens: torch.Tensor) -> torch.Tensor:
        """Turn (batch, …, width) into (batch, width), where the user named a reduction."""
        return tokens if self._reduction is None else REDUCTIONS[self._reduction](tokens.flatten(1, -2))


def storable(values: torch.Tensor) -> torch.Tensor:
    """Return `values` on the CPU, bfloat16 as float32: NumPy, and so every file, has no bfloat16."""
    return values.detach().to("cpu", torch.float32 if values.dtype == torch.bfloat16 else values.dtype)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _generators(loader: DataLoader[Any] | None) -> list[torch.Generator]:
    if loader is None:
        return []
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


def _linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def _named_layer(model: nn.Module, name: str) -> dict[str, nn.Linear]:
    modules, linear = dict(model.named_modules(remove_duplicate=False)), list(_linear_layers(model))
    if name not in modules:
        remedy = nearest(name, linear) if linear else "the model has no nn.Linear"
        raise fail("layer", "the name of an nn.Linear in the model", repr(name), remedy)
    module = modules[name]
    if not isinstance(module, nn.Linear):
        got, remedy = f"{name!r}, a {type(module).__name__}", "choose from " + ", ".join(linear[:12])
        raise fail("layer", "an nn.Linear", got, remedy)
    return {name: module}


def _check_not_tied(model: nn.Module, name: str, layer: nn.Linear) -> None:
    """Refuse a layer whose weight is also another module's parameter: the loss is then not convex in it."""
    for other_name, other in model.named_modules():
        if other is layer:
            continue
        for key, parameter in other.named_parameters(recurse=False):
            if any(_same_memory(parameter, value) for value in (layer.weight, layer.bias) if value is not None):
                owner = f"{other_name}.{key}".lstrip(".")
                got = f"layer {name!r}, whose weight is tied to {owner!r}"
                raise fail("layer", "a linear layer with weights of its own", got, "untie them and train again")


def _main_output(result: Any) -> torch.Tensor | None:
    if isinstance(result, Mapping) and "logits" in result:
        result = result["logits"]
    elif isinstance(result, Mapping):
        result = next(iter(result.values())) if len(result) == 1 else None
    elif hasattr(result, "logits"):
        result = result.logits
    elif isinstance(result, tuple | list) and result:
        result = result[0]
    return result if isinstance(result, torch.Tensor) else None


def _same_values(final: torch.Tensor, candidate: torch.Tensor) -> bool:
    """Compare up to squeezed axes and the cast to another precision."""
    if final.numel() != candidate.numel() or final.device != candidate.device:
        return False
    a, b = final.detach().reshape(-1).to(candidate.dtype), candidate.reshape(-1)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a is b or (a.data_ptr() == b.data_ptr() != 0 and a.device == b.device)
