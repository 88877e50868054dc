"""Which records each shadow model is trained on, and the seed it is trained with."""

from __future__ import annotations

import numpy as np

from giveaway.checks import fail

HALVES, SEEDS = 0, 1  # streams of random numbers that do not meet


def balanced_membership(models: int, records: int, *, seed: int, first: int = 0) -> np.ndarray:
    """(models, records) of bool: every record is in exactly half of the models, and half the records in each.

    Models come in pairs, and the second of a pair gets the half of the records that the first did not. A pair is
    drawn from `seed` and its own number, so that more models (`first` on) leave the earlier rows as they were.

    >>> balanced_membership(4, 6, seed=0).sum(axis=0)
    array([2, 2, 2, 2, 2, 2])
    """
    if models < 2 or models % 2 or first < 0 or first % 2:
        got = f"{models}" + (f" from model {first} on" if first else "")
        raise fail("models", "an even number of models", got, "half of them leave each record out: ask for pairs")
    if records < 2:
        raise fail("records", "at least two records", str(records), "pass more records")
    return np.stack([model_membership(first + row, records, seed=seed) for row in range(models)])


def model_membership(number: int, records: int, *, seed: int) -> np.ndarray:
    """Row `number` of `balanced_membership`."""
    pair, second = divmod(number, 2)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(HALVES, pair)))
    half = np.zeros(records, dtype=bool)
    half[rng.permutation(records)[: records // 2]] = True
    return ~half if second else half


def model_seed(number: int, *, seed: int) -> int:
    """The seed of model `number`, below 2³², from the ensemble's seed."""
    return int(np.random.SeedSequence(seed, spawn_key=(SEEDS, number)).generate_state(1)[0])
