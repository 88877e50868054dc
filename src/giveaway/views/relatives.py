"""The view of the relatives: what the model says of variants of each record, such as its mirror image.

It needs outputs on the variants (`Head.relatives`), which cost a forward pass each, and returns the losses on them. A
model that was not trained on a variant knows it only as far as it generalizes, so the loss on it tells what the model
would say without the record. A variant that training used is known as the record is: the members tell, because they
lose as little on it as on themselves, and such a variant counts nothing.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch

from giveaway.checks import ROWS_PER_CHECK
from giveaway.curvature.losses import loss_of
from giveaway.records import Head
from giveaway.records.rows import LazyRows
from giveaway.scores.formulas import share_of


class RelativesView:
    """Losses on variants of a head's records, by record or by person in the order of np.unique(groups).

    losses : the loss on each variant by its name, summed over a person's records.
    weights : of each variant, 1 − Σ‖error on the record itself‖² / Σ‖error on the variant‖² within 0 and 1: the share
        of the variant's error that training has removed on the records themselves.
    """

    def __init__(self, head: Head, unit: str = "record") -> None:
        assert head.relatives is not None
        person = None if unit == "record" else np.unique(np.asarray(head.groups), return_inverse=True)[1]
        _, error = _losses_and_error(head, head.outputs)
        self.losses: dict[str, np.ndarray] = {}
        self.weights: dict[str, float] = {}
        for name, outputs in head.relatives.items():
            losses, variant_error = _losses_and_error(head, outputs)
            self.losses[name] = losses if person is None else np.bincount(person, losses)
            self.weights[name] = 1.0 - share_of(error, variant_error) if variant_error > 0 else 0.0

    @cached_property
    def mean_loss(self) -> np.ndarray:
        """The mean over variants of the loss on them, by their weights; the plain mean where all of them are 0."""
        weights = np.array(list(self.weights.values()))
        weights = weights if weights.any() else np.ones_like(weights)
        return np.average(list(self.losses.values()), axis=0, weights=weights)

    @property
    def report(self) -> dict[str, Any]:
        """What goes into the metadata: the variants by name, and what each counts."""
        return {"relatives": {name: round(weight, 6) for name, weight in self.weights.items()}}


def _losses_and_error(head: Head, outputs: torch.Tensor | LazyRows) -> tuple[np.ndarray, float]:
    """Return the losses (n,) of these outputs at the head's targets, and the sum of their squared errors.

    An error is a probability minus the target, or a residual, up to a factor that all outputs share.
    """
    loss, losses, errors = loss_of(head), [], []
    for part in head.slices(ROWS_PER_CHECK):
        y = loss.targets(head.targets[part])
        f = outputs[part].to(y.device, torch.float64)
        losses.append(loss.value(f, y))
        errors.append(loss.gradient(f, y).square().sum(-1))
    # in any order of rows, the same sum
    return torch.cat(losses).cpu().numpy(), math.fsum(torch.cat(errors).cpu().tolist())
