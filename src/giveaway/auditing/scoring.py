"""Score every record, or every person, of a head: the columns that its outputs and its curvature give."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.auditing.batches import People, Portion, Span, Where, record_spans
from giveaway.auditing.exact_again import HIGH, chosen_again, scored_again
from giveaway.auditing.plan import Plan
from giveaway.auditing.progress import OnRows
from giveaway.auditing.sketch_error import relative_error, sampled_spans, standard_errors
from giveaway.curvature.curvature import Curvature
from giveaway.curvature.optimum import gradient_sum
from giveaway.curvature.sketched import SketchedCurvature
from giveaway.linalg.processes import ALONE, Processes, in_threads
from giveaway.records import Head
from giveaway.scores.batch import Batch
from giveaway.scores.catalogue import CATALOGUE
from giveaway.scores.predicted import ingredients, predict
from giveaway.storage.checkpoint import NO_CHECKPOINT, Checkpoint

OF_STEP = ("influence", "newton", "loo_gap")  # what solving for a record's own step makes exact
PARTS = ("part 0", "part 1", "part 2")  # what theory predicts from
RESIDUAL, CAPPED, RECORDS, LEVERAGE, ERROR = "residual", "capped", "records", "top leverage", "_error"


@dataclass(frozen=True)
class Scored:
    """Columns and attributes of the table's rows, and what a sketch says of itself."""

    columns: dict[str, np.ndarray]
    attributes: dict[str, np.ndarray]
    sketch: dict[str, Any] | None


