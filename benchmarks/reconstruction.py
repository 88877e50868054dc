"""Reconstruct a record from a trained network's last layer: what the closed form allows, and where it stops.

At the optimum Σ_j g_j x̃_jᵀ + λΘ = 0, with x̃ a record's features and a 1 for the bias, g its gradient in the outputs.
Whoever has the network, the penalty λ and all other records computes the rest of the sum, and is left with g_i x̃_iᵀ of
rank one: its right singular vector, scaled so that the bias is 1, are the record's features, and the negative entry of
the left one is its class. That is exact for every record. It stops where something else is left in the sum: training
that ended early, weights rounded to half precision, other records that the attacker lacks. The records that survive it
are those whose own gradient is large, which are those of high leverage.

Digits, 400 records, a network of 128 units trained with Adam; its head as training left it, and refitted. Of records of
leverage (spectral) below and above one half: the median cosine of the true and the found features, with the records'
mean taken off both, and the share of classes that are right, where 0.1 is chance.

    python -m benchmarks.reconstruction [--records 400] [--width 128] [--seeds 4] [--out FILE.json]
"""

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import giveaway as ga
from benchmarks.measuring import digits, read_options, write_result
from benchmarks.stacked import seeded_model

PENALTY = 0.01  # λ of the head, summed loss
KNOWN = (1.0, 0.99, 0.9)  # share of the other records that the attacker has


def trained(x: torch.Tensor, y: torch.Tensor, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features with a 1 appended, (n, d + 1), and the head Θ (classes, d + 1), in float64."""
    model = seeded_model(lambda: nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)), seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003, weight_decay=PENALTY / len(x))
    for _ in range(400):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        features = torch.cat([model[:-1](x), torch.ones(len(x), 1)], 1).double()
        return features, torch.cat([model[-1].weight, model[-1].bias[:, None]], 1).double()


def refitted(features: torch.Tensor, y: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """Return the optimum of the head on these features."""
    theta = theta.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([theta], max_iter=20_000, tolerance_grad=1e-8, tolerance_change=0, history_size=50)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(features @ theta.T, y, reduction="sum") + PENALTY / 2 * theta.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return theta.detach()


def found_by(features: torch.Tensor, y: torch.Tensor, theta: torch.Tensor, known: float, seed: int) -> Any:
    """Attack each record in turn; return cosines (n,), which classes are right, and how far the sum is from zero."""
    n = len(y)
    slope = (features @ theta.T).softmax(1) - nn.functional.one_hot(y, 10)
    total = slope.T @ features + PENALTY * theta
    sizes = slope.norm(dim=1) * features.norm(dim=1)
    left = slope[:, :, None] * features[:, None, :] - total  # what is left of the sum without record i, with its sign
    if known < 1:  # the same records are missing for every target but itself
        missing = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: round((1 - known) * n)]
        own = slope[missing, :, None] * features[missing, None, :]
        left = left + own.sum(0)
        left[missing] -= own
    u, _, v = torch.linalg.svd(left, full_matrices=False)
    scaled = v[:, 0] / v[:, 0, -1:]
    centre = features.mean(0)
    cosines = nn.functional.cosine_similarity(scaled[:, :-1] - centre[:-1], features[:, :-1] - centre[:-1], dim=1)
    gradient = u[:, :, 0] * torch.sign(v[:, 0, -1:])
    return cosines.numpy(), (gradient.argmin(1) == y).numpy(), float(total.norm() / sizes.mean())


def main() -> None:
    options = read_options(__doc__, "reconstruction.json", records=400, width=128, seeds=4)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.from_numpy(images[: options.records] / 16).float(), torch.from_numpy(labels[: options.records])
    cells: dict[str, list[Any]] = {}
    high = []
    for seed in range(options.seeds):
        features, theta = trained(x, y, options.width, seed)
        best = refitted(features, y, theta)
        half = best.half().double()
        heads = {"refitted": best, "as training left it": theta, "refitted, rounded to half precision": half}
        head = ga.Head(features[:, :-1], features @ best.T, y, "cross_entropy", l2=PENALTY)
        leverage = np.asarray(ga.audit(head, scores=["gls_spectral"])["gls_spectral"])
        high.append(leverage > 0.5)
        for name, own in heads.items():
            cells.setdefault(name, []).append(found_by(features, y, own, 1.0, seed))
        for known in KNOWN[1:]:
            cells.setdefault(f"refitted, {known:.0%} known", []).append(found_by(features, y, best, known, seed))
    above = np.concatenate(high)
    result: dict[str, Any] = {
        "records": options.records,
        "width": options.width,
        "penalty": PENALTY,
        "seeds": options.seeds,
    }
    result["leverage above one half"] = int(above.sum())
    for name, found in cells.items():
        cosines, right = (np.concatenate([each[k] for each in found]) for k in (0, 1))
        result[name] = {"gradients left over, of a record's": digits(np.mean([each[2] for each in found]))}
        for side, mask in (("below", ~above), ("above", above)):
            result[name][f"leverage {side} one half"] = {
                "cosine": digits(np.median(cosines[mask])) if mask.any() else None,
                "class right": digits(right[mask].mean()) if mask.any() else None,
            }
    write_result(options.out, result)


if __name__ == "__main__":
    main()
