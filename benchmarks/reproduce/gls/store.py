"""What is kept of the ResNets between commands, and what is small enough to travel between machines.

WORK/keep    : per model φ of all records (float16) and accuracies; per target and piece of work its columns. With this
    folder carried along, runs on several machines and days add up: training sets follow from the seed.
WORK/weights : targets' weights; without them a target with unfinished work is trained again, and its work done again.
WORK/logits  : logits of all images (float16).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.measuring import write_json
from benchmarks.reproduce.job import Piece, keep_plan, read_piece, write_piece

TINY = 1e-30
SIGNED = ("fused", "pictured")  # kept as they are; all other columns are positive, and kept as logarithms


class Store:
    """The folder of one setting, for one plan (seed, schedule, records)."""

    def __init__(self, work: Path, plan: Mapping[str, Any]) -> None:
        self.keep, self.weights, self.logits = (work / name for name in ("keep", "weights", "logits"))
        for folder in (self.keep, self.weights, self.logits):
            folder.mkdir(parents=True, exist_ok=True)
        keep_plan(self.keep / "plan.json", plan)

    def has_model(self, number: int) -> bool:
        return self._model(number).exists()

    def save_model(self, number: int, phi: np.ndarray, told: Mapping[str, Any], logits: np.ndarray) -> None:
        """Keep a model; its older pieces of work are of other weights, and are removed."""
        for old in self.keep.glob(f"target-{number:03d}-*"):
            old.unlink()
        np.save(self.logits / f"model-{number:03d}.npy", logits.astype(np.float16))
        write_piece(self._model(number), {"phi": phi.astype(np.float16)}, told)

    def phi(self, number: int) -> tuple[np.ndarray, dict[str, Any]]:
        """Return φ of all records, and the notes on the training."""
        columns, told = read_piece(self._model(number))
        return columns["phi"], told

    def save_weights(self, number: int, model: nn.Module) -> str:
        """Keep the weights and return their digest, which is noted with the model."""
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        torch.save(state, self._weights(number))
        return _digest(state)

    def load_weights(self, number: int, model: nn.Module) -> bool:
        """Load the weights if they are there and those of the kept model: another machine may have trained it again."""
        path = self._weights(number)
        if not (path.exists() and self.has_model(number)):
            return False
        state = torch.load(path, weights_only=True)
        if _digest(state) != self.phi(number)[1].get("weights"):
            return False
        model.load_state_dict(state)
        return True

    def has_piece(self, number: int, piece: str) -> bool:
        return self._piece(number, piece).exists()

    def save_piece(self, number: int, piece: str, columns: Mapping[str, np.ndarray], told: Mapping[str, Any]) -> None:
        small = {name: _packed(name, np.asarray(column)) for name, column in columns.items()}
        write_piece(self._piece(number, piece), small, told)

    def give_up(self, number: int, piece: str, why: str) -> None:
        """Note why a piece cannot be computed, so that it is not tried again."""
        write_json(self._piece(number, piece).with_suffix(".json"), {"ended": why})

    def why_not(self, number: int, piece: str) -> str | None:
        """Return why it cannot be computed, if that was noted."""
        path = self._piece(number, piece).with_suffix(".json")
        return str(json.loads(path.read_text())["ended"]) if path.exists() else None

    def reasons(self, targets: Iterable[int], piece: str) -> list[str]:
        """Return why it cannot be computed for some of these targets, each reason once."""
        return sorted({why for why in (self.why_not(number, piece) for number in targets) if why})

    def settled(self, number: int, piece: str) -> bool:
        """Return whether nothing is left to do for it."""
        return self.has_piece(number, piece) or self.why_not(number, piece) is not None

    def piece(self, number: int, piece: str) -> Piece:
        """Return its columns (positive ones as logarithms to the base of 10) in float64, and what it cost."""
        columns, told = read_piece(self._piece(number, piece))
        return {name: column.astype(np.float64) for name, column in columns.items()}, told

    def longest(self, piece: str) -> float:
        """Return the most seconds that this piece of work took for a target so far; 0 if it was not done yet."""
        done = self.keep.glob(f"target-???-{_slug(piece)}.npz")
        return max((read_piece(path)[1]["seconds"] for path in done), default=0.0)

    def _model(self, number: int) -> Path:
        return self.keep / f"model-{number:03d}.npz"

    def _weights(self, number: int) -> Path:
        return self.weights / f"target-{number:03d}.pt"

    def _piece(self, number: int, piece: str) -> Path:
        return self.keep / f"target-{number:03d}-{_slug(piece)}.npz"


def _slug(piece: str) -> str:
    return piece.replace(" ", "-")


def _packed(name: str, column: np.ndarray) -> np.ndarray:
    if name in SIGNED:
        return column.astype(np.float16)
    return np.log10(np.maximum(column, TINY)).astype(np.float16)


def _digest(state: Mapping[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, value in state.items():
        found.update(name.encode() + value.contiguous().numpy().tobytes())
    return found.hexdigest()
