"""Leave-one-out retraining: models trained with a record against models trained without it, all else equal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from giveaway.attacks.leave_one_out import QUANTITIES, LeaveOneOut, leave_one_out
from giveaway.attacks.membership import model_seed
from giveaway.attacks.shadow import OnModel, Train, collect_shadows, one_model_at_a_time, source_of
from giveaway.attacks.shadow_store import summaries
from giveaway.checks import check_choice, fail


@dataclass(frozen=True, eq=False)
class RetrainPlan:
    """Rounds of models from one seed: the first trained on everyone, then one without each chosen record.

    All of them are asked about everything, and what they say of the chosen records is kept. The rounds follow each
    other, so that more repeats leave the earlier models as they were.
    """

    chosen: np.ndarray
    everyone: np.ndarray
    asked: int
    repeats: int
    kind: str
    fingerprint: Mapping[str, Any]
    seed: int = 0
    labels: np.ndarray | None = None
    population: int = 0
    population_labels: None = None

    @property
    def records(self) -> int:
        """Of the stored signals: the chosen ones."""
        return len(self.chosen)

    @property
    def rows(self) -> int:
        """The same: there is no population."""
        return self.records

    @property
    def kept(self) -> np.ndarray:
        """The chosen records."""
        return self.chosen

    @property
    def models(self) -> int:
        """Of all rounds."""
        return self.repeats * (1 + self.records)

    def place(self, number: int) -> tuple[int, int | None]:
        """The round of a model, and the place among the chosen of the record that it leaves out."""
        turn, slot = divmod(number, 1 + self.records)
        return turn, slot - 1 if slot else None

    def members(self, number: int) -> np.ndarray:
        """(chosen,) of bool: all but the one left out."""
        return np.arange(self.records) != self.place(number)[1]

    def indices(self, number: int) -> np.ndarray:
        """Everyone but the one left out."""
        left_out = self.place(number)[1]
        return self.everyone if left_out is None else self.everyone[self.everyone != self.chosen[left_out]]

    def seed_of(self, number: int) -> int:
        """The seed of its round."""
        return model_seed(self.place(number)[0], seed=self.seed)

    def name_of(self, number: int) -> str:
        """Model, the record it leaves out and its seed, in words."""
        turn, left_out = self.place(number)
        trained = "with all records" if left_out is None else f"without record {self.chosen[left_out]}"
        return f"model {turn} {trained} (seed {self.seed_of(number)})"

    def provenance(self) -> dict[str, Any]:
        """Everything but the number of repeats."""
        given = {"split": "leave one out", "chosen": self.chosen, "members": self.everyone, "records": self.asked}
        return summaries({**given, "kind": self.kind, "seed": self.seed, "labels": self.labels}, self.fingerprint)


def retrain_without(
    train: Train,
    chosen: Sequence[int],
    *,
    records: int,
    repeats: int,
    kind: str,
    labels: Any = None,
    members: Any = None,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    fingerprint: Mapping[str, Any] | None = None,
    code: str | None = None,
    workers: int = 1,
    backend: str = "loky",
    on_model: OnModel | None = None,
) -> LeaveOneOut:
    """Train `repeats` models on all records, and for each chosen record as many without it, from the same seeds.

    `train(indices, seed) -> predict` is that of `train_shadows`, without devices or population, and so are `workers`,
    `backend` and `code`. `members` (numbers of records) is the training set, all records unless given; it must hold
    the chosen ones. The models with the record are shared by all chosen records: repeats·(1 + chosen) trainings in
    all. With a `folder` each finished model is stored at once, a killed run goes on where it was, and more repeats
    train only the new models; `fingerprint` then names what the signals depend on.
    """
    check_choice("kind", kind, QUANTITIES)
    everyone = np.arange(records) if members is None else np.unique(_rows("members", members, records))
    which = _rows("chosen", chosen, records)
    if not len(which) or not np.isin(which, everyone).all():
        raise fail("chosen", "records of the training set", f"{len(which)} with others among them", "choose members")
    if len(np.unique(which)) < len(which):
        raise fail("chosen", "different records", f"{len(which) - len(np.unique(which))} repeated", "name each once")
    if repeats < 2:
        raise fail("repeats", "at least 2 models with and without", str(repeats), "one model shows only its own noise")
    if folder is not None and fingerprint is None:
        raise fail("fingerprint", "what the signals depend on beside folder", "none", "name the arrays of data")
    known = None if labels is None else np.asarray(labels)
    if (known is None and kind == "logits") or (known is not None and known.shape != (records,)):
        got = "none" if known is None else f"shape {known.shape}"
        raise fail("labels", f"{records} class indices", got, "logits need the label of every record")
    used = {**(fingerprint or {}), "code": source_of(train) if code is None else code}
    own = None if known is None else known[which]
    plan = RetrainPlan(which, everyone, records, repeats, kind, used, seed, own)
    one_by_one = one_model_at_a_time(train, plan, workers=workers, backend=backend)
    signals = collect_shadows(one_by_one, plan, folder=folder, on_model=on_model)
    if signals.queries > 1:
        raise fail("predict", "one query a record", str(signals.queries), "return one signal a record")
    by_round = signals.values[:, :, 0].reshape(repeats, 1 + len(which), len(which), *signals.values.shape[3:])
    places = np.arange(len(which))
    return leave_one_out(by_round[:, 0], by_round[:, 1 + places, places], kind=kind, labels=own, records=which)


def _rows(argument: str, value: Any, records: int) -> np.ndarray:
    rows = np.asarray(value)
    if rows.ndim != 1 or (rows.size and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= records)):
        expected, got = f"row numbers from 0 to {records - 1}", f"{rows.dtype} of shape {rows.shape}"
        raise fail(argument, expected, got, "name records by number; np.flatnonzero turns a mask into numbers")
    return rows.astype(np.int64)
