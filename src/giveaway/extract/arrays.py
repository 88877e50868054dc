"""from_file: a Head from an .npz or .safetensors file of arrays, or from a folder of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from giveaway.checks import as_tensor, fail
from giveaway.extract.inputs_file import as_records
from giveaway.extract.linear_outputs import linear_outputs
from giveaway.extract.shards import read_folder
from giveaway.extract.stored_arrays import COMPRESSED, read_stored
from giveaway.records.head import Head
from giveaway.records.row_reading import LARGE_BYTES, as_float_rows
from giveaway.records.targets import infer_loss

ARRAYS = ("features", "outputs", "targets", "weight", "bias", "sample_weight", "ids", "groups", "inputs")
SETTINGS = ("l2", "options")
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
    """The Head stored in `path`, and notes on what was ignored, overridden or assumed.

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
    stored, ignored, said = read_folder(file) if file.is_dir() else _read(file)
    notes = [f"ignored keys: {_listed(ignored)}"] if ignored else []
    notes += said
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
    settings = _options(file, stored.pop("options", None))
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
    for name in [name for name in ("features", "outputs", "targets", "weight", "bias") if name in stored]:
        arrays[name] = (as_float_rows if name in ("features", "outputs") else as_tensor)(name, stored[name])
    if "weight" in arrays and arrays["weight"].ndim == 1:
        arrays["weight"] = arrays["weight"].unsqueeze(0)
    if "bias" in arrays:
        arrays["bias"] = arrays["bias"].reshape(-1)
    if "outputs" not in arrays:
        arrays["outputs"] = linear_outputs(arrays["features"], arrays["weight"], arrays.get("bias"))
    if "loss" not in settings:
        settings["loss"] = infer_loss(arrays["targets"], arrays["outputs"])
    others = {name: stored[name] for name in ("sample_weight", "ids", "groups", "inputs") if name in stored}
    if "inputs" in others and not saved:
        others["inputs"] = as_records(np.asarray(others["inputs"]))
    return Head(**{"features": None} | arrays, **others, **settings), notes


def _read(file: Path) -> tuple[dict[str, Any], list[str], list[str]]:
    """The known arrays of a file, the names of the others, which are not read, and notes."""
    if file.suffix not in (".npz", ".safetensors"):
        raise fail("file", "an .npz or .safetensors file", file.name, "save the arrays with numpy.savez")
    found, ignored = read_stored("file", file, lambda name: name in ARRAYS + SETTINGS, LARGE_BYTES)
    notes = [COMPRESSED.format(name) for name in ("features", "outputs") if name in found and found[name].compressed]
    return {name: part.rows(name) for name, part in found.items()}, ignored, notes


def _listed(keys: list[str]) -> str:
    return ", ".join(keys[:12]) + (", …" if len(keys) > 12 else "")


def _options(file: Path, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        options = json.loads(str(value))
        told = {name: options[name] for name in ("loss", "l2", "intercept", "penalize_intercept")}
        return told | {"frozen": options.get("frozen", False)}
    except (ValueError, TypeError, KeyError) as error:
        raise fail("options", f"what Head.save writes in {file.name}", "another text", "save the head again") from error


def _single_number(argument: str, value: Any) -> float:
    number = as_tensor(argument, value)
    if number.numel() != 1:
        raise fail(argument, "one number", f"shape {tuple(number.shape)}", "one penalty holds for the whole head")
    return float(number)
