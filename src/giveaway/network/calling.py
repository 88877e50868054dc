"""A user's module called again and again: in evaluation mode, by kernels that every kind of differentiation knows, and
left exactly as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; modes and the global random state are put back on the way out."""
    modes = [(module, module.training) for module in model.modules()]
    fast = torch.backends.mha.get_fastpath_enabled()
    cuda = sorted({value.device.index for value in model.parameters() if value.is_cuda})
    # fused attention has neither forward-mode nor second derivatives
    with torch.random.fork_rng(devices=cuda), sdpa_kernel(SDPBackend.MATH):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            for module, _ in modes:
                # the flag itself: eval() may be overridden with effects of its own
                module.training = False
            yield
        finally:
            for module, training in modes:
                module.training = training
            torch.backends.mha.set_fastpath_enabled(fast)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module under torch.compile and the parallel wrappers, whose copies hooks would not reach."""
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    return unwrapped(inner) if isinstance(inner, nn.Module) else model
