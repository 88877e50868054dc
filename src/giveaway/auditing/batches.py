"""Walk over a head's records, or over its people, in batches whose leverage blocks fit in memory.

Batches come in portions that share the work of one look at the curvature; a portion does that work in the thread that
walks it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from giveaway.checks import fail
from giveaway.heads.blocks import Blocks
from giveaway.heads.dense import DenseCurvature
from giveaway.heads.losses import Loss, Softmax, as_taken, loss_of
from giveaway.records import Head
from giveaway.records.window import Window
from giveaway.scores.batch import Batch

WINDOW = 1_024
MOST_ROWS = 2_048
BLOCK_BYTES = 2_000_000  # one array of a batch's blocks; about eight are alive at a time
LARGEST_GROUP_BYTES = 800_000_000

Portion = Iterator[tuple[slice | np.ndarray, Batch]]


def record_portions(
    head: Head, curvature: DenseCurvature | None, drift: torch.Tensor | None = None
) -> Iterator[Portion]:
    """Every record in order, with its row numbers."""
    loss = loss_of(head)
    size = max(1, min(MOST_ROWS, BLOCK_BYTES // _block_bytes(head, 1)))
    for window in head.slices(max(WINDOW, size)):
        yield _record_batches(head.window(window), window.start, size, loss, curvature, drift)


def person_portions(
    head: Head, curvature: DenseCurvature | None, drift: torch.Tensor | None = None
) -> Iterator[Portion]:
    """Every person, those with equally many records together, with their places in np.unique(groups)."""
    assert head.groups is not None
    loss = loss_of(head)
    _, person, counts = np.unique(head.groups, return_inverse=True, return_counts=True)
    by_person = torch.from_numpy(np.argsort(person, kind="stable")).to(head.device)
    first = np.cumsum(counts) - counts
    for s in np.unique(counts).tolist():
        needed = _block_bytes(head, s)
        if curvature is not None and needed > LARGEST_GROUP_BYTES:
            raise fail(
                "groups",
                f"people whose joint leverage block stays below {LARGEST_GROUP_BYTES / 1e9:.1f} GB",
                f"a person with {s} records, which needs {needed / 1e9:.1f} GB",
                "audit by='record', or split that group",
            )
        crossing = 0 if curvature is None else 8 * s * head.width * _coupled(head) ** 2
        people = np.flatnonzero(counts == s)
        size = max(1, BLOCK_BYTES // max(needed, crossing))
        for start in range(0, len(people), size):
            where = people[start : start + size]
            places = torch.from_numpy(first[where][:, None] + np.arange(s)).to(by_person.device)
            yield _person_batch(head.window(by_person[places].view(-1)), where, s, loss, curvature, drift)


def _record_batches(
    window: Window, start: int, size: int, loss: Loss, curvature: DenseCurvature | None, drift: torch.Tensor | None
) -> Portion:
    quadratics = None if curvature is None else curvature.quadratics(window.columns())
    for at in range(0, len(window), size):
        within = slice(at, min(at + size, len(window)))
        part = None if quadratics is None else quadratics[:, within]
        where = slice(start + at, start + within.stop)
        yield where, _batch(window.part(within), 1, loss, curvature, part, drift)


def _person_batch(
    window: Window, where: np.ndarray, s: int, loss: Loss, curvature: DenseCurvature | None, drift: torch.Tensor | None
) -> Portion:
    quadratics = None
    if curvature is not None:
        quadratics = curvature.quadratics(window.rows().view(-1, s, window.width))
    yield where, _batch(window, s, loss, curvature, quadratics, drift)


def _batch(
    window: Window,
    s: int,
    loss: Loss,
    curvature: DenseCurvature | None,
    quadratics: torch.Tensor | None,
    drift: torch.Tensor | None,
) -> Batch:
    """The groups of s consecutive rows each."""
    outputs = window.outputs.to(torch.float64).view(len(window) // s, s, -1)
    targets = as_taken(loss, window.targets)
    n = len(outputs)
    weight = window.weights.view(n, s)

    def make_blocks() -> Blocks:
        assert curvature is not None
        assert quadratics is not None
        return curvature.blocks(quadratics, outputs, weight)

    return Batch(
        outputs=outputs,
        targets=targets.view(n, s, *targets.shape[1:]),
        sample_weight=weight,
        loss=loss,
        make_row_norms=lambda: window.row_norms().view(n, s),
        make_x=lambda: window.rows().view(n, s, -1),
        make_blocks=make_blocks,
        drift=drift,
    )


def _coupled(head: Head) -> int:
    """Outputs that share one block."""
    return head.m if isinstance(loss_of(head), Softmax) else 1


def _block_bytes(head: Head, s: int) -> int:
    return 8 * s * s * head.m * _coupled(head)
