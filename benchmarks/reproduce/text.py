"""Sentences of SST-2: a linear head on a frozen encoder, and a small transformer trained as a whole."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.reproduce.data import Data, sst2, sst2_features
from benchmarks.reproduce.experiment import Experiment
from benchmarks.reproduce.tabular import build_blocks
from giveaway.attacks.training import Training

LONGEST = 32  # words of a sentence that the transformer reads
NOTHING, UNKNOWN, FIRST_WORD = 0, 1, 2
VOCABULARY = 8192


class Attention(nn.Module):
    """Self-attention among the words that are there."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inside = nn.Linear(width, 3 * width)
        self.outside = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inside(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT) / q.shape[-1] ** 0.5
        weights = weights.masked_fill(~there[:, None, None, :], -1e4).softmax(-1)
        return self.outside((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a layer of four times the width, each beside a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norms[0](x), there))
        return x + self.dropout(self.wide(self.norms[1](x)))


class Reader(nn.Module):
    """Word numbers (as floats, 0 for nothing) to the mean of what the blocks make of the words."""

    def __init__(self, length: int, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        there = numbers > NOTHING
        x = self.words(numbers.long()) + self.places
        for block in self.blocks:
            x = block(x, there)
        share = there / there.sum(1, keepdim=True).clamp_min(1)
        return (self.norm(x) * share[..., None]).sum(1)


def build_transformer(shape: tuple[int, ...], outputs: int, width: int = 128, heads: int = 2) -> nn.Sequential:
    """Two layers, 128 wide, two heads: the shape of BERT-tiny."""
    return nn.Sequential(Reader(shape[0], width, heads, layers=2, dropout=0.1), nn.Linear(width, outputs))


def words_of(sentence: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", sentence.lower())


def sst2_words(folder: Path | None) -> Data:
    """Sentences as numbers of the most frequent words of the training part, in one width."""
    sentences, labels, records = sst2(folder)
    split = [words_of(sentence) for sentence in sentences]
    counts = Counter(word for words in split[:records] for word in words)
    known = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - FIRST_WORD]
    number = {word: place + FIRST_WORD for place, word in enumerate(known)}
    x = np.full((len(split), LONGEST), NOTHING, np.float32)
    for row, words in enumerate(split):
        found = [number.get(word, UNKNOWN) for word in words[:LONGEST]]
        x[row, : len(found)] = found
    return Data(x, labels, records, sentences[:records], np.arange(records))


_EXPERIMENTS = [
    Experiment(
        "sst2_head",
        "SST-2, linear head on a frozen encoder",
        sst2_features,
        partial(build_blocks, hidden=()),
        Training(10, 32, "adamw", 1e-3, weight_decay=1e-2),
        models_at_once=200,
        head_only=True,
        differs=("all-MiniLM-L6-v2 (384 features) stands in for BERT-base (768)",),
    ),
    Experiment(
        "sst2_transformer",
        "SST-2, transformer trained as a whole",
        sst2_words,
        build_transformer,
        Training(10, 32, "adamw", 1e-4, weight_decay=1e-2),
        models_at_once=40,
        differs=(
            "two layers, 128 wide, as BERT-tiny, but from random weights: no pretrained ones were to be had",
            "whole words, the 8,190 most frequent, instead of word pieces",
        ),
        build_small=partial(build_transformer, width=8),
    ),
]
SETTINGS = {experiment.name: experiment.setting() for experiment in _EXPERIMENTS}
