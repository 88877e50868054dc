"""What the model says of a head's records, in units that all views share: targets around 0, losses and errors. And what
a Gaussian process says of them that never saw the model (docs/lood.md)."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from giveaway.checks import ROWS_PER_CHECK, as_tensor, check_finite, fail
from giveaway.curvature.losses import loss_of
from giveaway.gp.distinguishability import Divergence, Process, divergence
from giveaway.gp.ridge import rows_of_people
from giveaway.records import Head
from giveaway.records.examples import CHANNELS, as_numbers
from giveaway.records.rows import Rows
from giveaway.records.texts import Texts
from giveaway.scores.predicted import phi_of as phi_of_logits
from giveaway.text import OnStage, quiet


class Said(NamedTuple):
    """Losses (n,) of outputs, and their errors (n, C): what is said minus the targets, in the units of both."""

    losses: np.ndarray
    errors: torch.Tensor

    @property
    def squares(self) -> np.ndarray:
        return self.errors.square().sum(1).cpu().numpy()

    @property
    def mean_square(self) -> float:
        return math.fsum(self.squares) / len(self.losses)  # in any order of rows, the same sum


def said_of(head: Head, outputs: Rows | None = None, targets: torch.Tensor | None = None) -> Said:
    """Return what these outputs say of these targets; by default the head's own of its own."""
    outputs, targets = head.outputs if outputs is None else outputs, head.targets if targets is None else targets
    loss, losses, errors = loss_of(head), [], []
    unit = loss.sensitivity * (value_spread(head) if head.loss == "squared" else 1.0)
    for start in range(0, len(targets), ROWS_PER_CHECK):
        y = loss.targets(targets[start : start + ROWS_PER_CHECK].to(head.device))
        f = outputs[start : start + ROWS_PER_CHECK].to(y.device, torch.float64)
        losses.append(loss.value(f, y))
        errors.append(loss.gradient(f, y) / unit)
    return Said(torch.cat(losses).cpu().numpy(), torch.cat(errors))


def phi_of(outputs: Rows, classes: torch.Tensor) -> np.ndarray:
    """Return φ = log(p_y / (1 − p_y)) of each row; outputs (n, 1) are of class 1 against 0."""
    blocks = (slice(start, start + ROWS_PER_CHECK) for start in range(0, len(classes), ROWS_PER_CHECK))
    pairs = ((outputs[rows].to(torch.float64).cpu().numpy(), classes[rows].cpu().numpy()) for rows in blocks)
    return np.concatenate([phi_of_logits(*pair) for pair in pairs])


def targets_of_head(head: Head) -> torch.Tensor:
    """Return targets (n, C) around 0."""
    y = head.targets
    if head.loss == "squared":
        return centred(y.to(torch.float64).reshape(head.n, -1)) / value_spread(head)
    if head.loss == "cross_entropy" and head.m > 1:
        shares = torch.nn.functional.one_hot(y.long(), head.m) if y.ndim == 1 else y
        return shares.to(torch.float64) - 1.0 / head.m
    return y.to(torch.float64).reshape(head.n, -1) - 0.5


def value_spread(head: Head) -> float:
    """Return what `targets_of_head` divides values by."""
    return float(centred(head.targets.to(torch.float64).reshape(head.n, -1)).square().mean().sqrt()) or 1.0


def standardized(inputs: torch.Tensor) -> torch.Tensor:
    """Scale columns to mean 0 and variance 1; constant ones become 0."""
    around_0 = centred(inputs.to(torch.float64))
    spread = around_0.square().mean(0).sqrt()
    return around_0 / torch.where(spread > 0, spread, 1.0)


def centred(x: torch.Tensor) -> torch.Tensor:
    """Subtract the columns' means; constant columns become exactly 0, whatever the rounding of the mean."""
    return torch.where(x.amax(0) > x.amin(0), x - x.mean(0), 0.0)


def summed_by_person(values: np.ndarray, head: Head | Texts) -> np.ndarray:
    """Return values of records as they are, or summed over each person's in the order of np.unique(groups)."""
    return values if head.groups is None else np.bincount(np.unique(head.groups, return_inverse=True)[1], values)


def has_one_class(head: Head) -> bool:
    """Whether every record's target is one class."""
    return head.loss == "cross_entropy" and head.targets.ndim == 1


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
