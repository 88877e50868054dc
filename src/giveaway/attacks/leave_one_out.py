"""What training with a record changes: models trained with it against models trained without it, all else equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import rankdata

from giveaway.checks import check_choice, fail

QUANTITIES = ("logits", "phi", "squared_error")


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """What training with a record changed, one entry a record; high = the record gives itself away.

    loss_gap : mean loss without − mean loss with the record.
    memorization : share of right predictions with the record − without it (Feldman's memorization); None for squared
        errors, where no prediction is right or wrong.
    auc : chance that a model with the record has a lower loss than one without it; ties count half.
    """

    records: np.ndarray
    loss_gap: np.ndarray
    memorization: np.ndarray | None
    auc: np.ndarray


def leave_one_out(with_record: Any, without: Any, *, kind: str, labels: Any = None, records: Any = None) -> LeaveOneOut:
    """Compare signals (k, R) of k models with each of R records and (l, R) of l models without it.

    `kind`: "logits" (k, R, classes; `labels` (R,) needed), "phi" or "squared_error", as in Signals. From φ the loss is
    log(1 + e^−φ) and a prediction counts as right where φ > 0: with more than two classes a right prediction can have
    a negative φ, which logits avoid.

    >>> leave_one_out([[2.0], [3.0]], [[-1.0], [2.5]], kind="phi").auc
    array([0.75])
    """
    check_choice("kind", kind, QUANTITIES)
    inside, outside = (
        _checked(name, array, kind) for name, array in (("with_record", with_record), ("without", without))
    )
    if inside.shape[1:] != outside.shape[1:]:
        raise fail(
            "without",
            f"shape (models, {str(inside.shape[1:])[1:-1].rstrip(',')})",
            f"shape {outside.shape}",
            "use the same records",
        )
    count = inside.shape[1]
    known = None if labels is None else np.asarray(labels)
    if kind == "logits" and (known is None or known.shape != (count,)):
        raise fail("labels", f"{count} class indices", "none or others", "logits need the label of every record")
    loss_in, right_in = _loss_and_right(inside, kind, known)
    loss_out, right_out = _loss_and_right(outside, kind, known)
    return LeaveOneOut(
        records=np.arange(count) if records is None else np.asarray(records),
        loss_gap=loss_out.mean(axis=0) - loss_in.mean(axis=0),
        memorization=None if right_in is None or right_out is None else right_in.mean(0) - right_out.mean(0),
        auc=np.array([_auc(-loss_in[:, r], -loss_out[:, r]) for r in range(count)]),
    )


def _checked(argument: str, array: Any, kind: str) -> np.ndarray:
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


def _auc(inside: np.ndarray, outside: np.ndarray) -> float:
    ranks = rankdata(np.concatenate([inside, outside]))[: len(inside)]
    return float((ranks.sum() - len(inside) * (len(inside) + 1) / 2) / (len(inside) * len(outside)))
