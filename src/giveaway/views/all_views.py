"""All views of a head's records that it and a trace of its training allow, brought to the rows of one table."""

from dataclasses import replace
from typing import Any

import numpy as np

from giveaway.records import Head
from giveaway.records.loss_trace import LossTrace
from giveaway.scores.fusion import Views
from giveaway.text import OnStage, quiet
from giveaway.views.model import said_of, summed_by_person, targets_of_head
from giveaway.views.others import OthersView
from giveaway.views.trace import TraceView
from giveaway.views.witnesses import BagsView, RelativesView


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
        seen = replace(seen, loss=summed_by_person(said.losses, head), records=head.n, held_out_error=held_out)
        if self.trace is not None:
            seen = replace(seen, roots=self.trace.roots, iqr=self.trace.iqr)
        if self.relatives is not None:
            seen = replace(seen, variants=self.relatives.joined, variants_weight=self.relatives.weight)
        self.seen = seen if self.bags is None else replace(seen, bag=self.bags.losses)

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
