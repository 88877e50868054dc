"""Score the records of highest leverage again, with right sides of their own in place of the sketch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from giveaway.auditing.batches import People, Portion, Span, Where
from giveaway.curvature.exact_steps import exact_steps
from giveaway.curvature.sketched import SketchedCurvature
from giveaway.records import Head
from giveaway.scores.batch import Batch

HIGH = 0.5  # largest eigenvalue of W B, from which a group is solved for
SOLVED = 1e-2  # residual above which a group stays with its sketch
SPENT = {"cpu": 5e10, "cuda": 5e14}  # operations that are always worth it
STEPS = 25  # about what a solve takes


def chosen_again(curvature: SketchedCurvature, leverage: np.ndarray) -> np.ndarray:
    """The groups above HIGH, the highest first: as many as cost no more than the sketch did, or SPENT operations."""
    width, k = curvature.products.shape
    one = 2 * STEPS * 4.0 * curvature.head.n * width * k
    most = int(max(curvature.probes // 8, SPENT[curvature.head.device.type] // one))
    order = np.argsort(-leverage, kind="stable")
    return order[leverage[order] > HIGH][:most]


def scored_again(
    head: Head,
    curvature: SketchedCurvature,
    chosen: np.ndarray,
    *,
    by_person: bool,
    total: torch.Tensor | None,
    drift: torch.Tensor | None,
) -> Iterator[tuple[Where, Batch, np.ndarray]]:
    """Batches of the chosen groups with their steps solved for, their places, and which of them were solved."""
    people = People(head) if by_person else None
    at_once = max(1, curvature.at_once // 2 // (head.m if curvature.products.k == 1 else 1))
    for start in range(0, len(chosen), at_once):
        places = chosen[start : start + at_once]
        for span in [Span(places, torch.from_numpy(places))] if people is None else people.spans(places):
            portion = Portion(head, span, curvature, drift)
            batch = portion.batch(slice(0, portion.count))
            steps = exact_steps(curvature, portion.window, batch.gradient, total, drift)
            yield span.where, replace(batch, solved=steps), (steps.residual <= SOLVED).cpu().numpy()
