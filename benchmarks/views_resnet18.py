"""The views of a record on the ResNet-18 of the GLS experiments, which generalizes more than it memorizes.

Targets that are none of the models of gls_resnet18 are trained as those were (nine epochs of shifted and flipped
images) and held against the means and deviations that were kept of them. The kernel of the other records takes for
memory what such a network generalizes; records held out tell the two apart. Recall of the true top 1 % (by effect size)
in the kept top 5 %, of the top 5 % in the top 5 %, and Spearman's correlation, mean and standard error over targets.

    python -m benchmarks.views_resnet18 --data DIR [--device cuda] [--targets 4] [--out FILE.json]

--data holds cifar10.npz; without it, images are made and a small network is trained, to try the code on.
"""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import giveaway as ga
from benchmarks.data import arrays
from benchmarks.fused_truth import figures
from benchmarks.measuring import read_options, write_result
from benchmarks.networks import RESNET_18, ResNet
from benchmarks.reproduce.gls.training import Images, Run, Schedule, Trainer, made_images, members_of
from benchmarks.reproduce.gls.truth import said_by_summaries
from benchmarks.reproduce.job import RESULTS, read_result
from benchmarks.views_blood import audited, losing, mean_and_error
from giveaway.attacks.shadow_store import model_seed
from giveaway.extract import Batches
from giveaway.records import Head

REFERENCES = "gls_resnet18"
FIGURES = ("top 1 % in 5 %", "top 5 % in 5 %", "Spearman")


def head_of(trainer: Trainer, model: nn.Module, members: np.ndarray) -> Head:
    """Return all that a user has of the model just trained: its head, images with variants, and records held out."""
    images, labels = trainer.x.permute(0, 3, 1, 2).cpu(), trainer.y.cpu()
    own, rest = (
        TensorDataset(images[rows].contiguous(), labels[rows]) for rows in map(torch.from_numpy, (members, ~members))
    )
    l2 = len(own) * trainer.schedule.weight_decay
    return ga.from_torch(model, own, l2=l2, batches=Batches(1000), held_out=rest)


def main() -> None:
    options = read_options(__doc__, "views_resnet18.json", data=Path, device="cpu", targets=4)
    told, kept = read_result(RESULTS, REFERENCES)
    images, schedule, widths = made_images(), Schedule(epochs=30, batch=50, rate=0.1), (8, 8, 16, 16)
    if options.data is not None:
        x, y = arrays(options.data / "cifar10.npz", "x_train", "y_train")
        images, schedule, widths = (
            Images(x, y.reshape(-1).astype(np.int64), x[:1], y[:1].astype(np.int64)),
            Schedule(),
            RESNET_18,
        )
    n = len(images.labels)
    effect = said_by_summaries(np.zeros(len(kept["mean_in"])), kept)["effect_size"][:n]
    trainer = Trainer(partial(ResNet, 10, widths), images, schedule, torch.device(options.device))
    found, right, fusions = [], [], []
    for number in range(told["models_trained"], told["models_trained"] + options.targets):
        members = members_of(number, n, seed=0)
        trace = ga.LossTrace(int(members.sum()), targets=images.labels[members])
        (model,) = trainer.train(Run(members, model_seed(number, seed=0), trace))
        columns, fusion = audited(head_of(trainer, model, members).to(options.device), trace)
        correct = trainer.logits(model).argmax(1).eq(trainer.y).cpu().numpy()
        right.append([correct[members].mean(), correct[~members].mean()])
        found.append({score: figures(column, effect[members]) for score, column in columns.items()})
        fusions.append(fusion)
    result = {
        "references": told["models_trained"],
        "targets": len(found),
        "records": int(members.sum()),
        "accuracy, trained and held out": np.mean(right, axis=0).round(4).tolist(),
        "figures": FIGURES,
        "scores, mean and standard error": {
            score: mean_and_error(np.array([each[score] for each in found])) for score in found[0]
        },
        "where fused is below": losing(found, "fused"),
        "where fused without trace is below": losing(found, "fused without trace"),
        "fusion": fusions[0],
    }
    write_result(options.out, result, device=options.device)


if __name__ == "__main__":
    main()
