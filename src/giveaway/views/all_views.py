"""All views of a head's records that it and a trace of its training allow, brought to the rows of one table.

Two of them the head brings along: what the model says of variants of each record, such as its mirror image
(`Head.relatives`), and what those trees of a bagged model say that never saw the record (`Head.out_of_bag`).
"""

from dataclasses import replace
from typing import Any

import numpy as np

from giveaway.records import Head
from giveaway.records.loss_trace import LossTrace
from giveaway.records.reasons import UNKNOWN
from giveaway.scores.fusion import Views, normal_scores, share_of
from giveaway.text import OnStage, quiet
from giveaway.views.model import has_one_class, said_of, summed_by_person, targets_of_head
from giveaway.views.others import OthersView
from giveaway.views.trace import TraceView


class AllViews:
    """Asks the views that are there. `score` is the head's own in the table's rows: newton, or a black box's loss."""

    def __init__(
        self,
        head: Head,
        others: OthersView | None,
        trace: LossTrace | None,
        score: np.ndarray,
        on_stage: OnStage = quiet,
    ) -> None:
        said = said_of(head)
        self.trace = None if trace is None else TraceView(trace, head, said.losses)  # refuses before the long work
        if others is None:
            y, errors = targets_of_head(head), summed_by_person(said.squares, head)
            seen = Views(score, errors, None, None, float((y - y.mean(0)).square().sum()), head.frozen)
        else:
            seen = others.compare(score, said.squares, on_stage)
        self._groups, self._errors = head.groups, said.losses if others is None else others.errors
        unseen = None if seen.error_without is None else float(seen.error_without.sum()) / head.n
        self.relatives = None if head.relatives is None else RelativesView(head, unseen)
        self.bags = None if head.out_of_bag is None else BagsView(head)
        held_out = None if head.held_out is None else said_of(head, *head.held_out).mean_square
        known: dict[str, Any] = {"loss": summed_by_person(said.losses, head), "records": head.n}
        if self.trace is not None:
            known |= {"roots": self.trace.roots, "iqr": self.trace.iqr}
        if self.relatives is not None:
            known |= {"variants": self.relatives.joined, "variants_weight": self.relatives.weight}
        if self.bags is not None:
            known["bag"] = self.bags.losses
        self.seen = replace(seen, held_out_error=held_out, **known)

    def attributes(self) -> dict[str, np.ndarray]:
        """Return what training, the variants and the trees say of each record, for the reasons; of each person, which
        record is predicted worst, and what share of all their errors that is."""
        columns: dict[str, np.ndarray] = {}
        for view in (self.trace, self.relatives, self.bags):
            columns |= {} if view is None else view.attributes()
        if self._groups is not None:
            person = np.unique(self._groups, return_inverse=True)[1]
            order = np.lexsort((-self._errors, person))
            first = order[np.flatnonzero(np.diff(person[order], prepend=-1))]
            total = np.bincount(person, self._errors)
            columns |= {"carried_by": first, "carries": self._errors[first] / np.where(total > 0, total, 1.0)}
        return columns

    def report(self) -> dict[str, Any]:
        """Return what goes into the metadata: which views spoke, and with what weight."""
        seen = self.seen
        told: dict[str, Any] = {"weights": {name: round(count, 6) for name, count in seen.weights.items()}}
        if seen.held_out_error is not None:
            told["held_out_error"] = round(seen.held_out_error, 6)
        if self.trace is not None:
            told["trace_share_of_its_own"] = round(seen.share_of_its_own, 6)
        for view in (self.relatives, self.bags):
            told |= {} if view is None else view.report
        return told


class RelativesView:
    """Losses on variants of a head's records, by row, and their mean by `weights` of the variants. With e the mean of
    ‖error‖² in the units of `targets_of_head`, a variant is `new` to the model by 1 − e(records) / e(variant), as far
    as training did not use it, and `natural`, such a record still, by e(never seen) / e(variant) up to 1: by the
    records held out, else `unseen_error`, else 1. It counts their product (docs/views.md)."""

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
        self.weights = {name: new * self.natural[name] for name, new in self.new.items()}
        weights = np.array(list(self.weights.values()))
        self._weights = weights if weights.any() else np.ones(len(weights))
        # what `joined` counts beside other views: the mean of the variants' weights, by these weights
        self.weight = float(weights @ weights / self._weights.sum())
        # a mean of the losses themselves would say what the variant says on which the model errs most
        self.joined = np.average([normal_scores(one) for one in self.losses.values()], axis=0, weights=self._weights)

    def attributes(self) -> dict[str, np.ndarray]:
        """Return whose variants are recognized: half of the probability, in the mean of logarithms, is the class's."""
        if not self._recognizes:
            return {}
        return {"recognized": np.average([*self.losses.values()], axis=0, weights=self._weights) <= np.log(2.0)}

    @property
    def report(self) -> dict[str, Any]:
        """What goes into the metadata: how far each variant is new to the model and natural, and what it counts."""
        parts = {"new": self.new, "natural": self.natural, "weight": self.weights}
        return {"relatives": {name: {part: round(of[name], 6) for part, of in parts.items()} for name in self.losses}}


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
