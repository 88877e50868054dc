"""The view of training: the losses that a record had as its batches came up, epoch after epoch (`LossTrace`).

The loss that a record has a whole epoch after it was last learned is close to what the model would say without it. The
view needs a trace, costs one reading of it, and returns the mean of √loss over the epochs. A trace names its records
only by digests, so that whose losses they are is proved first.
"""

from typing import Any

import numpy as np
import torch

from giveaway.checks import ROWS_PER_CHECK, fail
from giveaway.records import Head
from giveaway.records.loss_trace import LossTrace
from giveaway.records.row_digests import identity_of
from giveaway.records.texts import Texts
from giveaway.scores.fusion import normal_scores
from giveaway.views.model import summed_by_person

BAND = (0.1, 0.5, 0.9)  # quantiles over all records that the page draws at every epoch
SHOWN = 10  # rows, the most exposed ones, whose losses over the epochs are kept for the page
REMEDY = "give the trace of the training on these records, in the same order and with the same ids"
BY_CHANCE = 3.0  # standard deviations of a correlation between losses of different records


class TraceView:
    """What a trace says of a head's rows, summed over a person's records: `roots`, the mean of √loss over the epochs in
    which a record came up, and `iqr`, q75 − q25 of its losses; the median of the others for one that never did."""

    def __init__(self, trace: LossTrace, head: Head | Texts, losses: np.ndarray) -> None:
        """`losses` (n,) are those of the finished model."""
        check_trace(trace, head)
        self._trace, self._head, self._losses = trace, head, trace.losses
        if len(self._losses) == 0:
            raise fail("trace", "at least one epoch", "none", "end_epoch() ends one; train for some")
        roots, self._seen = self._mean_roots(self._losses)
        self.never_seen = int((self._seen == 0).sum())
        if self.never_seen == head.n:
            raise fail("trace", "losses of some records", "none in any epoch", "check the rows given to trace.add")
        self.proof = self._prove(losses)
        self.roots, self.iqr = self._by_row(roots), self._by_row(self._quartile_range())

    def _mean_roots(self, epochs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean √loss of every record over those epochs in which it came up, and in how many it did."""
        total, seen = np.zeros(self._head.n), np.zeros(self._head.n, dtype=np.int64)
        for epoch in epochs:
            there = ~np.isnan(epoch)
            total[there] += np.sqrt(np.maximum(epoch[there], 0).astype(np.float64))
            seen += there
        return np.where(seen > 0, total / np.maximum(seen, 1), np.nan), seen

    def _quartile_range(self) -> np.ndarray:
        """Return q75 − q25 of every record's losses, NaN where there are none."""
        last, parts = np.maximum(self._seen, 1) - 1, []
        for row in range(0, self._head.n, ROWS_PER_CHECK):
            rows = slice(row, row + ROWS_PER_CHECK)
            ordered = np.sort(np.asarray(self._losses[:, rows], dtype=np.float64), axis=0)  # NaN come last
            place = np.multiply.outer((0.25, 0.75), last[rows])  # in proportion between two rows
            low = place.astype(np.int64)
            below, above = (np.take_along_axis(ordered, some, 0) for some in (low, np.minimum(low + 1, last[rows])))
            parts.append(np.diff(below + (place - low) * (above - below), axis=0)[0])
        return np.concatenate(parts)

    def _by_row(self, values: np.ndarray) -> np.ndarray:
        return summed_by_person(np.where(np.isnan(values), np.nanmedian(values), values), self._head)

    def _prove(self, losses: np.ndarray) -> str:
        """Say how it is known whose losses these are: by ids, or because they go with the model's; refuse others."""
        head, identity = self._head, self._trace.identity
        if "ids" in identity and not np.array_equal(head.ids, np.arange(head.n)):  # row numbers name nobody
            return "ids"
        roots, times = self._mean_roots(self._losses[-max(1, len(self._losses) // 4) :])
        seen = times > 0
        classes = np.zeros(head.n, dtype=np.int64)
        if head.targets.ndim == 1 and not torch.is_floating_point(head.targets):
            classes = head.targets.cpu().numpy()
        together = within_classes(roots[seen], losses[seen], classes[seen])
        if together * np.sqrt(seen.sum()) < BY_CHANCE:
            got = f"losses of training that do not go with the model's own (correlation {together:.2f})"
            raise fail("trace", "losses of the head's records", got, f"{REMEDY}; ids= in LossTrace settles it")
        return "targets and losses" if "targets" in identity else "losses"

    def attributes(self) -> dict[str, np.ndarray]:
        """Return the epoch, from 1, in which half of a record's √loss over all epochs was behind it; 0 for a record
        that never came up. The larger it is, the later the record was learned. And, of classes, how often it was
        forgotten: had at least half of the probability in one epoch, and less in the next. People have neither."""
        if self._head.groups is not None:
            return {}
        total = np.zeros(self._head.n)
        half = 0.5 * self.roots * self._seen
        learned, forgotten, known = (np.zeros(self._head.n, dtype=kind) for kind in (np.int64, np.int64, bool))
        for number, epoch in enumerate(self._losses, start=1):
            total += np.sqrt(np.maximum(np.nan_to_num(epoch, nan=0.0), 0).astype(np.float64))
            learned = np.where((learned == 0) & (total >= half) & (self._seen > 0), number, learned)
            forgotten += known & (epoch > np.log(2.0))
            known = np.where(np.isnan(epoch), known, epoch <= np.log(2.0))
        return {"learned_by": learned} | ({"forgotten": forgotten} if self._head.loss == "cross_entropy" else {})

    def report(self, order: np.ndarray) -> dict[str, Any]:
        """Return what goes into the metadata: the band of all records, and the losses of the first rows of `order`."""
        rows = order[: SHOWN if self._head.groups is None else 0]
        there = [epoch[~np.isnan(epoch)].astype(np.float64) for epoch in self._losses]
        band = [np.quantile(one, BAND).round(6).tolist() if len(one) else [None] * len(BAND) for one in there]
        shown = np.asarray(self._losses[:, rows], dtype=np.float64)
        return {
            "steps": self._trace.steps,
            "epochs": len(self._losses),
            "proof": self.proof,
            "never_seen": self.never_seen,
            "band": band,
            "rows": rows.tolist(),
            "losses": [[None if np.isnan(loss) else round(float(loss), 6) for loss in row] for row in shown.T],
        }


def check_trace(trace: LossTrace, head: Head | Texts) -> None:
    """Refuse a trace of another number of records, or with other digests of ids or targets, before any work."""
    if not isinstance(trace, LossTrace):
        raise fail("trace", "a LossTrace", type(trace).__name__, "read a file by ga.LossTrace(path)")
    if len(trace) != head.n:
        raise fail("trace", f"losses of the head's {head.n} records", f"losses of {len(trace)}", REMEDY)
    own = identity_of(head.n, targets=head.targets, ids=head.ids)
    for name, digest in trace.identity.items():
        if own[name] != digest:
            raise fail("trace", f"losses of the head's records, by their {name}", f"other {name}", REMEDY)


def within_classes(one: np.ndarray, other: np.ndarray, classes: np.ndarray) -> float:
    """Return the correlation of normal scores within classes, those of all classes together."""
    a, b = normal_scores(one), normal_scores(other)
    _, place, counts = np.unique(classes, return_inverse=True, return_counts=True)
    a, b = (values - (np.bincount(place, values) / counts)[place] for values in (a, b))
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread > 0 else 0.0
