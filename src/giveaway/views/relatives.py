"""The view of the relatives: what the model says of variants of each record, such as its mirror image.

It needs outputs on the variants (`Head.relatives`), which cost a forward pass each, and joins the losses on them as
`fused` joins views. A variant that training used, or that is no such record any more, counts less (docs/views.md).
"""

from functools import cached_property
from typing import Any

import numpy as np

from giveaway.records import Head
from giveaway.scores.fusion import normal_scores, share_of
from giveaway.views.model import said_of, summed_by_person


class RelativesView:
    """Losses on variants of a head's records, by row. With e the mean of ‖error‖² in the units of `targets_of_head`, a
    variant is `new` to the model by 1 − e(records) / e(variant), and `natural` by e(never seen) / e(variant) up to 1:
    by the records held out, else `unseen_error`, else 1. It counts their product."""

    def __init__(self, head: Head, unit: str = "record", unseen_error: float | None = None) -> None:
        assert head.relatives is not None
        self._classes = unit == "record" and head.loss == "cross_entropy" and head.targets.ndim == 1
        known, unseen = said_of(head).mean_square, unseen_error
        if head.held_out is not None:
            unseen = said_of(head, *head.held_out).mean_square
        self.losses: dict[str, np.ndarray] = {}
        self.new: dict[str, float] = {}
        self.natural: dict[str, float] = {}
        for name, outputs in head.relatives.items():
            said = said_of(head, outputs)
            error = said.mean_square
            self.losses[name] = summed_by_person(said.losses, head, unit)
            self.new[name] = 1.0 - share_of(known, error) if error > 0 else 0.0
            self.natural[name] = 1.0 if unseen is None or error <= unseen else share_of(unseen, error)

    @cached_property
    def weights(self) -> dict[str, float]:
        """What each variant counts, from 0 to 1."""
        return {name: new * self.natural[name] for name, new in self.new.items()}

    @cached_property
    def joined(self) -> np.ndarray:
        """The mean over variants of the normal scores of the losses on them, by their weights (equal where all are 0).

        A mean of the losses themselves would say what the variant says on which the model errs most."""
        return self._mean([normal_scores(losses) for losses in self.losses.values()])

    def attributes(self) -> dict[str, np.ndarray]:
        """Return of which records the variants are recognized: half of the probability, in the mean of the logarithm,
        is their class's. People, values and several labels at once have no such column."""
        return {"recognized": self._mean(list(self.losses.values())) <= np.log(2.0)} if self._classes else {}

    def _mean(self, values: list[np.ndarray]) -> np.ndarray:
        weights = np.array(list(self.weights.values()))
        return np.average(values, axis=0, weights=weights if weights.any() else None)

    @property
    def weight(self) -> float:
        """What `joined` counts beside other views: the mean of the variants' weights, by these weights."""
        weights = np.array(list(self.weights.values()))
        return float(weights @ weights / weights.sum()) if weights.any() else 0.0

    @property
    def report(self) -> dict[str, Any]:
        """What goes into the metadata: how far each variant is new to the model and natural, and what it counts."""
        parts = {"new": self.new, "natural": self.natural, "weight": self.weights}
        return {name: {part: round(told[name], 6) for part, told in parts.items()} for name in self.losses}
