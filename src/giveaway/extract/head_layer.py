"""HeadLayer: the linear layer at the end of a torch model, and what it sees and gives while the model runs."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from giveaway.checks import InputError, check_choice, fail, nearest
from giveaway.extract.batches import RecordBatch
from giveaway.extract.torch_model import LayerCall, call_watched, device_of, storable
from giveaway.records.rows import Pair

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda tokens: tokens.mean(dim=1),
    "first": lambda tokens: tokens[:, 0],
    "last": lambda tokens: tokens[:, -1],
}


class HeadLayer:
    """The nn.Linear called `requested`, or the last to run, which must give the model's output; see `untouched`."""

    def __init__(
        self, model: nn.Module, requested: str | None, reduction: str | None, device: Any, autocast: torch.dtype | None
    ) -> None:
        if reduction is not None:
            check_choice("reduction", reduction, REDUCTIONS)
        if autocast not in (None, torch.bfloat16, torch.float16):
            raise fail("autocast", "None, torch.bfloat16 or torch.float16", str(autocast), "choose one of these")
        self.model, self._requested = model, requested
        self._device, self._reduction, self._autocast = device_of(model, device), reduction, autocast
        self.name: str | None = None  # known after the first batch
        self._candidates = _linear_layers(model, requested)

    def rows_of(self, batch: RecordBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model on a batch; return features and outputs of its records on the CPU."""
        remedy = "name another with layer=, or build Head"
        with nullcontext() if self._autocast is None else torch.autocast(self._device.type, dtype=self._autocast):
            result, call = call_watched(self.model, *batch.inputs_on(self._device), self._candidates, remedy)
        if call is None and self._requested is not None:
            got = f"{self._requested!r}, which the forward leaves out"
            raise fail("layer", "a layer that runs", got, "name another")
        if call is None:
            raise _not_linear("no nn.Linear ran")
        features, outputs = self._token_of(result, call) or self._reduced(call)
        if self._requested is None and not any(_is_output(result, output) for output in (call.outputs, outputs)):
            raise _not_linear(f"its last nn.Linear is {call.name!r}, its output is another")
        if self.name is None:
            self.choose(call.name)
        if features.ndim != 2 or len(features) != batch.rows:
            got = f"shape {tuple(features.shape)} for {batch.rows} targets"
            raise fail("layer", f"one row of features a record in layer {call.name!r}", got, "name another with layer=")
        return storable(features), storable(outputs)

    def choose(self, name: str) -> None:
        """From here on read the layer called `name` alone; refuse one whose weight another module shares."""
        layer = self._candidates.get(name) or _linear_layers(self.model, name)[name]
        mine = {(value.data_ptr(), value.device) for value in (layer.weight, layer.bias) if value is not None}
        for other_name, other in self.model.named_modules():
            for key, parameter in other.named_parameters(recurse=False) if other is not layer else ():
                if parameter.data_ptr() and (parameter.data_ptr(), parameter.device) in mine:
                    # the loss is then not convex in the weight
                    got = f"layer {name!r}, whose weight is tied to {f'{other_name}.{key}'.lstrip('.')!r}"
                    raise fail("layer", "a linear layer with weights of its own", got, "untie them and train again")
        self._candidates, self.name = {name: layer}, name

    def parameters(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert self.name is not None
        layer = self._candidates[self.name]
        bias = None if layer.bias is None else storable(layer.bias).clone()
        return storable(layer.weight).clone(), bias

    def options(self) -> dict[str, str | None]:
        """Return what the rows depend on besides model and data."""
        precision = None if self._autocast is None else str(self._autocast).removeprefix("torch.")
        return {"layer": self._requested, "reduction": self._reduction, "autocast": precision}

    def _token_of(self, result: Any, call: LayerCall) -> Pair | None:
        """Return what the layer sees and gives of the one token whose outputs the model returns for each record, as
        decoders do for the last token before the padding; None for other models."""
        logits, tokens = _logits(result), call.outputs
        one = isinstance(logits, torch.Tensor) and tokens.ndim == 3 and logits.shape == tokens.shape[::2]
        if not one or self._reduction is not None:
            return None
        same = (tokens == logits.detach().to(tokens).unsqueeze(1)).all(dim=2)
        if not bool(same.any(dim=1).all()):
            return None
        rows, place = torch.arange(len(tokens), device=tokens.device), same.int().argmax(dim=1)
        return call.inputs[rows, place], tokens[rows, place]

    def _reduced(self, call: LayerCall) -> Pair:
        """Return inputs and outputs, (batch, …, width) as (batch, width) where the user named a reduction."""
        shape = tuple(call.inputs.shape)
        if len(shape) > 2 and self._reduction is None:
            choices = " or ".join(map(repr, REDUCTIONS))
            expected = f"{choices}, since layer {call.name!r} sees (batch, tokens, features)"
            remedy = "name how a record's tokens become one row, or pool them before the head"
            raise fail("reduction", expected, f"None with shape {shape}", remedy)
        if len(shape) <= 2 and self._reduction is not None:
            expected = f"None, since layer {call.name!r} sees one row a record"
            raise fail("reduction", expected, f"{self._reduction!r} with shape {shape}", "drop reduction=")
        if self._reduction is None:
            return call.inputs, call.outputs
        reduce = REDUCTIONS[self._reduction]
        return reduce(call.inputs.flatten(1, -2)), reduce(call.outputs.flatten(1, -2))


def _linear_layers(model: nn.Module, requested: str | None) -> dict[str, nn.Linear]:
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if requested is None:
        return linear
    modules = dict(model.named_modules(remove_duplicate=False))
    if requested not in modules:
        remedy = nearest(requested, linear) if linear else "the model has no nn.Linear"
        raise fail("layer", "the name of an nn.Linear in the model", repr(requested), remedy)
    module = modules[requested]
    if not isinstance(module, nn.Linear):
        got, remedy = f"{requested!r}, a {type(module).__name__}", "choose from " + ", ".join(list(linear)[:12])
        raise fail("layer", "an nn.Linear", got, remedy)
    return {requested: module}


def _not_linear(reason: str) -> InputError:
    expected, got = "a linear layer whose output is the model's output", f"a model whose head is not linear ({reason})"
    remedy = "return raw outputs (no softmax), name the layer with layer=, or build Head (a black box: features=None)"
    return fail("model", expected, got, remedy)


def _logits(result: Any) -> Any:
    if isinstance(result, Mapping):
        return result.get("logits", next(iter(result.values())) if len(result) == 1 else None)
    if hasattr(result, "logits"):
        return result.logits
    return result[0] if isinstance(result, tuple | list) and result else result


def _is_output(result: Any, candidate: torch.Tensor) -> bool:
    """Whether the model returned `candidate`, up to squeezed axes and the cast to another precision."""
    result = _logits(result)
    if not isinstance(result, torch.Tensor):
        return False
    if result.numel() != candidate.numel() or result.device != candidate.device:
        return False
    a, b = result.detach().reshape(-1).to(candidate.dtype), candidate.reshape(-1)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
