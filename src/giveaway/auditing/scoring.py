"""Score every record, or every person, of a head: the columns that its outputs and its curvature give.

The records are walked in spans, each a window of records whose leverage blocks are prepared together and fit in memory.
Spans are read in order; another thread may score what was read.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from giveaway.auditing.plan import Plan
from giveaway.checks import fail
from giveaway.curvature.blocks import BlocksOf
from giveaway.curvature.choice import Curvature
from giveaway.curvature.losses import loss_of
from giveaway.curvature.optimum import GradientSums, gradient_sum
from giveaway.curvature.sketch import REDO_ABOVE, SketchedCurvature, exact_steps, records_to_redo
from giveaway.linalg.processes import HERE, Execution, in_threads
from giveaway.records import Head
from giveaway.scores.catalogue import CATALOGUE, relative_error, scores_of, standard_errors
from giveaway.scores.formulas import ScoreBatch
from giveaway.scores.predicted import ingredients, predict
from giveaway.views.model import has_one_class

WINDOW = 1_024
MOST_ROWS = 2_048
GPU_WINDOW = 16_384
LARGEST_GROUP_BYTES = 800_000_000
SAMPLED_ROWS = 4_096  # from which the error of a sketched column is estimated
OF_STEP = ("influence", "newton", "loo_gap")  # what solving for a record's own step makes exact
INGREDIENTS = ("ingredient 0", "ingredient 1", "ingredient 2")  # what theory predicts from
RESIDUAL, CAPPED, RECORDS, LEVERAGE, ERROR = "residual", "capped", "records", "top leverage", "_error"
ROUNDED, EXACT_TO = "rounded", 1e-8  # rows whose newton rounding may have changed by more than this of it
PROBE_PARTS = 4  # disjoint parts of the probes, whose spread tells the error
REDONE_RESIDUAL = 1e-2  # above it a group stays with its sketch
REDONE_OPERATIONS = {"cpu": 5e10, "cuda": 5e14}  # that are always worth it
REDONE_STEPS = 25  # about what a solve takes


@dataclass(frozen=True)
class Span:
    """Groups of `size` records each: their places in the table, and their rows in the head."""

    where: np.ndarray
    rows: slice | torch.Tensor
    size: int = 1


def record_spans(head: Head, curvature: Curvature | None) -> Iterator[Span]:
    """Walk over spans of every record in order."""
    window = GPU_WINDOW if head.device.type == "cuda" else WINDOW
    if curvature is not None and curvature.report["curvature"] == "sketch":
        window = min(window, _groups_at_once(curvature, 1))
    elif curvature is not None:
        window = max(window, min(MOST_ROWS, _groups_at_once(curvature, 1)))
    return (Span(np.arange(part.start, part.stop), part) for part in head.slices(window))


class People:
    """Who the records belong to, in the order of np.unique(groups)."""

    def __init__(self, head: Head) -> None:
        assert head.groups is not None
        _, person, self.sizes = np.unique(head.groups, return_inverse=True, return_counts=True)
        self._by_person = np.argsort(person, kind="stable")
        self._first = np.cumsum(self.sizes) - self.sizes

    def spans(self, curvature: Curvature | None, people: np.ndarray | None = None) -> list[Span]:
        """Return spans of these people, or of everybody, those with equally many records together."""
        people = np.arange(len(self.sizes)) if people is None else people
        spans, sizes = [], np.unique(self.sizes[people]).tolist()
        if curvature is not None and (needed := curvature.group_bytes(sizes[-1])) > LARGEST_GROUP_BYTES:
            expected = f"people whose joint leverage block stays below {LARGEST_GROUP_BYTES / 1e9:.1f} GB"
            got = f"a person with {sizes[-1]} records, which needs {needed / 1e9:.1f} GB"
            raise fail("groups", expected, got, "audit a head without groups, or split that group")
        for s in sizes:
            at_once = len(people) if curvature is None else _groups_at_once(curvature, s)
            alike = people[self.sizes[people] == s]
            for start in range(0, len(alike), at_once):
                where = alike[start : start + at_once]
                rows = self._by_person[self._first[where][:, None] + np.arange(s)]
                spans.append(Span(where, torch.from_numpy(rows.ravel()), s))
        return spans


def _groups_at_once(curvature: Curvature, s: int) -> int:
    return max(1, min(curvature.array_bytes // curvature.group_bytes(s), GPU_WINDOW))


class LoadedSpan:
    """The groups of one span, read into memory."""

    def __init__(self, head: Head, span: Span, curvature: Curvature | None, drift: torch.Tensor | None) -> None:
        self.span, self._curvature, self._drift, self._loss = span, curvature, drift, loss_of(head)
        self.window = head.window(span.rows)

    def batches(self, probes: slice | None = None) -> Iterator[tuple[np.ndarray, ScoreBatch]]:
        """Yield batches with their places in the table; of a sketch, by all probes or by some of them."""
        at_once = len(self.span.where) if self._curvature is None else _groups_at_once(self._curvature, self.span.size)
        for start in range(0, len(self.span.where), at_once):
            groups = slice(start, min(start + at_once, len(self.span.where)))
            yield self.span.where[groups], self.batch(groups, probes)

    def batch(self, groups: slice, probes: slice | None = None) -> ScoreBatch:
        n, s, drift = groups.stop - groups.start, self.span.size, self._drift
        window = self.window.part(slice(groups.start * s, groups.stop * s))
        outputs, targets = window.outputs.to(torch.float64).view(n, s, -1), self._loss.targets(window.targets)
        targets = targets.view(n, s, *targets.shape[1:])

        def gradient_norm() -> torch.Tensor:
            gradient = self._loss.gradient(outputs, targets)
            if s == 1:
                return window.row_norms() * gradient.norm(dim=(1, 2))  # ‖x‖·‖g‖ of one record
            return torch.bmm(window.rows().view(n, s, -1).mT, gradient).norm(dim=(1, 2))

        return ScoreBatch(
            outputs=outputs,
            targets=targets,
            sample_weight=window.weights.view(n, s),
            loss=self._loss,
            make_blocks=lambda curvature, weight: self._blocks(groups, curvature, weight, probes),
            make_gradient_norm=gradient_norm,
            make_drift=None if drift is None else lambda: window.rows().view(n, s, -1) @ drift,
        )

    @cached_property
    def _blocks(self) -> BlocksOf:
        assert self._curvature is not None
        return self._curvature.window_blocks(self.window, self.span.size)


def sampled_spans(sizes: Sequence[int]) -> np.ndarray:
    """Say which spans, of so many rows each, serve to estimate errors: evenly spread, about SAMPLED_ROWS rows."""
    sampled = np.zeros(len(sizes), dtype=bool)
    count = min(len(sizes), max(1, round(SAMPLED_ROWS / max(1.0, float(np.mean(sizes)))))) if len(sizes) else 0
    sampled[((np.arange(count) + 0.5) * len(sizes) / max(1, count)).astype(int)] = True
    return sampled


class Scoring:
    """One walk over a head under `curvature`; the results are rows of one array, which is saved and summed whole."""

    def __init__(self, head: Head, resolved: Plan, curvature: Curvature | None, execution: Execution) -> None:
        self.head, self.resolved, self.curvature, self.execution = head, resolved, curvature, execution
        self.people = People(head) if resolved.unit == "person" else None
        self.sketch = curvature if isinstance(curvature, SketchedCurvature) else None
        self.curved = [name for name in resolved.of_head if CATALOGUE[name].curvature]
        self.stepped = bool({"newton", "loo_gap"} & set(resolved.of_head))
        self.errors = self.sketch is not None and self.sketch.options.errors
        names = [*resolved.of_head, RESIDUAL, CAPPED, ROUNDED, RECORDS, *(INGREDIENTS if resolved.of_theory else ())]
        if self.sketch is not None:
            names += [LEVERAGE, *(name + ERROR for name in self.curved)]
        self.results = np.zeros((len(names), head.n if self.people is None else len(self.people.sizes)))
        self.column = dict(zip(names, self.results, strict=True))
        self.gradients = GradientSums(head) if head.linear else None
        self.total = self.drift = None
        if resolved.optimum == "corrected" and curvature is not None:
            self.total = gradient_sum(head, execution.processes).total
            self.drift = curvature.solve(self.total)

    def walk(self) -> None:
        """Score this process's share, and bring all shares together."""
        people, curvature, checkpoint = self.people, self.curvature, self.execution.checkpoint
        spans = list(record_spans(self.head, curvature)) if people is None else people.spans(curvature)
        sampled = np.ones(len(spans), dtype=bool) if self.errors else sampled_spans([len(span.where) for span in spans])
        share = list(self.execution.processes.share(list(zip(spans, sampled.tolist(), strict=True))))
        done = torch.zeros(len(share), dtype=torch.bool)
        name = f"scores-{self.resolved.unit}"
        if (earlier := checkpoint.load(name)) is not None:
            self.results[:] = earlier["results"].numpy()
            done = earlier["done"]
        if self.execution.processes.any(earlier is not None):
            self.gradients = None  # of the records scored before nothing was added up
        lock = threading.Lock()

        def work(item: tuple[int, LoadedSpan, bool]) -> None:
            place, span, sampled = item
            for where, batch in span.batches():
                self._score(where, batch, columns=self.resolved.of_head)
                self.execution.on_rows(batch.sample_weight.numel())
            if sampled and self.sketch is not None:
                edges = [self.sketch.probes * part // PROBE_PARTS for part in range(PROBE_PARTS + 1)]
                for parts in zip(*(span.batches(slice(*edge)) for edge in pairwise(edges)), strict=True):
                    for error, values in standard_errors([batch for _, batch in parts], self.curved).items():
                        self.column[error + ERROR][parts[0][0]] = values.cpu().numpy()
            with lock:
                done[place] = True
                if checkpoint.due():
                    checkpoint.save(name, {"results": torch.from_numpy(self.results), "done": done})

        def load() -> Iterator[tuple[int, LoadedSpan, bool]]:
            for place, (span, sampled) in enumerate(share):
                if not done[place]:
                    loaded = LoadedSpan(self.head, span, curvature, self.drift)
                    if self.gradients is not None:
                        self.gradients.add(loaded.window)
                    yield place, loaded, sampled

        in_threads(work, load(), self.head.device, None if curvature is None else curvature.windows_at_once)
        self.execution.processes.sum_(torch.from_numpy(self.results))

    def redo_high_leverage(self, sketch: SketchedCurvature) -> dict[str, Any]:
        """Solve exactly for the groups of highest leverage, as many as cost no more than the sketch did; count them."""
        width, k = sketch.products.shape
        each = 2 * REDONE_STEPS * 4.0 * self.head.n * width * k
        most = int(max(sketch.probes // 8, REDONE_OPERATIONS[self.head.device.type] // each))
        columns = [name for name in self.resolved.of_head if name in OF_STEP]
        chosen = records_to_redo(self.column[LEVERAGE], most)
        at_once = max(1, sketch.at_once // 2 // (self.head.m if sketch.products.k == 1 else 1))
        redone = 0
        for places in (chosen[start : start + at_once] for start in range(0, len(chosen), at_once)):
            alone = [Span(places, torch.from_numpy(places))]
            for span in alone if self.people is None else self.people.spans(None, places):
                loaded = LoadedSpan(self.head, span, sketch, self.drift)
                batch = loaded.batch(slice(0, len(span.where)))
                steps = exact_steps(sketch, loaded.window, batch.gradient, self.total, self.drift)
                solved = (steps.residual <= REDONE_RESIDUAL).cpu().numpy()
                before = self.results[:, span.where].copy()
                self._score(span.where, replace(batch, solved=steps), columns=columns)
                for name in columns:
                    self.column[name + ERROR][span.where] = 0.0
                self.results[:, span.where] = np.where(solved, self.results[:, span.where], before)
                redone += int(solved.sum())
        high = int((self.column[LEVERAGE] > REDO_ABOVE).sum())
        return {"high_leverage": high, "high_leverage_from": REDO_ABOVE, "solved_exactly": redone}

    def columns_and_attributes(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        columns = {name: self.column[name] for name in self.resolved.of_head}
        if self.resolved.of_theory:
            prediction = predict(self.head, np.stack([self.column[name] for name in INGREDIENTS]))
            columns |= {name: CATALOGUE[name].function(prediction) for name in self.resolved.of_theory}
        attributes: dict[str, np.ndarray] = {}
        if self.people is not None:
            attributes["records"] = self.column[RECORDS].astype(np.int64)
        elif has_one_class(self.head):
            attributes["class"] = self.head.targets.cpu().numpy()
        attributes["residual"] = self.column[RESIDUAL]
        if self.stepped:
            attributes["newton_capped"] = self.column[CAPPED] > 0
        if self.column[ROUNDED].any():
            attributes["newton_rounded"] = self.column[ROUNDED] > 0
        if self.errors:
            attributes |= {name + ERROR: self.column[name + ERROR] for name in self.curved}
        return columns, attributes

    def _score(self, where: np.ndarray, batch: ScoreBatch, columns: Sequence[str]) -> None:
        for name, values in scores_of(batch, columns).items():
            self.column[name][where] = values.cpu().numpy()
        if self.resolved.of_theory:
            for name, values in zip(INGREDIENTS, ingredients(batch).cpu().numpy(), strict=True):
                self.column[name][where] = values
        self.column[RESIDUAL][where] = batch.loss.residual(batch.outputs, batch.targets).amax(1).cpu().numpy()
        self.column[RECORDS][where] = batch.sample_weight.shape[1]
        if self.stepped:
            self.column[CAPPED][where] = batch.left_out.capped.cpu().numpy()
            if batch.rounding is not None:
                self.column[ROUNDED][where] = (batch.rounding > EXACT_TO).cpu().numpy()
            if self.sketch is not None and batch.left_out.leverage is not None:
                self.column[LEVERAGE][where] = batch.left_out.leverage.cpu().numpy()


def score(
    head: Head, resolved: Plan, curvature: Curvature | None, execution: Execution = HERE
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any], GradientSums | None]:
    """Return the plan's columns, attributes of the rows, what a sketch says of itself, and the gradient's sums."""
    scoring = Scoring(head, resolved, curvature, execution)
    scoring.walk()
    sketch: dict[str, Any] = {}
    if scoring.sketch is not None:
        column = scoring.column
        relative = {name: relative_error(column[name], column[name + ERROR]) for name in scoring.curved}
        sketch["relative_errors"] = relative
        if scoring.stepped:
            sketch |= scoring.redo_high_leverage(scoring.sketch)
    return *scoring.columns_and_attributes(), sketch, scoring.gradients
