"""The head of a running model: what its linear layer sees and gives, batch by batch."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn

from giveaway.checks import check_choice, fail
from giveaway.extract.batches import Batch
from giveaway.extract.linear_layer import (
    REDUCTIONS,
    check_is_model_output,
    check_not_tied,
    linear_layers,
    named_layer,
    one_row_a_record,
    storable,
    watch,
)


class WatchedLayer:
    """The nn.Linear called `asked`, or the last to run, which must give the model's output; run it in `untouched`."""

    def __init__(
        self,
        model: nn.Module,
        asked: str | None,
        *,
        reduction: str | None,
        device: torch.device,
        autocast: torch.dtype | None,
    ) -> None:
        if reduction is not None:
            check_choice("reduction", reduction, REDUCTIONS)
        if autocast not in (None, torch.bfloat16, torch.float16):
            raise fail("autocast", "None, torch.bfloat16 or torch.float16", str(autocast), "choose one of these")
        self.model, self.device, self.asked, self.reduction, self.autocast = model, device, asked, reduction, autocast
        self.name: str | None = None  # known once it ran
        self._layers = linear_layers(model) if asked is None else named_layer(model, asked)

    def rows_of(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and outputs of the records of a batch, on the CPU."""
        with nullcontext() if self.autocast is None else torch.autocast(self.device.type, dtype=self.autocast):
            result, seen = watch(self._layers, self.model, *batch.inputs_on(self.device))
        if self.asked is None:
            seen = check_is_model_output(result, seen, self.reduction)
        elif seen is None:
            got = f"{self.asked!r}, which the forward leaves out"
            raise fail("layer", "a layer that runs", got, "name another")
        if self.name is None:
            self.found(seen.name)
        return one_row_a_record(seen, len(batch.targets), self.reduction)

    def found(self, name: str) -> None:
        """From here on the layer called `name` alone is watched."""
        self._layers = {name: linear} if (linear := self._layers.get(name)) else named_layer(self.model, name)
        check_not_tied(self.model, name, self._layers[name])
        self.name = name

    def parameters(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Copies of the layer's weight and bias on the CPU."""
        assert self.name is not None
        linear = self._layers[self.name]
        bias = None if linear.bias is None else storable(linear.bias).clone()
        return storable(linear.weight).clone(), bias

    def options(self) -> dict[str, str | None]:
        """What the rows depend on besides model and data."""
        precision = None if self.autocast is None else str(self.autocast).removeprefix("torch.")
        return {"layer": self.asked, "reduction": self.reduction, "autocast": precision}
