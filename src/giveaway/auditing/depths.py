"""Audit a network through more than its last layer: columns named with their depth, such as newton_all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from giveaway.auditing.plan import DEFAULT
from giveaway.checks import check_number, fail
from giveaway.curvature.choice import Auto, Dense, Sketch
from giveaway.network.depths import Depths, Ekfac, Solves, suffix
from giveaway.network.ekfac import ekfac_records
from giveaway.network.gradients import row_numbers
from giveaway.network.network import Network
from giveaway.network.scores import (
    AT_ONCE,
    USUAL,
    CheckpointedSolves,
    NetworkScores,
    check_probes,
    right_sides_of_a_record,
    score_names,
    score_records,
    sketch_records,
)
from giveaway.network.solves import InverseCurvature, rank_for
from giveaway.records import ScoreTable
from giveaway.records.meta import Meta
from giveaway.storage.checkpoint import NO_CHECKPOINT, Checkpoint

PROBES = 64
MOST_STEPS = 200  # of a sketch's solves
PROBES_AT_ONCE = 16  # a killed run loses no more than their solves
OF_EKFAC = ("influence", "gls_trace")
OF_SKETCH = ("probes", "tolerance", "allow_unconverged", "seed", "memory")  # what a sketch of a network takes
METHODS = {Sketch: "sketch", Solves: "exact", Ekfac: "ekfac"}
REPORTED_AS = {"worst_residual": "residual", "most_steps_taken": "steps"}

OnPart = Callable[[int, int], Any]
Method = Sketch | Solves | Ekfac


class DepthAudit:
    """An audit of depths with its options checked, so that a mistake costs nothing; `run` does the work."""

    def __init__(
        self, deep: Depths, scores: tuple[str, ...] = (DEFAULT,), curvature: Method | Dense | Auto | None = None
    ) -> None:
        self.deep, self.method = deep, _method(curvature)
        self.names = _columns(scores, self.method, deep.first)
        if not isinstance(self.method, Ekfac):
            least = torch.finfo(deep.first.dtype).eps
            check_number("tolerance", self.method.tolerance, minimum=least, remedy="1e-3 suits most scores")
        self.rows = row_numbers(deep.first, self.method.rows if isinstance(self.method, Solves) else None)

    @property
    def solves(self) -> int:
        """How many right sides each depth has, as far as is known beforehand."""
        if isinstance(self.method, Sketch):
            return self.method.probes
        exact = isinstance(self.method, Solves)
        return len(self.rows) * right_sides_of_a_record(self.deep.first, self.names) if exact else 0

    def run(self, checkpoint: Checkpoint = NO_CHECKPOINT, on_part: OnPart = lambda done, total: None) -> ScoreTable:
        """Score every depth, or take up what `checkpoint` has of it.

        `on_part` is told how many right sides are solved and how many there are as far as is known: records that a
        sketch is in doubt of add to them.
        """
        began = time.perf_counter()
        progress = _Progress(on_part, self.solves or 1, len(self.deep.networks))
        scored: dict[str, NetworkScores] = {}
        for depth, network in self.deep.networks.items():
            progress.begin()
            place = f"depth{suffix(depth).replace('_', '-')}"
            earlier = _load(checkpoint, place, self.rows)
            scored[depth] = self._score(network, checkpoint, place, progress) if earlier is None else earlier
            progress.end(scored[depth].report.get("right_sides", 1))
        columns: dict[str, np.ndarray] = {}
        attributes: dict[str, np.ndarray] = {}
        reports: dict[str, dict[str, Any]] = {}
        for depth, one in scored.items():
            columns |= {name + suffix(depth): one[name].cpu().numpy() for name in self.names}
            if "newton" in self.names:
                attributes[f"newton_capped{suffix(depth)}"] = one.capped.cpu().numpy()
            reports[depth] = {REPORTED_AS.get(key, key): value for key, value in one.report.items()}
        network = self.deep.first
        meta = Meta.from_json(
            {
                "unit": "record",
                "rows": len(self.rows),
                "records": network.n,
                "outputs": network.m,
                "device": str(network.device),
                "depths": reports,
                "seconds": round(time.perf_counter() - began, 3),
            }
        )
        return ScoreTable(columns, self.rows.numpy(), meta, attributes)

    def _score(self, network: Network, checkpoint: Checkpoint, place: str, on_solved: OnPart) -> NetworkScores:
        began, method, solves = time.perf_counter(), self.method, None
        if isinstance(method, Ekfac):
            scored = ekfac_records(network, damping=self.deep.damping)
        else:
            inverse = InverseCurvature(
                network,
                damping=self.deep.damping,
                rank=rank_for(self.solves),
                tolerance=method.tolerance,
                allow_unconverged=method.allow_unconverged,
                curvature=method.curvature if isinstance(method, Solves) else "ggn",
                most_steps=method.most_steps if isinstance(method, Solves) else MOST_STEPS,
            )
            solves = CheckpointedSolves(inverse, checkpoint, place)
            if isinstance(method, Solves):
                scored = score_records(
                    inverse, self.rows, scores=self.names, at_once=AT_ONCE, solves=solves, on_solved=on_solved
                )
            else:
                scored = sketch_records(
                    inverse,
                    probes=method.probes,
                    seed=method.seed,
                    scores=self.names,
                    at_once=PROBES_AT_ONCE,
                    solves=solves,
                    on_solved=on_solved,
                )
        scored.report.update(method=METHODS[type(method)], seconds=round(time.perf_counter() - began, 3))
        _save(checkpoint, place, scored)
        if solves is not None:
            solves.drop()
        return scored


def with_depths(table: ScoreTable, deep: ScoreTable) -> ScoreTable:
    """Put the columns of `deep` beside those of `table`, which must be of the same records in the same order."""
    if table.meta.unit == "person" or not np.array_equal(deep.ids, np.arange(len(table))):
        expected = f"a table of the {len(deep)} records that were scored, each a row"
        raise fail("table", expected, f"one of {len(table)} rows", "audit a head without groups, and score all records")
    meta = replace(table.meta, depths=deep.meta.depths)
    scores, attributes = {**table.scores, **deep.scores}, {**table.attributes, **deep.attributes}
    return replace(table, scores=scores, attributes=attributes, meta=meta)


def _method(curvature: Method | Dense | Auto | None) -> Method:
    if curvature is None or curvature == Auto():
        return Sketch(probes=PROBES)
    if not isinstance(curvature, Sketch | Solves | Ekfac):
        expected = "Sketch(), or Solves() or Ekfac() of ga.network, for a network"
        raise fail("curvature", expected, repr(curvature), "leave it out for a sketch of 64 probes")
    if isinstance(curvature, Sketch):
        check_probes(curvature.probes)
        for field in fields(Sketch):
            if field.name not in OF_SKETCH and getattr(curvature, field.name) != field.default:
                got = f"{field.name}={getattr(curvature, field.name)!r}"
                raise fail("curvature", "a sketch without options of a head's alone", got, f"leave {field.name} out")
        if curvature.memory is not None:
            raise fail("memory", "memory= of Depths", "that of the sketch", "give it to Depths")
    return curvature


def _columns(scores: tuple[str, ...], method: Method, network: Network) -> tuple[str, ...]:
    usual = OF_EKFAC if isinstance(method, Ekfac) else USUAL
    names = score_names([n for name in scores for n in (usual if name == DEFAULT else (name,))], network.loss)
    missing = [name for name in names if isinstance(method, Ekfac) and name not in OF_EKFAC]
    if missing:
        raise fail("scores", f"{' or '.join(OF_EKFAC)} beside Ekfac()", missing[0], "leave it out, or take Sketch()")
    return names


class _Progress:
    """Adds up over all depths what each says of its own right sides."""

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


def _save(checkpoint: Checkpoint, place: str, scored: NetworkScores) -> None:
    """Save a finished depth, which needs its parts no more."""
    report = torch.frombuffer(bytearray(json.dumps(scored.report).encode()), dtype=torch.uint8)
    checkpoint.save(place, {**scored.columns, "capped": scored.capped, "residual": scored.residual, "report": report})


def _load(checkpoint: Checkpoint, place: str, rows: torch.Tensor) -> NetworkScores | None:
    columns = checkpoint.load(place)
    if columns is None:
        return None
    capped, residual, report = (columns.pop(name) for name in ("capped", "residual", "report"))
    return NetworkScores(rows, columns, capped, residual, json.loads(bytes(report.tolist())))
