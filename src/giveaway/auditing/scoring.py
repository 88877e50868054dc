"""Score every record, or every person, of a head: the columns that its outputs and its curvature give."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from giveaway.auditing.batches import LoadedSpan, People, Span, Where, record_spans, sampled_spans
from giveaway.auditing.plan import Plan
from giveaway.auditing.progress import OnRows
from giveaway.curvature.choice import Curvature
from giveaway.curvature.optimum import gradient_sum
from giveaway.curvature.sketch import REDO_ABOVE, SketchedCurvature, exact_steps, records_to_redo
from giveaway.linalg.processes import ALONE, Processes, in_threads
from giveaway.records import Head
from giveaway.scores.catalogue import CATALOGUE, relative_error, scores_of, standard_errors
from giveaway.scores.formulas import ScoreBatch
from giveaway.scores.predicted import ingredients, predict
from giveaway.storage.checkpoint import NO_CHECKPOINT, Checkpoint

OF_STEP = ("influence", "newton", "loo_gap")  # what solving for a record's own step makes exact
INGREDIENTS = ("ingredient 0", "ingredient 1", "ingredient 2")  # what theory predicts from
RESIDUAL, CAPPED, RECORDS, LEVERAGE, ERROR = "residual", "capped", "records", "top leverage", "_error"
PROBE_PARTS = 4  # disjoint parts of the probes, whose spread tells the error
REDONE_RESIDUAL = 1e-2  # above it a group stays with its sketch
REDONE_OPERATIONS = {"cpu": 5e10, "cuda": 5e14}  # that are always worth it
REDONE_STEPS = 25  # about what a solve takes


@dataclass(frozen=True)
class Scored:
    """Columns and attributes of the table's rows, and what a sketch says of itself."""

    columns: dict[str, np.ndarray]
    attributes: dict[str, np.ndarray]
    sketch: dict[str, Any] | None


