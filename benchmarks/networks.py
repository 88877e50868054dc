"""The networks that the papers' experiments train and that the library does not need."""

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, max_pool2d, pad, relu

VOCABULARY = 8192  # words of the transformer
NO_WORD = 0
FEW_CHANNELS = 8
RESNET_18 = (64, 128, 256, 512)
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}


class Convolution(nn.Conv2d):
    """A 3 × 3 convolution with borders of zeros and no bias. For few channels the gradient of its weight is slow on a
    GPU, whose kernels are made for many: there it is trained as a product with patches of the images."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__(given, made, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda and self.training and self.in_channels < FEW_CHANNELS:
            return self.by_patches(x)
        return super().forward(x)

    def by_patches(self, x: torch.Tensor) -> torch.Tensor:
        """Return the same from one product, whose inner size is a multiple of eight."""
        bordered = pad(x, [1] * 4).permute(0, 2, 3, 1)
        rest = [0, -9 * self.in_channels % 8]
        patches = pad(bordered.unfold(1, 3, 1).unfold(2, 3, 1).flatten(3), rest)
        weight = pad(self.weight.flatten(1), rest)
        return linear(patches, weight).permute(0, 3, 1, 2)


class Pooling(nn.Module):
    """The largest of each two by two pixels. Compiled, it notes in a byte which of the four that was: its gradient then
    took an H200 47 µs where that of max pooling took 163 (500 images of 32 × 32 with 128 channels)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        even = not (x.shape[-1] % 2 or x.shape[-2] % 2)
        if even and torch.compiler.is_compiling():
            return _Largest.apply(x)  # type: ignore[no-untyped-call]
        return max_pool2d(x, 2)


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Take the first of equals, as torch does."""
        upper, lower = x[..., ::2, :], x[..., 1::2, :]
        (first, second), (third, fourth) = ((row[..., ::2], row[..., 1::2]) for row in (upper, lower))
        above, below = torch.maximum(first, second), torch.maximum(third, fourth)
        place = torch.where(above >= below, (second > first).byte(), 2 + (fourth > third).byte())
        ctx.save_for_backward(place)
        return torch.maximum(above, below)

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (place,) = ctx.saved_tensors
        corner = torch.arange(4, dtype=torch.uint8, device=place.device).view(2, 1, 2, 1)
        place, slope = (each.permute(0, 2, 3, 1)[:, :, None, :, None] for each in (place, slope))
        return torch.where(place == corner, slope, 0).flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)


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

    def __init__(self, classes: int = 10, widths: tuple[int, ...] = RESNET_18, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Sequential(Convolution(3, widths[0]), nn.BatchNorm2d(widths[0]), nn.ReLU())
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


class WideBlock(nn.Module):
    """Batch norm and ReLU before each of two convolutions, beside a shortcut."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(given), nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(given, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.shortcut = None if given == width else nn.Conv2d(given, width, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ready = relu(self.norm1(x))
        beside = x if self.shortcut is None else self.shortcut(ready)
        return beside + self.conv2(relu(self.norm2(self.conv1(ready))))


def build_wide_resnet(classes: int, depth: int = 28, width: int = 2) -> nn.Sequential:
    """Build a WideResNet of this depth (6k + 4) and width, without dropout."""
    blocks = (depth - 4) // 6
    layers: list[nn.Module] = [Convolution(3, 16)]
    given = 16
    for stage, base in enumerate((16, 32, 64)):
        for block in range(blocks):
            layers.append(WideBlock(given, base * width, 2 if stage and not block else 1))
            given = base * width
    last = (nn.BatchNorm2d(given), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, classes))
    return nn.Sequential(*layers, *last)


def build_blocks(shape: tuple[int, ...], outputs: int, hidden: tuple[int, ...], dropout: float = 0.0) -> nn.Sequential:
    """Build fully connected blocks with ReLU, each followed by dropout if there is any, and a linear head."""
    layers: list[nn.Module] = []
    for before, after in pairwise((shape[0], *hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear((shape[0], *hidden)[-1], outputs))


def build_with_dropout(
    shape: tuple[int, ...], outputs: int, widths: tuple[int, ...] = (16, 32, 64), blocks: int = 3
) -> nn.Sequential:
    """Build a ResNet for small images, ResNet-20 by default, with dropout of 0.3 before the head.

    There is no first pooling, and each stage after the first halves the image.
    """
    before = widths[0]
    layers: list[nn.Module] = [nn.Conv2d(shape[0], before, 3, 1, 1, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(ResidualBlock(before, width, 2 if stage and not block else 1))
            before = width
    head = (nn.Dropout(0.3), nn.Linear(before, outputs))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head)


class Attention(nn.Module):
    """Self-attention among the words that are present."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inside = nn.Linear(width, 3 * width)
        self.outside = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inside(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT) / q.shape[-1] ** 0.5
        weights = weights.masked_fill(~present[:, None, None, :], -1e4).softmax(-1)
        return self.outside((weights @ v).transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention and a layer of four times the width, each beside a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norms[0](x), present))
        return x + self.dropout(self.wide(self.norms[1](x)))


class Reader(nn.Module):
    """Maps word numbers (as floats, 0 for no word) to the mean of what the blocks make of the words."""

    def __init__(self, length: int, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList([TransformerBlock(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        present = numbers > NO_WORD
        x = self.words(numbers.long()) + self.places
        for block in self.blocks:
            x = block(x, present)
        share = present / present.sum(1, keepdim=True).clamp_min(1)
        return (self.norm(x) * share[..., None]).sum(1)


def build_transformer(shape: tuple[int, ...], outputs: int, width: int = 128, heads: int = 2) -> nn.Sequential:
    """Build two layers, 128 wide, with two heads: the shape of BERT-tiny."""
    return nn.Sequential(Reader(shape[0], width, heads, layers=2, dropout=0.1), nn.Linear(width, outputs))


def build_network(depth: int, width: int, activation: str, inputs: int) -> nn.Sequential:
    """Build a network whose weights come from torch's global random numbers."""
    layers: list[nn.Module] = []
    for before, after in pairwise([inputs, *[width] * depth, 1]):
        layer = nn.Linear(before, after, bias=False)
        nn.init.normal_(layer.weight, std=(2.0 / before) ** 0.5)
        layers += [layer, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])
