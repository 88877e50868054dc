"""GLS of the full model once more, solved further: targets that are none of the models of `gls_resnet18`, whose kept
means and deviations say how exposed each record is.

Its solves take minutes a target and want weights that no run keeps for long; references are not needed for them again,
as LiRA's score of a new model follows from what was kept of them. Only the TPR, which takes every model's answer, does
not.
"""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np

from benchmarks.reproduce import gls_resnet
from benchmarks.reproduce.gls_measures import at_depth, mean_by_record
from benchmarks.reproduce.gls_network import DEPTHS
from benchmarks.reproduce.gls_tradeoff import spread
from benchmarks.reproduce.gls_training import members_of
from benchmarks.reproduce.gls_truth import said_by_summaries
from benchmarks.reproduce.gls_work import Work
from benchmarks.reproduce.kept_results import Arrays, read_kept
from benchmarks.reproduce.setting import Job, Setting

NAME = "gls_full_model"
REFERENCES = "gls_resnet18"
COMPARED = (DEPTHS[0], DEPTHS[-1])


def run(job: Job) -> None:
    """Train and score the targets that are not kept yet, and measure all."""
    where = job.work.parent / f"{REFERENCES}-small" if job.small else job.out
    found = read_kept(where, REFERENCES)
    if found is None:
        raise SystemExit(f"{NAME} needs {REFERENCES}.json and .npz in {where}: run {REFERENCES} first")
    told, summaries = found
    first = told["models_trained"]
    targets = range(first, first + job.targets)
    size = gls_resnet.SMALL if job.small else gls_resnet.FULL
    pieces = dict.fromkeys(COMPARED, targets.stop)
    size = replace(size, at_once=pieces, after_all={}, at_last=())
    work = Work(replace(job, targets=targets.stop), size)
    if not work.measures_only(targets):
        for number in targets:
            work.target(number, pieces)
    _save(job, work, targets, summaries)


def _save(job: Job, work: Work, targets: range, summaries: Arrays) -> None:
    kept, records = work.kept, len(work.images.labels)
    members = {number: members_of(number, records, job.seed) for number in targets}
    held = {number: kept.phi(number) for number in targets}
    known = {number: (said_by_summaries(held[number][0], summaries), members[number]) for number in targets}
    notes = [note for _, note in held.values()]
    result = {
        "references": {"setting": REFERENCES, "models": targets.start},
        "trained_on": sorted({note["environment"]["device"] for note in notes}),
        "accuracy": {name: spread([note[name] for note in notes]) for name in notes[0] if name.startswith("accuracy")},
        "training": asdict(work.size.schedule),
        "solving": asdict(work.size.solving),
        "depths": {},
        "not_to_be_had": {},
    }
    arrays = {}
    for depth in COMPARED:
        have = {number: known[number] for number in targets if kept.has_piece(number, depth)}
        reasons = {kept.why_not(number, depth) for number in targets} - {None}
        if reasons:
            result["not_to_be_had"][depth] = sorted(reasons)
        if have:
            result["depths"][depth] = at_depth(kept, depth, have)
            traces = [kept.piece(number, depth)[0]["gls_trace"] for number in have]
            own = np.stack([members[number] for number in have])
            arrays[f"gls_{DEPTHS.index(depth)}"] = mean_by_record(traces, own)
    job.save(NAME, result, arrays)


SETTINGS = {NAME: Setting(NAME, "GLS paper: the full model, solved further", run)}
