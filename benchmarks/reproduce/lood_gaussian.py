"""The Gaussian-process side: the networks' own kernel on the records that they were trained on, nothing trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.reproduce.lood_data import Pictures
from giveaway.gp.attack import query_attack, record_attack
from giveaway.gp.divergence import lood, lood_at
from giveaway.gp.kernels import Kernel, kernel_matrix
from giveaway.gp.leave_one_out import leave_one_out
from giveaway.gp.posterior import fit
from giveaway.gp.removal import remove

NOISE = 0.05  # σ²; the paper does not state its own
NOISES = (0.001, 0.01, 0.05, 0.2, 1.0)


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
    """For all records of the training set at once, from one factorization."""
    posterior = fit(kernel, *_data(pictures, device), noise, matrix=matrix)
    found = lood(posterior)
    change = -leave_one_out(posterior).mean_change[:, 0]
    values = (found.kl, found.mean, record_attack(posterior).auc, change)
    return Distances(*(value.cpu().numpy() for value in values))


def matrix_of(kernel: Kernel, pictures: Pictures, device: torch.device) -> torch.Tensor:
    """K over the training set."""
    return kernel_matrix(kernel, _data(pictures, device)[0])


def along(
    kernel: Kernel, pictures: Pictures, chosen: np.ndarray, queries: np.ndarray, device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    """KL and the attack's AUC, (chosen, offsets), at queries (chosen, offsets, pixels)."""
    removal = remove(fit(kernel, *_data(pictures, device), NOISE), torch.from_numpy(chosen))
    asked = torch.from_numpy(queries).to(device, torch.float64)
    kl = [lood_at(removal, asked[:, [place]]).kl for place in range(asked.shape[1])]
    auc = [query_attack(removal, asked[:, [place]]).auc for place in range(asked.shape[1])]
    return torch.stack(kl, 1).cpu().numpy(), torch.stack(auc, 1).cpu().numpy()


def _data(pictures: Pictures, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    n = pictures.records
    x, y = (torch.from_numpy(part[:n]).to(device, torch.float64) for part in (pictures.inputs, pictures.targets))
    return x, y
