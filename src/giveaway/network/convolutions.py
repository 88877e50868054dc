"""Plain convolutions, and what their weights see of an image."""

from __future__ import annotations

import math

import torch
from torch import nn

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def plain_convolution(module: nn.Module) -> bool:
    """Whether every output of the convolution sees every input channel, and zeros around the image."""
    return isinstance(module, Convolution) and module.groups == 1 and module.padding_mode == "zeros"


def patches(x: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """What a plain convolution's weights see at each of its positions, (b, i·k, L): one copy, where `unfold` has one a
    record."""
    assert isinstance(module, Convolution)
    x, padding = padded(x, module)
    x = nn.functional.pad(x, [zeros for both in reversed(padding) for zeros in (both, both)]).contiguous()
    along = list(zip(x.shape[2:], module.kernel_size, module.dilation, module.stride, strict=True))
    positions = [(size - d * (k - 1) - 1) // stride + 1 for size, k, d, stride in along]
    steps = [d * step for (_, _, d, _), step in zip(along, x.stride()[2:], strict=True)]
    strides = [stride * step for (*_, stride), step in zip(along, x.stride()[2:], strict=True)]
    seen = x.as_strided((*x.shape[:2], *module.kernel_size, *positions), (*x.stride()[:2], *steps, *strides))
    return seen.reshape(len(x), -1, math.prod(positions))


def padded(x: torch.Tensor, module: Convolution) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The input of a convolution with what its padding still has to add, as numbers."""
    if not isinstance(module.padding, str):
        return x, module.padding
    nothing = (0,) * len(module.kernel_size)
    if module.padding == "valid":
        return x, nothing
    around = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    # "same": the odd pixel goes to the end; the last dimension comes first
    sides = [side for both in reversed(around) for side in (both // 2, both - both // 2)]
    return nn.functional.pad(x, sides), nothing
