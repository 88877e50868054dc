"""CIFAR-10 as the GLS experiments use it, and ResNet-18 for images of 32 pixels, with its layers by depth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import relu

from benchmarks.reproduce.per_sample.data import cifar10

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MADE = (250, 50, 8)  # records to train on, held-out records, pixels a side of the made images
WIDTHS = (64, 128, 256, 512)
DEPTHS = ("last layer", "2 last layers", "4 last layers", "full model")
DEEP = {"2 last layers": 1, "4 last layers": 3}  # convolutions below the last linear layer


@dataclass(frozen=True)
class Images:
    """uint8 (n, side, side, 3) and class numbers: the records to draw training sets from, and those held out."""

    records: np.ndarray
    labels: np.ndarray
    held_out: np.ndarray
    held_out_labels: np.ndarray


def read_images(folder: Path) -> Images:
    """Read the whole of CIFAR-10: all 50,000 images may be trained on, the 10,000 others are held out."""
    x, y, held_x, held_y = cifar10(folder)
    return Images(x, y.reshape(-1).astype(np.int64), held_x, held_y.reshape(-1).astype(np.int64))


def made_images(seed: int = 0) -> Images:
    """Make noise around a pattern for each of ten classes, to try the code on."""
    records, held_out, side = MADE
    rng = np.random.default_rng(seed)
    patterns = rng.integers(40, 216, (10, side, side, 3))
    labels = rng.integers(0, 10, records + held_out)
    images = np.clip(patterns[labels] + rng.normal(0, 60, (len(labels), side, side, 3)), 0, 255).astype(np.uint8)
    return Images(images[:records], labels[:records], images[records:], labels[records:])


class ResidualBlock(nn.Module):
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
    """A 3×3 stem without pooling and four groups of blocks; the last is `top.group`, the linear layer `top.head`."""

    def __init__(self, classes: int = 10, widths: tuple[int, ...] = WIDTHS, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
        groups = []
        for place, width in enumerate(widths):
            given, stride = widths[max(place - 1, 0)], 1 if place == 0 else 2
            own = [ResidualBlock(given if k == 0 else width, width, stride if k == 0 else 1) for k in range(blocks)]
            groups.append(nn.Sequential(*own))
        self.below = nn.Sequential(*groups[:-1])
        self.top = Top(groups[-1], nn.Linear(widths[-1], classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(self.lower(x))

    def lower(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input of the last group."""
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
    """Return the names within `top` of the last k layers: the linear one, then convolutions with their norms.

    The 1×1 convolution of a shortcut runs beside the others and is not counted.
    """
    last = len(top.group) - 1
    names = [[f"group.{k}.conv{c}", f"group.{k}.norm{c}"] for k in range(last, -1, -1) for c in (2, 1)]
    return ["head", *(name for pair in names[: DEEP[depth]] for name in pair)]
