"""GLS beside the LiRA score of one target and of many, from means and deviations of φ kept of gls_resnet18's models and
from targets that are none of them: WORK/resnet18_*.npz with `index`, `outputs` and `gls_trace` of the last layer."""

from typing import Any

import numpy as np
import torch

from benchmarks.data import arrays, cifar10_training
from benchmarks.reproduce.gls.measures import FIRST
from benchmarks.reproduce.gls.training import DEPTHS, phi_of
from benchmarks.reproduce.gls.truth import GAPS, said_by_summaries, spread
from benchmarks.reproduce.job import Job, references_of
from giveaway.evaluation import spearman

COMPARED = ("lira", "lira_mean", *GAPS, "effect_size")


def run_averaged(job: Job) -> None:
    """Correlate the leverage of each kept target, and the mean leverage of gls_resnet18's, with what the models say."""
    told, summaries = references_of(job, "gls_resnet18")
    files = sorted(job.work.glob("resnet18_*.npz"))
    if job.data is None or not files:
        raise SystemExit(f"gls_averaged needs --data, and targets in {job.work}/resnet18_*.npz")
    _, labels = cifar10_training(job.data)
    found: dict[str, dict[str, list[float]]] = {over: {name: [] for name in COMPARED} for over in ("all", "first")}
    for file in files:
        rows, outputs, gls = arrays(file, "index", "outputs", "gls_trace")
        phi = phi_of(torch.from_numpy(outputs), torch.from_numpy(labels)).numpy()
        said = said_by_summaries(phi, summaries)
        for over, few in (("all", None), ("first", FIRST)):
            for name in COMPARED:
                found[over][name].append(spearman(gls[:few], said[name][rows[:few]]))
    result: dict[str, Any] = {"references": told["models_trained"], "targets": len(files), "mean_leverage": {}}
    result |= {over: {name: spread(each) for name, each in cells.items()} for over, cells in found.items()}
    said = said_by_summaries(np.zeros(len(labels)), summaries)
    for place, depth in enumerate(DEPTHS):
        mean, many = summaries[f"gls_{place}"], COMPARED[1:]
        known = np.flatnonzero(~np.isnan(mean))
        result["mean_leverage"][depth] = {
            over: {name: round(spearman(mean[rows], said[name][rows]), 4) for name in many}
            for over, rows in (("all", known), ("first", known[:FIRST]))
        }
    job.save(result)
