"""The view of the bag: what those trees (or other estimators) of a bagged model say of a record that never saw it.

It needs `Head.out_of_bag`, which `from_sklearn` reads from forests and bagging, and returns the loss of that.
Where every tree saw a record it says nothing.
"""

from typing import Any

import numpy as np

from giveaway.records import Head
from giveaway.records.reasons import UNKNOWN
from giveaway.views.model import said_of, summed_by_person


class BagsView:
    """Losses of a head's out-of-bag predictions by row, in the order of np.unique(groups) for people. Rows without a
    prediction for every record are not `told`, and have the median of the others: the middle of every ranking."""

    def __init__(self, head: Head, unit: str = "record") -> None:
        assert head.out_of_bag is not None
        self._head, self._unit = head, unit
        losses = summed_by_person(said_of(head, head.out_of_bag).losses, head, unit)
        self.told = ~np.isnan(losses)
        self.losses = np.where(self.told, losses, np.median(losses[self.told]) if self.told.any() else 0.0)

    def attributes(self) -> dict[str, np.ndarray]:
        """Return what the trees that never saw a record say of it: its class, or its value; UNKNOWN or NaN where all
        trees saw it. People, soft labels and several outputs at once have no such column."""
        head = self._head
        assert head.out_of_bag is not None
        if self._unit == "person":
            return {}
        said = head.out_of_bag.cpu().numpy()
        if head.loss == "cross_entropy" and head.targets.ndim == 1:
            classes = said.argmax(1) if head.m > 1 else (said[:, 0] > 0).astype(np.int64)
            return {"trees_say": np.where(self.told, classes, UNKNOWN)}
        if head.loss == "squared" and head.m == 1:
            return {"trees_say": said[:, 0].astype(np.float64)}
        return {}

    @property
    def report(self) -> dict[str, Any]:
        """What goes into the metadata: rows of which no tree is left that never saw them."""
        return {"without_out_of_bag": int((~self.told).sum())}
