"""Run an audit: a head in, a ScoreTable out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from giveaway.auditing.curvature import Choice, CurvatureOptions, check_sketch, choose, make, passes_of
from giveaway.auditing.duplicates import count_duplicates
from giveaway.auditing.kernel_view import NOISE, KernelView
from giveaway.auditing.plan import Plan, plan
from giveaway.auditing.progress import OnRows, announce, progress_of
from giveaway.auditing.scoring import score
from giveaway.auditing.second_view import HELD_BACK, view_of
from giveaway.checks import InputError, fail
from giveaway.curvature.dense import DenseCurvature
from giveaway.curvature.optimum import GradientSums, gradient_sum
from giveaway.curvature.optimum import refit as refit_head
from giveaway.curvature.sketched import PROBES, TOLERANCE, SketchedCurvature
from giveaway.evaluation.ranking import recall_at, spearman
from giveaway.gp.table import KernelGiven
from giveaway.linalg.kept import NOTHING_KEPT, Kept
from giveaway.linalg.team import ALONE, Team
from giveaway.records import Head, ScoreTable
from giveaway.scores.catalogue import CATALOGUE
from giveaway.scores.fused import fused

TOP = 0.05
MANY = 5_000  # records, from which the second view is announced


def audit(
    head: Head,
    *,
    scores: Sequence[str] | None = None,
    also: Sequence[str] = (),
    by: str = "auto",
    converged: bool = True,
    refit: bool = False,
    l2_sensitivity: bool | None = None,
    inputs: Any = None,
    kernel: KernelGiven | None = None,
    noise: float | None = None,
    curvature: str = "auto",
    probes: int = PROBES,
    tolerance: float = TOLERANCE,
    precision: str = "auto",
    memory: float | None = None,
    allow_unconverged: bool = False,
    errors: bool = False,
    seed: int = 0,
    device: torch.device | str | None = None,
    team: Team = ALONE,
    kept: Kept = NOTHING_KEPT,
    progress: bool = False,
) -> ScoreTable:
    """Every record's (or person's) exposure through the head.

    Parameters
    ----------
    scores : names of the columns wanted; by default all that exist for the loss, but for the predicted_* ones, which
        are estimates of an attack's power, and the lood_* ones: those are there by name (lood_* with a kernel too).
    also : names of columns besides those, such as "predicted_success".
    by : "person" scores each of the head's groups when all of its records are left out together, "record" each record;
        "auto" is by person where the head has groups.
    converged : False subtracts what leaving a record out has in common with training on, for a head that was stopped
        before its optimum; needs the head's weights.
    refit : bring the head to the optimum of its objective first.
    l2_sensitivity : put the rank correlation of newton at l2/10 and 10·l2 with that at l2 into the metadata; by default
        where the head has up to 2,000 parameters.
    inputs : the records themselves, row by row those of the head: images (n, c, h, w), a table (n, p) of numbers or
        categories, or strings; by default those that the head holds. They add `fused`, the score to rank by, and
        `left_out`, what it takes from a kernel that never saw the model. Without them the ranking is by newton.
    kernel, noise : of the Gaussian process of the lood_* scores; by default an NNGP of images on the sphere, or an RBF
        of standardized columns with their median distance as length, and a variance of 0.05 around functions of
        variance 1.
    curvature : "dense" inverts it exactly; "sketch" estimates what it says of every record from `probes` random
        combinations of its inverse, for heads whose P × P matrix does not fit (`docs/scale.md`); "auto" is dense where
        that fits the memory. The metadata say which it was, and how far a sketch is off.
    probes, tolerance, allow_unconverged : of a sketch: the error of a score is about √(2/probes) of it; residual at
        which its solves stop, and whether one that does not get there is used nevertheless.
    precision : of the products inside those solves: "float64" or "float32", on a GPU also "tf32" or "bf16"; residuals
        are looked at in a higher one. "auto" is float32 on a CPU and bf16 on a GPU.
    memory : gigabytes that the curvature may take; by default half of what is free.
    errors : add the standard error of every sketched score, a record, as attributes.
    seed : of the probes.
    device : where to compute; by default where the head's arrays are.
    team, kept : processes that share the work, and where it keeps what it has finished: `giveaway audit` under torchrun
        and --resume. Processes but the first get the scores of the head alone.
    progress : show a progress bar on stderr, or lines where it is no terminal.

    Examples
    --------
    >>> import numpy as np, giveaway as ga
    >>> x = np.array([[0.0], [1.0], [2.0], [10.0]])
    >>> head = ga.Head(x, outputs=x, targets=x[:, 0] + [0.1, -0.1, 0.1, 0.1], loss="squared")
    >>> int(ga.audit(head).top(1, by="leverage").ids[0])
    3
    """
    began = time.perf_counter()
    options = CurvatureOptions(curvature, probes, tolerance, precision, memory, allow_unconverged, seed)
    if device is not None:
        head = head.to(device)
    known = head if inputs is None else replace(head, inputs=inputs)
    if known.inputs is None and (kernel is not None or noise is not None):
        raise fail("inputs", "inputs beside kernel and noise", "none", "pass the records themselves, or drop both")
    named = None if scores is None else (scores,) if isinstance(scores, str) else tuple(scores)
    more = (also,) if isinstance(also, str) else tuple(also)
    viewed = [n for n in (*(named or ()), *more) if n in CATALOGUE and CATALOGUE[n].view]
    predicted = [n for n in (*(named or ()), *more) if n in CATALOGUE and CATALOGUE[n].predicted]
    asked = named is None or bool(viewed) or (bool(predicted) and known.inputs is not None)
    required = inputs is not None or bool(viewed)
    view, note = view_of(known, required=required) if asked else (None, None)
    options = options.agreed(head, team)
    choice = choose(head, options) if head.linear else Choice("none", "a black box has none")
    resolved = plan(
        head,
        scores=named,
        also=more,
        by=by,
        converged=converged,
        refit=refit,
        l2_sensitivity=l2_sensitivity,
        view=view is not None,
        lood=kernel is not None or noise is not None,
        inputs=known.inputs is not None,
        dense=choice.kind == "dense" and head.looked_up,
    )
    process = None
    if resolved.of_lood or kernel is not None or noise is not None:
        process = KernelView(head, known.inputs, kernel, NOISE if noise is None else noise)
    curved = any(CATALOGUE[name].curvature for name in (*resolved.of_head, *resolved.of_theory))
    if errors and not (curved and choice.kind == "sketch"):
        raise fail("errors", "a sketched curvature", "none: these scores are exact", "leave errors out")
    if curved and choice.kind == "sketch":
        check_sketch(head, options)
    if resolved.refit:
        head = refit_head(head, dense=choice.kind == "dense")
    compared = resolved.l2_sensitivity and head.l2 > 0
    gradients = GradientSums(head) if head.linear else None
    passes = 1 + 2 * int(compared) + (passes_of(head, options, choice) if curved else 0)
    found, sensitivity = None, None
    counted = team.first and resolved.unit == "record" and head.linear and head.looked_up
    repeats = count_duplicates(head) if counted else None  # before the columns are there: it holds as much as they do
    with progress_of(head.n * passes // team.size, enabled=progress) as on_rows:
        if curved:
            add = gradients.add if gradients is not None else lambda window: None
            found = make(head, options, choice, team=team, kept=kept, on_rows=on_rows, on_window=add)
        scored = score(head, resolved, found, on_rows, team=team, kept=kept, errors=errors)
        if found is not None and compared:
            sensitivity = _l2_sensitivity(head, resolved, found, scored.columns["newton"], on_rows, team)
    columns, attributes = scored.columns, scored.attributes
    optimum = None
    if gradients is not None:
        summed = isinstance(found, DenseCurvature) and not found.taken_up
        optimum = _optimum(head, gradients if summed else None, team)
    if not team.first:  # what follows is the first process's alone
        view = process = None
    predicted_by, no_prediction = "theory of the head" if resolved.of_theory else None, None
    if view is not None and (resolved.of_view or resolved.of_theory):
        words = f"second view: predicting each of {head.n} records from the others, which can take minutes"
        announce(words, enabled=progress and head.n >= MANY)
        seen = view.look(resolved.unit, columns[resolved.beside_view], head.outputs)
        columns |= {name: CATALOGUE[name].function(seen) for name in resolved.of_view}
        exposure = fused(seen)
        if resolved.unit == "record" and resolved.of_view:
            ranked = exposure if "fused" in resolved.of_view else columns["left_out"]
            attributes |= view.attributes(np.argsort(-ranked, kind="stable"))
        prediction = view.predict(exposure, head.outputs) if resolved.of_theory else None
        if prediction is not None and view.held_back:
            no_prediction, predicted_by = HELD_BACK, None
            columns = {name: values for name, values in columns.items() if name not in resolved.of_theory}
        elif prediction is not None:
            predicted_by = "both views"
            columns |= {name: CATALOGUE[name].function(prediction) for name in resolved.of_theory}
    if process is not None and resolved.of_lood:
        lood = process.lood(resolved.unit)
        columns |= {name: CATALOGUE[name].function(lood).cpu().numpy() for name in resolved.of_lood}
    columns = {name: columns[name] for name in resolved.scores if name in columns} if team.first else columns
    if not columns:
        raise InputError(f"scores: {HELD_BACK}")
    meta = {
        "unit": resolved.unit,
        "rows": len(next(iter(columns.values()))),
        "records": head.n,
        "outputs": head.m,
        "loss": head.loss,
        "l2": head.l2,
        "intercept": head.intercept,
        "penalize_intercept": head.penalize_intercept,
        "frozen": head.frozen,
        "options": resolved.options(),
        "processes": team.size,
        "device": str(head.device),
        "curvature": None if found is None else {**found.report, "chosen": choice.because, **(scored.sketch or {})},
        "optimum": optimum,
        "view": None if view is None else view.report,
        "no_view": note,
        "predicted_by": predicted_by,
        "no_prediction": no_prediction,
        "kernel": None if process is None else process.report,
        "l2_sensitivity": sensitivity,
        "repeats": repeats,
        "newton_capped": int(attributes["newton_capped"].sum()) if "newton_capped" in attributes else None,
        "seconds": round(time.perf_counter() - began, 3),
    }
    ids = head.ids if resolved.unit == "record" else np.unique(head.groups)  # type: ignore[arg-type]
    return ScoreTable(scores=columns, ids=ids, meta=meta, attributes=attributes)


def _l2_sensitivity(
    head: Head,
    resolved: Plan,
    curvature: DenseCurvature | SketchedCurvature,
    newton: np.ndarray,
    on_rows: OnRows,
    team: Team,
) -> dict[str, float]:
    """Spearman of newton at other penalties with newton at the head's own, and how much of the top 5 % stays there."""
    only = Plan(("newton",), resolved.unit, resolved.converged, resolved.refit, False)
    result = {}
    top = max(TOP, 1 / len(newton))
    for factor in (0.1, 10.0):
        other = score(head, only, curvature.with_l2(factor * head.l2), on_rows, team=team).columns["newton"]
        result[f"spearman_at_{factor:g}_l2"] = round(spearman(newton, other), 6)
        result[f"top_kept_at_{factor:g}_l2"] = round(recall_at(other, newton, top, top), 6)
    return result


def _optimum(head: Head, gradients: GradientSums | None, team: Team) -> dict[str, Any]:
    """How far the head is from the optimum of its objective, as far as its weights tell.

    `gradients` are those added up while the records were read, if they were.
    """
    if head.weight is None and head.l2 > 0:
        return {"relative_gradient": None, "note": "unknown: the head's weights were not given"}
    relative = (gradient_sum(head, team) if gradients is None else gradients.finished(team)).relative
    note = "at its optimum" if relative < 1e-4 else "not at its optimum: consider converged=False or refit=True"
    return {"relative_gradient": relative, "note": note}
