"""Leave-one-out retraining: models trained with a record against models trained without it, all else equal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import rankdata

from giveaway.attacks.shadow import OnModel, Train, collect_shadows, one_model_at_a_time, source_of
from giveaway.attacks.shadow_store import ShadowPlan, model_seed, summaries
from giveaway.checks import check_choice, fail

QUANTITIES = ("logits", "phi", "squared_error")


@dataclass(frozen=True, eq=False)
class RetrainedRecords:
    """What training with a record changed, one entry for each record; high = the record gives itself away.

    loss_gap : mean loss without − mean loss with the record.
    memorization : share of right predictions with the record − without it (Feldman's memorization); None for squared
        errors, where no prediction is right or wrong.
    auc : chance that a model with the record has a lower loss than one without it; ties count half.
    """

    records: np.ndarray
    loss_gap: np.ndarray
    memorization: np.ndarray | None
    auc: np.ndarray


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
) -> RetrainedRecords:
    """Train `repeats` models on all records, and for each chosen record as many without it, from the same seeds.

    `train(indices, seed) -> predict` is that of `train_shadows`, without devices or population, and so are `workers`,
    `backend` and `code`. `members` (numbers of records) is the training set, all records unless given; it must hold
    the chosen ones. The models with the record are shared by all chosen records: repeats·(1 + chosen) trainings in
    all. With a `folder` each finished model is stored at once, a killed run goes on where it was, and more repeats
    train only the new models; `fingerprint` then names what the signals depend on.
    """
    check_choice("kind", kind, QUANTITIES)
    everyone = np.arange(records) if members is None else np.unique(_row_numbers("members", members, records))
    which = _row_numbers("chosen", chosen, records)
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
    count = len(which)
    about = {"chosen": which, "everyone": everyone, "all_rows": records}
    plan = LeaveOneOutPlan(count, repeats * (1 + count), kind, used, seed, own, **about)  # type: ignore[arg-type]
    one_by_one = one_model_at_a_time(train, plan, workers=workers, backend=backend)
    signals = collect_shadows(one_by_one, plan, folder=folder, on_model=on_model)
    if signals.queries > 1:
        raise fail("predict", "one query a record", str(signals.queries), "return one signal a record")
    by_round = signals.values[:, :, 0].reshape(repeats, 1 + count, count, *signals.values.shape[3:])
    places = np.arange(count)
    return leave_one_out(by_round[:, 0], by_round[:, 1 + places, places], kind=kind, labels=own, records=which)


def leave_one_out(
    with_record: Any, without: Any, *, kind: str, labels: Any = None, records: Any = None
) -> RetrainedRecords:
    """Compare signals (k, R) of k models with each of R records and (l, R) of l models without it, all else equal.

    `kind`: "logits" (k, R, classes; `labels` (R,) needed), "phi" or "squared_error", as in Signals. From φ the loss is
    log(1 + e^−φ) and a prediction counts as right where φ > 0: with more than two classes a right prediction can have
    a negative φ, which logits avoid.

    >>> leave_one_out([[2.0], [3.0]], [[-1.0], [2.5]], kind="phi").auc
    array([0.75])
    """
    check_choice("kind", kind, QUANTITIES)
    inside, outside = _model_signals("with_record", with_record, kind), _model_signals("without", without, kind)
    if inside.shape[1:] != outside.shape[1:]:
        expected = f"shape (models, {str(inside.shape[1:])[1:-1].rstrip(',')})"
        raise fail("without", expected, f"shape {outside.shape}", "use the same records")
    k, count = inside.shape[:2]
    known = None if labels is None else np.asarray(labels)
    if kind == "logits" and (known is None or known.shape != (count,)):
        raise fail("labels", f"{count} class indices", "none or others", "logits need the label of every record")
    (loss_in, right_in), (loss_out, right_out) = (_loss_and_right(side, kind, known) for side in (inside, outside))
    ranks = rankdata(np.concatenate([-loss_in, -loss_out]), axis=0)[:k]
    return RetrainedRecords(
        records=np.arange(count) if records is None else np.asarray(records),
        loss_gap=loss_out.mean(axis=0) - loss_in.mean(axis=0),
        memorization=None if right_in is None or right_out is None else right_in.mean(0) - right_out.mean(0),
        auc=(ranks.sum(axis=0) - k * (k + 1) / 2) / (k * len(outside)),
    )


def _model_signals(argument: str, array: Any, kind: str) -> np.ndarray:
    values = np.asarray(array, dtype=np.float64)
    if values.ndim != (3 if kind == "logits" else 2) or 0 in values.shape:
        shape = "(models, records, classes)" if kind == "logits" else "(models, records)"
        raise fail(argument, f"shape {shape}", f"shape {values.shape}", f"kind is {kind!r}")
    if not np.isfinite(values).all():
        raise fail(argument, "finite numbers", "NaN or infinity", "drop or repair that model")
    return values


def _loss_and_right(values: np.ndarray, kind: str, labels: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    if kind == "squared_error":
        return values, None
    if kind == "phi":
        return np.logaddexp(0.0, -values), values > 0
    assert labels is not None
    own = np.take_along_axis(values, labels[None, :, None], axis=2)[..., 0]
    return logsumexp(values, axis=2) - own, values.argmax(axis=2) == labels


def _row_numbers(argument: str, value: Any, records: int) -> np.ndarray:
    rows = np.asarray(value)
    if rows.ndim != 1 or (rows.size and (rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= records)):
        expected, got = f"row numbers from 0 to {records - 1}", f"{rows.dtype} of shape {rows.shape}"
        raise fail(argument, expected, got, "name records by number; np.flatnonzero turns a mask into numbers")
    return rows.astype(np.int64)


@dataclass(frozen=True, eq=False)
class LeaveOneOutPlan(ShadowPlan):
    """Rounds of models from one seed each: the first is trained on everyone, then one without each chosen record.

    The models predict all rows, and what they say of the chosen records is stored. The rounds follow each other, so
    that more of them leave the earlier models as they were.
    """

    chosen: np.ndarray = field(kw_only=True)
    everyone: np.ndarray = field(kw_only=True)
    all_rows: int = field(kw_only=True)

    def __post_init__(self) -> None:
        """Check nothing: `retrain_without` did."""

    @property
    def rows_predicted(self) -> int:
        return self.all_rows

    @property
    def rows_stored(self) -> np.ndarray:
        return self.chosen

    def place(self, number: int) -> tuple[int, int | None]:
        """Return the round of a model, and the place among the chosen of the record that it leaves out."""
        turn, slot = divmod(number, 1 + self.records)
        return turn, slot - 1 if slot else None

    def members(self, number: int) -> np.ndarray:
        return np.arange(self.records) != self.place(number)[1]

    def indices(self, number: int) -> np.ndarray:
        left_out = self.place(number)[1]
        return self.everyone if left_out is None else self.everyone[self.everyone != self.chosen[left_out]]

    def seed_of(self, number: int) -> int:
        return model_seed(self.place(number)[0], seed=self.seed)

    def name_of(self, number: int) -> str:
        turn, left_out = self.place(number)
        trained = "with all records" if left_out is None else f"without record {self.chosen[left_out]}"
        return f"model {turn} {trained} (seed {self.seed_of(number)})"

    def provenance(self) -> dict[str, Any]:
        given: dict[str, Any] = {"split": "leave one out", "chosen": self.chosen, "members": self.everyone}
        given |= {"records": self.all_rows, "kind": self.kind, "seed": self.seed, "labels": self.labels}
        return summaries(given, self.fingerprint)