class Scoring:
    """One walk over a head under `curvature`; the results are rows of one array, which is saved and summed whole."""

    def __init__(
        self, head: Head, resolved: Plan, curvature: Curvature | None, processes: Processes, *, errors: bool
    ) -> None:
        self.head, self.resolved, self.curvature, self.processes = head, resolved, curvature, processes
        self.people = People(head) if resolved.unit == "person" else None
        self.sketch = curvature if isinstance(curvature, SketchedCurvature) else None
        self.curved = [name for name in resolved.of_head if CATALOGUE[name].curvature]
        self.stepped = bool({"newton", "loo_gap"} & set(resolved.of_head))
        self.errors = errors
        names = [*resolved.of_head, RESIDUAL, CAPPED, RECORDS, *(INGREDIENTS if resolved.of_theory else ())]
        if self.sketch is not None:
            names += [LEVERAGE, *(name + ERROR for name in self.curved)]
        rows = head.n if self.people is None else self.people.count
        self._place = {name: at for at, name in enumerate(names)}
        self.results = np.zeros((len(names), rows))
        self.total = (
            None if resolved.optimum != "corrected" or curvature is None else gradient_sum(head, processes).total
        )
        self.drift = None if self.total is None or curvature is None else curvature.solve(self.total)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.results[self._place[name]]

    def walk(self, checkpoint: Checkpoint, on_rows: OnRows) -> None:
        """Score this process's share, and bring all shares together."""
        people, curvature = self.people, self.curvature
        spans = record_spans(self.head, curvature) if people is None else people.all_spans(curvature)
        sampled = np.ones(len(spans), dtype=bool) if self.errors else sampled_spans([span.count for span in spans])
        share = list(self.processes.share(list(zip(spans, sampled.tolist(), strict=True))))
        done = torch.zeros(len(share), dtype=torch.bool)
        name = f"scores-{self.resolved.unit}"
        if (earlier := checkpoint.load(name)) is not None:
            self.results[:] = earlier["results"].numpy()
            done = earlier["done"]
        lock = threading.Lock()

        def work(item: tuple[int, LoadedSpan, bool]) -> None:
            place, span, sampled = item
            for where, batch in span.batches():
                self._score(where, batch, columns=self.resolved.of_head)
                on_rows(batch.sample_weight.numel())
            if sampled and self.sketch is not None:
                self._estimate_errors(span, self.sketch.probes)
            with lock:
                done[place] = True
                if checkpoint.due():
                    checkpoint.save(name, {"results": torch.from_numpy(self.results), "done": done})

        at_once = None if curvature is None else curvature.windows_at_once
        in_threads(work, self._loaded(share, done), self.head.device, at_once)
        self.processes.sum_array(self.results)

    def redo_high_leverage(self) -> dict[str, Any]:
        """Replace the sketched steps of the groups of highest leverage by exact ones; report how many there were.

        As many are solved for as cost no more than the sketch did, or REDONE_OPERATIONS.
        """
        assert self.sketch is not None
        width, k = self.sketch.products.shape
        each = 2 * REDONE_STEPS * 4.0 * self.head.n * width * k
        most = int(max(self.sketch.probes // 8, REDONE_OPERATIONS[self.head.device.type] // each))
        columns = [name for name in self.resolved.of_head if name in OF_STEP]
        redone = 0
        for where, batch, solved in self._solved_batches(self.sketch, records_to_redo(self[LEVERAGE], most)):
            before = self.results[:, where].copy()
            self._score(where, batch, columns=columns)
            for name in columns:
                self[name + ERROR][where] = 0.0
            self.results[:, where] = np.where(solved, self.results[:, where], before)
            redone += int(solved.sum())
        high = int((self[LEVERAGE] > REDO_ABOVE).sum())
        return {"high_leverage": high, "high_leverage_from": REDO_ABOVE, "solved_exactly": redone}

    def finished(self, sketch: dict[str, Any] | None) -> Scored:
        """Return the results as columns and attributes."""
        columns = {name: self[name] for name in self.resolved.of_head}
        if self.resolved.of_theory:
            prediction = predict(self.head, np.stack([self[name] for name in INGREDIENTS]))
            columns |= {name: CATALOGUE[name].function(prediction) for name in self.resolved.of_theory}
        attributes: dict[str, np.ndarray] = {}
        if self.people is not None:
            attributes["records"] = self[RECORDS].astype(np.int64)
        elif self.head.loss == "cross_entropy" and self.head.targets.ndim == 1:
            attributes["class"] = self.head.targets.cpu().numpy()
        attributes["residual"] = self[RESIDUAL]
        if self.stepped:
            attributes["newton_capped"] = self[CAPPED] > 0
        if self.errors and self.sketch is not None:
            attributes |= {name + ERROR: self[name + ERROR] for name in self.curved}
        return Scored(columns, attributes, sketch)

    def relative_errors(self) -> dict[str, float | None]:
        """The relative error of every sketched column."""
        return {name: relative_error(self[name], self[name + ERROR]) for name in self.curved}

    def _score(self, where: Where, batch: ScoreBatch, columns: Sequence[str]) -> None:
        for name, values in scores_of(batch, columns).items():
            self[name][where] = values.cpu().numpy()
        if self.resolved.of_theory:
            for name, values in zip(INGREDIENTS, ingredients(batch).cpu().numpy(), strict=True):
                self[name][where] = values
        self[RESIDUAL][where] = batch.loss.residual(batch.outputs, batch.targets).amax(1).cpu().numpy()
        self[RECORDS][where] = batch.sample_weight.shape[1]
        if self.stepped:
            self[CAPPED][where] = batch.left_out.capped.cpu().numpy()
            if self.sketch is not None and batch.left_out.leverage is not None:
                self[LEVERAGE][where] = batch.left_out.leverage.cpu().numpy()

    def _estimate_errors(self, span: LoadedSpan, probes: int) -> None:
        edges = [probes * part // PROBE_PARTS for part in range(PROBE_PARTS + 1)]
        for parts in zip(*(span.batches(slice(*edge)) for edge in pairwise(edges)), strict=True):
            for name, error in standard_errors([batch for _, batch in parts], self.curved).items():
                self[name + ERROR][parts[0][0]] = error.cpu().numpy()

    def _loaded(self, share: list[tuple[Span, bool]], done: torch.Tensor) -> Iterator[tuple[int, LoadedSpan, bool]]:
        """Read what is still to be scored, one span after the other."""
        for place, (span, sampled) in enumerate(share):
            if not done[place]:
                yield place, LoadedSpan(self.head, span, self.curvature, self.drift), sampled

    def _solved_batches(
        self, sketch: SketchedCurvature, chosen: np.ndarray
    ) -> Iterator[tuple[Where, ScoreBatch, np.ndarray]]:
        """Yield batches of the chosen groups with their steps solved for, their places, and which were solved."""
        at_once = max(1, sketch.at_once // 2 // (self.head.m if sketch.products.k == 1 else 1))
        for start in range(0, len(chosen), at_once):
            places = chosen[start : start + at_once]
            spans = [Span(places, torch.from_numpy(places))] if self.people is None else self.people.spans(places)
            for span in spans:
                loaded = LoadedSpan(self.head, span, sketch, self.drift)
                batch = loaded.batch(slice(0, loaded.count))
                steps = exact_steps(sketch, loaded.window, batch.gradient, self.total, self.drift)
                yield span.where, replace(batch, solved=steps), (steps.residual <= REDONE_RESIDUAL).cpu().numpy()


def score(
    head: Head,
    resolved: Plan,
    curvature: Curvature | None,
    on_rows: OnRows,
    *,
    processes: Processes = ALONE,
    checkpoint: Checkpoint = NO_CHECKPOINT,
    errors: bool = False,
) -> Scored:
    """Score the columns asked for; `errors` adds the standard error of every sketched number as attributes."""
    scoring = Scoring(head, resolved, curvature, processes, errors=errors)
    scoring.walk(checkpoint, on_rows)
    if scoring.sketch is None:
        return scoring.finished(None)
    sketch: dict[str, Any] = {"relative_errors": scoring.relative_errors()}
    return scoring.finished({**sketch, **(scoring.redo_high_leverage() if scoring.stepped else {})})
