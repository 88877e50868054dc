"""What a user names on the command line: functions of their own, files of weights, saved estimators."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from giveaway.checks import InputError, fail, nearest
from giveaway.extract.reading import first_line, reading

CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model")
WRAPPER_PREFIXES = ("_orig_mod.", "module.")  # torch.compile, and the parallel wrappers
PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib")
# Plain holders of numbers, unknown to skops: inside every MLP trained with adam or sgd, and inside encoders.
TRUSTED_TYPES = [f"sklearn.neural_network._stochastic_optimizers.{name}Optimizer" for name in ("Adam", "SGD")]
TRUSTED_TYPES += ["numpy.dtype"]
TRUST = "trust it with --allow-pickle (it can run any code)"


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
    state, own = dict(stored), model.state_dict()
    if not state.keys() & own.keys():
        for prefix in WRAPPER_PREFIXES:
            consume_prefix_in_state_dict_if_present(state, prefix)
    try:
        model.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        got = _difference(own, state) or first_line(error)
        remedy = "use the function that made the model of these weights"
        raise fail("weights", f"the parameters of {type(model).__name__}", got, remedy) from error
    return model


def load_estimator(path: str | os.PathLike[str], *, allow_pickle: bool = False) -> Any:
    """The scikit-learn estimator in `path`: skops, or with `allow_pickle` also pickle, joblib and any type in skops."""
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


def _difference(own: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    """How the parameters in a file differ from the model's, by count and first name; empty where they do not."""
    kinds = {
        "missing": [name for name in own if name not in stored],
        "unknown": [name for name in stored if name not in own],
        "of another shape": [name for name in own if name in stored and _shape(stored[name]) != _shape(own[name])],
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
