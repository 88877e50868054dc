"""What a user names: functions of their own, a head and arrays in files and in folders of files, and estimators.

Arrays of .npy, .npz and .safetensors files that are large are mapped where they lie. No pickle is read.
"""

import csv
import importlib
import inspect
import json
import math
import os
import sys
import zipfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.checks import InputError, as_tensor, check_names, check_shape, fail, listed, nearest
from giveaway.records import Head, Signals
from giveaway.records.examples import as_records, infer_loss
from giveaway.records.rows import BFLOAT16, LARGE_BYTES, FileRows, as_float_rows, linear_outputs, row_kind, widened
from giveaway.records.signals import KINDS as SIGNALS
from giveaway.records.witnesses import HELD_OUT, is_relatives, witnesses_in
from giveaway.storage.arrays import PLAIN, npy_header, read_member, reading

CONTENTS = "the keys features, targets, and weight with bias, or outputs"
TRUST = "trust it with --allow-pickle (it can run any code)"
SAFETENSORS: dict[str, Any] = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": BFLOAT16, "BOOL": "?", "U8": "u1", "I8": "i1",
    "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U64": "<u8",
}  # fmt: skip
IN_MEMORY = ("targets", "sample_weight", "ids", "groups", "out_of_bag")
ROWS = ("features", "outputs", *IN_MEMORY)  # and relatives under their names
ONCE = ("weight", "bias", "l2", "class_names", *HELD_OUT)
KINDS = (".npy", ".npz", ".safetensors")
HEAD = "head"  # the name of the file that may hold weight, bias and l2 beside the shards
MOST_SUBGROUPS = 200  # a column with more values does not name subgroups
PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib")
# Plain holders of numbers, unknown to skops: inside every MLP trained with adam or sgd, and inside encoders.
TRUSTED_TYPES = [f"sklearn.neural_network._stochastic_optimizers.{name}Optimizer" for name in ("Adam", "SGD")]
TRUSTED_TYPES += ["numpy.dtype"]


def needs_pickle(argument: str, expected: str, file: Path, remedy: str) -> InputError:
    return fail(argument, expected, f"{file.name}, which needs pickle", f"{remedy}, or {TRUST}")


def call_factory(argument: str, reference: str) -> Any:
    """Import `module:function` and call it without arguments."""
    function = named_function(argument, reference)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins do not tell
        parameters = []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if needed := sum(p.default is p.empty and p.kind not in optional for p in parameters):
        got = f"{reference.partition(':')[2]!r}, which needs {needed}"
        raise fail(argument, "a function without arguments", got, "wrap it in one that calls it with yours")
    return function()


def named_function(argument: str, reference: str) -> Callable[..., Any]:
    """Import `module:function` from the working folder or the path."""
    module_name, _, function_name = reference.partition(":")
    if not function_name or not all(part.isidentifier() for part in module_name.split(".")):
        remedy = "name a function of yours, as in mypackage.models:make"
        raise fail(argument, "module:function", repr(reference), remedy)
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            got, remedy = repr(module_name), "run from the folder that holds it, and leave out .py"
        else:
            got, remedy = f"{module_name!r}, which imports {missing!r}", f"install {missing}"
        raise fail(argument, "a module that can be imported", got, remedy) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise fail(argument, f"a function of {module_name}", repr(function_name), nearest(function_name, public))
    return function


def records_from(path: str | os.PathLike[str]) -> Any:
    """Return `inputs` of an .npz file, or an .npy file mapped into memory, in the types that they are stored in."""
    plain = "save plain numbers, or a table as strings: table.astype(str)"
    if Path(path).suffix != ".npy":
        return as_records(read_npz_keys("inputs", path, ("inputs",), plain)[0])
    with reading("inputs", path, ".npy file", plain) as file:
        return as_records(np.load(file, mmap_mode="r", allow_pickle=False))


