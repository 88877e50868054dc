"""What long numerical work keeps of what it has finished, without knowing where: a killed run goes on from there."""

from __future__ import annotations

from typing import Protocol

import torch

from giveaway.linalg.team import Team

TURN = "_turn"  # of a save, stored beside its tensors


class Kept(Protocol):
    """A place for named sets of tensors. What `load` gives back is on the CPU."""

    def load(self, name: str) -> dict[str, torch.Tensor] | None:
        """What was last saved under `name`, or None."""
        ...

    def save(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
        """Keep `tensors` in place of what `name` had."""
        ...

    def due(self) -> bool:
        """Whether it is time to save partial work again."""
        ...

    def drop(self, name: str) -> None:
        """Forget `name`."""
        ...


class _Nothing:
    def load(self, name: str) -> dict[str, torch.Tensor] | None:
        return None

    def save(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
        pass

    def due(self) -> bool:
        return False

    def drop(self, name: str) -> None:
        pass


NOTHING_KEPT: Kept = _Nothing()


class KeptTogether:
    """What each process of a team keeps, taken up again only as far as all of them have it.

    A kill can fall between the saves of two processes. Every save has a turn; a name whose turns differ counts as not
    there, on all of them. Every process must make the same calls in the same order.
    """

    def __init__(self, own: Kept, team: Team) -> None:
        self.own, self.team = own, team
        self.turns: dict[str, int] = {}

    def load(self, name: str) -> dict[str, torch.Tensor] | None:
        """What was last saved under `name`, where every process has it from the same turn."""
        found = self.own.load(name)
        turn = 0 if found is None else int(found.pop(TURN, torch.tensor(0)))
        turns = torch.zeros(self.team.size, dtype=torch.int64)
        turns[self.team.rank] = turn
        self.team.sum_(turns)
        if turn and bool((turns == turn).all()):
            self.turns[name] = turn
            return found
        self.drop(name)
        return None

    def save(self, name: str, tensors: dict[str, torch.Tensor]) -> None:
        """Keep `tensors`, and the turn."""
        self.turns[name] = self.turns.get(name, 0) + 1
        self.own.save(name, {**tensors, TURN: torch.tensor(self.turns[name])})

    def due(self) -> bool:
        """Whether the first process finds it time: all are told the same."""
        asked = torch.tensor(self.team.first and self.own.due())
        return bool(self.team.sum_(asked))

    def drop(self, name: str) -> None:
        """Forget `name`."""
        self.turns.pop(name, None)
        self.own.drop(name)


def kept_by(own: Kept, team: Team) -> Kept:
    """`own` as a team keeps it: the same where a process works alone or nothing is kept."""
    return own if team.size == 1 or own is NOTHING_KEPT else KeptTogether(own, team)
