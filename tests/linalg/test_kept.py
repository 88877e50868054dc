"""Keeping nothing, and keeping together (two real processes do so in test_team)."""

from __future__ import annotations

import torch

from giveaway.linalg.kept import NOTHING_KEPT, Kept, KeptTogether, kept_by
from giveaway.linalg.team import ALONE, Team


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
    NOTHING_KEPT.save("sums", {"x": torch.ones(3)})
    assert NOTHING_KEPT.load("sums") is None
    assert not NOTHING_KEPT.due()
    NOTHING_KEPT.drop("sums")


def test_alone_or_without_anything_kept_nothing_is_added():
    shelf = Shelf()
    assert kept_by(shelf, ALONE) is shelf
    assert kept_by(NOTHING_KEPT, Team(0, 2)) is NOTHING_KEPT
    assert isinstance(kept_by(shelf, Team(0, 2)), KeptTogether)


def test_a_set_that_was_not_saved_by_a_team_counts_as_not_there():
    shelf = Shelf(sums={"x": torch.ones(2)})
    assert KeptTogether(shelf, ALONE).load("sums") is None
    assert shelf == {}


def test_what_is_kept_together_comes_back_without_its_turn():
    shelf = Shelf()
    kept: Kept = KeptTogether(shelf, ALONE)
    kept.save("sums", {"x": torch.arange(3)})
    found = kept.load("sums")
    assert found is not None
    assert list(found) == ["x"]
    assert found["x"].tolist() == [0, 1, 2]
    assert kept.due()
    kept.drop("sums")
    assert kept.load("sums") is None
