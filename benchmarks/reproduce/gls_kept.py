"""What is kept of the ResNets between commands, and what is small enough to travel between machines.

WORK/keep    : per model φ of all records (float16) and accuracies; per target and piece of work its columns. Take this
    folder along, and runs on several machines and days add up: training sets follow from the seed.
WORK/weights : targets' weights; without them a target with work left to do is trained again, and its work done again.
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

from benchmarks.reproduce.setting import keep_plan, write_arrays, write_json

TINY = 1e-30
SIGNED = ("fused", "pictured")  # kept as they are; all other columns are positive, and kept as logarithms


class Kept:
    """The folder of one setting, for one plan (seed, schedule, records)."""

    def __init__(self, work: Path, plan: Mapping[str, Any]) -> None:
        self.keep, self.weights, self.logits = (work / name for name in ("keep", "weights", "logits"))
        for folder in (self.keep, self.weights, self.logits):
            folder.mkdir(parents=True, exist_ok=True)
        keep_plan(self.keep / "plan.json", plan)

    def has_model(self, number: int) -> bool:
        return self._model(number).exists()

    def save_model(self, number: int, phi: np.ndarray, told: Mapping[str, Any], logits: np.ndarray) -> None:
        """Its older pieces of work are of other weights, and go."""
        for old in self.keep.glob(f"target-{number:03d}-*"):
            old.unlink()
        np.save(self.logits / f"model-{number:03d}.npy", logits.astype(np.float16))
        write_arrays(self._model(number), {"phi": phi.astype(np.float16), "told": np.array(json.dumps(told))})

    def phi(self, number: int) -> tuple[np.ndarray, dict[str, Any]]:
        """φ of all records, and what was noted of the training."""
        with np.load(self._model(number)) as held:
            return held["phi"], json.loads(str(held["told"]))

    def save_weights(self, number: int, model: nn.Module) -> str:
        """Their digest, which is to be noted with the model."""
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        torch.save(state, self._weights(number))
        return _digest(state)

    def load_weights(self, number: int, model: nn.Module) -> bool:
        """Whether they were there, and are those of the kept model: another machine may have trained it again."""
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
        write_arrays(self._piece(number, piece), {**small, "told": np.array(json.dumps(told, default=str))})

    def give_up(self, number: int, piece: str, why: str) -> None:
        """Note that a piece cannot be had, so that it is not tried again."""
        write_json(self._piece(number, piece).with_suffix(".json"), {"ended": why})

    def why_not(self, number: int, piece: str) -> str | None:
        """Why it cannot be had, where that was noted."""
        path = self._piece(number, piece).with_suffix(".json")
        return str(json.loads(path.read_text())["ended"]) if path.exists() else None

    def reasons(self, targets: Iterable[int], piece: str) -> list[str]:
        """Why it cannot be had of some of these targets, each reason once."""
        return sorted({why for why in (self.why_not(number, piece) for number in targets) if why})

    def settled(self, number: int, piece: str) -> bool:
        """Whether nothing is left to do for it."""
        return self.has_piece(number, piece) or self.why_not(number, piece) is not None

    def piece(self, number: int, piece: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Its columns (positive ones as logarithms to the base of 10) in float64, and what it cost."""
        return _read(self._piece(number, piece))

    def longest(self, piece: str) -> float:
        """Seconds that this piece of work took of a target so far, at most; 0 where it was not done yet."""
        done = self.keep.glob(f"target-???-{_slug(piece)}.npz")
        return max((_read(path)[1]["seconds"] for path in done), default=0.0)

    def _model(self, number: int) -> Path:
        return self.keep / f"model-{number:03d}.npz"

    def _weights(self, number: int) -> Path:
        return self.weights / f"target-{number:03d}.pt"

    def _piece(self, number: int, piece: str) -> Path:
        return self.keep / f"target-{number:03d}-{_slug(piece)}.npz"


def _slug(piece: str) -> str:
    return piece.replace(" ", "-")


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    with np.load(path) as held:
        columns = {name: held[name].astype(np.float64) for name in held.files if name != "told"}
        return columns, json.loads(str(held["told"]))


def _packed(name: str, column: np.ndarray) -> np.ndarray:
    if name in SIGNED:
        return column.astype(np.float16)
    return np.log10(np.maximum(column, TINY)).astype(np.float16)


def _digest(state: Mapping[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, value in state.items():
        found.update(name.encode() + value.contiguous().numpy().tobytes())
    return found.hexdigest()
