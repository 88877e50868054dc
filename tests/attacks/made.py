"""Signals of made-up models, and the engine's order of records in Python's own whole numbers."""

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


def mixed(word):
    """SplitMix64's finalizer, in Python's own whole numbers."""
    word = (word + 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
    return word ^ (word >> 31)


def shuffled(own, seed, epoch):
    """The order in which a model with this seed comes to its records."""
    stream = mixed((mixed(seed) + epoch) % 2**64)
    return own[sorted(range(len(own)), key=lambda place: mixed((stream + place) % 2**64) % 2**63)]
