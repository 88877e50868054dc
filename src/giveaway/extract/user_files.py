"""What a user names on the command line: functions of their own, weights, estimators, and files of arrays or names."""

from __future__ import annotations

import csv
import importlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from giveaway.checks import InputError, fail, nearest
from giveaway.records import Signals
from giveaway.records.examples import as_numbers, as_records
from giveaway.records.signals import KINDS
from giveaway.storage.arrays import read_arrays

CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model")
WRAPPER_PREFIXES = ("_orig_mod.", "module.")  # torch.compile, and the parallel wrappers
PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib")
# Plain holders of numbers, unknown to skops: inside every MLP trained with adam or sgd, and inside encoders.
TRUSTED_TYPES = [f"sklearn.neural_network._stochastic_optimizers.{name}Optimizer" for name in ("Adam", "SGD")]
TRUSTED_TYPES += ["numpy.dtype"]
TRUST = "trust it with --allow-pickle (it can run any code)"
MOST_SUBGROUPS = 200  # a column with more values does not name subgroups


@contextmanager
def reading(argument: str, path: str | os.PathLike[str], kind: str) -> Iterator[Path]:
    """Read `path` inside; turn any failure to read it as `kind` into an InputError about `argument`."""
    file = Path(path)
    try:
        if not file.is_file():
            raise fail(argument, "a file that exists", str(file), "check the path")
        yield file
    except (InputError, MemoryError):
        raise
    except PermissionError as error:
        raise fail(argument, "a file that can be read", str(file), "check its permissions") from error
    except (ImportError, AttributeError) as error:
        got = f"{file.name}, which needs more ({first_line(error)})"
        remedy = "run from the folder that holds that code, or install it"
        raise fail(argument, "a file whose code can be imported", got, remedy) from error
    except Exception as error:  # damaged zips and pickles fail with nearly every exception there is
        got = f"{file.name}, truncated or not of that format"
        raise fail(argument, f"a whole {kind}", got, "write the file again") from error


