"""The linear layer at the end of a model: find it, read what it sees batch by batch, and refuse what is not a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from giveaway.checks import check_choice, fail, nearest
from giveaway.extract.batches import RecordBatch
from giveaway.extract.user_model import LayerCall, call_watched

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda tokens: tokens.mean(dim=1),
    "first": lambda tokens: tokens[:, 0],
    "last": lambda tokens: tokens[:, -1],
}


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
