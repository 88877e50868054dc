"""A Head from arrays: in a file, in a folder of files, or in batches that are read again in each pass."""

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_shape, fail, listed, rows_at_a_time
from giveaway.extract.batches import RecordBatch
from giveaway.extract.reader import RecordReader
from giveaway.extract.user_files import read_stored
from giveaway.records.examples import as_records, infer_loss
from giveaway.records.head import Head
from giveaway.records.rows import LARGE_BYTES, LazyRows, LinearRows, Pair, Stream, as_float_rows, check_same_kind
from giveaway.records.witnesses import witnesses_in

CONTENTS = "the keys features, targets, and weight with bias, or outputs"


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
    optionally `ids`, `groups`, `sample_weight`, `l2`, `class_names` and `inputs`, the records themselves; and, as in
    `Head`, outputs on variants of the records, `relatives` or `relatives_NAME`, on records held out, `held_out_outputs`
    with `held_out_targets`, and `out_of_bag`. `outputs` and `targets` without `features` are of a black box. Files of
    `Head.save` hold their options as well. What is given here goes before what the file says. No pickle is ever read.

    A folder holds shards in name order, `*.npz` or `*.safetensors`, each with some rows of everything that has rows and
    one of them, or `head.npz` or `head.safetensors`, with `weight`, `bias` and `l2`; or it holds `features.npy` (or
    `features-*.npy` in name order), `targets.npy`, `weight.npy`, and so on. Features and outputs of 64 MB and more stay
    on disk and are read in windows, from a file as from a folder, unless they are compressed; outputs of that size that
    come from the weights are computed in windows.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "head.npz")
    >>> np.savez(path, features=np.eye(3), outputs=4 * np.eye(3), targets=np.arange(3), epoch=7)
    >>> from_file(path, l2=0.5)
    (Head(n=3, d=3, m=3, loss='cross_entropy', l2=0.5), ['ignored keys: epoch'])
    """
    file = Path(path)
    stored, ignored, notes = read_stored(file)
    if ignored:
        notes = [f"ignored keys: {listed(ignored)}", *notes]
    black_box = "features" not in stored and "outputs" in stored and not {"weight", "bias"} & stored.keys()
    if black_box:
        notes.append("no features: a black box, of which only outputs and inputs can be scored")
    needed = ("targets",) if black_box else ("features", "targets")
    lacking = [(key, f"add the array {key}") for key in needed if key not in stored]
    if not {"outputs", "weight"} & stored.keys():
        lacking.append(("outputs", "add outputs or weight"))
    for key, remedy in lacking:
        got = f"keys {listed(sorted([*stored, *ignored]))}" if stored or ignored else "no keys"
        raise fail(key, f"{CONTENTS} in {file.name}", got, remedy)
    saved, settings = "options" in stored, {}
    if saved:
        settings = _saved_options(file, str(stored.pop("options")))
    if "l2" in stored:
        number = as_tensor("l2", stored.pop("l2")).reshape(-1)
        check_shape("l2", number, (1,), "(1,), one penalty for the whole head")
        settings["l2"] = float(number)
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

    stored |= witnesses_in(stored)
    fields = stored | _layer(stored.get("weight"), stored.get("bias"))
    for name in [name for name in ("features", "outputs", "targets") if name in stored]:
        fields[name] = (as_tensor if name == "targets" else as_float_rows)(name, stored[name])
    if "outputs" not in fields:
        fields["outputs"] = linear_outputs(fields["features"], fields["weight"], fields["bias"])
    if "loss" not in settings:
        settings["loss"] = infer_loss(fields["targets"], fields["outputs"])
    if "inputs" in stored and not saved:
        fields["inputs"] = as_records(np.asarray(stored["inputs"]))
    return Head(**{"features": None} | fields | settings), notes


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

    >>> batches = [{"features": np.eye(3)[:2], "targets": [0, 1]}, {"features": np.eye(3)[2:], "targets": [2]}]
    >>> from_batches(batches, weight=np.eye(3), bias=np.zeros(3), l2=0.1)
    Head(n=3, d=3, m=3, loss='cross_entropy', l2=0.1)
    """
    if isinstance(batches, Iterator):
        remedy = "pass a list, a DataLoader or an object with __iter__"
        raise fail("batches", "something that can be read again", "an iterator, which ends after one pass", remedy)
    reader, like, known = _ArrayReader(batches, linear=weight is not None), None, defaultdict[str, list[Any]](list)
    for batch in reader.first_pass():
        like = like or _features_and_outputs(batch)
        rows = batch.keywords | {"targets": batch.targets}
        for name in rows.keys() - {"features", "outputs"}:
            known[name].append(rows[name])
            if name != "groups":
                check_same_kind(name, rows[name], known[name][0])
    assert like is not None
    name = hashlib.sha256(reader.fingerprints.digest().encode()).hexdigest()
    stream = Stream(lambda: map(_features_and_outputs, reader.later_pass()), reader.fingerprints.rows, like, name=name)
    features, streamed = stream.rows()
    outputs: LazyRows = streamed
    layer = _layer(weight, bias)
    if weight is not None:
        d = features.shape[1]
        check_shape("weight", layer["weight"], (None, d), f"(outputs, {d}), a column a feature")
        if outputs.shape[1] == 0:
            outputs = LinearRows(features, layer["weight"], layer["bias"])
    labels = torch.cat(known["targets"])
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
        sample_weight=torch.cat(known["sample_weight"]) if known["sample_weight"] else None,
        ids=reader.fingerprints.ids,  # type: ignore[arg-type]
        groups=np.concatenate(known["groups"]) if known["groups"] else None,
    )


