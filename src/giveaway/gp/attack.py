"""What two posteriors give an attacker who sees the prediction of a record: the best test (docs/derivations.md)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from giveaway.checks import fail
from giveaway.gp.posterior import KernelRegression, leave_one_out
from giveaway.theory.tradeoff import two_normals

NOTHING = 1e-14  # x and δ below this leave every rate where chance has it, in float64


@dataclass(frozen=True, eq=False)
class Attack:
    """`auc` (R,), and `tpr` (R, F) at each of `fpr` (F,)."""

    auc: torch.Tensor
    tpr: torch.Tensor
    fpr: torch.Tensor


@torch.no_grad()
def record_attack(
    regression: KernelRegression, rows: Any = slice(None), *, fpr: Sequence[float] = (0.001, 0.01, 0.1)
) -> Attack:
    """Attack every record, or those at `rows`, at its own input, the query that tells most (see `divergence`)."""
    rates = torch.tensor(list(fpr), dtype=torch.float64)
    if rates.numel() == 0 or not bool(((rates > 0.0) & (rates < 1.0)).all()):
        raise fail("fpr", "rates between 0 and 1", str(list(fpr)), "give the false positive rates to report")
    single, noise = leave_one_out(regression), regression.noise
    pull = -(single.mean_change * single.residual).sum(1) / noise
    return one_direction(single.variance[rows] / noise, pull[rows].sqrt(), regression.targets.shape[1], rates)


def one_direction(x: torch.Tensor, delta: torch.Tensor, outputs: int, fpr: torch.Tensor) -> Attack:
    """Compute AUC and TPR for x and δ (R,), on any device."""
    curve = two_normals(delta.cpu().numpy(), 1.0, torch.sqrt(1.0 + x).cpu().numpy(), outputs=outputs)
    nothing = torch.maximum(x, delta) < NOTHING
    tpr = torch.from_numpy(curve.tpr(fpr.numpy()[:, None])).T.clamp(max=1.0).to(x.device)  # 1 up to rounding
    fpr, auc = fpr.to(x.device), torch.from_numpy(curve.auc()).to(x.device)
    return Attack(torch.where(nothing, 0.5, auc), torch.where(nothing.unsqueeze(1), fpr, tpr), fpr)
