"""Which parameters of a module the scores look through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
from torch import nn

from giveaway.checks import fail, nearest

RunOrder = Callable[[], Sequence[str]]


@dataclass(frozen=True)
class ParameterSet:
    """Copies of the chosen parameters (`values`), and of all others and the buffers (`fixed`), by their names.

    A vector of the chosen parameters has P numbers: the parameters one after another, each flattened. Many vectors are
    the rows of (s, P) here.
    """

    values: dict[str, torch.Tensor]
    fixed: dict[str, torch.Tensor]

    @cached_property
    def count(self) -> int:
        """P, how many numbers the chosen parameters have."""
        return sum(value.numel() for value in self.values.values())

    @cached_property
    def places(self) -> dict[str, slice]:
        """The slice of a vector that each parameter has."""
        found, start = {}, 0
        for name, value in self.values.items():
            found[name] = slice(start, start + value.numel())
            start += value.numel()
        return found

    def split(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Rows (s, P) as one (s, …) tensor a parameter."""
        return {name: rows[:, self.places[name]].reshape(-1, *value.shape) for name, value in self.values.items()}

    def join(self, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Put together what `split` took apart."""
        return torch.cat([parts[name].reshape(len(parts[name]), -1) for name in self.values], 1)


def choose(
    model: nn.Module, which: str | Sequence[str], run_order: RunOrder, *, dtype: torch.dtype | None = None
) -> ParameterSet:
    """The parameters that `which` names: "all", "head" (the last nn.Linear to run), "last:k" (the last k layers to run
    that own parameters), or names and patterns of layers and parameters.

    Frozen parameters (requires_grad=False) are left out unless they are named one by one or by their layer's name; a
    parameter that several layers share counts once. `run_order` gives the names of the layers in the order they run,
    where that is asked for.
    """
    own = dict(model.named_parameters())
    if not own:
        raise fail("model", "a module with parameters", "none", "pass the trained module")
    wanted = [which] if isinstance(which, str) else list(which)
    chosen: set[str] = set()
    for name in wanted:
        chosen |= _named(model, name, run_order)
    if not chosen:
        raise fail("parameters", "parameters that training could change", "frozen ones only", "name their layer")
    values = {name: _copy(value, dtype) for name, value in own.items() if name in chosen}
    fixed = {name: _copy(value, dtype) for name, value in own.items() if name not in chosen}
    fixed |= {name: _copy(value, dtype) for name, value in model.named_buffers()}
    kinds = {value.dtype for value in values.values()} | {value.device for value in values.values()}
    if len(kinds) != 2 or not all(value.is_floating_point() for value in values.values()):
        got = " and ".join(sorted(str(kind) for kind in kinds))
        raise fail(
            "parameters", "real numbers of one dtype on one kind of device", got, "choose others, or pass dtype="
        )
    return ParameterSet(values, fixed)


def layers_in_run_order(model: nn.Module, run: Callable[[], Any]) -> list[str]:
    """Names of the modules that own parameters in the order in which they last started while `run` ran the model.

    Parameters of a module that never started itself (it was used by its parent) count to the parent.
    """
    order: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda _module, _args, name=name: order.append(name))
        for name, module in model.named_modules()
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    started = set(order)
    owners = {_owner(name, started) for name, _ in model.named_parameters()}
    last = {name: place for place, name in enumerate(order)}
    return sorted(owners, key=lambda name: last.get(name, -1))


def _owner(parameter: str, started: set[str]) -> str:
    module = parameter.rpartition(".")[0]
    while module and module not in started:
        module = module.rpartition(".")[0]
    return module


def _named(model: nn.Module, name: str, run_order: RunOrder) -> set[str]:
    own = dict(model.named_parameters())
    # a shared parameter goes by its first name
    first = {id(value): key for key, value in own.items()}
    every = {key: first[id(value)] for key, value in model.named_parameters(remove_duplicate=False)}
    trained = {key for key, value in own.items() if value.requires_grad}
    if name == "all":
        return trained
    if name == "head" or name.startswith("last:"):
        return _last(model, name, run_order, every) & trained
    if name in every:
        return {every[name]}
    modules = dict(model.named_modules(remove_duplicate=False))
    if name and name in modules:
        below = {every[key] for key in every if key.startswith(name + ".")}
        if not below:
            raise fail("parameters", "a layer with parameters", repr(name), "name another layer")
        return below
    layers = [key for key in modules if key and fnmatchcase(key, name)]
    matched = {every[key] for key in every if fnmatchcase(key, name)}
    matched |= {every[key] for key in every for layer in layers if key.startswith(layer + ".")}
    if not matched:
        choices = ["all", "head", "last:2", *(key for key in modules if key), *every]
        raise fail("parameters", "names or patterns that the model knows", repr(name), nearest(name, choices))
    return matched & trained


def _last(model: nn.Module, name: str, run_order: RunOrder, every: dict[str, str]) -> set[str]:
    modules, order = dict(model.named_modules()), list(run_order())
    if name == "head":
        linear = [layer for layer in order if isinstance(modules[layer], nn.Linear)]
        if not linear:
            raise fail("parameters", "a linear layer at the end", "a model without one that runs", "name the layers")
        layers = linear[-1:]
    else:
        count = name.removeprefix("last:")
        if not count.isdecimal() or not 1 <= int(count) <= len(order):
            remedy = f"the model has {len(order)} layers with parameters"
            raise fail("parameters", 'last:k, as "last:2"', repr(name), remedy)
        layers = order[-int(count) :]
    started = set(order)
    return {every[key] for key in every if _owner(key, started) in layers}


def _copy(value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    copy = value.detach().clone()
    return copy.to(dtype) if dtype is not None and copy.is_floating_point() else copy
