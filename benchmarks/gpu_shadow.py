"""How long a shadow ensemble of small networks takes with the stacked engine on one device.

216 networks (three hidden layers of 128) on 20,000 rows of made tabular data, 60 epochs in batches of 256, each on a
random half of the rows. Seconds are wall-clock, from the first to the last stored model, the device made ready before.

    python benchmarks/gpu_shadow.py [--device cuda] [--models 216] [--rows 20000] [--epochs 60] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

from giveaway.attacks.membership import balanced_membership, model_seed
from giveaway.attacks.recipes import build_mlp
from giveaway.attacks.stacked import Training, train_stacked


def made_rows(rows: int, features: int = 20, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Features of a mixture, and classes that depend on them through a random network, with noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    scores = np.tanh(x @ rng.normal(size=(features, 32)) / 3) @ rng.normal(size=(32, classes))
    return x, (scores + rng.gumbel(size=scores.shape)).argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", type=int, default=216)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu_shadow.json")
    options = parser.parse_args()
    device = torch.device(options.device)
    x, y = made_rows(options.rows)
    members = balanced_membership(options.models, options.rows, seed=0)
    seeds = [model_seed(number, seed=0) for number in range(options.models)]
    make = partial(build_mlp, x.shape[1:], 4, hidden=(128, 128, 128))
    warm = Training(1, 256, "adam", 1e-3)
    for _ in train_stacked(make, x[:600], y[:600], members[:2, :600], warm, seeds=seeds[:2], device=device):
        pass
    began = time.perf_counter()
    right = []
    training = Training(options.epochs, 256, "adam", 1e-3)
    stacked = train_stacked(make, x, y, members, training, seeds=seeds, models_at_once=options.models, device=device)
    for number, outputs in stacked:
        right.append([(outputs.argmax(1) == y)[side].mean() for side in (members[number], ~members[number])])
    seconds = time.perf_counter() - began
    trained, held_out = np.mean(right, axis=0)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    report = {
        "device": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "models": options.models,
        "rows": options.rows,
        "epochs": options.epochs,
        "seconds": round(seconds, 2),
        "accuracy_trained": round(float(trained), 4),
        "accuracy_held_out": round(float(held_out), 4),
    }
    options.out.parent.mkdir(exist_ok=True, parents=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
