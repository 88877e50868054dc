"""The eight settings of the per-sample paper: their data, networks, training, and how they differ from the paper's."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.reproduce.gls.training import ResidualBlock
from benchmarks.reproduce.page import read_paper
from benchmarks.reproduce.per_sample import data as sets
from benchmarks.reproduce.per_sample.data import Data, sst2
from benchmarks.reproduce.per_sample.experiment import Experiment, run
from giveaway.attacks.recipes import build_cnn
from giveaway.attacks.stacked import Training

LONGEST = 32  # words of a sentence that the transformer reads
NOTHING, UNKNOWN, FIRST_WORD = 0, 1, 2
VOCABULARY = 8192


def build_blocks(shape: tuple[int, ...], outputs: int, hidden: tuple[int, ...], dropout: float = 0.0) -> nn.Sequential:
    """Build fully connected blocks with ReLU, each followed by dropout if there is any, and a linear head."""
    layers: list[nn.Module] = []
    for before, after in pairwise((shape[0], *hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear((shape[0], *hidden)[-1], outputs))


def build_resnet(shape: tuple[int, ...], outputs: int, widths: tuple[int, ...], blocks: int) -> nn.Sequential:
    """Build a ResNet for small images: no first pooling; each stage after the first halves the image."""
    before = widths[0]
    layers: list[nn.Module] = [nn.Conv2d(shape[0], before, 3, 1, 1, bias=False), nn.BatchNorm2d(before), nn.ReLU()]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            layers.append(ResidualBlock(before, width, 2 if stage and not block else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))


def build_with_dropout(
    shape: tuple[int, ...], outputs: int, widths: tuple[int, ...] = (16, 32, 64), blocks: int = 3
) -> nn.Sequential:
    """Build ResNet-20 by default, three stages of three blocks, with dropout of 0.3 before the head."""
    network = build_resnet(shape, outputs, widths, blocks)
    return nn.Sequential(*network[:-1], nn.Dropout(0.3), network[-1])


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
        present = numbers > NOTHING
        x = self.words(numbers.long()) + self.places
        for block in self.blocks:
            x = block(x, present)
        share = present / present.sum(1, keepdim=True).clamp_min(1)
        return (self.norm(x) * share[..., None]).sum(1)


def build_transformer(shape: tuple[int, ...], outputs: int, width: int = 128, heads: int = 2) -> nn.Sequential:
    """Build two layers, 128 wide, with two heads: the shape of BERT-tiny."""
    return nn.Sequential(Reader(shape[0], width, heads, layers=2, dropout=0.1), nn.Linear(width, outputs))


def sst2_words(folder: Path | None) -> Data:
    """Read sentences as numbers of the most frequent words of the training part, all of one width."""
    sentences, labels, records = sst2(folder)
    split = [re.findall(r"\w+|[^\w\s]", sentence.lower()) for sentence in sentences]
    counts = Counter(word for words in split[:records] for word in words)
    known = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - FIRST_WORD]
    number = {word: place + FIRST_WORD for place, word in enumerate(known)}
    x = np.full((len(split), LONGEST), NOTHING, np.float32)
    for row, words in enumerate(split):
        numbers = [number.get(word, UNKNOWN) for word in words[:LONGEST]]
        x[row, : len(numbers)] = numbers
    return Data(x, labels, records, sentences[:records], np.arange(records))


BUILDERS = {"mlp": build_blocks, "cnn": build_cnn, "resnet": build_with_dropout, "transformer": build_transformer}


def read_experiment(name: str) -> Experiment:
    """Read a setting from paper.toml; `network` and `small_network` are arguments of its builder."""
    said = dict(read_paper("per_sample")["experiments"][name])
    build = partial(BUILDERS[said.pop("builder")], **_tuples(said.pop("network", {})))
    small, loader = said.pop("small_network", None), said.pop("data")
    load = sst2_words if loader == "sst2_words" else getattr(sets, loader)
    said |= {"differs": tuple(said["differs"]), "build_small": small and partial(build, **_tuples(small))}
    return Experiment(name, said.pop("title"), load, build, Training(**said.pop("training")), **said)


def _tuples(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}


EXPERIMENTS = tuple(read_experiment(name) for name in read_paper("per_sample")["experiments"])
RUNS = {experiment.name: partial(run, experiment) for experiment in EXPERIMENTS}
