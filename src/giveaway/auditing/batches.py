"""Walk over a head's records, or over its people, in batches whose leverage blocks fit in memory.

The walk is a list of spans, each a window of records whose blocks are prepared together. Spans are read in order;
another thread may score what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from giveaway.checks import fail
from giveaway.curvature.blocks import Blocks
from giveaway.curvature.choice import Curvature
from giveaway.curvature.losses import loss_of
from giveaway.records import Head
from giveaway.records.head import Window
from giveaway.scores.formulas import ScoreBatch

WINDOW = 1_024
MOST_ROWS = 2_048
GPU_WINDOW = 16_384
LARGEST_GROUP_BYTES = 800_000_000
SAMPLED_ROWS = 4_096  # from which the error of a sketched column is estimated

Where = slice | np.ndarray


@dataclass(frozen=True)
class Span:
    """Groups of `size` records each: their places in the table, and their rows in the head."""

    where: Where
    rows: slice | torch.Tensor
    size: int = 1

    @property
    def count(self) -> int:
        """The number of groups."""
        return self.where.stop - self.where.start if isinstance(self.where, slice) else len(self.where)


def record_spans(head: Head, curvature: Curvature | None) -> list[Span]:
    """Spans of every record in order."""
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
        """The number of people."""
        return len(self._sizes)

    def spans(self, people: np.ndarray, curvature: Curvature | None = None) -> list[Span]:
        """Spans of these people, those with equally many records together."""
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
        """Spans of everybody."""
        largest = int(self._sizes.max())
        if curvature is not None and (needed := curvature.group_bytes(largest)) > LARGEST_GROUP_BYTES:
            raise fail(
                "groups",
                f"people whose joint leverage block stays below {LARGEST_GROUP_BYTES / 1e9:.1f} GB",
                f"a person with {largest} records, which needs {needed / 1e9:.1f} GB",
                "audit a head without groups, or split that group",
            )
        return self.spans(np.arange(self.count), curvature)


class LoadedSpan:
    """The groups of one span, read into memory."""

    def __init__(self, head: Head, span: Span, curvature: Curvature | None, drift: torch.Tensor | None) -> None:
        self.span, self._curvature, self._drift, self._loss = span, curvature, drift, loss_of(head)
        self.window = head.window(span.rows)
        self.count = span.count

    def batches(self, probes: slice | None = None) -> Iterator[tuple[Where, ScoreBatch]]:
        """Yield batches with their places in the table; of a sketch, by all probes or by some of them."""
        at_once = self.count
        if self._curvature is not None:
            at_once = min(at_once, _groups_at_once(self._curvature, self.span.size))
        for start in range(0, self.count, at_once):
            groups = slice(start, min(start + at_once, self.count))
            yield self._places(groups), self.batch(groups, probes)

    def batch(self, groups: slice, probes: slice | None = None) -> ScoreBatch:
        """Return the batch of some of the groups."""
        n, s = groups.stop - groups.start, self.span.size
        window: Window = self.window.part(slice(groups.start * s, groups.stop * s))
        outputs, targets = window.outputs.to(torch.float64).view(n, s, -1), self._loss.targets(window.targets)
        targets = targets.view(n, s, *targets.shape[1:])
        drift = self._drift
        return ScoreBatch(
            outputs=outputs,
            targets=targets,
            sample_weight=window.weights.view(n, s),
            loss=self._loss,
            make_blocks=lambda: self._blocks(groups, probes),
            make_gradient_norm=lambda: _gradient_norm(window, self._loss.gradient(outputs, targets)),
            make_drift=None if drift is None else lambda: window.rows().view(n, s, -1) @ drift,
        )

    @cached_property
    def _blocks(self) -> Callable[[slice, slice | None], Blocks]:
        assert self._curvature is not None
        return self._curvature.window_blocks(self.window, self.span.size)

    def _places(self, groups: slice) -> Where:
        if isinstance(self.span.where, slice):
            return slice(self.span.where.start + groups.start, self.span.where.start + groups.stop)
        return self.span.where[groups]


def _groups_at_once(curvature: Curvature, s: int) -> int:
    return max(1, min(curvature.array_bytes // curvature.group_bytes(s), GPU_WINDOW))


def _gradient_norm(window: Window, gradient: torch.Tensor) -> torch.Tensor:
    """‖∇ℓ‖ of groups with gradients g (N, s, m) in their outputs: ‖x‖·‖g‖ for one record."""
    n, s, _ = gradient.shape
    if s == 1:
        return window.row_norms() * gradient.norm(dim=(1, 2))
    return torch.bmm(window.rows().view(n, s, -1).mT, gradient).norm(dim=(1, 2))


def sampled_spans(sizes: Sequence[int]) -> np.ndarray:
    """Which spans, of so many rows each, serve to estimate errors: evenly spread, with about SAMPLED_ROWS rows."""
    sampled = np.zeros(len(sizes), dtype=bool)
    count = min(len(sizes), max(1, round(SAMPLED_ROWS / max(1.0, float(np.mean(sizes)))))) if len(sizes) else 0
    sampled[((np.arange(count) + 0.5) * len(sizes) / max(1, count)).astype(int)] = True
    return sampled
