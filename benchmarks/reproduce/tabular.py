"""Tables of numbers: UCI Energy and California Housing."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from torch import nn

from benchmarks.reproduce.data import california, energy
from benchmarks.reproduce.experiment import Experiment
from giveaway.attacks.training import Training


def build_blocks(shape: tuple[int, ...], outputs: int, hidden: tuple[int, ...], dropout: float = 0.0) -> nn.Sequential:
    """Fully connected blocks with ReLU, each followed by dropout where there is any; a linear head."""
    layers: list[nn.Module] = []
    for before, after in pairwise((shape[0], *hidden)):
        layers += [nn.Linear(before, after), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear((shape[0], *hidden)[-1], outputs))


_OWN_SPLIT = "the split into records and others is ours"
_EXPERIMENTS = [
    Experiment(
        "energy_mlp",
        "UCI Energy, MLP",
        energy,
        partial(build_blocks, hidden=(64, 32), dropout=0.3),
        Training(300, 32, "adam", 1e-3, weight_decay=1e-3, loss="squared"),
        models_at_once=200,
        differs=(_OWN_SPLIT, "heating load alone, standardized; the paper does not say which of the two loads"),
    ),
    Experiment(
        "california_linear",
        "California Housing, linear regression",
        california,
        partial(build_blocks, hidden=()),
        Training(200, 256, "adam", 1e-2, weight_decay=1e-3, loss="squared"),
        models_at_once=200,
        differs=(_OWN_SPLIT, "trained with Adam as the paper's Table 3 has it; its Section 5 says closed form"),
    ),
    Experiment(
        "california_mlp",
        "California Housing, MLP",
        california,
        partial(build_blocks, hidden=(128, 128, 128)),
        Training(200, 256, "adam", 1e-3, weight_decay=5e-4, loss="squared"),
        models_at_once=200,
        whole_network=16,
        differs=(_OWN_SPLIT, "whole network: Gauss–Newton curvature from 64 probes instead of the Hessian"),
    ),
]
SETTINGS = {experiment.name: experiment.setting() for experiment in _EXPERIMENTS}