def signals_from(path: str | os.PathLike[str]) -> Signals:
    """Return the signals in `path`, a folder of Signals.save or an .npz: `logits`, `probabilities`, `phi` or
    `squared_error`, `members` as 0/1 or packed with numpy.packbits along the records, and `labels` if the kind needs
    them."""
    if Path(path).is_dir():
        return Signals.load(path)
    with reading("signals", path, ".npz file") as file, np.load(file, allow_pickle=False) as stored:
        kinds = [kind for kind in SIGNALS if kind in stored.files]
        if len(kinds) != 1 or "members" not in stored.files:
            expected = f"members and one of {', '.join(SIGNALS)} in {file.name}"
            raise fail("signals", expected, "keys " + ", ".join(stored.files), "store one kind of signal")
        values, members = read_member(stored, kinds[0]), read_member(stored, "members")
        labels = read_member(stored, "labels") if "labels" in stored.files else None
    records = values.shape[1] if values.ndim > 1 else 0
    if members.dtype == np.uint8 and members.ndim == 2 and members.shape[1] == -(-records // 8) != records:
        members = np.unpackbits(members, axis=1)[:, :records]
    return Signals(values, members, kinds[0], labels=labels)


def names_in(path: str | os.PathLike[str], argument: str = "groups") -> np.ndarray:
    """Return one name a record, from an .npy file or the lines of a text file."""
    with reading(argument, path, ".npy of names, or text file with one a line") as file:
        if file.suffix == ".npy":
            with file.open("rb") as stream:
                npy_header(stream, file.stat().st_size)
            return np.load(file, allow_pickle=False)
        lines = file.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
    return check_names(argument, [line.removesuffix("\r") for line in lines], len(lines), unique=False)


def subgroups_from(path: str | os.PathLike[str], n: int) -> dict[str, np.ndarray]:
    """Return the subgroup of each of n records as text, for each column of a CSV with a heading."""
    with reading("subgroups", path, "CSV with a heading") as file, file.open(newline="", encoding="utf-8-sig") as text:
        heading, *lines = csv.reader(text)
    if any(len(line) != len(heading) for line in lines):
        raise fail("subgroups", f"{len(heading)} cells a line", "lines that differ", "repair the file")
    if len(set(heading)) < len(heading) or not heading:
        raise fail("subgroups", "a different heading for each column", "none, or two that are equal", "name each")
    if len(lines) != n:
        raise fail("subgroups", f"{n} lines, one a record", f"{len(lines)}", "align the file with the records")
    columns = [check_names("subgroups", cells, n, unique=False) for cells in zip(*lines, strict=True)]
    for place, values in enumerate(columns):
        if (count := len(np.unique(values))) > MOST_SUBGROUPS:
            got = f"{count} in column {place}"
            raise fail("subgroups", f"at most {MOST_SUBGROUPS} subgroups", got, "group the values, or leave it out")
    return dict(zip(heading, columns, strict=True))


def read_npz_keys(argument: str, path: Any, keys: tuple[str, ...], plain: str = PLAIN) -> list[np.ndarray]:
    with reading(argument, path, ".npz file", plain) as file, np.load(file, allow_pickle=False) as stored:
        for key in keys:
            if key not in stored.files:
                got = "keys " + ", ".join(stored.files)
                raise fail(key if len(keys) > 1 else argument, f"the key {key} in {file.name}", got, "add it")
        return [read_member(stored, key) for key in keys]


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
    saved = "options" in stored
    settings = _saved_options(file, str(stored.pop("options"))) if saved else {}
    if "l2" in stored:
        number = as_tensor("l2", stored.pop("l2")).reshape(-1)
        check_shape("l2", number, (1,), "(1,), one penalty for the whole head")
        settings["l2"] = float(number)
    options: dict[str, Any] = {"l2": l2, "intercept": intercept, "penalize_intercept": penalize_intercept}
    options |= {"frozen": frozen, "loss": None if loss == "auto" else loss}
    given = {name: value for name, value in options.items() if value is not None}
    changed = (name for name in given if name in settings and settings[name] != given[name])
    notes += [f"{name}={given[name]} as given, not the {settings[name]} of the file" for name in changed]
    settings |= given
    if black_box:
        settings["intercept"] = False
    if "intercept" not in settings:
        settings["intercept"] = "bias" in stored or "weight" not in stored
        if not settings["intercept"]:
            notes.append("no bias in the file: the head is taken to have no intercept")

    fields: dict[str, Any] = stored | witnesses_in(stored)
    if "outputs" not in fields:
        fields["features"] = as_float_rows("features", fields["features"])
        weight = torch.atleast_2d(as_tensor("weight", fields["weight"]))
        bias = as_tensor("bias", fields["bias"]).reshape(-1) if "bias" in fields else None
        fields["outputs"] = linear_outputs(fields["features"], weight, bias)
    if "loss" not in settings:
        settings["loss"] = infer_loss(fields["targets"], fields["outputs"])
    if "inputs" in stored and not saved:
        fields["inputs"] = as_records(np.asarray(stored["inputs"]))
    return Head(**{"features": None} | fields | settings), notes


def _saved_options(file: Path, text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
        required = {name: options[name] for name in ("loss", "l2", "intercept", "penalize_intercept")}
        return required | {name: options[name] for name in ("frozen", "model", "class_names") if name in options}
    except (ValueError, TypeError, KeyError) as error:
        raise fail("options", f"what Head.save writes in {file.name}", "another text", "save the head again") from error


def read_stored(path: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the known arrays of a file, or of a folder of shards or .npy files; the names of others; and notes."""
    alone = not path.is_dir()
    files = [path] if alone else sorted(file for file in path.iterdir() if file.is_file() and file.suffix in KINDS)
    if alone and path.suffix not in KINDS[1:]:
        raise fail("file", "an .npz or .safetensors file", path.name, "save the arrays with numpy.savez")
    if not files:
        expected, got = f"a folder with {', '.join(KINDS[:2])} or {KINDS[2]} files", f"none in {path.name}"
        raise fail("file", expected, got, "save shards there, or features.npy, targets.npy, weight.npy and bias.npy")
    kinds = sorted({file.suffix for file in files if file.stem != HEAD} or {file.suffix for file in files})
    if len(kinds) > 1:
        got = f"{' and '.join(kinds)} in {path.name}"
        raise fail("file", "files of one kind in the folder", got, "keep one kind there, and move the others away")
    shards, ignored = not alone and kinds != [".npy"], set[str]()
    known = {*ROWS, *ONCE} | (set() if shards else {"inputs"}) | ({"options"} if alone else set())
    parts: defaultdict[str, dict[Path, np.ndarray]] = defaultdict(dict)
    for file in files:
        with reading("file", file, f"{file.suffix} file"):
            arrays, names = _arrays_in(file, lambda name: name in known or is_relatives(name), LARGE_BYTES * alone)
        ignored |= names - arrays.keys()
        for name, array in arrays.items():
            parts[name][file] = array
    by_row = [name for name in (*ROWS, *sorted(filter(is_relatives, parts))) if name in parts]
    for name, places in parts.items():
        first, *others = [file.name for file in places]
        if others and (name not in by_row or f"{name}.npy" in others):
            expected = f"one {name} in the folder" + ("" if shards or name in ONCE else f", or {name}-*.npy alone")
            raise fail(name, expected, f"one in {first} and one in {others[0]}", "keep one of them")
    stored: dict[str, Any] = {name: widened(*parts[name].values()) for name in parts if name not in by_row}
    stored |= {name: _stacked(name, parts[name]) for name in by_row}
    for file in sorted({file for name in by_row for file in parts[name]}) if shards else ():
        rows = {name: len(parts[name][file]) if file in parts[name] else 0 for name in by_row}
        most, least = max(rows, key=rows.__getitem__), min(rows, key=rows.__getitem__)
        if rows[most] != rows[least]:
            expected = f"{rows[most]} rows in {file.name}, as of {most}"
            raise fail(least, expected, f"{rows[least]} rows", "write one row a record in every array")
    notes = []
    for name in ("features", "outputs"):
        held = [type(array) is np.ndarray and array.size for array in parts[name].values()]
        if any(held) and sum(array.nbytes for array in parts[name].values()) >= LARGE_BYTES:
            notes.append(f"{name} compressed, so read whole: numpy.savez would leave them on disk")
    return stored, sorted(ignored), notes


def _stacked(name: str, places: dict[Path, np.ndarray]) -> Any:
    """Return rows of several files, one below the other: lazily where they are large, else in memory."""
    first_file, first = next(iter(places.items()))
    for file, part in places.items():
        if part.ndim == 0:
            raise fail(name, f"rows in {file.name}", "a single number", "write one row a record")
        known, kind = (f"shape {one.shape[1:]}" if name in IN_MEMORY else row_kind(one) for one in (first, part))
        if kind != known:
            expected, got = f"rows of {known} as in {first_file.name}", f"rows of {kind} in {file.name}"
            raise fail(name, expected, got, "write all shards with the same columns and in one precision")
    if name in IN_MEMORY:
        held = [np.asarray(widened(part)) for part in places.values()]
        return held[0] if len(held) == 1 and held[0].nbytes >= LARGE_BYTES else np.concatenate(held)
    flat = name != "features" and first.ndim == 1
    rows = FileRows(name, [part.reshape(-1, 1) if flat else part for part in places.values()])
    return rows if rows.nbytes >= LARGE_BYTES else rows.whole()


def _arrays_in(file: Path, wanted: Callable[[str], bool], large: int) -> tuple[dict[str, np.ndarray], set[str]]:
    """Return the wanted arrays of a file, mapped from `large` bytes on, and the names of all."""
    if file.suffix == ".npy":
        name = file.stem.split("-", 1)[0]
        with file.open("rb") as stream:
            return {name: _mapped(file, *npy_header(stream), large)} if wanted(name) else {}, {name}
    arrays = {}
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as stored, file.open("rb") as stream:
            members = {info.filename.removesuffix(".npy"): info for info in stored.zip.infolist()}
            for name in filter(wanted, stored.files):
                info = members[name]
                stands = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
                if not stands or info.file_size < large:
                    arrays[name] = read_member(stored, name)
                    continue
                stream.seek(info.header_offset)
                local = stream.read(30)
                if local[:4] != b"PK\x03\x04":
                    raise ValueError("no local header")
                sizes = (int.from_bytes(local[at : at + 2], "little") for at in (26, 28))
                start = stream.seek(info.header_offset + 30 + sum(sizes))
                arrays[name] = _mapped(file, *npy_header(stream, start + info.file_size), large)
            return arrays, {*stored.files}
    from safetensors import safe_open

    with safe_open(file, "np"), file.open("rb") as stream:  # which refuses a damaged header
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    for name in filter(wanted, header):
        kind, shape, start = header[name]["dtype"], tuple(header[name]["shape"]), header[name]["data_offsets"][0]
        if kind not in SAFETENSORS:
            remedy = "convert it to float32 or int64 and write the file again"
            raise fail(name, f"numbers of a known type in {file.name}", f"type {kind[:12]}", remedy)
        arrays[name] = _mapped(file, np.dtype(SAFETENSORS[kind]), shape, "C", 8 + length + start, large)
    return arrays, {*header}


def _mapped(file: Path, dtype: np.dtype, shape: tuple[int, ...], order: Any, offset: int, large: int) -> np.ndarray:
    """Map an array that lies in a file, or read it where it has less than `large` bytes, or none."""
    count = math.prod(shape)
    if offset + count * dtype.itemsize > file.stat().st_size:
        raise ValueError("an array beyond the file")
    if shape and count and count * dtype.itemsize >= large:
        return np.memmap(file, dtype, "r", offset, shape, order)
    return np.fromfile(file, dtype, count, offset=offset).reshape(shape, order=order)


def load_estimator(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Any:
    """Return the scikit-learn estimator in `path`: skops, or with `allow_pickle` pickle, joblib and any type."""
    if (suffix := Path(path).suffix) not in (".skops", *PICKLE_SUFFIXES):
        expected = "a .skops file, or " + ", ".join(PICKLE_SUFFIXES)
        raise fail("estimator", expected, Path(path).name, "save it with skops.io.dump")
    with reading("estimator", path, f"{suffix} file") as file:
        if suffix != ".skops":
            if not allow_pickle:
                raise needs_pickle("estimator", "a .skops file", file, "save it with skops.io.dump")
            import joblib

            return joblib.load(file)
        try:
            import skops.io
        except ImportError as error:
            raise fail("estimator", "skops, to read .skops files", "none", "pip install skops") from error
        unknown = sorted(set(skops.io.get_untrusted_types(file=file)) - set(TRUSTED_TYPES))
        if unknown and not allow_pickle:
            got = f"{len(unknown)} unknown to it ({', '.join(unknown[:3])}{', …' * (len(unknown) > 3)})"
            raise fail("estimator", "types that skops trusts", got, f"save the estimator without them, or {TRUST}")
        return skops.io.load(file, trusted=[*TRUSTED_TYPES, *unknown])
