"""Figures 3b and 6 of the LOOD paper: LOOD against the AUC of the best attack, both of the Gaussian process.

Each of 200 CIFAR-10 images, and of 200 records of uniform pixels, is added by itself to 1,000 images of all classes;
KL and mean distance at the record, under the RBF kernel of the median distance and NNGP of depth 1.
"""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.reproduce.lood_data import ten_classes
from benchmarks.reproduce.lood_gaussian import NOISE
from benchmarks.reproduce.lood_measures import correlation, digits, spread
from benchmarks.reproduce.setting import Job, Setting, write_arrays
from giveaway.gp.attack import query_attack
from giveaway.gp.divergence import lood_at
from giveaway.gp.kernels import RBF, Kernel, kernel_matrix
from giveaway.gp.nngp import NNGP
from giveaway.gp.posterior import fit
from giveaway.gp.removal import remove

KINDS = ("images", "uniform")
LOW_AUC = 0.6


def run(job: Job) -> None:
    kept, added = (60, 20) if job.small else (1_000, 200)
    pixels, labels = ten_classes(job, kept + added, seed=11)
    uniform = np.random.default_rng(12).random((added, pixels.shape[1]))
    x = torch.from_numpy(np.concatenate([pixels, uniform])).to(job.device)
    hot = torch.nn.functional.one_hot(torch.from_numpy(np.concatenate([labels, labels[kept:]])), 10).double() - 0.1
    y = hot.to(job.device)
    length = float(torch.pdist(x[:kept]).median())
    kernels: dict[str, Kernel] = {"rbf": RBF(length), "nngp_1": NNGP(1)}
    result: dict[str, dict] = {}
    arrays: dict[str, np.ndarray] = {}
    for name, kernel in kernels.items():
        both = {kind: _added(job, name, kernel, x, y, kept, added, kind) for kind in KINDS}
        both["together"] = {key: np.concatenate([both[kind][key] for kind in KINDS]) for key in ("kl", "mean", "auc")}
        result[name] = {kind: _stated(found) for kind, found in both.items()}
        for kind in KINDS:
            found = both[kind]
            kept_columns = {"kl": found["kl"], "mean": found["mean"], "miss": 1.0 - found["auc"]}  # 0.9999 in float16
            arrays |= {f"{name}_{kind}_{key}": values for key, values in kept_columns.items()}
    job.save(
        "lood_correlation",
        {
            "data": "made" if job.data is None else "CIFAR-10, all classes",
            "records": kept,
            "added": added,
            "noise": NOISE,
            "rbf_length": digits(length),
            "correlation_with_auc": result,
            "seconds": job.seconds(),
        },
        arrays,
    )


def _stated(found: dict[str, np.ndarray]) -> dict:
    low = found["auc"] < LOW_AUC
    return {
        "kl": correlation(found["kl"], found["auc"]),
        "mean": correlation(found["mean"], found["auc"]),
        "auc": spread(found["auc"]),
        "kl_of_auc_below_0.6": digits(found["kl"][low].max()) if low.any() else None,
    }


def _added(
    job: Job, name: str, kernel: Kernel, x: torch.Tensor, y: torch.Tensor, kept: int, added: int, kind: str
) -> dict[str, np.ndarray]:
    """Both distances and the AUC of every record of the kind, kept in --work."""
    file = job.work / f"{name}_{kind}.npz"
    if not file.exists():
        job.stop_in_time()
        with job.phase(name):
            first = kept + KINDS.index(kind) * added
            everyone = [*range(kept), *range(first, first + added)]
            matrix = kernel_matrix(kernel, x[everyone])
            found = [_one(kernel, x, y, matrix, everyone, [*range(kept), place]) for place in range(kept, kept + added)]
        columns = np.array(found).T
        write_arrays(file, dict(zip(("kl", "mean", "auc"), columns, strict=True)))
    return dict(np.load(file))


def _one(
    kernel: Kernel, x: torch.Tensor, y: torch.Tensor, matrix: torch.Tensor, everyone: list[int], places: list[int]
) -> tuple[float, float, float]:
    rows = torch.tensor(everyone)[places].to(x.device)
    at = torch.tensor(places, device=x.device)
    removal = remove(fit(kernel, x[rows], y[rows], NOISE, matrix=matrix[at[:, None], at]), [len(places) - 1])
    own = x[rows[-1]].view(1, 1, -1)
    found = lood_at(removal, own)
    return float(found.kl), float(found.mean), float(query_attack(removal, own).auc)


SETTINGS = {"lood_correlation": Setting("lood_correlation", "LOOD against the attack's AUC", run)}
