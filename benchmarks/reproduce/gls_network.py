"""ResNet-18 for images of 32 pixels: a 3×3 stem without pooling, four groups of two blocks; and its layers by depth."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import relu

WIDTHS = (64, 128, 256, 512)
DEPTHS = ("last layer", "2 last layers", "4 last layers", "full model")
DEEP = {"2 last layers": 1, "4 last layers": 3}  # convolutions below the last linear layer


class Block(nn.Module):
    """Two convolutions, each with its batch norm, beside a shortcut."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(given, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or given != width:
            self.shortcut = nn.Sequential(nn.Conv2d(given, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """The last group is `top.group`, the last linear layer `top.head`."""

    def __init__(self, classes: int = 10, widths: tuple[int, ...] = WIDTHS, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
        groups = []
        for place, width in enumerate(widths):
            given, stride = widths[max(place - 1, 0)], 1 if place == 0 else 2
            own = [Block(given if k == 0 else width, width, stride if k == 0 else 1) for k in range(blocks)]
            groups.append(nn.Sequential(*own))
        self.below = nn.Sequential(*groups[:-1])
        self.top = Top(groups[-1], nn.Linear(widths[-1], classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.lower(x))

    def lower(self, x: torch.Tensor) -> torch.Tensor:
        """What the last group sees."""
        return self.below(self.stem(x))


class Top(nn.Module):
    """The last group, the mean over pixels, the last linear layer: all that the depths 2 and 4 differentiate."""

    def __init__(self, group: nn.Sequential, head: nn.Linear) -> None:
        super().__init__()
        self.group, self.head = group, head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.group(x).mean((2, 3))


def layers_of(top: Top, depth: str) -> list[str]:
    """Names within `top` of the last k layers: the linear one, and convolutions with their batch norms from the end.

    The 1×1 convolution of a shortcut runs beside the others and is not counted.
    """
    last = len(top.group) - 1
    names = [[f"group.{k}.conv{c}", f"group.{k}.norm{c}"] for k in range(last, -1, -1) for c in (2, 1)]
    return ["head", *(name for pair in names[: DEEP[depth]] for name in pair)]
