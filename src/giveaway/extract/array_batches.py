"""from_batches: a Head from arrays that come in batches, read again in each pass and never held as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_shape, fail
from giveaway.extract.batches import Batch
from giveaway.extract.row_identity import RowTrail
from giveaway.extract.rows import Rows, check_alike
from giveaway.records.head import Head
from giveaway.records.lazy_rows import LazyRows, LinearRows
from giveaway.records.streamed_rows import Stream
from giveaway.records.targets import infer_loss

NAMES = ("ids", "groups")
Parts = dict[str, Any]


def from_batches(
    batches: Iterable[Any],
    *,
    weight: Any = None,
    bias: Any = None,
    loss: str = "auto",
    l2: float = 0.0,
    intercept: bool | None = None,
    penalize_intercept: bool = True,
    frozen: bool = False,
) -> Head:
    """The Head of arrays in batches of any sizes, which every pass of an audit reads again from the start.

    `batches` is a list, a DataLoader, or anything that can be iterated over again and again with the same rows in the
    same order, which is checked. A batch is a dict with `features`, `targets`, `outputs` unless `weight` is given, and
    `ids`, `groups` and `sample_weight` if there are any; or a tuple (features, targets), (features, outputs, targets).
    One pass is made here, for what is held: all but features and outputs. Other arguments are as in `Head`; there is an
    intercept unless weight is given without bias.

    Examples
    --------
    >>> batches = [{"features": np.eye(3)[:2], "targets": [0, 1]}, {"features": np.eye(3)[2:], "targets": [2]}]
    >>> from_batches(batches, weight=np.eye(3), bias=np.zeros(3), l2=0.1)
    Head(n=3, d=3, m=3, loss='cross_entropy', l2=0.1)
    """
    if isinstance(batches, Iterator):
        remedy = "pass a list, a DataLoader or an object with __iter__"
        raise fail("batches", "something that can be read again", "an iterator, which ends after one pass", remedy)
    trail, kept, like = RowTrail(None), {name: Rows(name, None) for name in ("targets", "sample_weight")}, None
    names: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
    present: set[str] | None = None
    for parts in _taken_apart(batches, weight is not None):
        present = set(parts) if present is None else present
        if present != set(parts):
            (lost, *_) = sorted(present ^ set(parts))
            raise fail("batches", "the same arrays in every batch", f"{lost} in some only", "give it in all or none")
        trail.add(_for_the_trail(parts))
        like = _no_rows(_pair(parts)) if like is None else like
        for name in set(kept) & present:
            kept[name].add(parts[name])
        for name in set(names) & present:
            names[name].append(parts[name])
    trail.check_complete()
    assert present is not None
    assert like is not None
    stream = _stream(batches, trail, like, weight is not None)
    features, outputs = stream.rows()
    theta: Parts = {}
    said: LazyRows = outputs
    if weight is not None:
        theta["weight"] = as_tensor("weight", weight)
        if theta["weight"].ndim == 1:
            theta["weight"] = theta["weight"].unsqueeze(0)
        theta["bias"] = None if bias is None else as_tensor("bias", bias).reshape(-1)
        d = features.shape[1]
        check_shape("weight", theta["weight"], (None, d), f"(outputs, {d}), a column a feature")
        said = outputs if "outputs" in present else LinearRows(features, theta["weight"], theta["bias"])
    elif bias is not None:
        raise fail("bias", "weight together with bias", "bias alone", "pass weight= as well")
    targets = kept["targets"].joined()
    return Head(
        features=features,
        outputs=said,
        targets=targets,
        loss=infer_loss(targets, said) if loss == "auto" else loss,
        l2=l2,
        intercept=(weight is None or bias is not None) if intercept is None else intercept,
        penalize_intercept=penalize_intercept,
        frozen=frozen,
        **theta,
        sample_weight=kept["sample_weight"].joined() if "sample_weight" in present else None,
        ids=np.concatenate(names["ids"]) if names["ids"] else None,  # type: ignore[arg-type]
        groups=np.concatenate(names["groups"]) if names["groups"] else None,
    )


def _stream(batches: Iterable[Any], trail: RowTrail, like: tuple[torch.Tensor, torch.Tensor], linear: bool) -> Stream:
    def begin() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        at = 0
        for parts in _taken_apart(batches, linear):
            trail.check_continued_by(_for_the_trail(parts), at)
            at += len(parts["targets"])
            pair = _pair(parts)
            for name, block, first in zip(("features", "outputs"), pair, like, strict=True):
                check_alike(name, block, first)
            yield pair

    return Stream(begin, trail.rows, like, name=hashlib.sha256(trail.digest().encode()).hexdigest())


def _taken_apart(batches: Iterable[Any], linear: bool) -> Iterator[Parts]:
    """Every batch as named arrays with as many rows each."""
    for batch in batches:
        if isinstance(batch, Mapping):
            given = dict(batch)
        elif isinstance(batch, tuple | list) and len(batch) in (2, 3):
            keys = ("features", "targets") if len(batch) == 2 else ("features", "outputs", "targets")
            given = dict(zip(keys, batch, strict=True))
        else:
            expected = "dicts, or tuples (features, targets) or (features, outputs, targets)"
            raise fail("batches", expected, f"a {type(batch).__name__}", "name the arrays of a batch in a dict")
        for name in ("features", "targets", *(() if linear else ("outputs",))):
            if name not in given:
                remedy = "add it" if name != "outputs" else "add outputs, or pass weight="
                raise fail("batches", f"{name} in every batch", "a batch without", remedy)
        wanted = ("features", "outputs", "targets", "sample_weight")
        parts: Parts = {name: as_tensor(name, given[name]).cpu() for name in wanted if name in given}
        parts |= {name: np.asarray(given[name]) for name in NAMES if name in given}
        rows = len(parts["features"]) if parts["features"].ndim else 0
        for name, value in parts.items():
            if value.ndim == 0 or len(value) != rows:
                got = f"shape {tuple(value.shape)} beside {rows} rows of features"
                raise fail(name, "one row a record in every batch", got, "align the arrays of a batch")
        check_shape("features", parts["features"], (None, None), "(records, features)")
        if rows:
            yield parts


def _pair(parts: Parts) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and outputs as floats; no columns of outputs where the weights give them."""
    x = parts["features"]
    f = parts.get("outputs", torch.empty(len(x), 0, dtype=torch.float64))
    f = f.unsqueeze(1) if f.ndim == 1 else f
    x, f = (value if value.is_floating_point() else value.to(torch.float64) for value in (x, f))
    return x, f


def _no_rows(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the rows are like, without any of them."""
    return pair[0][:0].clone(), pair[1][:0].clone()


def _for_the_trail(parts: Parts) -> Batch:
    told = {name: value for name, value in parts.items() if name not in ("targets", "ids")}
    ids = parts.get("ids")
    return Batch((), told, parts["targets"], ids)
