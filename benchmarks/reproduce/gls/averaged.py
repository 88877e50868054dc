"""GLS beside the LiRA score of one target and of many: of gls_resnet18's models, by the means and deviations kept of
their φ, and of networks that were trained elsewhere, by every model's answer."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

import giveaway as ga
from benchmarks.data import arrays, cifar10_training
from benchmarks.reproduce.gls.measures import FIRST
from benchmarks.reproduce.gls.training import DEPTHS, phi_of
from benchmarks.reproduce.gls.truth import GAPS, said_by_summaries, said_of_target, spread
from benchmarks.reproduce.job import Job, references_of
from giveaway.attacks.lira import lira_within
from giveaway.evaluation import spearman
from giveaway.records import Signals

COMPARED = ("lira", "lira_mean", *GAPS, "effect_size")
ELSEWHERE = {  # signals, models that are references, targets, and the penalty of their training
    "ResNet-9": ("cifar10_resnet9_signals.npz", slice(2, None), ["cifar10_resnet9_traced_0.npz"], 12.5),
    "CNN": ("cifar10_cnn_signals_10k.npz", slice(200), [f"cifar10_cnn_target_{k}.npz" for k in (200, 201)], 0.01),
}


def run_averaged(job: Job) -> None:
    """Correlate the leverage of each kept target, and the mean leverage of gls_resnet18's, with what the models say:
    WORK/resnet18_*.npz have `index`, `outputs` and `gls_trace` of the last layer."""
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


def run_elsewhere(job: Job) -> None:
    """Correlate the leverage of the last layer of networks trained elsewhere with what their references say."""
    if job.data is None:
        raise SystemExit("gls_elsewhere needs --data, the folder of the signals and targets")
    result: dict[str, Any] = {"models": {}, "targets": {}, "networks": {}}
    for network, (file, references, targets, l2) in ELSEWHERE.items():
        phi, packed = arrays(job.data / file, "phi", "members")
        members = np.unpackbits(packed, axis=1)[references, : phi.shape[1]].astype(bool)
        each = [_of_target(job.data / target, phi[references], members, l2) for target in targets]
        result["models"][network], result["targets"][network] = len(members), len(each)
        result["networks"][network] = {
            over: {name: spread([found[over][name] for found in each]) for name in COMPARED}
            for over in ("all", "first")
        }
    job.save(result)


def _of_target(file: Path, phi: np.ndarray, members: np.ndarray, l2: float) -> dict[str, Any]:
    """Correlate over its training records that the references answered for, and over the first of them."""
    features, weight, bias, targets, index = arrays(file, "features", "weight", "bias", "targets", "index")
    order = np.argsort(index)
    features, labels, rows = features[order].astype(np.float64), targets[order].astype(np.int64), index[order]
    outputs = features @ weight.T.astype(np.float64) + bias
    head = ga.Head(features, outputs, labels, "cross_entropy", l2=l2)
    gls = ga.audit(head, scores=["gls_trace"])["gls_trace"]
    known = rows < phi.shape[1]
    rows, gls = rows[known], gls[known]
    own = phi_of(torch.from_numpy(outputs[known]), torch.from_numpy(labels[known])).numpy()
    values, inside = np.vstack([phi[:, rows].astype(np.float64), own]), np.ones(len(rows), dtype=bool)
    signals = Signals(values, np.vstack([members[:, rows], inside]), kind="phi")
    said = said_of_target(signals, lira_within(signals), len(phi))
    few = {"all": slice(None), "first": slice(FIRST)}
    return {over: {name: spearman(gls[some], said[name][some]) for name in COMPARED} for over, some in few.items()}
