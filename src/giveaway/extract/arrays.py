"""A Head from arrays in a file, or in a folder of files."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_shape, fail, listed, rows_at_a_time
from giveaway.extract.user_files import read_stored
from giveaway.records.examples import as_records, infer_loss
from giveaway.records.head import Head
from giveaway.records.rows import LARGE_BYTES, LazyRows, LinearRows, as_float_rows
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
