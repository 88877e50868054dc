"""What a user names on the command line: their own functions, and files of weights."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from giveaway.checks import InputError, fail, nearest


def call_factory(argument: str, reference: str) -> Any:
    """Import `module:function` from the working folder or the path and call it without arguments."""
    module_name, colon, function_name = reference.partition(":")
    if not colon or not module_name or not function_name:
        raise fail(argument, "module:function", repr(reference), "name a function of yours, as in mypackage.models:make")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(error.name + ".")):
            raise
        raise fail(
            argument, "a module that can be imported", repr(module_name), "run from the folder that holds it"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        public = [name for name in vars(module) if callable(getattr(module, name)) and not name.startswith("_")]
        raise fail(argument, f"a function of {module_name}", repr(function_name), nearest(function_name, public))
    return function()


def load_weights(model: torch.nn.Module, path: str | os.PathLike[str], *, allow_pickle: bool = False) -> torch.nn.Module:
    """Load a state dict (safetensors, or torch.save without code) into `model`; a whole module only with allow_pickle."""
    file = Path(path)
    if not file.is_file():
        raise fail("weights", "a file", str(file), "check the path")
    try:
        if file.suffix == ".safetensors":
            state: Any = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=not allow_pickle)
    except pickle.UnpicklingError as error:
        raise fail(
            "weights", "a plain state dict", f"{file.name}, which needs pickle", "trust it with --allow-pickle, or save "
            "model.state_dict()"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError) as error:
        raise fail("weights", "a readable file of weights", f"{file.name} (broken)", "save it again") from error
    if isinstance(state, torch.nn.Module):
        return state
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    try:
        model.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        first = str(error).splitlines()
        got = first[1].strip() if len(first) > 1 else first[0]
        raise InputError(
            f"weights: expected the parameters of {type(model).__name__}, got others ({got}); "
            "use the factory that made these weights"
        ) from error
    return model
