"""Audit a network through more than its last layer: columns named with their depth, such as newton_all."""

import json
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from giveaway.auditing.plan import DEFAULT, named_scores
from giveaway.checks import check_number, fail
from giveaway.curvature.choice import Auto, Dense, Sketch
from giveaway.network import scores as of_network
from giveaway.network.jacobian import row_numbers
from giveaway.network.network import Depths, Network, suffix
from giveaway.network.scores import NetworkScores
from giveaway.network.solves import InverseCurvature, Solves, rank_for
from giveaway.records import ScoreTable
from giveaway.records.meta import Meta
from giveaway.storage.folder import NO_CHECKPOINT, Checkpoint
from giveaway.text import OnPart

PROBES = 64
PROBES_AT_ONCE = 16  # a killed run loses no more than their solves
OF_SKETCH = ("probes", "tolerance", "allow_unconverged", "seed")  # what a sketch of a network takes
METHODS = {Sketch: "sketch", Solves: "exact"}
REPORTED_AS = {"worst_residual": "residual", "most_steps_taken": "steps"}

Method = Sketch | Solves


class DepthAudit:
    """An audit of depths with its options checked, so that a mistake costs nothing; `run` does the work."""

    def __init__(
        self, deep: Depths, scores: str | Sequence[str] = DEFAULT, curvature: Method | Dense | Auto | None = None
    ) -> None:
        self.deep, self.method = deep, _method(curvature)
        names = [n for name in named_scores(scores) for n in (of_network.USUAL if name == DEFAULT else (name,))]
        self.names = of_network.score_names(names, deep.first.loss)
        least = torch.finfo(deep.first.dtype).eps
        check_number("tolerance", self.method.tolerance, minimum=least, remedy="1e-3 suits most scores")
        self.rows = row_numbers(deep.first, self.method.rows if isinstance(self.method, Solves) else None)

    @property
    def solves(self) -> int:
        """How many right sides each depth has, as far as is known beforehand."""
        if isinstance(self.method, Sketch):
            return self.method.probes
        return len(self.rows) * of_network.right_sides_of_a_record(self.deep.first, self.names)

    def run(self, checkpoint: Checkpoint = NO_CHECKPOINT, on_part: OnPart = lambda done, total: None) -> ScoreTable:
        """Score every depth, or load it; `on_part` is told the right sides solved, and all as far as known."""
        began = time.perf_counter()
        before, later = 0, (self.solves or 1) * len(self.deep.networks)  # right sides of finished and of later depths

        def on_solved(done: int, total: int) -> None:
            on_part(before + done, before + total + later)

        columns: dict[str, np.ndarray] = {}
        attributes: dict[str, np.ndarray] = {}
        reports: dict[str, dict[str, Any]] = {}
        for depth, network in self.deep.networks.items():
            later -= self.solves or 1
            scored = self._score(network, checkpoint, f"depth{suffix(depth).replace('_', '-')}", on_solved)
            solved = scored.report.get("right_sides", 1)
            on_solved(solved, solved)
            before += solved
            columns |= {name + suffix(depth): scored[name].cpu().numpy() for name in self.names}
            if "newton" in self.names:
                attributes[f"newton_capped{suffix(depth)}"] = scored.capped.cpu().numpy()
            reports[depth] = {REPORTED_AS.get(key, key): value for key, value in scored.report.items()}
        network = self.deep.first
        told = {"rows": len(self.rows), "records": network.n, "outputs": network.m, "device": str(network.device)}
        meta = Meta.from_json({**told, "depths": reports, "seconds": round(time.perf_counter() - began, 3)})
        return ScoreTable(columns, self.rows.numpy(), meta, attributes)

    def _score(self, network: Network, checkpoint: Checkpoint, place: str, on_solved: OnPart) -> NetworkScores:
        """Score one depth, or load it; a finished one needs the parts of its solves no more."""
        if (columns := checkpoint.load(place)) is not None:
            capped, report = columns.pop("capped"), columns.pop("report")
            return NetworkScores(self.rows, columns, capped, json.loads(bytes(report.tolist())))
        began, method = time.perf_counter(), self.method
        exact = method if isinstance(method, Solves) else Solves()
        inverse = InverseCurvature(
            network,
            damping=self.deep.damping,
            rank=rank_for(self.solves),
            tolerance=method.tolerance,
            allow_unconverged=method.allow_unconverged,
            curvature=exact.curvature,
            most_steps=exact.most_steps,
        )
        solves = of_network.CheckpointedSolves(inverse, checkpoint, place, on_solved)
        options: Any = {"scores": self.names, "solves": solves}
        if isinstance(method, Sketch):
            options |= {"probes": method.probes, "seed": method.seed, "at_once": PROBES_AT_ONCE}
            scored = of_network.sketch_records(inverse, **options)
        else:
            scored = of_network.score_records(inverse, self.rows, at_once=of_network.AT_ONCE, **options)
        scored.report.update(method=METHODS[type(method)], seconds=round(time.perf_counter() - began, 3))
        written = torch.frombuffer(bytearray(json.dumps(scored.report).encode()), dtype=torch.uint8)
        checkpoint.save(place, {**scored.columns, "capped": scored.capped, "report": written})
        solves.drop()
        return scored


def with_depths(table: ScoreTable, deep: ScoreTable) -> ScoreTable:
    """Put the columns of `deep` beside those of `table`, which must be of the same records in the same order."""
    if table.meta.unit == "person" or not np.array_equal(deep.ids, np.arange(len(table))):
        expected = f"a table of the {len(deep)} records that were scored, each a row"
        raise fail("table", expected, f"one of {len(table)} rows", "audit a head without groups, and score all records")
    scores, attributes = {**table.scores, **deep.scores}, {**table.attributes, **deep.attributes}
    return replace(table, scores=scores, attributes=attributes, meta=replace(table.meta, depths=deep.meta.depths))


def _method(curvature: Method | Dense | Auto | None) -> Method:
    if curvature is None or curvature == Auto():
        return Sketch(probes=PROBES)
    if not isinstance(curvature, Sketch | Solves):
        expected = "Sketch(), or Solves() of ga.network, for a network"
        raise fail("curvature", expected, repr(curvature), "leave it out for a sketch of 64 probes")
    if isinstance(curvature, Sketch):
        of_network.check_probes(curvature.probes)
        for field in fields(Sketch):
            if field.name not in OF_SKETCH and getattr(curvature, field.name) != field.default:
                got = f"{field.name}={getattr(curvature, field.name)!r}"
                raise fail("curvature", "a sketch without options of a head's alone", got, f"leave {field.name} out")
    return curvature
