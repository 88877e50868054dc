"""Scores of chosen records by right sides of their own: generalized leverage, influence and the Newton step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from giveaway.checks import check_choice
from giveaway.network.blocks import SCORES, RecordBlocks, scored
from giveaway.network.gradients import RecordDerivatives, row_numbers
from giveaway.network.solves import InverseCurvature


@dataclass(frozen=True)
class NetworkScores:
    """Columns of scores of the records `rows`, and what was done for them.

    `capped` marks records whose Newton step was capped; `residual` is the worst of a record's solves; `report` is for
    the metadata.
    """

    rows: torch.Tensor
    columns: dict[str, torch.Tensor]
    capped: torch.Tensor
    residual: torch.Tensor
    report: dict[str, Any]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.columns[name]


def score_records(
    inverse: InverseCurvature, rows: Any = None, *, scores: Sequence[str] = tuple(SCORES)
) -> NetworkScores:
    """Scores of chosen records, exact up to the solves' tolerance: r right sides a record (r = m − 1 for softmax).

    Where `influence` alone is asked for, a record has one right side, its gradient.

    Examples
    --------
    >>> import torch
    >>> from giveaway.network import InverseCurvature, Network
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    >>> x, y = torch.eye(3).repeat(4, 1), torch.arange(12) % 2
    >>> network = Network(model, (x, y), loss="cross_entropy", parameters="all")
    >>> found = score_records(InverseCurvature(network, damping=0.1), rows=[0, 5])
    >>> bool((found["newton"] > found["influence"]).all())
    True
    """
    names = [check_choice("scores", name, SCORES) for name in ([scores] if isinstance(scores, str) else scores)]
    network = inverse.network
    numbers = row_numbers(network, rows)
    derivatives = RecordDerivatives(network)
    alone = names == ["influence"]
    width = 1 if alone else network.loss.basis(network.m).shape[1]
    found: list[tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]] = []
    for part in numbers.split(max(1, inverse.columns // width)):
        found.append(_influence(inverse, derivatives, part) if alone else _blocks(inverse, derivatives, part, names))
    report = inverse.report
    report["notes"] = list(dict.fromkeys([*report["notes"], *derivatives.notes]))
    return NetworkScores(
        numbers,
        {name: torch.cat([columns[name] for columns, _, _ in found]) for name in names},
        torch.cat([capped for _, capped, _ in found]),
        torch.cat([residual for _, _, residual in found]),
        report,
    )


def _influence(
    inverse: InverseCurvature, derivatives: RecordDerivatives, numbers: torch.Tensor
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    right = torch.cat([part for _, part in derivatives.gradients(numbers)]).T
    solution = inverse(right)
    values = (right * solution.x).sum(0, dtype=torch.float64)
    return {"influence": values}, torch.zeros_like(values, dtype=torch.bool), solution.residual


def _blocks(
    inverse: InverseCurvature, derivatives: RecordDerivatives, numbers: torch.Tensor, names: Sequence[str]
) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    network = inverse.network
    basis = network.loss.basis(network.m).to(network.device, network.dtype)
    rows = torch.cat([basis.T @ part for _, part in derivatives.jacobians(numbers)])  # (k, r, P)
    k, r, _ = rows.shape
    solution = inverse(rows.flatten(0, 1).T)
    reduced = (rows @ solution.x.T.unflatten(0, (k, r)).mT).double()
    wide = basis.double()
    block = wide @ ((reduced + reduced.mT) / 2) @ wide.T
    blocks = RecordBlocks(block, network.outputs(numbers), network.records.take(numbers).targets, network.loss)
    return scored(blocks, names), blocks.capped, solution.residual.view(k, r).amax(1)
