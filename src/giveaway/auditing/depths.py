"""Scores through more of a network than its last layer, as columns of an audit named with their depth."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from giveaway.auditing.depth_options import DepthOptions, suffix
from giveaway.checks import check_number, fail
from giveaway.curvature.losses import Loss, LossFunction
from giveaway.network.ekfac import ekfac_records
from giveaway.network.gradients import row_numbers
from giveaway.network.network import Network
from giveaway.network.scores import (
    AT_ONCE,
    CheckpointedSolves,
    NetworkScores,
    right_sides_of_a_record,
    score_records,
    sketch_records,
)
from giveaway.network.solves import InverseCurvature, rank_for
from giveaway.records import ScoreTable
from giveaway.storage.checkpoint import NO_CHECKPOINT, Checkpoint

PROBES_AT_ONCE = 16  # a killed run loses no more than their solves
TOLD = {"worst_residual": "residual", "most_steps_taken": "steps"}  # names of the network's report, and ours

OnPart = Callable[[int, int], Any]


@dataclass(frozen=True)
class Depths:
    """`columns` and `attributes` of the records numbered `rows`, such as influence_all and newton_capped_last2;
    `report` says of each depth, by its name, what was done."""

    rows: np.ndarray
    columns: dict[str, np.ndarray]
    attributes: dict[str, np.ndarray]
    report: dict[str, dict[str, Any]]

    def beside(self, table: ScoreTable) -> ScoreTable:
        """`table`, of the same records in the same order, with these columns too and the report as meta.depths."""
        if table.meta.by_person or not np.array_equal(self.rows, np.arange(len(table))):
            expected = f"a table of the {len(self.rows)} records that were scored, each a row"
            raise fail("table", expected, f"one of {len(table)} rows", 'audit by="record", and score all of them')
        return dataclasses.replace(
            table,
            scores={**table.scores, **self.columns},
            attributes={**table.attributes, **self.attributes},
            meta=table.meta.with_depths(self.report),
        )


def audit_depths(
    model: nn.Module,
    data: Any,
    *,
    loss: str | LossFunction | Loss,
    damping: float,
    depths: Sequence[str] = ("all",),
    scores: Sequence[str] | None = None,
    method: str = "sketch",
    rows: Any = None,
    curvature: str = "ggn",
    probes: int = 64,
    tolerance: float = 1e-3,
    most_steps: int = 200,
    allow_unconverged: bool = False,
    seed: int = 0,
    memory: float | None = None,
    dtype: torch.dtype | None = None,
    checkpoint: Checkpoint = NO_CHECKPOINT,
    on_part: OnPart = lambda done, total: None,
) -> Depths:
    """Exposure of records through the whole network or its last layers.

    Parameters
    ----------
    data, loss, dtype : as `giveaway.network.Network` takes them.
    damping : λ > 0, beside the summed loss: n times the weight decay of a mean loss.
    depths : "head" (the last linear layer), "last:k" (the last k layers that own parameters), "all".
    scores : by default influence, newton, leverage and gls_trace, where the method has them.
    method : "sketch" scores all records from `probes` solves; "exact" the records numbered `rows` (all, unless given)
        by solves of their own, r a record; "ekfac" all records without a solve, approximately.
    curvature : "ggn"; "hessian" for "exact" alone.
    probes, seed : of a sketch, whose error is about √(2/probes) of a score.
    tolerance, most_steps, allow_unconverged : of the solves: their residual, how long they may take to get there, and
        whether those that do not are used nevertheless.
    memory : gigabytes that a piece of work may take; by default a quarter of what is free, 1 on a CPU.
    checkpoint : where finished work is saved, to go on with after a kill.
    on_part : told how many right sides are solved and how many there are as far as is known (records that a sketch
        is in doubt of add to them); with "ekfac", depths.

    Examples
    --------
    >>> import torch
    >>> from giveaway.auditing.depths import audit_depths
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    >>> x, y = torch.eye(3).repeat(4, 1), torch.arange(12) % 2
    >>> found = audit_depths(model, (x, y), loss="cross_entropy", depths=["head", "all"], damping=0.5)
    >>> list(found.columns)[:4], len(found.rows)
    (['influence_head', 'newton_head', 'leverage_head', 'gls_trace_head'], 12)
    """
    options = DepthOptions(
        damping=damping,
        depths=depths,
        scores=scores,
        method=method,
        curvature=curvature,
        probes=probes,
        tolerance=tolerance,
        most_steps=most_steps,
        allow_unconverged=allow_unconverged,
        seed=seed,
        memory=memory,
    )
    return DepthAudit(model, data, options, loss=loss, rows=rows, dtype=dtype).run(checkpoint, on_part)


class DepthAudit:
    """The networks of every depth, read and checked, so that a mistake costs nothing; `run` does the work."""

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        options: DepthOptions,
        *,
        loss: str | LossFunction | Loss,
        rows: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if options.method != "exact" and rows is not None:
            got, remedy = f'method="{options.method}"', "drop rows: all records are scored"
            raise fail("rows", 'method="exact" beside them', got, remedy)
        self.model, self.options = model, options
        self.networks: dict[str, Network] = {}
        for depth in options.depths:
            given = _already_read(self.first) if self.networks else data
            self.networks[depth] = Network(model, given, loss=loss, parameters=depth, dtype=dtype, memory=options.bytes)
        least = torch.finfo(self.first.dtype).eps
        check_number("tolerance", options.tolerance, minimum=least, remedy="1e-3 suits most scores")
        self.rows = row_numbers(self.first, rows)

    @property
    def first(self) -> Network:
        """The network of the first depth; the others differ in their parameters alone."""
        return next(iter(self.networks.values()))

    @property
    def solves(self) -> int:
        """Right sides of each depth, as far as is known beforehand."""
        of_records = len(self.rows) * right_sides_of_a_record(self.first, self.options.columns)
        return {"sketch": self.options.probes, "exact": of_records, "ekfac": 0}[self.options.method]

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """What the model is called with, by the place or the name of each argument."""
        records = self.first.records
        return {**{str(place): value for place, value in enumerate(records.arguments)}, **records.keywords}

    def run(self, checkpoint: Checkpoint = NO_CHECKPOINT, on_part: OnPart = lambda done, total: None) -> Depths:
        """Score every depth, or take up what `checkpoint` has of it."""
        told = _Told(on_part, self.solves or 1, len(self.networks))
        found: dict[str, NetworkScores] = {}
        for depth, network in self.networks.items():
            told.begin()
            place = f"depth-{suffix(depth).removeprefix('_')}"
            one = _load(checkpoint, place, self.rows)
            found[depth] = self._scored(network, checkpoint, place, told) if one is None else one
            told.end(found[depth].report.get("right_sides", 1))
        return Depths(
            self.rows.numpy(),
            {
                name + suffix(depth): one[name].cpu().numpy()
                for depth, one in found.items()
                for name in self.options.columns
            },
            {
                f"newton_capped{suffix(depth)}": one.capped.cpu().numpy()
                for depth, one in found.items()
                if "newton" in self.options.columns
            },
            {depth: {TOLD.get(key, key): value for key, value in one.report.items()} for depth, one in found.items()},
        )

    def _scored(self, network: Network, checkpoint: Checkpoint, place: str, told: OnPart) -> NetworkScores:
        began, solves, options = time.perf_counter(), None, self.options
        if options.method == "ekfac":
            found = ekfac_records(network, damping=options.damping)
        else:
            inverse = InverseCurvature(network, rank=rank_for(self.solves), **options.of_solves)
            solves = CheckpointedSolves(inverse, checkpoint, place)
            if options.method == "exact":
                found = score_records(
                    inverse, self.rows, scores=options.columns, at_once=AT_ONCE, solves=solves, on_solved=told
                )
            else:
                found = sketch_records(
                    solves.inverse,
                    probes=options.probes,
                    seed=options.seed,
                    scores=options.columns,
                    at_once=PROBES_AT_ONCE,
                    solves=solves,
                    on_solved=told,
                )
        found.report.update(method=options.method, seconds=round(time.perf_counter() - began, 3))
        _save(checkpoint, place, found)
        if solves is not None:
            solves.drop()
        return found


class _Told:
    """Tells of all depths together what each says of itself."""

    def __init__(self, on_part: OnPart, each: int, depths: int) -> None:
        self._on_part, self._each = on_part, each
        self._before, self._later = 0, each * depths

    def begin(self) -> None:
        self._later -= self._each

    def __call__(self, done: int, total: int) -> None:
        self._on_part(self._before + done, self._before + total + self._later)

    def end(self, right_sides: int) -> None:
        self(right_sides, right_sides)
        self._before += right_sides


def _already_read(network: Network) -> Any:
    """The records of a network, for another that looks through other parameters."""
    records = network.records
    return records.arguments or records.keywords, records.targets


def _save(checkpoint: Checkpoint, place: str, found: NetworkScores) -> None:
    """A finished depth, which needs its parts no more."""
    report = torch.frombuffer(bytearray(json.dumps(found.report).encode()), dtype=torch.uint8)
    checkpoint.save(place, {**found.columns, "capped": found.capped, "residual": found.residual, "report": report})


def _load(checkpoint: Checkpoint, place: str, rows: torch.Tensor) -> NetworkScores | None:
    columns = checkpoint.load(place)
    if columns is None:
        return None
    capped, residual, report = (columns.pop(name) for name in ("capped", "residual", "report"))
    return NetworkScores(rows, columns, capped, residual, json.loads(bytes(report.tolist())))
