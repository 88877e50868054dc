"""Signals from a folder of Signals.save or an .npz of arrays, and which of their records are meant."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from giveaway.checks import fail
from giveaway.extract.reading import reading
from giveaway.records import Signals
from giveaway.records.signals import KINDS


def signals_from(path: str | os.PathLike[str]) -> Signals:
    """The signals stored in `path`.

    An .npz holds one of `logits`, `probabilities`, `phi` or `squared_error` under that name, `members` as (models,
    records) of 0/1 or packed with numpy.packbits along the records, and `labels` where the kind needs them.
    """
    if Path(path).is_dir():
        return Signals.load(path)
    with reading("signals", path, ".npz file") as file, np.load(file, allow_pickle=False) as stored:
        kinds = [kind for kind in KINDS if kind in stored.files]
        if len(kinds) != 1 or "members" not in stored.files:
            expected = f"members and one of {', '.join(KINDS)} in {file.name}"
            raise fail("signals", expected, "keys " + ", ".join(stored.files), "store one kind of signal")
        values, members = stored[kinds[0]], stored["members"]
        labels = stored["labels"] if "labels" in stored.files else None
    records = values.shape[1] if values.ndim > 1 else 0
    if members.dtype == np.uint8 and members.ndim == 2 and members.shape[1] == -(-records // 8) != records:
        members = np.unpackbits(members, axis=1)[:, :records]
    return Signals(values, members, kinds[0], labels=labels)


def row_numbers(path: str | os.PathLike[str]) -> np.ndarray:
    """The integers of an .npy file, or of the key `index` of an .npz."""
    with reading("rows", path, ".npy or .npz file") as file:
        stored = np.load(file, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            return stored
        with stored:
            if "index" not in stored.files:
                raise fail("rows", f"the key index in {file.name}", "keys " + ", ".join(stored.files), "add it")
            return stored["index"]
