"""A user's torch model: its weights from a file, and calls that leave it exactly as it was."""

import inspect
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.utils.data import DataLoader

from giveaway.checks import fail, listed
from giveaway.extract.user_files import needs_pickle
from giveaway.storage.arrays import digest_of, reading

CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model")
WRAPPER_PREFIXES = ("_orig_mod.", "module.")  # torch.compile, and the parallel wrappers
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in what functions print; it differs between processes


def unwrapped(model: Any) -> nn.Module:
    """Return the module under torch.compile and the parallel wrappers, whose copies hooks would not reach."""
    if not isinstance(model, nn.Module):
        raise fail("model", "a torch.nn.Module", type(model).__name__, "for scikit-learn use from_sklearn")
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    return unwrapped(inner) if isinstance(inner, nn.Module) else model


def device_of(model: nn.Module) -> torch.device:
    """Return where the model takes its inputs: the device of its first parameter."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def model_digest(model: nn.Module) -> str:
    """Return the SHA-256 of what the model prints and of its parameters and buffers; code in a forward is not seen."""
    return _digest_of(dict([*model.named_parameters(), *model.named_buffers()]), ADDRESS.sub("", repr(model)))


def _digest_of(named: Mapping[str, torch.Tensor], *text: str) -> str:
    return digest_of({name: value.detach().to_dense() for name, value in named.items()}, text)


@contextmanager
def same_random_states(loader: DataLoader[Any] | None = None, cuda: Sequence[int] = ()) -> Iterator[None]:
    """Put all global random states, and the generators of `loader`, back on the way out."""
    batches = getattr(loader, "batch_sampler", None)
    holders = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    known = {id(g): g for holder in holders if isinstance(g := getattr(holder, "generator", None), torch.Generator)}
    with torch.random.fork_rng(devices=cuda), ExitStack() as after:
        for generator in known.values():
            after.callback(generator.set_state, generator.get_state())
        after.callback(random.setstate, random.getstate())
        after.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 (the user's, kept as it is)
        yield


@contextmanager
def evaluation_mode(model: nn.Module, loader: DataLoader[Any] | None = None) -> Iterator[None]:
    """Switch `model` to evaluation mode inside; put modes and random states back on the way out."""
    cuda = sorted({value.device.index for value in model.parameters() if value.is_cuda})
    with same_random_states(loader, cuda), ExitStack() as after:
        for module in model.modules():
            after.callback(setattr, module, "training", module.training)
            # The flag itself: eval() may be overridden (merging adapters, freezing) with effects of its own.
            module.training = False
        yield


@contextmanager
def untouched(model: nn.Module, loader: DataLoader[Any]) -> Iterator[None]:
    """Evaluate without gradients inside; leave the model, its buffers and the loader exactly as they were.

    What a forward changes of the parameters, gradients and hooks cannot be put back: it is refused by a digest before
    and after.
    """
    before = _state(model)
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    values = [(value, value.detach().clone()) for _, held in buffers for value in held.values() if value is not None]
    try:
        # no_grad, not inference_mode: a tensor the model caches in its forward must stay usable in training.
        with evaluation_mode(model, loader), torch.no_grad():
            yield
    finally:
        for module, held in buffers:
            module._buffers.clear()
            module._buffers.update(held)
        with torch.no_grad():
            for buffer, value in values:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)
        after = _state(model)
        if changed := [name for name, value in before.items() if after[name] != value]:
            got = f"one that changed its {' and '.join(changed)}"
            raise fail("model", "a model that its forward leaves as it was", got, "take that out, and load it again")


def _state(model: nn.Module) -> dict[str, Any]:
    """What a forward must leave alone, by name."""
    grads = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    counts = [len(getattr(module, name)) for module in model.modules() for name in hooks]
    return {"parameters or buffers": model_digest(model), "gradients": _digest_of(grads), "hooks": counts}


def logits_of(result: Any) -> Any:
    """Return the outputs in what a model returned: its logits, the one value of a dict, or the first of a tuple."""
    if isinstance(result, Mapping):
        return result.get("logits", next(iter(result.values())) if len(result) == 1 else None)
    if hasattr(result, "logits"):
        return result.logits
    return result[0] if isinstance(result, tuple | list) and result else result


def storable(values: torch.Tensor) -> torch.Tensor:
    """Return `values` on the CPU, bfloat16 as float32: NumPy, and so every file, has no bfloat16."""
    return values.detach().to("cpu", torch.float32 if values.dtype == torch.bfloat16 else values.dtype)


def load_weights(
    model: nn.Module, path: str | os.PathLike[str], *, allow_pickle: bool = False, say: Callable[[str], Any] = str
) -> nn.Module:
    """Load the weights in `path` into `model`, and return it. Only with `allow_pickle` are files read that run code:
    whole modules, TorchScript and .pt2. Of a Lightning checkpoint, whose module holds the model as an attribute, the
    weights of that attribute are taken, and `say` tells what is ignored."""
    if not isinstance(model, nn.Module):
        raise fail("model", "a torch.nn.Module", type(model).__name__, "return the model from the function")
    kind = "safetensors file" if Path(path).suffix == ".safetensors" else "file of torch.save"
    with reading("weights", path, kind) as file:
        stored = _stored(file, allow_pickle)
    if isinstance(stored, nn.Module):
        stored = stored.state_dict()
    lightning = isinstance(stored, Mapping) and "pytorch-lightning_version" in stored
    if isinstance(stored, Mapping):
        stored = next((stored[key] for key in CHECKPOINT_KEYS if isinstance(stored.get(key), Mapping)), stored)
    if not isinstance(stored, Mapping) or not all(isinstance(name, str) for name in stored):
        raise fail("weights", "a state dict", f"a {type(stored).__name__}", "save model.state_dict()")
    state, expected = dict(stored), model.state_dict()
    if not state.keys() & expected.keys():
        for prefix in WRAPPER_PREFIXES:
            consume_prefix_in_state_dict_if_present(state, prefix)
    if lightning and not state.keys() & expected.keys():
        state = _of_attribute(expected, state, say)
    try:
        model.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        kinds = {
            "missing": [name for name in expected if name not in state],
            "unknown": [name for name in state if name not in expected],
            "of another shape": [n for n in expected if n in state and np.shape(state[n]) != np.shape(expected[n])],
        }
        got = ", ".join(f"{len(names)} {kind} (first {names[0]})" for kind, names in kinds.items() if names)
        wanted = f"the parameters of {type(model).__name__}"
        remedy = "use the function that made the model of these weights"
        raise fail("weights", wanted, got or type(error).__name__, remedy) from error
    return model


def _of_attribute(expected: Mapping[str, Any], state: dict[str, Any], say: Callable[[str], Any]) -> dict[str, Any]:
    """Return the part of a Lightning module's weights that is the model, where one of its attributes is."""
    first = next(iter(expected), "")
    prefixes = {name.removesuffix(first) for name in state if first and name.endswith("." + first)}
    whole = sorted(prefix for prefix in prefixes if all(prefix + name in state for name in expected))
    if len(whole) > 1:
        got, remedy = f"{len(whole)} of them ({listed(whole)})", "save the state_dict() of the one that is deployed"
        raise fail("weights", "one attribute of the Lightning module that holds the model", got, remedy)
    if not whole:
        return state
    rest = len(state) - len(expected)
    say(f"note: a Lightning checkpoint: weights under {whole[0]!r}; hyper-parameters and {rest} other arrays ignored")
    return {name: state[whole[0] + name] for name in expected}


def accepted(model: nn.Module, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the keywords without texts that the model's forward does not take; refuse others that it does not."""
    if not keywords or isinstance(model, torch.jit.ScriptModule):  # which has no signature
        return keywords
    parameters = inspect.signature(model.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return keywords
    others = keywords.keys() - {parameter.name for parameter in parameters}
    if numbers := sorted(name for name in others if isinstance(keywords[name], torch.Tensor)):
        remedy = f"remove them, or say what they are: Batches(inputs={numbers[0]!r}), Batches(ids={numbers[0]!r})"
        raise fail("data", "inputs that the model's forward takes", f"others ({listed(numbers)})", remedy)
    return {name: value for name, value in keywords.items() if name not in others}


def _stored(file: Path, allow_pickle: bool) -> Any:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    refusal = needs_pickle("weights", "a plain state dict", file, "save model.state_dict()")
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
