"""Walk over a head's records, or over its people, in batches whose leverage blocks fit in memory.

The walk is a list of spans, each a window of records that share one look at the curvature. A span is read where the
walk is, in order; what is done with it may be another thread's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from giveaway.checks import fail
from giveaway.curvature.curvature import Curvature, Look
from giveaway.curvature.losses import as_taken, loss_of
from giveaway.records import Head
from giveaway.records.rows import Window
from giveaway.scores.batch import Batch

WINDOW = 1_024
MOST_ROWS = 2_048
GPU_WINDOW = 16_384
LARGEST_GROUP_BYTES = 800_000_000

Where = slice | np.ndarray


@dataclass(frozen=True)
class Span:
    """Groups of `size` records each: their places in the table, and their rows in the head."""

    where: Where
    rows: slice | torch.Tensor
    size: int = 1

    @property
    def count(self) -> int:
        """Groups."""
        return self.where.stop - self.where.start if isinstance(self.where, slice) else len(self.where)


def record_spans(head: Head, curvature: Curvature | None) -> list[Span]:
    """Every record in order."""
    window = GPU_WINDOW if head.device.type == "cuda" else WINDOW
    if curvature is not None and curvature.report["curvature"] == "sketch":
        window = min(window, _groups_at_once(curvature, 1))
    elif curvature is not None:
        window = max(window, min(MOST_ROWS, _groups_at_once(curvature, 1)))
    return [Span(part, part) for part in head.slices(window)]


class People:
    """Who the records belong to, in the order of np.unique(groups)."""

    def __init__(self, head: Head) -> None:
        assert head.groups is not None
        _, person, self._sizes = np.unique(head.groups, return_inverse=True, return_counts=True)
        self._by_person = np.argsort(person, kind="stable")
        self._first = np.cumsum(self._sizes) - self._sizes

    @property
    def count(self) -> int:
        """People."""
        return len(self._sizes)

    def spans(self, people: np.ndarray, curvature: Curvature | None = None) -> list[Span]:
        """These people, those with equally many records together."""
        spans = []
        for s in np.unique(self._sizes[people]).tolist():
            at_once = len(people) if curvature is None else _groups_at_once(curvature, s)
            alike = people[self._sizes[people] == s]
            for start in range(0, len(alike), at_once):
                where = alike[start : start + at_once]
                rows = self._by_person[self._first[where][:, None] + np.arange(s)]
                spans.append(Span(where, torch.from_numpy(rows.ravel()), s))
        return spans

    def all_spans(self, curvature: Curvature | None) -> list[Span]:
        """Everybody."""
        largest = int(self._sizes.max())
        if curvature is not None and (needed := curvature.group_bytes(largest)) > LARGEST_GROUP_BYTES:
            raise fail(
                "groups",
                f"people whose joint leverage block stays below {LARGEST_GROUP_BYTES / 1e9:.1f} GB",
                f"a person with {largest} records, which needs {needed / 1e9:.1f} GB",
                "audit by='record', or split that group",
            )
        return self.spans(np.arange(self.count), curvature)


class Portion:
    """The groups of one span, read into memory."""

    def __init__(self, head: Head, span: Span, curvature: Curvature | None, drift: torch.Tensor | None) -> None:
        self.span, self._curvature, self._drift, self._loss = span, curvature, drift, loss_of(head)
        self.window = head.window(span.rows)
        self.count = span.count

    def batches(self, probes: slice | None = None) -> Iterator[tuple[Where, Batch]]:
        """Batches with their places in the table; of a sketch, by all probes or some of them."""
        at_once = self.count
        if self._curvature is not None:
            at_once = min(at_once, _groups_at_once(self._curvature, self.span.size))
        for start in range(0, self.count, at_once):
            part = slice(start, min(start + at_once, self.count))
            yield self._places(part), self.batch(part, probes)

    def batch(self, part: slice, probes: slice | None = None) -> Batch:
        """Some of the groups."""
        n, s = part.stop - part.start, self.span.size
        window: Window = self.window.part(slice(part.start * s, part.stop * s))
        targets = as_taken(self._loss, window.targets)
        return Batch(
            outputs=window.outputs.to(torch.float64).view(n, s, -1),
            targets=targets.view(n, s, *targets.shape[1:]),
            sample_weight=window.weights.view(n, s),
            loss=self._loss,
            make_row_norms=lambda: window.row_norms().view(n, s),
            make_x=lambda: window.rows().view(n, s, -1),
            make_blocks=lambda: self._look.blocks(part, probes),
            drift=self._drift,
        )

    @cached_property
    def _look(self) -> Look:
        assert self._curvature is not None
        return self._curvature.look(self.window, self.span.size)

    def _places(self, part: slice) -> Where:
        if isinstance(self.span.where, slice):
            return slice(self.span.where.start + part.start, self.span.where.start + part.stop)
        return self.span.where[part]


def _groups_at_once(curvature: Curvature, s: int) -> int:
    return max(1, min(curvature.array_bytes // curvature.group_bytes(s), GPU_WINDOW))
