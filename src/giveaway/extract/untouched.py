"""Run a user's model and loader and leave both, and the global random state, exactly as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader


@contextmanager
def untouched(model: nn.Module, loader: DataLoader[Any], device: torch.device) -> Iterator[None]:
    """Evaluation mode without gradients inside; modes, buffers and random states put back on the way out."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(module, dict(module._buffers), _copies(module._buffers)) for module in model.modules()]
    generators = [(generator, generator.get_state()) for generator in _generators(loader)]
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002 (the user's, kept as it is)
    cuda = [device] if device.type == "cuda" else []
    # no_grad, not inference_mode: a tensor the model caches in its forward must stay usable in training.
    with torch.random.fork_rng(devices=cuda), torch.no_grad():
        try:
            for module, _ in modes:
                # The flag itself: eval() may be overridden (merging adapters, freezing) with effects of its own.
                module.training = False
            yield
        finally:
            for module, training in modes:
                module.training = training
            for module, originals, values in buffers:
                _restore(module, originals, values)
            for generator, state in generators:
                generator.set_state(state)
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    holders = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    found = {id(g): g for holder in holders if isinstance(g := getattr(holder, "generator", None), torch.Generator)}
    return list(found.values())


def _copies(buffers: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    return {name: buffer.detach().clone() for name, buffer in buffers.items() if buffer is not None}


def _restore(module: nn.Module, originals: dict[str, torch.Tensor | None], values: dict[str, torch.Tensor]) -> None:
    module._buffers.clear()
    module._buffers.update(originals)
    for name, value in values.items():
        buffer = originals[name]
        if buffer is not None and not torch.equal(buffer, value):
            buffer.copy_(value)
