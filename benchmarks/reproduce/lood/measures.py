"""What the LOOD settings state of their records, and the Gaussian process of the networks' own kernel on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.stats import pearsonr, rankdata

from benchmarks.measuring import digits
from benchmarks.reproduce.lood.networks import Pictures
from benchmarks.reproduce.lood.query_attack import query_attack
from giveaway.evaluation import spearman
from giveaway.gp.distinguishability import divergence, divergence_at, remove
from giveaway.gp.kernels import Kernel, kernel_matrix
from giveaway.gp.posterior import fit, kernel_regression, leave_one_out
from giveaway.gp.query import record_attack

NOISE = 0.05  # σ²; the paper does not state its own
SPREAD = (0.05, 0.25, 0.5, 0.75, 0.95)


def correlation(a: ArrayLike, b: ArrayLike) -> dict[str, float]:
    """Return Pearson's correlation with its p-value, and Spearman's; 0 and 1 where a side is constant."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return {"pearson": 0.0, "p": 1.0, "spearman": 0.0}
    found = pearsonr(x, y)
    return {"pearson": digits(found.statistic), "p": digits(found.pvalue), "spearman": digits(spearman(x, y))}


def spread(values: ArrayLike, at: tuple[float, ...] = SPREAD) -> list[float]:
    """Return the values below which 5, 25, 50, 75 and 95 % of them lie."""
    return digits(np.quantile(np.asarray(values, np.float64), at))


def ends(values: ArrayLike) -> list[float]:
    """Return the smallest, the median and the largest value."""
    return spread(values, (0, 0.5, 1))


def attack_auc(with_record: np.ndarray, without: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the AUC (chosen, offsets) of the attack that thresholds (output − target)²; rounds come first in both."""
    losses = [np.square(side - targets[:, None], dtype=np.float64) for side in (with_record, without)]
    k, others = map(len, losses)
    ranks = rankdata(-np.concatenate(losses), axis=0)[:k].sum(axis=0)
    return (ranks - k * (k + 1) / 2) / (k * others)


def largest_at(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the offset (records,) at which values (records, offsets) are largest; ties give their mean."""
    best = values == values.max(1, keepdims=True)
    return (best * offsets).sum(1) / best.sum(1)


def where_largest(values: np.ndarray, offsets: np.ndarray) -> dict[str, Any]:
    """Return mean and deviation of the offset with the largest value, and for how many records it is the record."""
    at = largest_at(values, offsets)
    return {
        "records": len(values),
        "mean": digits(at.mean()),
        "deviation": digits(at.std()),
        "at_the_record": int((values[:, len(offsets) // 2] == values.max(1)).sum()),
        "within_10": int((np.abs(at) <= 10).sum()),
    }


@dataclass(frozen=True, eq=False)
class Distances:
    """Of every record (n,): both distances, the AUC of the best attack at the record, and mean with − mean without."""

    kl: np.ndarray
    mean: np.ndarray
    auc: np.ndarray
    change: np.ndarray


def distances(
    kernel: Kernel, pictures: Pictures, device: torch.device, noise: float = NOISE, matrix: torch.Tensor | None = None
) -> Distances:
    """Return the distances of all records of the training set, from one factorization."""
    x, y = pictures.trained(device)
    regression = kernel_regression(kernel_matrix(kernel, x) if matrix is None else matrix, y.view(len(y), -1), noise)
    found = divergence(regression)
    change = -leave_one_out(regression).mean_change[:, 0]
    return Distances(*(value.cpu().numpy() for value in (found.kl, found.mean, record_attack(regression).auc, change)))


def along(
    kernel: Kernel, pictures: Pictures, chosen: np.ndarray, queries: np.ndarray, device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    """Return KL and the attack's AUC, (chosen, offsets), at queries (chosen, offsets, pixels)."""
    removal = remove(fit(kernel, *pictures.trained(device), NOISE), torch.from_numpy(chosen))
    asked = torch.from_numpy(queries).to(device, torch.float64)
    kl = [divergence_at(removal, asked[:, [place]]).kl for place in range(asked.shape[1])]
    auc = [query_attack(removal, asked[:, [place]]).auc for place in range(asked.shape[1])]
    return torch.stack(kl, 1).cpu().numpy(), torch.stack(auc, 1).cpu().numpy()