def first_line(error: Exception) -> str:
    """Return the first line of what `error` says, or its type where it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def call_factory(argument: str, reference: str) -> Any:
    """Import `module:function` from the working folder or the path and call it without arguments."""
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
    if (needed := _required_parameters(function)) > 0:
        got = f"{function_name!r}, which needs {needed}"
        raise fail(argument, "a function without arguments", got, "wrap it in one that calls it with yours")
    return function()


def load_weights(model: nn.Module, path: str | os.PathLike[str], *, allow_pickle: bool = False) -> nn.Module:
    """Load the weights in `path` into `model`, and return it.

    Safetensors and what torch.save wrote of a state dict (alone or in a checkpoint) are read without running code.
    Whole modules, TorchScript and .pt2 files run code, and are read only with `allow_pickle`.
    """
    if not isinstance(model, nn.Module):
        raise fail("model", "a torch.nn.Module", type(model).__name__, "return the model from the function")
    with reading("weights", path, "safetensors file" if _is_safetensors(path) else "file of torch.save") as file:
        stored = _stored_weights(file, allow_pickle)
    if isinstance(stored, nn.Module):
        stored = stored.state_dict()
    if isinstance(stored, Mapping):
        stored = next((stored[key] for key in CHECKPOINT_KEYS if isinstance(stored.get(key), Mapping)), stored)
    if not isinstance(stored, Mapping) or not all(isinstance(name, str) for name in stored):
        raise fail("weights", "a state dict", f"a {type(stored).__name__}", "save model.state_dict()")
    state, expected = dict(stored), model.state_dict()
    if not state.keys() & expected.keys():
        for prefix in WRAPPER_PREFIXES:
            consume_prefix_in_state_dict_if_present(state, prefix)
    try:
        model.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        got = _difference(expected, state) or first_line(error)
        remedy = "use the function that made the model of these weights"
        raise fail("weights", f"the parameters of {type(model).__name__}", got, remedy) from error
    return model


def load_estimator(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Any:
    """Return the scikit-learn estimator in `path`: skops, or with `allow_pickle` pickle, joblib and any type."""
    suffix = Path(path).suffix
    if suffix == ".skops":
        return _load_skops(path, allow_pickle)
    if suffix not in PICKLE_SUFFIXES:
        expected = "a .skops file, or " + ", ".join(PICKLE_SUFFIXES)
        raise fail("estimator", expected, Path(path).name, "save it with skops.io.dump")
    with reading("estimator", path, f"{suffix} file") as file:
        if not allow_pickle:
            raise _needs_pickle("estimator", "a .skops file", file, "save it with skops.io.dump")
        import joblib

        return joblib.load(file)


def inputs_from(path: str | os.PathLike[str], *, targets: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
    """Return `inputs` of the file as float64 (n, …), and `targets` if wanted.

    uint8 images, with 1, 3 or 4 channels last or first or with none, become (n, channels, height, width) from 0 to 1;
    other numbers stay as they are.
    """
    with reading("inputs", path, ".npz file") as file, np.load(file, allow_pickle=False) as stored:
        labels = _stored(stored, "targets", file) if "inputs" in stored.files and targets else None
        return as_numbers(_stored(stored, "inputs", file)), labels


def records_from(path: str | os.PathLike[str]) -> Any:
    """Return `inputs` of an .npz file, or an .npy file mapped into memory, as they are stored.

    Only uint8 images get their channels first, and a row of strings becomes a list. A table of numbers and words is one
    of strings, (n, columns).
    """
    mapped = Path(path).suffix == ".npy"
    with reading("inputs", path, ".npy file" if mapped else ".npz file") as file:
        try:
            if mapped:
                return as_records(np.load(file, mmap_mode="r", allow_pickle=False))
            with np.load(file, allow_pickle=False) as stored:
                return as_records(_stored(stored, "inputs", file))
        except ValueError as error:
            if not any(words in str(error) for words in ("Object arrays", "Python objects in dtype")):
                raise
            remedy = "save plain numbers, or a table as strings: table.astype(str)"
            raise fail("inputs", "arrays that need no pickle", f"{file.name}, which needs it", remedy) from error


def signals_from(path: str | os.PathLike[str]) -> Signals:
    """Return the signals stored in `path`, a folder of Signals.save or an .npz.

    An .npz holds one of `logits`, `probabilities`, `phi` or `squared_error` under that name, `members` as (models,
    records) of 0/1 or packed with numpy.packbits along the records, and `labels` where the kind needs them.
    """
    if Path(path).is_dir():
        return Signals.load(path)
    with reading("signals", path, ".npz file") as file, np.load(file, allow_pickle=False) as stored:
        kinds = [kind for kind in KINDS if kind in stored.files]
        if len(kinds) != 1 or "members" not in stored.files:
            expected = f"members and one of {', '.join(KINDS)} in {file.name}"
            raise fail("signals", expected, "keys " + ", ".join(stored.files), "store one kind of signal")
        values, members = stored[kinds[0]], stored["members"]
        labels = stored["labels"] if "labels" in stored.files else None
    records = values.shape[1] if values.ndim > 1 else 0
    if members.dtype == np.uint8 and members.ndim == 2 and members.shape[1] == -(-records // 8) != records:
        members = np.unpackbits(members, axis=1)[:, :records]
    return Signals(values, members, kinds[0], labels=labels)


def row_numbers(path: str | os.PathLike[str]) -> np.ndarray:
    """Return the integers of an .npy file, or of the key `index` of an .npz."""
    with reading("rows", path, ".npy or .npz file") as file:
        stored = np.load(file, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            return stored
        with stored:
            return _stored(stored, "index", file, argument="rows")


def subgroups_from(path: str, n: int) -> dict[str, np.ndarray]:
    """Return the subgroup of each of n records as text, for each column of a CSV or array of an .npz."""
    if not path.endswith((".csv", ".npz")):
        raise fail("subgroups", "FILE.csv with a heading, or FILE.npz", path, "write one column a kind of subgroup")
    columns = read_arrays("subgroups", path, "numpy.savez") if path.endswith(".npz") else _read_csv(path)
    if not columns:
        raise fail("subgroups", "at least one column", f"{path} without any", "write one column a kind of subgroup")
    for place, values in enumerate(columns.values()):
        if values.shape != (n,):
            got = f"{len(values) if values.ndim else 0} in column {place}"
            raise fail("subgroups", f"{n} values, one a record", got, "align the file with the records")
        if len(np.unique(values)) > MOST_SUBGROUPS:
            got = f"{len(np.unique(values))} in column {place}"
            raise fail("subgroups", f"at most {MOST_SUBGROUPS} subgroups", got, "group the values, or leave it out")
    return {name: values.astype(str) for name, values in columns.items()}


def _read_csv(path: str) -> dict[str, np.ndarray]:
    try:
        with open(Path(path), newline="", encoding="utf-8-sig") as stream:
            heading, *lines = csv.reader(stream)
    except (OSError, ValueError, csv.Error) as error:
        raise fail("subgroups", "a readable CSV with a heading", path, "check the file") from error
    if any(len(line) != len(heading) for line in lines):
        raise fail("subgroups", f"{len(heading)} cells a line", f"{path}, where lines differ", "repair the file")
    if len(set(heading)) < len(heading):
        raise fail("subgroups", "a different heading for each column", f"{path}, where two are equal", "rename one")
    return {name: np.array([line[place] for line in lines]) for place, name in enumerate(heading)}


def _stored(archive: Any, key: str, file: Path, *, argument: str | None = None) -> np.ndarray:
    """Return one array of an .npz, or refuse a file without it."""
    if key not in archive.files:
        raise fail(argument or key, f"the key {key} in {file.name}", "keys " + ", ".join(archive.files), "add it")
    return archive[key]


def _load_skops(path: str | os.PathLike[str], trust_all: bool) -> Any:
    try:
        import skops.io
    except ImportError as error:
        raise fail("estimator", "skops, to read .skops files", "none", "pip install giveaway[safe]") from error
    with reading("estimator", path, ".skops file") as file:
        unknown = sorted(set(skops.io.get_untrusted_types(file=file)) - set(TRUSTED_TYPES))
        if unknown and not trust_all:
            got = f"{len(unknown)} unknown to it ({', '.join(unknown[:3])}{', …' * (len(unknown) > 3)})"
            raise fail("estimator", "types that skops trusts", got, f"save the estimator without them, or {TRUST}")
        return skops.io.load(file, trusted=[*TRUSTED_TYPES, *unknown])


def _needs_pickle(argument: str, expected: str, file: Path, remedy: str) -> InputError:
    return fail(argument, expected, f"{file.name}, which needs pickle", f"{remedy}, or {TRUST}")


def _is_safetensors(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix == ".safetensors"


def _stored_weights(file: Path, allow_pickle: bool) -> Any:
    if _is_safetensors(file):
        from safetensors.torch import load_file

        return load_file(file)
    refusal = _needs_pickle("weights", "a plain state dict", file, "save model.state_dict()")
    if file.suffix == ".pt2":
        if not allow_pickle:
            raise refusal
        return torch.export.load(file).state_dict
    try:
        return torch.load(file, map_location="cpu", weights_only=not allow_pickle)
    except Exception as error:
        if not allow_pickle and any(word in str(error) for word in ("GLOBAL", "TorchScript")):
            raise refusal from error
        raise


def _difference(expected: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    """Say how the parameters in a file differ from the model's, by count and first name."""
    kinds = {
        "missing": [name for name in expected if name not in stored],
        "unknown": [name for name in stored if name not in expected],
        "of another shape": [n for n in expected if n in stored and _shape(stored[n]) != _shape(expected[n])],
    }
    return ", ".join(f"{len(names)} {kind} (first {names[0]})" for kind, names in kinds.items() if names)


def _shape(value: Any) -> Any:
    return getattr(value, "shape", None)


def _required_parameters(function: Any) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # some builtins do not tell
        return 0
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return sum(p.default is p.empty and p.kind not in optional for p in parameters)
