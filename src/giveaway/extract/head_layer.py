"""HeadLayer: the linear layer at the end of a torch model, and what it sees and gives while the model runs."""

from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from giveaway.checks import InputError, fail, nearest
from giveaway.extract.batches import RecordBatch
from giveaway.extract.torch_model import accepted, device_of, logits_of, storable
from giveaway.records.rows import Pair

ROWS_CHECKED = 1024  # records whose batches are all checked
SAME, SAME_IN_HALF = 1e-3, 3e-2  # of the largest value: what the size of a batch may change by rounding


class HeadLayer:
    """The nn.Linear called `requested`, or the last to run, which must give the model's output; see `untouched`."""

    def __init__(self, model: nn.Module, requested: str | None) -> None:
        self.model, self._requested, self._device = model, requested, device_of(model)
        self.name: str | None = None  # known after the first batch
        self._candidates = _linear_layers(model, requested)

    def rows_of(self, batch: RecordBatch) -> Pair:
        """Run the model on a batch; return features and outputs of its records on the CPU."""
        logits, name, inputs, outputs = self._call(batch)
        features, said = _token_of(logits, inputs, outputs) or (inputs, outputs)
        if self._requested is None and not any(_is_output(logits, output) for output in (outputs, said)):
            raise _not_linear(f"its last nn.Linear is {name!r}, its output is another")
        if self.name is None:
            self.choose(name)
        if features.ndim != 2 or len(features) != batch.rows:
            got = f"shape {tuple(features.shape)} for {batch.rows} targets"
            remedy = "pool tokens before the head, or name another with layer="
            raise fail("layer", f"one row of features a record in layer {name!r}", got, remedy)
        classes = None if logits is None or batch.targets.is_floating_point() else logits.shape[1:].numel()
        if classes not in (None, said.shape[1]):
            got = f"{self.name!r} with {said.shape[1]}, where the model has {classes}"
            raise fail("layer", "a layer with an output for each class", got, "name the model's last linear layer")
        return storable(features), storable(said)

    def _call(self, batch: RecordBatch) -> tuple[torch.Tensor | None, str, torch.Tensor, torch.Tensor]:
        """Return what the model gives, if that is one tensor, and name, input and output of the last layer to run."""
        runs, seen = list[str](), list[torch.Tensor]()

        def watch(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            runs.append(name)
            # Copies: an operation in place further on (relu_, softmax_) would change both.
            seen[:] = [value.detach().clone() for value in (args[0] if args else kwargs["input"], output)]

        arguments, keywords = batch.inputs_on(self._device)
        with ExitStack() as hooks:
            for name, layer in self._candidates.items():
                hooks.enter_context(layer.register_forward_hook(partial(watch, name), with_kwargs=True))
            try:
                logits = logits_of(self.model(*arguments, **accepted(self.model, keywords)))
            except RuntimeError as error:
                own, given = next(self.model.parameters()).dtype, (*arguments, *keywords.values())
                kinds = {x.dtype for x in given if torch.is_tensor(x) and x.is_floating_point()}
                if kinds - {own}:
                    got = ", ".join(sorted(map(str, kinds)))
                    raise fail("data", f"numbers as {own}, like the model's", got, "convert them") from error
                raise
        if not runs and self._requested is None:
            raise _not_linear("no nn.Linear ran")
        if not runs:
            got = f"{self._requested!r}, which the forward leaves out"
            raise fail("layer", "a layer that runs", got, "name another")
        if (count := runs.count(runs[-1])) > 1:
            got = f"layer {runs[-1]!r}, which runs {count} times in one forward pass"
            raise fail("layer", "a layer that runs once a record", got, "name another with layer=, or build Head")
        return logits if isinstance(logits, torch.Tensor) else None, runs[-1], seen[0], seen[1]

    def check_is_function(self, number: int, batch: RecordBatch, first: Pair) -> None:
        """Refuse a model whose rows, `first` of this batch, depend on chance, on earlier calls, or on other records.

        It is asked so about all of the first records, then about ever fewer batches: once more about the batch and, if
        that can be divided, its halves in mixed order, twice: a mixing of rows may agree with itself on one division.
        """
        if number * batch.rows >= ROWS_CHECKED and number & (number - 1):
            return
        if any(module.training for module in self.model.modules()):
            got = "one that calls train()"
            raise fail("model", "a forward in evaluation mode", got, "leave the mode to the caller")
        remedy = "turn off dropout and noise that are always on"
        _check_same(self.rows_of(batch), first, "other values on the same batch", remedy)
        if not batch.by_rows:
            return
        remedy = "use running statistics in batch norm, and keep each record's values in its own row"
        mixed = np.random.default_rng(0).permutation(batch.rows)
        for half in (*np.array_split(mixed, 2), *np.array_split(np.roll(mixed, 1 + batch.rows // 4), 2)):
            if not (some := half.tolist()):
                continue
            try:
                again = self.rows_of(batch.of_rows(some))
            except InputError:
                raise
            except Exception as error:  # of the model, which took the whole batch
                got = f"{type(error).__name__} on {len(some)} of its {batch.rows} records"
                raise fail("model", "one that runs on a part of a batch", got, remedy) from error
            _check_same(again, (first[0][some], first[1][some]), "other values in other company", remedy)

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
        (layer,) = self._candidates.values()
        return storable(layer.weight).clone(), None if layer.bias is None else storable(layer.bias).clone()

    def options(self) -> dict[str, str | None]:
        """Return what the rows depend on besides model and data."""
        kind = self._device.type
        precision = str(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
        return {"layer": self._requested, "autocast": precision and precision.removeprefix("torch.")}


def _token_of(logits: torch.Tensor | None, inputs: torch.Tensor, tokens: torch.Tensor) -> Pair | None:
    """Return what the layer sees and gives of the one token whose outputs the model returns for each record, as
    decoders do for the last token before the padding; None for other models."""
    if logits is None or tokens.ndim != 3 or logits.shape != tokens.shape[::2]:
        return None
    same = (tokens == logits.detach().to(tokens).unsqueeze(1)).all(dim=2)
    if not bool(same.any(dim=1).all()):
        return None
    rows, place = torch.arange(len(tokens), device=tokens.device), same.int().argmax(dim=1)
    return inputs[rows, place], tokens[rows, place]


def _check_same(again: Pair, first: Pair, got: str, remedy: str) -> None:
    for one, other in zip(again, first, strict=True):
        a, b = one.double(), other.double()
        allowed = SAME if one.dtype in (torch.float32, torch.float64) else SAME_IN_HALF
        allowed *= float(b.nan_to_num(0.0, 0.0, 0.0).abs().max())
        if a.shape != b.shape or not torch.allclose(a, b, rtol=0, atol=allowed, equal_nan=True):
            raise fail("model", "one row of values a record, always the same", got, remedy)


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


def _is_output(logits: torch.Tensor | None, candidate: torch.Tensor) -> bool:
    """Whether the model returned `candidate`, up to squeezed axes and the cast to another precision."""
    if logits is None or (logits.numel(), logits.device) != (candidate.numel(), candidate.device):
        return False
    a, b = logits.detach().reshape(-1).to(candidate.dtype), candidate.reshape(-1)
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