class _ArrayReader(RecordReader):
    """Passes over batches of arrays, which a RecordBatch holds as keywords; empty batches are left out."""

    def __init__(self, given: Iterable[Any], *, linear: bool) -> None:
        self._given = given
        self._needed = ("features", "targets") if linear else ("features", "targets", "outputs")
        self._names: set[str] = set()

    def batches(self) -> Iterator[RecordBatch]:
        """Yield every batch with its arrays, each with as many rows."""
        numbers = ("features", "outputs", "sample_weight", "targets")
        for given in self._given:
            batch = given
            if isinstance(batch, tuple | list) and len(batch) in (2, 3):
                batch = dict(zip(("features", *("outputs",)[: len(batch) - 2], "targets"), batch, strict=True))
            if not isinstance(batch, Mapping):
                expected = "dicts, or tuples (features, targets) or (features, outputs, targets)"
                raise fail("batches", expected, f"a {type(batch).__name__}", "name the arrays of a batch in a dict")
            if lacking := [name for name in self._needed if name not in batch]:
                remedy = "add it" if lacking[0] != "outputs" else "add outputs, or pass weight="
                raise fail("batches", f"{lacking[0]} in every batch", "a batch without", remedy)
            arrays: dict[str, Any] = {name: as_tensor(name, batch[name]).cpu() for name in numbers if name in batch}
            arrays |= {name: np.asarray(batch[name]) for name in ("ids", "groups") if name in batch}
            rows = len(arrays["features"]) if arrays["features"].ndim else 0
            for name, value in arrays.items():
                if value.ndim == 0 or len(value) != rows:
                    got = f"shape {tuple(value.shape)} beside {rows} rows of features"
                    raise fail(name, "one row a record in every batch", got, "align the arrays of a batch")
            check_shape("features", arrays["features"], (None, None), "(records, features)")
            if not rows:
                continue
            self._names = self._names or set(arrays)
            if differing := sorted(self._names ^ set(arrays)):
                got = f"{differing[0]} in some only"
                raise fail("batches", "the same arrays in every batch", got, "give it in all or none")
            yield RecordBatch((), arrays, arrays.pop("targets"), arrays.pop("ids", None))


def _features_and_outputs(batch: RecordBatch) -> Pair:
    """Return both as floats; there are no columns of outputs where the weights give them."""
    x: Any = as_float_rows("features", batch.keywords["features"])
    f: Any = as_float_rows("outputs", batch.keywords.get("outputs", torch.empty(len(x), 0, dtype=torch.float64)))
    return x, f


def _layer(weight: Any, bias: Any) -> dict[str, Any]:
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
    lazy, size = LinearRows(features, weight, bias), rows_at_a_time(features)
    if lazy.nbytes >= LARGE_BYTES:
        return lazy
    blocks = (features[start : start + size].to(torch.float64) for start in range(0, len(features), size))
    outputs = torch.cat([block @ weight.to(torch.float64).T for block in blocks])
    return outputs if bias is None else outputs.add_(bias.to(torch.float64))


def _saved_options(file: Path, text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
        required = {name: options[name] for name in ("loss", "l2", "intercept", "penalize_intercept")}
        return required | {name: options[name] for name in ("frozen", "model", "class_names") if name in options}
    except (ValueError, TypeError, KeyError) as error:
        raise fail("options", f"what Head.save writes in {file.name}", "another text", "save the head again") from error
