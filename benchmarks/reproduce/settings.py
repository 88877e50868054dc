"""The settings by name, each with the module that has it in its dict `SETTINGS`, read when it is asked for."""

from __future__ import annotations

import importlib

from benchmarks.reproduce.setting import Setting

HOMES = {
    "energy_mlp": "tabular",
    "california_linear": "tabular",
    "california_mlp": "tabular",
    "bloodmnist_head": "images",
    "cifar10_cnn": "images",
    "cifar100_resnet20": "images",
    "sst2_head": "text",
    "sst2_transformer": "text",
    "gls_resnet18": "gls_resnet",
    "gls_full_model": "gls_full_model",
    **{f"lood_{part}": f"lood_{part}" for part in ("retrained", "correlation", "influence", "activations")},
    **{f"lood_{part}": f"lood_{part}" for part in ("queries", "searches", "toys")},
}


def setting(name: str) -> Setting:
    """The setting of that name."""
    module = importlib.import_module(f"benchmarks.reproduce.{HOMES[name]}")
    return module.SETTINGS[name]
