"""The view of a Gaussian process that never saw the trained model: what it says of a head's records (docs/lood.md).

It needs the records themselves and a `Process`, costs one factorization of its kernel, and returns a `Divergence`.
"""

from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, fail
from giveaway.gp.distinguishability import Divergence, Process, divergence
from giveaway.gp.ridge import rows_of_people
from giveaway.records import Head
from giveaway.records.examples import CHANNELS, as_numbers
from giveaway.text import OnStage, quiet
from giveaway.views.model import standardized, targets_of_head


class ProcessView:
    """The head's targets as a process predicts them from the records' own inputs. Targets are those of
    `targets_of_head`, so that one noise fits all of them; columns of a matrix are standardized."""

    def __init__(self, head: Head, process: Process) -> None:
        x = numbers_of(head.inputs)
        if x.ndim < 2:
            got = f"shape {tuple(x.shape)}"
            raise fail("inputs", f"the head's {head.n} records, (n, …)", got, "align them with the features")
        check_finite("inputs", x)
        self._head, self.process, self.inputs = head, process, standardized(x) if x.ndim == 2 else x

    def divergence(self, on_stage: OnStage = quiet) -> tuple[Divergence, dict[str, Any]]:
        """Measure every record, or every person in the order of np.unique(groups); and say what was fitted."""
        fitted = self.process.fit(self.inputs, targets_of_head(self._head), on_stage=on_stage)
        groups = None if self._head.groups is None else rows_of_people(self._head.groups)[1]
        told = {"kernel": repr(fitted.kernel), "noise": fitted.noise, "condition": fitted.condition}
        return divergence(fitted, groups), told


def numbers_of(inputs: Any) -> torch.Tensor:
    """Return inputs as a tensor of numbers, bytes of images from 0 to 1 with their channels first where they can be."""
    if isinstance(inputs, list | tuple) and len(inputs) and isinstance(inputs[0], str):
        raise fail("inputs", "images or a matrix of numbers", "strings", "embed them, and pass the vectors")
    if isinstance(inputs, torch.Tensor) and inputs.dtype != torch.uint8:
        return inputs.detach()
    array = inputs.cpu().numpy() if isinstance(inputs, torch.Tensor) else np.asarray(inputs)
    if array.dtype.kind == "O":
        got = f"a {type(inputs).__name__} of dtype object"
        raise fail("inputs", "images or a matrix of numbers", got, "encode its columns as numbers")
    first = array.dtype == np.uint8 and array.ndim == 4 and array.shape[1] in CHANNELS
    return as_tensor("inputs", np.ascontiguousarray(array) / 255.0 if first else as_numbers(array))
