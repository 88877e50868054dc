"""The targets of a head: which loss they tell, and one form for each loss."""

from __future__ import annotations

from typing import Any

import torch

from giveaway.checks import InputError, as_tensor, check_finite, check_shape, fail
from giveaway.records.lazy_rows import LazyRows


def infer_loss(targets: Any, outputs: Any) -> str:
    """The loss that `loss="auto"` stands for, from the targets' type; ambiguous targets are refused."""
    y, f = as_tensor("targets", targets), outputs if isinstance(outputs, LazyRows) else as_tensor("outputs", outputs)
    width = f.shape[1] if f.ndim == 2 else 1
    column = y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y
    whole = not column.is_floating_point()
    if column.ndim == 1 and whole and (width > 1 or bool(((column == 0) | (column == 1)).all())):
        return "cross_entropy"
    if column.ndim == 2 and width == column.shape[1]:
        rows = column.to(torch.float64)
        inside = bool(((rows >= 0) & (rows <= 1)).all())
        if inside and bool(torch.allclose(rows.sum(1), torch.ones(len(rows), dtype=torch.float64), atol=1e-4)):
            return "cross_entropy"
    if not whole and not bool(((column == 0) | (column == 1)).all()):
        if column.ndim == 1 and width > 1:
            raise _float_labels(column)
        return "squared"
    kind = f"{str(y.dtype).removeprefix('torch.')} targets of shape {tuple(y.shape)} with {width} outputs"
    raise fail(
        "loss",
        "targets that tell the loss (integer labels, float values, or rows of probabilities)",
        kind,
        "say which: loss='squared', 'cross_entropy' or 'binary_cross_entropy'",
    )


def check_targets(y: torch.Tensor, outputs: torch.Tensor | LazyRows, loss: str) -> torch.Tensor:
    """Targets in one form a loss: class indices (n,) int64, or floats (n, m)."""
    n, m = outputs.shape
    if y.ndim == 0 or len(y) != n:
        raise fail("targets", f"{n} rows, one a record", f"shape {tuple(y.shape)}", "align them with the features")
    check_finite("targets", y)
    if loss == "squared":
        y = y.unsqueeze(1) if y.ndim == 1 else y
        check_shape("targets", y, (n, m), f"({n}, {m}), one value an output")
        return y.to(torch.float64)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if loss == "binary_cross_entropy":
        y = y.unsqueeze(1) if y.ndim == 1 else y
        check_shape("targets", y, (n, m), f"({n}, {m}), one 0/1 label an output")
        y = _check_probabilities(y)
        if m == 1:
            _check_two_classes(y)
        return y
    if y.ndim == 2:
        if m == 1:
            raise fail("targets", "0/1 labels (n,) for one logit", f"shape {tuple(y.shape)}", "pass class indices")
        check_shape("targets", y, (n, m), f"({n},) class indices or ({n}, {m}) probabilities")
        y = _check_probabilities(y)
        worst = float((y.sum(1) - 1).abs().max())
        if worst > 1e-4:
            raise fail("targets", "probability rows that sum to 1", f"a row off by {worst:.3g}", "normalize them")
        _check_two_classes(y)
        return y / y.sum(1, keepdim=True)
    if y.is_floating_point() and (m > 1 or bool((y != y.round()).any())):
        raise _float_labels(y)
    y = y.to(torch.int64)
    classes = max(m, 2)
    if int(y.min()) < 0 or int(y.max()) >= classes:
        bad = int(((y < 0) | (y >= classes)).nonzero()[0])
        raise fail(
            "targets",
            f"class labels from 0 to {classes - 1}",
            f"another label in row {bad}",
            "number the classes from 0 in the order of the outputs",
        )
    _check_two_classes(y)
    return y


def _check_two_classes(y: torch.Tensor) -> None:
    """Refuse certain labels that are all the same."""
    if bool((y == y[0]).all()) and bool((y[0] == y[0].round()).all()):
        raise fail("targets", "at least two classes", "one class only", "pass the whole training set")


def _float_labels(y: torch.Tensor) -> InputError:
    kind = str(y.dtype).removeprefix("torch.")
    return fail("targets", "integer class labels", f"{kind} labels", "cast them to int, or set loss='squared'")


def _check_probabilities(y: torch.Tensor) -> torch.Tensor:
    y = y.to(torch.float64)
    if bool(((y < 0) | (y > 1)).any()):
        bad = int(((y < 0) | (y > 1)).any(dim=1).nonzero()[0])
        raise fail("targets", "labels between 0 and 1", f"another value in row {bad}", "pass 0/1 or probabilities")
    return y
