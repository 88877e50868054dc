"""Two views that the head brings along: what the model says of variants of each record, such as its mirror image
(`Head.relatives`), and what those trees of a bagged model say that never saw the record (`Head.out_of_bag`).

The losses on variants are joined as `fused` joins views. A variant that training used, or that is no such record any
more, counts less (docs/views.md). Where every tree saw a record the bag says nothing.
"""

from functools import cached_property
from typing import Any

import numpy as np

from giveaway.records import Head
from giveaway.records.reasons import UNKNOWN
from giveaway.scores.fusion import normal_scores, share_of
from giveaway.views.model import has_one_class, said_of, summed_by_person


class RelativesView:
    """Losses on variants of a head's records, by row. With e the mean of ‖error‖² in the units of `targets_of_head`, a
    variant is `new` to the model by 1 − e(records) / e(variant), and `natural` by e(never seen) / e(variant) up to 1:
    by the records held out, else `unseen_error`, else 1. It counts their product."""

    def __init__(self, head: Head, unseen_error: float | None = None) -> None:
        assert head.relatives is not None
        self._recognizes = has_one_class(head) and head.groups is None
        known, unseen = said_of(head).mean_square, unseen_error
        if head.held_out is not None:
            unseen = said_of(head, *head.held_out).mean_square
        self.losses: dict[str, np.ndarray] = {}
        self.new: dict[str, float] = {}
        self.natural: dict[str, float] = {}
        for name, outputs in head.relatives.items():
            said = said_of(head, outputs)
            error = said.mean_square
            self.losses[name] = summed_by_person(said.losses, head)
            self.new[name] = 1.0 - share_of(known, error) if error > 0 else 0.0
            self.natural[name] = 1.0 if unseen is None or error <= unseen else share_of(unseen, error)

    @cached_property
    def weights(self) -> dict[str, float]:
        """What each variant counts, from 0 to 1."""
        return {name: new * self.natural[name] for name, new in self.new.items()}

    @cached_property
    def joined(self) -> np.ndarray:
        """The mean over variants of normal scores, by their weights (equal where all are 0): a mean of the losses
        themselves would say what the variant says on which the model errs most."""
        return self._mean([normal_scores(losses) for losses in self.losses.values()])

    @property
    def weight(self) -> float:
        """What `joined` counts beside other views: the mean of the variants' weights, by these weights."""
        weights = np.array(list(self.weights.values()))
        return float(weights @ weights / weights.sum()) if weights.any() else 0.0

    def attributes(self) -> dict[str, np.ndarray]:
        """Return whose variants are recognized: half of the probability, in the mean of logarithms, is the class's."""
        return {"recognized": self._mean(list(self.losses.values())) <= np.log(2.0)} if self._recognizes else {}

    @property
    def report(self) -> dict[str, Any]:
        """What goes into the metadata: how far each variant is new to the model and natural, and what it counts."""
        parts = {"new": self.new, "natural": self.natural, "weight": self.weights}
        return {"relatives": {name: {part: round(of[name], 6) for part, of in parts.items()} for name in self.losses}}

    def _mean(self, values: list[np.ndarray]) -> np.ndarray:
        weights = np.array(list(self.weights.values()))
        return np.average(values, axis=0, weights=weights if weights.any() else None)


class BagsView:
    """Losses of a head's out-of-bag predictions by row. Rows without a prediction for every record are not `told`, and
    have the median of the others: the middle of every ranking."""

    def __init__(self, head: Head) -> None:
        assert head.out_of_bag is not None
        self._head, self._said = head, head.out_of_bag
        losses = summed_by_person(said_of(head, head.out_of_bag).losses, head)
        self.told = ~np.isnan(losses)
        self.losses = np.where(self.told, losses, np.median(losses[self.told]) if self.told.any() else 0.0)

    def attributes(self) -> dict[str, np.ndarray]:
        """Return the class, or the value, that the trees give a record; UNKNOWN or NaN where all trees saw it. People,
        soft labels and several outputs at once have no such column."""
        head, said = self._head, self._said.cpu().numpy()
        if head.groups is None and has_one_class(head):
            classes = said.argmax(1) if head.m > 1 else (said[:, 0] > 0).astype(np.int64)
            return {"trees_say": np.where(self.told, classes, UNKNOWN)}
        if head.groups is None and head.loss == "squared" and head.m == 1:
            return {"trees_say": said[:, 0].astype(np.float64)}
        return {}

    @property
    def report(self) -> dict[str, Any]:
        return {"without_out_of_bag": int((~self.told).sum())}
