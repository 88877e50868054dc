"""DP-SGD in which the records that an audit ranks highest count less: what it does to ε, accuracy and the top 1 %.

Digits, an MLP of 64 units, DP-SGD at several ε (and clipped without noise). An audit of the plain model ranks the
records; the share of the clip that a record of the highest tenth may use is 1 (as usual), 1/2 or 1/4. Models on random
halves are attacked with LiRA, each with all others as its references. The ε of the highest tenth is the accountant's of
the noise divided by their share: it would be theirs if the shares did not come from the data, which they do.

    python -m benchmarks.dp_exposure [--models 64] [--records 600] [--recipes "no noise, share 1" ...] [--out FILE.json]
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import giveaway as ga
from benchmarks.dp_sgd import DPTraining, epsilon_of, noise_for, train_dp
from benchmarks.measuring import digits, read_options, write_parts
from benchmarks.stacked import seeded_model
from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.evaluation import effect_sizes, success_rate, summarize
from giveaway.records import Signals

EPSILONS = {"no noise": None, "ε = 50": 50.0, "ε = 8": 8.0}
SHARES = (1.0, 0.5, 0.25)
HIGHEST, TOP = 0.1, 0.01
RATE, EPOCHS, DELTA = 0.1, 20, 1e-3


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def exposure(x: torch.Tensor, y: torch.Tensor) -> np.ndarray:
    """Return the audit's ranking of records by a model that was trained on all of them without privacy."""
    model = seeded_model(network, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return ga.audit(ga.from_torch(model.eval(), TensorDataset(x, y)), scores=["fused"])["fused"]


def measured(
    x: np.ndarray, y: np.ndarray, plan: DPTraining, shares: np.ndarray, highest: np.ndarray, models: int
) -> dict:
    """Train the models, attack them, and tell what they give away of whom."""
    n = len(shares)
    members = balanced_membership(models, n, seed=0)
    seeds = [model_seed(number, seed=0) for number in range(models)]
    counted = np.concatenate([shares, np.ones(len(x) - n)])
    outputs = np.stack([out for _, out in train_dp(network, x, y, members, plan, seeds=seeds, shares=counted)])
    signals = Signals(outputs[:, :n, None].astype(np.float64), members, "logits", y[:n])
    attack, effect = ga.attacks.lira_within(signals), effect_sizes(signals).effect_size
    found, top = summarize(attack, rates=(0.01,), resamples=0), np.argsort(-effect)[: round(TOP * n)]
    right = success_rate(attack)
    return {
        "accuracy on unseen digits": digits((outputs[:, n:].argmax(2) == y[n:]).mean()),
        "LiRA's AUC": digits(found.auc.value),
        "true positives at 1 %": digits(found.true_positive_rate[0.01].value),
        "effect size of the highest tenth": digits(effect[highest].mean()),
        "of the rest": digits(np.delete(effect, highest).mean()),
        "of the 1 % with the largest": digits(effect[top].mean()),
        "success on the highest tenth": digits(right[highest].mean()),
        "of the 1 % with the largest effect, in the highest tenth": digits(np.isin(top, highest).mean()),
    }


def main() -> None:
    recipes = {f"{name}, share {share:g}": (epsilon, share) for name, epsilon in EPSILONS.items() for share in SHARES}
    options = read_options(__doc__, "dp_exposure.json", models=64, records=600, recipes=recipes)
    images, labels = load_digits(return_X_y=True)
    x, y, n = (images / 16).astype(np.float32), labels, options.records
    ranked = np.argsort(-exposure(torch.from_numpy(x[:n]), torch.from_numpy(y[:n])), kind="stable")
    highest, steps = ranked[: round(HIGHEST * n)], round(EPOCHS / RATE)

    def measure(name: str) -> dict:
        epsilon, share = recipes[name]
        noise = 0.0 if epsilon is None else noise_for(epsilon, RATE, steps, DELTA)
        shares = np.ones(n)
        shares[highest] = share
        own = None if epsilon is None else digits(epsilon_of(noise / share, RATE, steps, DELTA))
        told = {
            "records": n,
            "models": options.models,
            "delta": DELTA,
            "rate": RATE,
            "steps": steps,
            "noise": digits(noise),
        }
        found = measured(x, y, DPTraining(steps, RATE, noise), shares, highest, options.models)
        return {**told, "ε of the highest tenth": own, **found}

    write_parts(options.out, options.recipes, measure)


if __name__ == "__main__":
    main()
