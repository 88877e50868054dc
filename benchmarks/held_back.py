"""Where predicted_success does not hold: models that noise or early stopping kept from learning their records.

500 digits, a network with one hidden layer, trained for 1 to 20 epochs, and with DP-SGD (Opacus) at several ε. For
each: the share of the left-out error that training removed, the mean prediction from both views, the mean success of
LiRA over 16 shadow models, and both on the tenth of the records predicted highest.

    python -m benchmarks.held_back [--out FILE.json]
"""

import tempfile
import warnings
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import giveaway as ga
from benchmarks.measuring import read_options, write_result
from giveaway.views.model import said_of
from giveaway.views.others import OthersView

EPOCHS, DELTA, BATCHES, SHADOWS = 20, 1e-3, 4, 16
RECIPES = [*((None, epochs) for epochs in (1, 2, 4, 8, 20)), *((epsilon, EPOCHS) for epsilon in (1, 3, 8, 30, 100))]


def train(x: torch.Tensor, y: torch.Tensor, *, seed: int, epochs: int, noise: float | None) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        network, optimizer = model, torch.optim.Adam(model.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(x, y), batch_size=len(x) // BATCHES, shuffle=True)
        if noise is not None:
            network, optimizer, loader = PrivacyEngine().make_private(
                module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, max_grad_norm=1.0
            )
        for _ in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(inputs), targets).backward()
                optimizer.step()
    return (model if noise is None else network.to_standard_module()).eval()


def measure(x: torch.Tensor, y: torch.Tensor, epsilon: float | None, epochs: int) -> dict[str, Any]:
    noise = None
    if epsilon is not None:
        noise = get_noise_multiplier(
            target_epsilon=float(epsilon), target_delta=DELTA, sample_rate=1 / BATCHES, epochs=epochs
        )
    head = ga.from_torch(train(x, y, seed=0, epochs=epochs, noise=noise), TensorDataset(x, y))
    table = ga.audit(head, scores=["newton", "fused"])
    view = OthersView(head)
    view.compare(table["newton"], said_of(head).squares)
    prediction = view.predict(table["fused"], head.outputs)
    assert prediction is not None

    def shadow(rows: np.ndarray, seed: int) -> Any:
        model = train(x[rows], y[rows], seed=seed, epochs=epochs, noise=noise)
        return model(x)

    with tempfile.TemporaryDirectory() as folder:
        training = ga.attacks.Retraining(shadow, y=y.numpy(), fingerprint={"epochs": epochs, "epsilon": epsilon or 0.0})
        found = ga.validate(training, table, models=SHADOWS, folder=folder)
    highest = np.argsort(-prediction.success, kind="stable")[: len(x) // 10]
    return {
        "epsilon": epsilon,
        "epochs": epochs,
        "memorized": table.meta.view.memorized,
        "predicted": round(float(prediction.success.mean()), 3),
        "measured": round(float(found.success.mean()), 3),
        "predicted highest tenth": round(float(prediction.success[highest].mean()), 3),
        "measured there": round(float(found.success[highest].mean()), 3),
        "lira auc": round(found.attack.auc.value, 3),
    }


def main() -> None:
    options = read_options(__doc__, "held_back.json", recipes=len(RECIPES))
    warnings.simplefilter("ignore", UserWarning)  # Opacus reminds of its secure mode
    digits, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(digits[:500] / 16, dtype=torch.float32), torch.tensor(labels[:500])
    found = []
    for epsilon, epochs in RECIPES[: options.recipes]:
        found.append(measure(x, y, epsilon, epochs))
        print(found[-1], flush=True)
    write_result(options.out, {"found": found}, "opacus")


if __name__ == "__main__":
    main()
