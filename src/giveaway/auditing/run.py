"""Run an audit: a head in, a ScoreTable out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from giveaway.auditing.batches import Portion, person_portions, record_portions
from giveaway.auditing.duplicates import count_duplicates
from giveaway.auditing.kernel_view import NOISE, KernelView
from giveaway.auditing.plan import Plan, plan
from giveaway.auditing.progress import OnRows, announce, progress_of
from giveaway.auditing.second_view import HELD_BACK, view_of
from giveaway.checks import InputError, fail
from giveaway.evaluation.ranking import recall_at, spearman
from giveaway.gp.table import KernelGiven
from giveaway.heads.dense import DenseCurvature
from giveaway.heads.optimum import gradient_sum
from giveaway.heads.optimum import refit as refit_head
from giveaway.linalg.threads import in_threads
from giveaway.records import Head, ScoreTable
from giveaway.scores.catalogue import CATALOGUE
from giveaway.scores.fused import fused
from giveaway.scores.predicted import ingredients, predict

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
    )
    process = None
    if resolved.of_lood or kernel is not None or noise is not None:
        process = KernelView(head, known.inputs, kernel, NOISE if noise is None else noise)
    if resolved.refit:
        head = refit_head(head)
    curved = any(CATALOGUE[name].curvature for name in (*resolved.of_head, *resolved.of_theory))
    compared = resolved.l2_sensitivity and head.l2 > 0
    with progress_of(head.n * (1 + int(curved) + 2 * int(compared)), enabled=progress) as on_rows:
        curvature = DenseCurvature(head, on_rows) if curved else None
        columns, attributes = _score(head, resolved, curvature, on_rows)
        sensitivity = None
        if curvature is not None and compared:
            sensitivity = _l2_sensitivity(head, resolved, curvature, columns["newton"], on_rows)
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
        found = process.lood(resolved.unit)
        columns |= {name: CATALOGUE[name].function(found).cpu().numpy() for name in resolved.of_lood}
    columns = {name: columns[name] for name in resolved.scores if name in columns}
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
        "options": resolved.options(),
        "curvature": curvature.report if curvature is not None else None,
        "optimum": _optimum(head) if head.linear else None,
        "view": None if view is None else view.report,
        "no_view": note,
        "predicted_by": predicted_by,
        "no_prediction": no_prediction,
        "kernel": None if process is None else process.report,
        "l2_sensitivity": sensitivity,
        "repeats": count_duplicates(head) if resolved.unit == "record" and head.linear else None,
        "newton_capped": int(attributes["newton_capped"].sum()) if "newton_capped" in attributes else None,
        "seconds": round(time.perf_counter() - began, 3),
    }
    ids = head.ids if resolved.unit == "record" else np.unique(head.groups)  # type: ignore[arg-type]
    return ScoreTable(scores=columns, ids=ids, meta=meta, attributes=attributes)


def _score(
    head: Head, resolved: Plan, curvature: DenseCurvature | None, on_rows: OnRows
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The columns asked for, and the attributes of the same rows."""
    by_person = resolved.unit == "person"
    count = len(np.unique(head.groups)) if by_person else head.n  # type: ignore[arg-type]
    columns = {name: np.empty(count) for name in resolved.of_head}
    parts = np.empty((3, count)) if resolved.of_theory else None
    residual, capped, records = np.empty(count), np.zeros(count, dtype=bool), np.ones(count, dtype=np.int64)
    stepped = bool({"newton", "loo_gap"} & set(resolved.of_head))
    drift = None
    if curvature is not None and not resolved.converged:
        drift = curvature.solve(gradient_sum(head).total)

    def score(portion: Portion) -> None:
        for where, batch in portion:
            for name in resolved.of_head:
                columns[name][where] = CATALOGUE[name].function(batch).cpu().numpy()
            if parts is not None:
                parts[:, where] = ingredients(batch).cpu().numpy()
            residual[where] = batch.loss.residual(batch.outputs, batch.targets).amax(1).cpu().numpy()
            if stepped:
                capped[where] = batch.left_out[1].cpu().numpy()
            count, size = batch.sample_weight.shape
            records[where] = size
            on_rows(count * size)

    portions = person_portions if by_person else record_portions
    in_threads(score, portions(head, curvature, drift), head.device)
    if parts is not None:
        found = predict(head, parts)
        columns |= {name: CATALOGUE[name].function(found) for name in resolved.of_theory}
    attributes: dict[str, np.ndarray] = {}
    if by_person:
        attributes["records"] = records
    elif head.loss == "cross_entropy" and head.targets.ndim == 1:
        attributes["class"] = head.targets.cpu().numpy()
    attributes["residual"] = residual
    if stepped:
        attributes["newton_capped"] = capped
    return columns, attributes


def _l2_sensitivity(
    head: Head, resolved: Plan, curvature: DenseCurvature, newton: np.ndarray, on_rows: OnRows
) -> dict[str, float]:
    """Spearman of newton at other penalties with newton at the head's own, and how much of the top 5 % stays there."""
    only = Plan(("newton",), resolved.unit, resolved.converged, resolved.refit, False)
    result = {}
    top = max(TOP, 1 / len(newton))
    for factor in (0.1, 10.0):
        other, _ = _score(head, only, curvature.with_l2(factor * head.l2), on_rows)
        result[f"spearman_at_{factor:g}_l2"] = round(spearman(newton, other["newton"]), 6)
        result[f"top_kept_at_{factor:g}_l2"] = round(recall_at(other["newton"], newton, top, top), 6)
    return result


def _optimum(head: Head) -> dict[str, Any]:
    """How far the head is from the optimum of its objective, as far as its weights tell."""
    if head.weight is None and head.l2 > 0:
        return {"relative_gradient": None, "note": "unknown: the head's weights were not given"}
    relative = gradient_sum(head).relative
    note = "at its optimum" if relative < 1e-4 else "not at its optimum: consider converged=False or refit=True"
    return {"relative_gradient": relative, "note": note}