class Scoring:
    """One walk over a head under `curvature`; the numbers found are one array, kept and summed as such."""

    def __init__(
        self, head: Head, resolved: Plan, curvature: Curvature | None, processes: Processes, *, errors: bool
    ) -> None:
        self.head, self.resolved, self.curvature, self.processes = head, resolved, curvature, processes
        self.by_person = resolved.unit == "person"
        self.people = People(head) if self.by_person else None
        self.sketch = curvature if isinstance(curvature, SketchedCurvature) else None
        self.curved = [name for name in resolved.of_head if CATALOGUE[name].curvature]
        self.stepped = bool({"newton", "loo_gap"} & set(resolved.of_head))
        self.errors = errors
        names = [*resolved.of_head, RESIDUAL, CAPPED, RECORDS, *(PARTS if resolved.of_theory else ())]
        if self.sketch is not None:
            names += [LEVERAGE, *(name + ERROR for name in self.curved)]
        rows = head.n if self.people is None else self.people.count
        self._place = {name: at for at, name in enumerate(names)}
        self.found = np.zeros((len(names), rows))
        self.total = (
            None if resolved.optimum != "corrected" or curvature is None else gradient_sum(head, processes).total
        )
        self.drift = None if self.total is None or curvature is None else curvature.solve(self.total)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.found[self._place[name]]

    def walk(self, checkpoint: Checkpoint, on_rows: OnRows) -> None:
        """Score this process's share, and bring all shares together."""
        people, curvature = self.people, self.curvature
        spans = record_spans(self.head, curvature) if people is None else people.all_spans(curvature)
        looked = np.ones(len(spans), dtype=bool) if self.errors else sampled_spans([span.count for span in spans])
        own = list(self.processes.share(list(zip(spans, looked.tolist(), strict=True))))
        done = torch.zeros(len(own), dtype=torch.bool)
        name = f"scores-{self.resolved.unit}"
        if (earlier := checkpoint.load(name)) is not None:
            self.found[:] = earlier["found"].numpy()
            done = earlier["done"]
        lock = threading.Lock()

        def work(item: tuple[int, Portion, bool]) -> None:
            place, portion, look = item
            for where, batch in portion.batches():
                self._score(where, batch, columns=self.resolved.of_head)
                on_rows(batch.sample_weight.numel())
            if look and self.sketch is not None:
                for where, spread in standard_errors(portion, self.curved, self.sketch.probes):
                    for column, error in spread.items():
                        self[column + ERROR][where] = error
            with lock:
                done[place] = True
                if checkpoint.due():
                    checkpoint.save(name, {"found": torch.from_numpy(self.found), "done": done})

        at_once = None if curvature is None else curvature.looks_at_once
        in_threads(work, self._opened(own, done), self.head.device, at_once)
        self.processes.sum_array(self.found)

    def solve_again(self) -> dict[str, Any]:
        """Exact steps for the groups of highest leverage, and what that came to."""
        assert self.sketch is not None
        high = int((self[LEVERAGE] > HIGH).sum())
        chosen = chosen_again(self.sketch, self[LEVERAGE])
        again = 0
        columns = [name for name in self.resolved.of_head if name in OF_STEP]
        for where, batch, solved in scored_again(
            self.head, self.sketch, chosen, by_person=self.by_person, total=self.total, drift=self.drift
        ):
            before = self.found[:, where].copy()
            self._score(where, batch, columns=columns)
            for name in columns:
                self[name + ERROR][where] = 0.0
            self.found[:, where] = np.where(solved, self.found[:, where], before)
            again += int(solved.sum())
        return {"high_leverage": high, "high_leverage_from": HIGH, "solved_exactly": again}

    def finished(self, told: dict[str, Any] | None) -> Scored:
        """As columns and attributes."""
        columns = {name: self[name] for name in self.resolved.of_head}
        if self.resolved.of_theory:
            found = predict(self.head, np.stack([self[name] for name in PARTS]))
            columns |= {name: CATALOGUE[name].function(found) for name in self.resolved.of_theory}
        attributes: dict[str, np.ndarray] = {}
        if self.by_person:
            attributes["records"] = self[RECORDS].astype(np.int64)
        elif self.head.loss == "cross_entropy" and self.head.targets.ndim == 1:
            attributes["class"] = self.head.targets.cpu().numpy()
        attributes["residual"] = self[RESIDUAL]
        if self.stepped:
            attributes["newton_capped"] = self[CAPPED] > 0
        if self.errors and self.sketch is not None:
            attributes |= {name + ERROR: self[name + ERROR] for name in self.curved}
        return Scored(columns, attributes, told)

    def relative_errors(self) -> dict[str, float | None]:
        """Of every sketched column."""
        return {name: relative_error(self[name], self[name + ERROR]) for name in self.curved}

    def _score(self, where: Where, batch: Batch, columns: Sequence[str]) -> None:
        for name in columns:
            self[name][where] = CATALOGUE[name].function(batch).cpu().numpy()
        if self.resolved.of_theory:
            for name, part in zip(PARTS, ingredients(batch).cpu().numpy(), strict=True):
                self[name][where] = part
        self[RESIDUAL][where] = batch.loss.residual(batch.outputs, batch.targets).amax(1).cpu().numpy()
        self[RECORDS][where] = batch.sample_weight.shape[1]
        if self.stepped:
            self[CAPPED][where] = batch.left_out.capped.cpu().numpy()
            if self.sketch is not None and batch.left_out.leverage is not None:
                self[LEVERAGE][where] = batch.left_out.leverage.cpu().numpy()

    def _opened(self, own: list[tuple[Span, bool]], done: torch.Tensor) -> Iterator[tuple[int, Portion, bool]]:
        """What is still to be scored, read one span after the other."""
        for place, (span, look) in enumerate(own):
            if not done[place]:
                yield place, Portion(self.head, span, self.curvature, self.drift), look


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
    """The columns asked for; `errors` adds the standard error of every sketched number as attributes."""
    scoring = Scoring(head, resolved, curvature, processes, errors=errors)
    scoring.walk(checkpoint, on_rows)
    if scoring.sketch is None:
        return scoring.finished(None)
    told = {"relative_errors": scoring.relative_errors()}
    return scoring.finished({**told, **(scoring.solve_again() if scoring.stepped else {})})
