"""Keeping nothing, and keeping together (two real processes do so in test_team)."""

from __future__ import annotations

import torch

from giveaway.linalg.processes import ALONE, Processes, SharedCheckpoint, shared_checkpoint
from giveaway.storage.checkpoint import NO_CHECKPOINT, Checkpoint


class Shelf(dict):
    """Tensors in memory."""

    wants = True

    def load(self, name: str) -> dict[str, torch.Tensor] | None:
        return dict(self[name]) if name in self else None

    def save(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
        self[name] = dict(tensors)

    def due(self) -> bool:
        return self.wants

    def drop(self, name: str) -> None:
        self.pop(name, None)


def test_nothing_is_kept():
    NO_CHECKPOINT.save("sums", {"x": torch.ones(3)})
    assert NO_CHECKPOINT.load("sums") is None
    assert not NO_CHECKPOINT.due()
    NO_CHECKPOINT.drop("sums")


def test_alone_or_without_anything_kept_nothing_is_added():
    shelf = Shelf()
    assert shared_checkpoint(shelf, ALONE) is shelf
    assert shared_checkpoint(NO_CHECKPOINT, Processes(0, 2)) is NO_CHECKPOINT
    assert isinstance(shared_checkpoint(shelf, Processes(0, 2)), SharedCheckpoint)


def test_a_set_that_was_not_saved_by_a_team_counts_as_not_there():
    shelf = Shelf(sums={"x": torch.ones(2)})
    assert SharedCheckpoint(shelf, ALONE).load("sums") is None
    assert shelf == {}


def test_what_is_kept_together_comes_back_without_its_turn():
    shelf = Shelf()
    kept: Checkpoint = SharedCheckpoint(shelf, ALONE)
    kept.save("sums", {"x": torch.arange(3)})
    found = kept.load("sums")
    assert found is not None
    assert list(found) == ["x"]
    assert found["x"].tolist() == [0, 1, 2]
    assert kept.due()
    kept.drop("sums")
    assert kept.load("sums") is None
