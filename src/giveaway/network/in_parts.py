"""Solves in parts that are kept as they finish, with what they cost: a killed run goes on with the next part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from giveaway.network.gradients import row_numbers
from giveaway.network.network import Network
from giveaway.network.scores import NetworkScores, score_records
from giveaway.network.solves import InverseCurvature
from giveaway.storage.checkpoint import NO_CHECKPOINT, Checkpoint

AT_ONCE = 64  # right sides of a part of chosen records
COUNTS = "counts"

Tensors = dict[str, torch.Tensor]
OnSolved = Callable[[int, int], Any]  # right sides done, and all of them as far as known


class CheckpointedSolves:
    """Parts of the work of `inverse`, under names that begin with `name`."""

    def __init__(self, inverse: InverseCurvature, checkpoint: Checkpoint = NO_CHECKPOINT, name: str = "solves") -> None:
        self.inverse, self.checkpoint, self.name = inverse, checkpoint, name
        self._unsaved: dict[str, Tensors] = {}
        self._seen: list[str] = []

    def part(self, name: str, solve: Callable[[], Tensors]) -> Tensors:
        """What `solve` gives, or gave to a run before this one; its cost is counted either way."""
        full = f"{self.name}-{name}"
        self._seen.append(full)
        found = self.checkpoint.load(full)
        if found is not None:
            self._add(found.pop(COUNTS).tolist())
            return found
        before = self._sums()
        found = solve()
        if self.checkpoint is not NO_CHECKPOINT:
            added = [new - old for new, old in zip(self._sums(), before, strict=True)]
            counts = torch.tensor([*added, self.inverse.steps, self.inverse.worst], dtype=torch.float64)
            self._unsaved[full] = {**found, COUNTS: counts}
        if self.checkpoint.due():
            for finished, tensors in self._unsaved.items():
                self.checkpoint.save(finished, tensors)
            self._unsaved.clear()
        return found

    def drop(self) -> None:
        """Forget all parts: what they were for is finished."""
        for name in self._seen:
            self.checkpoint.drop(name)

    def _sums(self) -> tuple[int, ...]:
        inverse = self.inverse
        return inverse.right_sides, inverse.unsolved, inverse.jacobian.passes, inverse.jacobian.column_passes

    def _add(self, counts: Sequence[float]) -> None:
        inverse = self.inverse
        right_sides, unsolved, passes, column_passes, steps = (int(count) for count in counts[:5])
        inverse.right_sides += right_sides
        inverse.unsolved += unsolved
        inverse.jacobian.passes += passes
        inverse.jacobian.column_passes += column_passes
        inverse.steps, inverse.worst = max(inverse.steps, steps), max(inverse.worst, counts[5])


def right_sides_of_a_record(network: Network, scores: Sequence[str]) -> int:
    """One where influence alone is asked for, else r."""
    return 1 if list(scores) == ["influence"] else network.loss.basis(network.m).shape[1]


def score_in_parts(
    solves: CheckpointedSolves,
    rows: Any = None,
    *,
    scores: Sequence[str],
    on_solved: OnSolved = lambda done, total: None,
) -> NetworkScores:
    """`score_records`, some records after others."""
    inverse = solves.inverse
    numbers = row_numbers(inverse.network, rows)
    width = right_sides_of_a_record(inverse.network, scores)
    step = max(1, min(AT_ONCE, inverse.columns) // width)
    found: list[Tensors] = []
    notes: list[str] = []
    for start in range(0, len(numbers), step):
        part = numbers[start : start + step]

        def solve(part: torch.Tensor = part) -> Tensors:
            one = score_records(inverse, part, scores=scores)
            notes.extend(one.report["notes"])
            return {**one.columns, "capped": one.capped, "residual": one.residual}

        found.append(solves.part(f"rows-{start}", solve))
        on_solved((start + len(part)) * width, len(numbers) * width)
    joined = {name: torch.cat([part[name].to(inverse.network.device) for part in found]) for name in found[0]}
    report = {**inverse.report, "notes": list(dict.fromkeys([*inverse.report["notes"], *notes]))}
    capped, residual = joined.pop("capped"), joined.pop("residual")
    return NetworkScores(numbers, joined, capped, residual, report)
