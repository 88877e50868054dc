"""The eight settings of the per-sample paper: their data, networks, training, and how they differ from the paper's."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.networks import NO_WORD, VOCABULARY, build_blocks, build_transformer, build_with_dropout
from benchmarks.recipes import build_cnn
from benchmarks.reproduce.page import read_paper
from benchmarks.reproduce.per_sample import data as sets
from benchmarks.reproduce.per_sample.data import Data, sst2
from benchmarks.reproduce.per_sample.experiment import Experiment, run
from benchmarks.reproduce.per_sample.splits import run_splits
from benchmarks.reproduce.per_sample.whole import run_whole
from benchmarks.stacked import Training

LONGEST = 32  # words of a sentence that the transformer reads
UNKNOWN, FIRST_WORD = 1, 2


def sst2_words(folder: Path | None) -> Data:
    """Read sentences as numbers of the most frequent words of the training part, all of one width."""
    sentences, labels, records = sst2(folder)
    split = [re.findall(r"\w+|[^\w\s]", sentence.lower()) for sentence in sentences]
    counts = Counter(word for words in split[:records] for word in words)
    known = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - FIRST_WORD]
    number = {word: place + FIRST_WORD for place, word in enumerate(known)}
    x = np.full((len(split), LONGEST), NO_WORD, np.float32)
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
_NAMED = {experiment.name: experiment for experiment in EXPERIMENTS}
RUNS |= {"california_splits": partial(run_splits, _NAMED["california_linear"])}
RUNS |= {f"{name}_whole": partial(run_whole, _NAMED[name]) for name in ("california_mlp", "cifar10_cnn")}
