"""Signals of made-up models, for the tests of every attack."""

from __future__ import annotations

import numpy as np

from giveaway.records import Signals


def made(seed, *, targets=2, references=6, records=9, queries=1, points=0, classes=3, dtype="float64", leak=1.5):
    """Logits of targets and of references, of which half (in turn) were trained without each record."""
    rng = np.random.default_rng(seed)
    models = targets + references
    members = np.arange(models)[:, None] % 2 == rng.integers(2, size=records)
    members[:targets] = rng.permuted(np.tile(np.arange(records) % 2 == 0, (targets, 1)), axis=1)
    labels, point_labels = rng.integers(classes, size=records), rng.integers(classes, size=points)
    values = rng.normal(size=(models, records, queries, classes)) + rng.normal(size=(records, queries, classes))
    values += leak * (np.eye(classes)[labels] * members[:, :, None])[:, :, None]
    population = rng.normal(size=(models, points, queries, classes)).astype(dtype) if points else None
    known = point_labels if points else None
    both = Signals(values.astype(dtype), members, "logits", labels, population, known)
    return both.of_models(slice(targets)), both.of_models(slice(targets, models))
