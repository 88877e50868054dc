"""Run an audit: a head in, a ScoreTable out."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from giveaway.auditing.depths import DepthAudit
from giveaway.auditing.plan import DEFAULT, Plan, plan
from giveaway.auditing.scoring import score
from giveaway.auditing.texts import audit_texts
from giveaway.checks import InputError, check_kind, fail
from giveaway.curvature.choice import Auto, Dense, Sketch, compute, expected_passes
from giveaway.curvature.optimum import GradientSums, gradient_sum, refit
from giveaway.evaluation.exposed_share import FEWEST, predict_exposure
from giveaway.gp.distinguishability import KernelGiven, Process
from giveaway.linalg.processes import HERE, Execution, Processes
from giveaway.network.network import Depths
from giveaway.network.solves import Solves
from giveaway.records import Head, LossTrace, ScoreTable
from giveaway.records.meta import Meta
from giveaway.records.reasons import OwnTerms
from giveaway.records.row_digests import RowDigests
from giveaway.records.texts import Texts
from giveaway.scores.catalogue import CATALOGUE
from giveaway.scores.fusion import fused
from giveaway.text import OnStage, parts_of, progress_of, stages_of
from giveaway.views.all_views import AllViews
from giveaway.views.model import has_one_class, phi_of
from giveaway.views.others import HELD_BACK
from giveaway.views.tables import column_scaling

OF_CLASSES = {"class", "others_say", "trees_say"}  # attributes that hold a class, or a value
NEAR = 1e-2  # of the typical distance from the mean record, up to which a record is a near copy
PROJECTIONS = 4  # held for all records at once
NEIGHBOURS = 8
ROWS = 1_024
WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")  # what a whole number is written as

Columns = dict[str, np.ndarray]


def audit(
    head: Head | Depths | Texts,
    *,
    trace: LossTrace | None = None,
    scores: str | Sequence[str] = DEFAULT,
    optimum: str = "assumed",
    curvature: Dense | Sketch | Auto | Solves = Auto(),  # noqa: B008 (frozen)
    kernel: Process | KernelGiven | None = None,
    progress: bool | None = None,
    execution: Execution = HERE,
) -> ScoreTable:
    """Rank every record (or person, where the head has groups) by its exposure.

    head : the trained head with its records (`Head`, `from_torch`, `from_sklearn`), or `ga.network.Depths`, for scores
        through more of a network than its last layer. The inputs and outputs that it holds are views of each record;
        `fused` puts them together and is the score to rank by; without any the ranking is by `newton`.
    trace : the losses of the training on these records, for the view `trace`.
    scores : names of the columns wanted. "default" stands for those that rank: name it with others to add them, such as
        ("default", "predicted_success").
    optimum : "assumed" takes the head as trained to the optimum of its objective; "corrected" subtracts what leaving a
        record out has in common with training on, for a head that was stopped early (needs its weights); "refit" brings
        the head to its optimum first.
    curvature : `Dense()` inverts the head's curvature exactly, `Sketch()` estimates what it says of every record from
        random probes, `Auto()` is dense where that fits the memory. A network takes `Sketch()`, or `Solves()` of
        `ga.network`.
    kernel : of the Gaussian process of the lood_* scores: a kernel, its name, or `ga.gp.Process(kernel, noise)`; by
        default an NNGP of images on the sphere, or an RBF of standardized columns, with noise 0.05.
    progress : show a progress bar on stderr, or lines where that is no terminal; by default in a terminal and in a
        notebook.
    execution : processes that share the work, and where it saves what it has finished (torchrun, --resume).

    >>> import numpy as np, giveaway as ga
    >>> x = np.array([[0.0], [1.0], [2.0], [10.0]])
    >>> head = ga.Head(x, outputs=x, targets=x[:, 0] + [0.1, -0.1, 0.1, 0.1], loss="squared")
    >>> int(ga.audit(head).top(1, by="leverage").ids[0])
    3
    """
    check_kind("head", head, (Head, Texts, Depths), "make one with ga.from_torch, ga.from_sklearn or ga.from_file")
    if not isinstance(head, Head):
        other = "texts" if isinstance(head, Texts) else "a network"
        refused = {"optimum": optimum != "assumed", "kernel": kernel is not None}
        refused |= {"curvature": curvature != Auto()} if isinstance(head, Texts) else {"trace": trace is not None}
        for name, given in refused.items():
            if given:
                raise fail(name, "a head beside it", other, f"leave {name} out, or audit the head too")
    if isinstance(head, Texts):
        return audit_texts(head, scores, trace)
    if isinstance(head, Depths):
        deep = DepthAudit(head, scores, curvature)
        with parts_of(enabled=progress, work="depths", unit="solve") as on_part:
            return deep.run(execution.checkpoint, on_part)
    began = time.perf_counter()
    processes = execution.processes
    resolved = plan(head, scores, optimum=optimum, curvature=curvature, trace=trace, kernel=kernel, processes=processes)
    if optimum == "refit":
        assert resolved.choice is not None
        head = refit(head, dense=resolved.choice.sketch is None)
    columns, attributes, meta = _score_head(head, resolved, execution, progress)
    terms = None
    if processes.first:
        with stages_of(enabled=progress) as on_stage:
            terms = _ask_views(head, resolved, columns, attributes, meta, on_stage)
        columns = {name: columns[name] for name in resolved.scores if name in columns}
        if optimum != "refit":  # what was said of records held out is of the model as it was
            meta["predicted_share"] = _predicted_share(head)
    elif resolved.view is not None:
        resolved.view.assist(explained=bool(resolved.of_view) and resolved.unit == "record")
    if not columns:
        raise InputError(f"scores: {HELD_BACK}")
    meta |= {
        "unit": resolved.unit,
        "rows": len(next(iter(columns.values()))),
        "records": head.n,
        "outputs": head.m,
        "processes": processes.size,
        "device": str(head.device),
        "no_view": resolved.no_view,
        "seconds": round(time.perf_counter() - began, 3),
    }
    of_plan = {"scores": list(resolved.scores), "unit": resolved.unit}
    meta["options"] = {**of_plan, "converged": optimum != "corrected", "refit": optimum == "refit"}
    of_head = ("loss", "l2", "intercept", "penalize_intercept", "frozen", "model", "rows_proved_by", "class_names")
    meta |= {name: getattr(head, name) for name in of_head}
    ids = head.ids if head.groups is None else np.unique(head.groups)
    digests = RowDigests.of_head(head) if processes.first and resolved.unit == "record" else None
    return ScoreTable(columns, ids, Meta.from_json(meta), attributes, digests, terms)


def _score_head(
    head: Head, resolved: Plan, execution: Execution, progress: bool | None
) -> tuple[Columns, Columns, dict[str, Any]]:
    """Return the columns that the head's outputs and its curvature give, attributes, and what the metadata say."""
    processes = execution.processes
    curved = resolved.choice if resolved.curved else None
    passes = 1 + (0 if curved is None else expected_passes(head, curved))
    counted = processes.first and resolved.unit == "record" and head.linear
    repeats = count_duplicates(head) if counted else None  # before the columns are there: it holds as much as they do
    with progress_of(head.n * passes // processes.size, enabled=progress) as on_rows:
        work = replace(execution, on_rows=on_rows)
        curvature = None if curved is None else compute(head, curved, work)
        columns, attributes, sketch, gradients = score(head, resolved, curvature, work)
    report = None
    if curvature is not None and curved is not None:
        report = {**curvature.report, "chosen": curved.because, **sketch}
        if "newton_rounded" in attributes:
            report["rounded"] = int(attributes["newton_rounded"].sum())
    capped = attributes.get("newton_capped")
    meta = {
        "curvature": report,
        "optimum": _optimum(head, gradients, processes) if head.linear else None,
        "repeats": repeats,
        "newton_capped": None if capped is None else int(capped.sum()),
        "predicted_by": "theory of the head" if resolved.of_theory else None,
    }
    return columns, attributes, meta


def count_duplicates(head: Head) -> dict[str, Any]:
    """Count the records with an exact copy, by a random hash of 64 bits of features and target, and at least how many
    have a near one: within 1 % of the root-mean-square distance from the mean record, in columns of unit variance. Near
    copies are looked for along random directions: missed sometimes, never invented."""
    mean, scale = column_scaling(head.features)
    radius = NEAR * float((scale > 0).sum()) ** 0.5  # every column that varies adds 1 to the mean square
    kind = head.features.dtype if head.features.dtype in (torch.float32, torch.float64) else torch.float32
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(head.features.shape[1], PROJECTIONS, generator=generator, dtype=torch.float64)
    directions = directions.to(head.device) * scale.unsqueeze(1) / PROJECTIONS**0.5
    projected = torch.empty(PROJECTIONS, head.n, dtype=kind, device=head.device)
    columns = head.features.shape[1] + head.targets[:1].numel()
    keys = torch.randint(-(2**62), 2**62, (2, columns), generator=generator).to(head.device) * 2 + 1
    hashes = torch.empty(head.n, dtype=torch.int64, device=head.device)
    for rows in head.slices(ROWS):
        x, y = head.features[rows].to(torch.float64), head.targets[rows].to(torch.float64)
        projected[:, rows] = torch.addmm(-mean @ directions, x, directions).T.to(kind)
        hashes[rows] = _hashes(torch.cat((x, y.reshape(len(y), -1)), dim=1), keys)
    _, place, times = torch.unique(hashes, return_inverse=True, return_counts=True)
    exact, near = (times[place] > 1).cpu().numpy(), np.zeros(head.n, dtype=bool)
    for k in range(PROJECTIONS):
        order = torch.argsort(projected[k])
        one, two = projected[k - 1][order], projected[k - 2][order]
        for shift in range(1, min(NEIGHBOURS, head.n - 1) + 1):
            # a random projection of unit variance is the distance on average; a factor of 3 misses next to nothing
            close = (one[shift:] - one[:-shift]).abs() <= 3.0 * radius
            close &= (two[shift:] - two[:-shift]).abs() <= 3.0 * radius
            pairs = torch.stack([order[:-shift][close], order[shift:][close]])
            pairs = pairs[:, (projected[:, pairs[0]] - projected[:, pairs[1]]).norm(dim=0) <= 3.0 * radius]
            for some in pairs.split(ROWS, 1):
                first, second = (head.features[rows].to(torch.float64) for rows in some)
                near[some[:, ((first - second) * scale).norm(dim=1) <= radius].cpu().numpy()] = True
    return {
        "exact": int(exact.sum()),
        "near": int((near & ~exact).sum()),
        "near_means": f"within {NEAR:g} of the root-mean-square distance from the mean; a lower bound",
    }


def _hashes(rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return a hash (n,) of rows of float64 (n, d) by random odd keys (2, d), on their device and to the last digit,
    as the digests of records are not; −0 is 0."""
    bits = (rows + 0.0).view(torch.int64)
    bits = (bits ^ ((bits >> 32) & 0xFFFFFFFF)) * keys[0]
    return ((bits ^ ((bits >> 32) & 0xFFFFFFFF)) * keys[1]).sum(dim=1)


def _ask_views(
    head: Head, resolved: Plan, columns: Columns, attributes: Columns, meta: dict[str, Any], on_stage: OnStage
) -> OwnTerms | None:
    """Add the columns of the views of each record, and of the Gaussian process; call classes by their names, and return
    what sets the first rows apart."""
    view, process, explained = resolved.view, resolved.process, None
    if resolved.of_view or view is not None:
        views = AllViews(head, view, resolved.trace, columns[resolved.beside_view], on_stage)
        columns |= {name: CATALOGUE[name].function(views.seen) for name in resolved.of_view}
        exposure = fused(views.seen)
        ranked = columns.get("left_out", exposure) if "fused" not in resolved.of_view else exposure
        order = np.argsort(-ranked, kind="stable")
        meta["fusion"] = views.report()
        if views.trace is not None:
            meta["trace"] = views.trace.report(order)
        if resolved.of_view:
            attributes |= views.attributes()
            explained = view if resolved.unit == "record" else None
            attributes |= {} if explained is None else explained.attributes(order)
    if view is not None:
        prediction = view.predict(exposure, head.outputs) if resolved.of_theory else None
        if prediction is not None and view.held_back:
            meta |= {"no_prediction": HELD_BACK, "predicted_by": None}
            for name in resolved.of_theory:
                del columns[name]
        elif prediction is not None:
            meta["predicted_by"] = "both views"
            columns |= {name: CATALOGUE[name].function(prediction) for name in resolved.of_theory}
        meta["view"] = view.report
    if process is not None and resolved.of_lood:
        lood, meta["kernel"] = process.divergence(on_stage)
        columns |= {name: CATALOGUE[name].function(lood).cpu().numpy() for name in resolved.of_lood}
    for name in OF_CLASSES & attributes.keys():
        attributes[name] = _called(attributes[name], head.class_names)
    said = attributes.get("class"), attributes.get("others_say")
    return None if explained is None else explained.own_terms(order, *said)


def _called(classes: np.ndarray, names: tuple[str, ...] | None) -> np.ndarray:
    """Return what numbers of classes are called, as numbers where all are; "" where none is known. Values stay."""
    unknown = classes < 0
    if classes.dtype.kind != "i" or (names is None and not unknown.any()):
        return classes
    if names is None:
        return np.where(unknown, "", classes.astype(str))
    known = np.array(names)
    if not unknown.any() and all(WHOLE.fullmatch(name) for name in names):
        known = known.astype(np.int64)
    return np.where(unknown, "", known[classes]) if unknown.any() else known[classes]


def _predicted_share(head: Head) -> dict[str, Any] | None:
    """Say in words how many records are exposed, from what the model says of records held out; None where that was
    never measured: people, values, several labels at once, and few records."""
    classes = has_one_class(head) and head.groups is None
    if head.held_out is None or not classes or min(head.n, len(head.held_out[0])) < FEWEST:
        return None
    said = predict_exposure(phi_of(head.outputs, head.targets), phi_of(*head.held_out))
    return {"words": said.words, "held_out": len(head.held_out[0])}


def _optimum(head: Head, gradients: GradientSums | None, processes: Processes) -> dict[str, Any]:
    """Say how far the head is from its optimum; `gradients` were added up while the records were read."""
    if head.weight is None and head.l2 > 0:
        return {"relative_gradient": None, "note": "unknown: the head's weights were not given"}
    relative = (gradient_sum(head, processes) if gradients is None else gradients.finished(processes)).relative
    note = "at its optimum" if relative < 1e-4 else 'not at its optimum: consider optimum="corrected" or "refit"'
    return {"relative_gradient": relative, "note": note}
