"""The settings of the GLS paper: ResNet-18 on CIFAR-10 with GLS at four depths, and the full model of more targets."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.networks import RESNET_18
from benchmarks.reproduce.gls.averaged import run_averaged, run_elsewhere
from benchmarks.reproduce.gls.leverage import Solving
from benchmarks.reproduce.gls.measures import at_depth, mean_by_record, measure, of_training
from benchmarks.reproduce.gls.training import DEPTHS, FOLDS, Schedule, members_of
from benchmarks.reproduce.gls.truth import said_by_summaries
from benchmarks.reproduce.gls.work import CHECKED, DRAWN, FUSED, TOGETHER, Size, Work
from benchmarks.reproduce.job import Arrays, Job, references_of

RESNET, FULL_MODEL = "gls_resnet18", "gls_full_model"
COMPARED = (DEPTHS[0], DEPTHS[-1])
FULL = Size(
    RESNET_18,
    Schedule(),
    Solving(
        probes={DEPTHS[1]: 32, DEPTHS[2]: 16, DEPTHS[3]: 16},
        rank={DEPTHS[1]: 64, DEPTHS[2]: 64, DEPTHS[3]: 96},
        most_steps={DEPTHS[1]: 15, DEPTHS[2]: 12, DEPTHS[3]: 17},  # the results kept had 10 at most for the full model
    ),
    {DEPTHS[0]: 16, DRAWN: 1},
    {DEPTHS[1]: 1, DEPTHS[2]: 1, FUSED: 1, DEPTHS[3]: 1},
    ((DEPTHS[1], 4), (DEPTHS[2], 4), (FUSED, 16), (CHECKED, 1), (DEPTHS[3], 4), (DEPTHS[1], 16), (DEPTHS[2], 16)),
)
LONG = replace(FULL, schedule=Schedule(epochs=30), at_once={DEPTHS[0]: 16}, after_all={}, at_last=())
SMALL = Size(
    (3, 4, 4, 5),
    Schedule(epochs=1, batch=50, rate=0.1),
    Solving(*({depth: few for depth in DEPTHS[1:]} for few in (4, 4, 40)), tolerance=0.1, memory=10**8, checked=2),
    {DEPTHS[0]: 2, DRAWN: 1},
    {DEPTHS[1]: 2, FUSED: 2, DEPTHS[2]: 1},
    ((CHECKED, 1), (DEPTHS[3], 1)),
)
SMALL_MODELS = 4 * FOLDS  # LiRA wants several models without each record


def run_resnet(job: Job, size: Size = FULL) -> None:
    """Train, score and measure whatever is not kept yet."""
    if job.small:
        size = SMALL
        job = replace(job, models=max(job.models, SMALL_MODELS))
    work = Work(job, size, range(job.targets))
    if work.measures_only(range(job.models)):
        _save_resnet(work)
        return
    for first in range(0, job.models, TOGETHER):
        group = range(first, min(first + TOGETHER, job.models))
        if missing := [number for number in group if not work.kept.has_model(number)]:
            work.train(*missing)
        for number in group:
            if number in work.targets:
                work.target(number, size.at_once)
    for number in work.targets:
        work.target(number, size.after_all)
    try:
        work.at_last()
    finally:  # whatever happens to what may be left out
        _save_resnet(work)


def _save_resnet(work: Work) -> None:
    job = work.job
    result, arrays = measure(work.kept, work.images.labels, job.models, job.targets, job.seed)
    result["training"] = asdict(work.size.schedule)
    result["solving"] = asdict(work.size.solving)
    job.save(result, arrays)


def run_full_model(job: Job) -> None:
    """Measure GLS of the full model on targets that are none of the models of gls_resnet18."""
    told, summaries = references_of(job, RESNET)
    first = told["models_trained"]
    targets = range(first, first + job.targets)
    size = SMALL if job.small else FULL
    size = replace(size, at_once=dict.fromkeys(COMPARED, job.targets), after_all={}, at_last=())
    work = Work(replace(job, models=first), size, targets)
    if told["training"] != asdict(size.schedule) or told["records"] != len(work.images.labels):
        raise SystemExit(f"{RESNET} was trained otherwise, or on other records: run it again, then {FULL_MODEL}")
    if not work.measures_only(targets):
        for number in targets:
            work.target(number, size.at_once)
    _save_full_model(work, summaries)


def _save_full_model(work: Work, summaries: Arrays) -> None:
    job, kept, records = work.job, work.kept, len(work.images.labels)
    members = {number: members_of(number, records, job.seed) for number in work.targets}
    held = {number: kept.phi(number) for number in work.targets}
    known = {number: (said_by_summaries(held[number][0], summaries), members[number]) for number in work.targets}
    result: dict[str, Any] = {
        "references": {"setting": RESNET, "models": work.targets.start},
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
    job.save(result, arrays)


RUNS = {
    **{RESNET: run_resnet, FULL_MODEL: run_full_model, "gls_averaged": run_averaged},
    "gls_elsewhere": run_elsewhere,
    "gls_resnet18_long": partial(run_resnet, size=LONG),
}
