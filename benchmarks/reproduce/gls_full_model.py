"""GLS of the full model, of targets that are none of the models of `gls_resnet18`.

The solves take minutes a target and need its weights, which no run keeps for long, so new targets are trained. New
references are not: with a target's own φ, the means and deviations kept of those models give its LiRA scores. What
takes every model's answer (the TPR, attacks on some of the records) is not to be had so.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reproduce import gls_resnet
from benchmarks.reproduce.gls_measures import at_depth, mean_by_record, of_training
from benchmarks.reproduce.gls_network import DEPTHS
from benchmarks.reproduce.gls_training import members_of
from benchmarks.reproduce.gls_truth import said_by_summaries
from benchmarks.reproduce.gls_work import Work
from benchmarks.reproduce.kept_results import Arrays, read_kept
from benchmarks.reproduce.setting import RESULTS, Job, Setting

NAME = "gls_full_model"
REFERENCES = "gls_resnet18"
COMPARED = (DEPTHS[0], DEPTHS[-1])


def run(job: Job) -> None:
    """Train and score the targets that are not kept yet, and measure all."""
    told, summaries = _references(job)
    first = told["models_trained"]
    targets = range(first, first + job.targets)
    size = gls_resnet.SMALL if job.small else gls_resnet.FULL
    size = replace(size, at_once=dict.fromkeys(COMPARED, job.targets), after_all={}, at_last=())
    work = Work(replace(job, models=first), size, targets)
    if told["training"] != asdict(size.schedule) or told["records"] != len(work.images.labels):
        raise SystemExit(f"{REFERENCES} was trained otherwise, or on other records: run it again, then {NAME}")
    if not work.measures_only(targets):
        for number in targets:
            work.target(number, size.at_once)
    _save(work, summaries)


def _references(job: Job) -> tuple[dict[str, Any], Arrays]:
    """What was kept of the models that targets are held against."""
    places = [job.work.parent / f"{REFERENCES}-small"] if job.small else [job.out, RESULTS]
    for place in places:
        if _is_there(place):
            found = read_kept(place, REFERENCES)
            assert found is not None
            return found
    raise SystemExit(f"{NAME} needs {REFERENCES}.json and .npz in {places[0]}: run {REFERENCES} first")


def _is_there(place: Path) -> bool:
    return all((place / REFERENCES).with_suffix(kind).exists() for kind in (".json", ".npz"))


def _save(work: Work, summaries: Arrays) -> None:
    job, kept, records = work.job, work.kept, len(work.images.labels)
    members = {number: members_of(number, records, job.seed) for number in work.targets}
    held = {number: kept.phi(number) for number in work.targets}
    known = {number: (said_by_summaries(held[number][0], summaries), members[number]) for number in work.targets}
    result: dict[str, Any] = {
        "references": {"setting": REFERENCES, "models": work.targets.start},
        **of_training([note for _, note in held.values()]),
        "training": asdict(work.size.schedule),
        "solving": asdict(work.size.solving),
        "depths": {},
        "not_to_be_had": {},
    }
    arrays = {}
    for depth in COMPARED:
        have = {number: known[number] for number in work.targets if kept.has_piece(number, depth)}
        if reasons := kept.reasons(work.targets, depth):
            result["not_to_be_had"][depth] = reasons
        if have:
            result["depths"][depth] = at_depth(kept, depth, have)
            traces = [kept.piece(number, depth)[0]["gls_trace"] for number in have]
            own = np.stack([members[number] for number in have])
            arrays[f"gls_{DEPTHS.index(depth)}"] = mean_by_record(traces, own)
    job.save(NAME, result, arrays)


SETTINGS = {NAME: Setting(NAME, "GLS paper: the full model, of more targets", run)}
