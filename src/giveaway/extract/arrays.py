"""A Head from arrays: in a file, in a folder of files, or in batches that are read again in each pass."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_shape, fail, rows_at_a_time
from giveaway.extract.batches import RecordBatch, RowBuffer, check_same_kind
from giveaway.extract.reader import RowFingerprints
from giveaway.extract.stored_arrays import COMPRESSED, read_folder, read_stored
from giveaway.records.examples import as_records, infer_loss
from giveaway.records.head import Head
from giveaway.records.rows import LARGE_BYTES, LazyRows, LinearRows, Stream, as_float_rows

ARRAYS = ("features", "outputs", "targets", "weight", "bias", "sample_weight", "ids", "groups", "inputs")
SETTINGS = ("l2", "options")
CONTENTS = "the keys features, targets, and weight with bias, or outputs"
Pair = tuple[torch.Tensor, torch.Tensor]


def from_file(
    path: str | os.PathLike[str],
    *,
    loss: str = "auto",
    l2: float | None = None,
    intercept: bool | None = None,
    penalize_intercept: bool | None = None,
    frozen: bool | None = None,
) -> tuple[Head, list[str]]:
    """Return the Head stored in `path`, and notes on what was ignored, overridden or assumed.

    The file holds `features` (n, d), `targets`, and `weight` (m, d) with `bias` (m), or `outputs` (n, m), or both;
    optionally `ids`, `groups`, `sample_weight`, `l2` and `inputs`, the records themselves. `outputs` and `targets`
    without `features` are those of a black box. Files of `Head.save` hold their options as well. What is given here
    goes before what the file says. No pickle is ever read.

    A folder holds shards in name order, `*.npz` or `*.safetensors`, each with some rows of everything that has rows and
    one of them, or `head.npz` or `head.safetensors`, with `weight`, `bias` and `l2`; or it holds `features.npy` (or
    `features-*.npy` in name order), `targets.npy`, `weight.npy`, and so on. Features and outputs of 64 MB and more stay
    on disk and are read in windows, from a file as from a folder, unless they are compressed; outputs of that size that
    come from the weights are computed in windows.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "head.npz")
    >>> np.savez(path, features=np.eye(3), outputs=np.eye(3), targets=np.arange(3), epoch=7)
    >>> from_file(path, l2=0.5)
    (Head(n=3, d=3, m=3, loss='cross_entropy', l2=0.5), ['ignored keys: epoch'])
    """
    file = Path(path)
    stored, ignored, remarks = read_folder(file) if file.is_dir() else _read_file(file)
    notes = [f"ignored keys: {_listed(ignored)}", *remarks] if ignored else remarks
    black_box = "features" not in stored and "outputs" in stored and not {"weight", "bias"} & stored.keys()
    if black_box:
        notes.append("no features: a black box, of which only outputs and inputs can be scored")
    needed = ("targets",) if black_box else ("features", "targets")
    lacking = [(key, f"add the array {key}") for key in needed if key not in stored]
    if not {"outputs", "weight"} & stored.keys():
        lacking.append(("outputs", "add outputs or weight"))
    for key, remedy in lacking:
        got = f"keys {_listed(sorted([*stored, *ignored]))}" if stored or ignored else "no keys"
        raise fail(key, f"{CONTENTS} in {file.name}", got, remedy)
    saved = "options" in stored
    settings = _saved_options(file, stored.pop("options", None))
    if "l2" in stored:
        settings["l2"] = _single_number("l2", stored.pop("l2"))
    given: dict[str, Any] = {"l2": l2, "intercept": intercept, "penalize_intercept": penalize_intercept}
    given |= {"frozen": frozen, "loss": None if loss == "auto" else loss}
    for name, value in given.items():
        if value is not None:
            if name in settings and settings[name] != value:
                notes.append(f"{name}={value} as given, not the {settings[name]} of the file")
            settings[name] = value
    if black_box:
        settings["intercept"] = False
    if "intercept" not in settings:
        settings["intercept"] = "bias" in stored or "weight" not in stored
        if not settings["intercept"]:
            notes.append("no bias in the file: the head is taken to have no intercept")

    arrays: dict[str, Any] = {}
    for name in [name for name in ("features", "outputs", "targets") if name in stored]:
        arrays[name] = (as_tensor if name == "targets" else as_float_rows)(name, stored[name])
    arrays |= _layer(stored.get("weight"), stored.get("bias"))
    if "outputs" not in arrays:
        arrays["outputs"] = linear_outputs(arrays["features"], arrays["weight"], arrays["bias"])
    if "loss" not in settings:
        settings["loss"] = infer_loss(arrays["targets"], arrays["outputs"])
    others = {name: stored[name] for name in ("sample_weight", "ids", "groups", "inputs") if name in stored}
    if "inputs" in others and not saved:
        others["inputs"] = as_records(np.asarray(others["inputs"]))
    return Head(**{"features": None} | arrays, **others, **settings), notes


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
    """Return the Head of arrays in batches of any sizes, which every pass of an audit reads again from the start.

    `batches` is a list, a DataLoader, or anything that can be iterated over again and again with the same rows in the
    same order, which is checked. A batch is a dict with `features`, `targets`, `outputs` unless `weight` is given, and
    `ids`, `groups` and `sample_weight` if there are any; or a tuple (features, targets), (features, outputs, targets).
    One pass is made here, for all that stays in memory: everything but features and outputs. Other arguments are as in
    `Head`; there is an intercept unless weight is given without bias.

    Examples
    --------
    >>> batches = [{"features": np.eye(3)[:2], "targets": [0, 1]}, {"features": np.eye(3)[2:], "targets": [2]}]
    >>> from_batches(batches, weight=np.eye(3), bias=np.zeros(3), l2=0.1)
    Head(n=3, d=3, m=3, loss='cross_entropy', l2=0.1)
    """
    if isinstance(batches, Iterator):
        remedy = "pass a list, a DataLoader or an object with __iter__"
        raise fail("batches", "something that can be read again", "an iterator, which ends after one pass", remedy)
    if weight is None and bias is not None:
        raise fail("bias", "weight together with bias", "bias alone", "pass weight= as well")
    layer, fingerprints = _layer(weight, bias), RowFingerprints(None)
    targets, weights, groups = RowBuffer("targets", None), RowBuffer("sample_weight", None), list[np.ndarray]()
    names: set[str] = set()
    for batch in _array_batches(batches, linear=weight is not None):
        names = names or _array_names(batch)
        if differing := sorted(names ^ _array_names(batch)):
            got = f"{differing[0]} in some only"
            raise fail("batches", "the same arrays in every batch", got, "give it in all or none")
        if fingerprints.rows == 0:
            x, f = _features_and_outputs(batch)
            like = (x[:0].clone(), f[:0].clone())
        fingerprints.add(batch)
        targets.add(batch.targets)
        if "sample_weight" in names:
            weights.add(batch.keywords["sample_weight"])
        if "groups" in names:
            groups.append(batch.keywords["groups"])
    fingerprints.check_complete()

    def begin() -> Iterator[Pair]:
        start = 0
        for batch in _array_batches(batches, linear=weight is not None):
            fingerprints.check_continued_by(batch, start)
            start += batch.rows
            pair = _features_and_outputs(batch)
            for name, block, first in zip(("features", "outputs"), pair, like, strict=True):
                check_same_kind(name, block, first)
            yield pair

    stream = Stream(begin, fingerprints.rows, like, name=hashlib.sha256(fingerprints.digest().encode()).hexdigest())
    features, streamed = stream.rows()
    outputs: LazyRows = streamed
    if weight is not None:
        d = features.shape[1]
        check_shape("weight", layer["weight"], (None, d), f"(outputs, {d}), a column a feature")
        if "outputs" not in names:
            outputs = LinearRows(features, layer["weight"], layer["bias"])
    labels = targets.joined()
    return Head(
        features=features,
        outputs=outputs,
        targets=labels,
        loss=infer_loss(labels, outputs) if loss == "auto" else loss,
        l2=l2,
        intercept=(weight is None or bias is not None) if intercept is None else intercept,
        penalize_intercept=penalize_intercept,
        frozen=frozen,
        **layer,
        sample_weight=weights.joined() if "sample_weight" in names else None,
        ids=fingerprints.ids,  # type: ignore[arg-type]
        groups=np.concatenate(groups) if groups else None,
    )


def _array_batches(batches: Iterable[Any], *, linear: bool) -> Iterator[RecordBatch]:
    """Yield every batch with its arrays as keywords, each with as many rows; empty batches are left out."""
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
        numbers = ("features", "outputs", "sample_weight", "targets")
        arrays: dict[str, Any] = {name: as_tensor(name, given[name]).cpu() for name in numbers if name in given}
        arrays |= {name: np.asarray(given[name]) for name in ("ids", "groups") if name in given}
        rows = len(arrays["features"]) if arrays["features"].ndim else 0
        for name, value in arrays.items():
            if value.ndim == 0 or len(value) != rows:
                got = f"shape {tuple(value.shape)} beside {rows} rows of features"
                raise fail(name, "one row a record in every batch", got, "align the arrays of a batch")
        check_shape("features", arrays["features"], (None, None), "(records, features)")
        if rows:
            targets, ids = arrays.pop("targets"), arrays.pop("ids", None)
            yield RecordBatch((), arrays, targets, ids)


def _array_names(batch: RecordBatch) -> set[str]:
    return {*batch.keywords, *(() if batch.ids is None else ("ids",))}


def _features_and_outputs(batch: RecordBatch) -> Pair:
    """Return both as floats; there are no columns of outputs where the weights give them."""
    x = batch.keywords["features"]
    f = batch.keywords.get("outputs", torch.empty(len(x), 0, dtype=torch.float64))
    f = f.unsqueeze(1) if f.ndim == 1 else f
    x, f = (value if value.is_floating_point() else value.to(torch.float64) for value in (x, f))
    return x, f


def _layer(weight: Any, bias: Any) -> dict[str, Any]:
    """Return the weight as (m, d) and the bias as (m,), where they are given."""
    matrix = None if weight is None else as_tensor("weight", weight)
    if matrix is not None and matrix.ndim == 1:
        matrix = matrix.unsqueeze(0)
    return {"weight": matrix, "bias": None if bias is None else as_tensor("bias", bias).reshape(-1)}


def linear_outputs(
    features: torch.Tensor | LazyRows, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | LinearRows:
    """Return features @ weight.T + bias in float64, (n, m); large outputs are computed only as they are read."""
    check_shape("features", features, (None, None), "(records, features)")
    check_shape("weight", weight, (None, features.shape[1]), f"(outputs, {features.shape[1]}), a column a feature")
    if bias is not None:
        check_shape("bias", bias, (len(weight),), f"({len(weight)},), one number an output")
    lazy = LinearRows(features, weight, bias)
    if lazy.nbytes >= LARGE_BYTES:
        return lazy
    outputs = torch.empty(lazy.shape, dtype=torch.float64)
    theta, size = weight.to(torch.float64).T, rows_at_a_time(features)
    for start in range(0, len(features), size):
        block = slice(start, start + size)
        torch.matmul(features[block].to(torch.float64), theta, out=outputs[block])
    if bias is not None:
        outputs += bias.to(torch.float64)
    return outputs


def _read_file(file: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the known arrays of a file, the names of the others, which are not read, and notes."""
    if file.suffix not in (".npz", ".safetensors"):
        raise fail("file", "an .npz or .safetensors file", file.name, "save the arrays with numpy.savez")
    stored, ignored = read_stored("file", file, lambda name: name in ARRAYS + SETTINGS, LARGE_BYTES)
    notes = [COMPRESSED.format(name) for name in ("features", "outputs") if name in stored and stored[name].compressed]
    return {name: array.rows(name) for name, array in stored.items()}, ignored, notes


def _listed(keys: list[str]) -> str:
    return ", ".join(keys[:12]) + (", …" if len(keys) > 12 else "")


def _saved_options(file: Path, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        options = json.loads(str(value))
        required = {name: options[name] for name in ("loss", "l2", "intercept", "penalize_intercept")}
        return required | {"frozen": options.get("frozen", False)}
    except (ValueError, TypeError, KeyError) as error:
        raise fail("options", f"what Head.save writes in {file.name}", "another text", "save the head again") from error


def _single_number(argument: str, value: Any) -> float:
    number = as_tensor(argument, value)
    if number.numel() != 1:
        raise fail(argument, "one number", f"shape {tuple(number.shape)}", "one penalty holds for the whole head")
    return float(number)
