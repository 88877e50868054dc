"""The linear layer at the end of a model: finding it, watching what it sees, and refusing what is not a head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from giveaway.checks import fail, nearest

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda tokens: tokens.mean(dim=1),
    "first": lambda tokens: tokens[:, 0],
    "last": lambda tokens: tokens[:, -1],
}


@dataclass(frozen=True)
class Seen:
    """What the last of the watched layers to run saw in one forward pass."""

    name: str
    features: torch.Tensor
    outputs: torch.Tensor


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Every nn.Linear of `model` under its name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def named_layer(model: nn.Module, name: str) -> dict[str, nn.Linear]:
    """The nn.Linear called `name`, alone."""
    modules = dict(model.named_modules(remove_duplicate=False))
    if name not in modules:
        remedy = nearest(name, linear_layers(model)) if linear_layers(model) else "the model has no nn.Linear"
        raise fail("layer", "the name of an nn.Linear in the model", repr(name), remedy)
    module = modules[name]
    if not isinstance(module, nn.Linear):
        remedy = "choose from " + ", ".join(list(linear_layers(model))[:12])
        raise fail("layer", "an nn.Linear", f"{name!r}, a {type(module).__name__}", remedy)
    return {name: module}


def watch(
    layers: Mapping[str, nn.Linear], model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, Seen | None]:
    """Run `model` and return its result with what the last of `layers` to run saw; None if none ran."""
    runs: Counter[str] = Counter()
    last: list[Seen] = []

    def keep(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> None:
            runs[name] += 1
            features = args[0] if args else kwargs["input"]
            # Copies: an operation in place further on (relu_, softmax_) would change both under our hands.
            last[:] = [Seen(name, features.detach().clone(), output.detach().clone())]

        return hook

    handles = [layer.register_forward_hook(keep(name), with_kwargs=True) for name, layer in layers.items()]
    try:
        result = model(*arguments, **keywords)
    finally:
        for handle in handles:
            handle.remove()
    if not last:
        return result, None
    if runs[last[0].name] > 1:
        got = f"layer {last[0].name!r}, which runs {runs[last[0].name]} times in one forward pass"
        raise fail("layer", "a linear layer that runs once a record", got, "name another with layer=, or build Head")
    return result, last[0]


def check_not_tied(model: nn.Module, name: str, layer: nn.Linear) -> None:
    """Refuse a layer whose weight is also another module's parameter: the loss is then not convex in it."""
    for other_name, other in model.named_modules():
        if other is layer:
            continue
        for key, parameter in other.named_parameters(recurse=False):
            if any(_same_memory(parameter, mine) for mine in (layer.weight, layer.bias) if mine is not None):
                owner = f"{other_name}.{key}".lstrip(".")
                got = f"layer {name!r}, whose weight is tied to {owner!r}"
                raise fail("layer", "a linear layer with weights of its own", got, "untie them and train again")


def check_is_model_output(result: Any, seen: Seen | None, reduction: str | None) -> Seen:
    """Refuse a model whose output is not what its last linear layer gave."""
    remedy = "return raw outputs (no softmax), name the layer with layer=, or build Head (a black box: features=None)"
    expected = "a linear layer whose output is the model's output"
    if seen is None:
        raise fail("model", expected, "a model whose head is not linear (no nn.Linear ran)", remedy)
    check_reduction(seen, reduction)
    final = _main_output(result)
    candidates = [seen.outputs] if reduction is None else [seen.outputs, reduced(seen.outputs, reduction)]
    if final is None or not any(_same_values(final, candidate) for candidate in candidates):
        got = f"a model whose head is not linear (its last nn.Linear is {seen.name!r}, its output is another)"
        raise fail("model", expected, got, remedy)
    return seen


def check_reduction(seen: Seen, reduction: str | None) -> None:
    """Refuse tokens without a reduction, and a reduction without tokens."""
    shape = tuple(seen.features.shape)
    if len(shape) > 2 and reduction is None:
        raise fail(
            "reduction",
            f"{' or '.join(map(repr, REDUCTIONS))}, since layer {seen.name!r} sees (batch, tokens, features)",
            f"None with shape {shape}",
            "name how a record's tokens become one row, or pool them before the head",
        )
    if len(shape) <= 2 and reduction is not None:
        expected = f"None, since layer {seen.name!r} sees one row a record"
        raise fail("reduction", expected, f"{reduction!r} with shape {shape}", "drop reduction=")


def reduced(tokens: torch.Tensor, reduction: str) -> torch.Tensor:
    """(batch, …, width) to (batch, width)."""
    return REDUCTIONS[reduction](tokens.flatten(1, -2))


def one_row_a_record(seen: Seen, rows: int, reduction: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and outputs as (rows, width) on the CPU; tokens are reduced only as the caller named it."""
    check_reduction(seen, reduction)
    features, outputs = seen.features, seen.outputs
    if reduction is not None:
        features, outputs = reduced(features, reduction), reduced(outputs, reduction)
    if features.ndim != 2 or len(features) != rows:
        got = f"shape {tuple(features.shape)} for {rows} targets"
        raise fail("layer", f"one row of features a record in layer {seen.name!r}", got, "name another with layer=")
    return storable(features), storable(outputs)


def storable(values: torch.Tensor) -> torch.Tensor:
    """`values` on the CPU, in float32 if in bfloat16, which NumPy (and so every file) does not have."""
    return values.detach().to("cpu", torch.float32 if values.dtype == torch.bfloat16 else values.dtype)


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
    """Equal up to squeezed axes and the cast to another precision."""
    if final.numel() != candidate.numel() or final.device != candidate.device:
        return False
    a, b = final.detach().reshape(-1).to(candidate.dtype), candidate.reshape(-1)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a is b or (a.data_ptr() == b.data_ptr() != 0 and a.device == b.device)
