"""The demo: a small network trained on scikit-learn's digits, then audited like any other model."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

WEIGHT_DECAY = 1e-4
EPOCHS = 60


def digits_dataset() -> TensorDataset:
    """Half of the digits, 899 images of 8 × 8 with their classes: the training set of the demo."""
    digits = load_digits()
    images = torch.from_numpy(digits.images[::2, None]).to(torch.float32) / 16.0
    return TensorDataset(images, torch.from_numpy(digits.target[::2]))


def train_digits_network(dataset: TensorDataset, *, seed: int = 0) -> nn.Module:
    """A network with one hidden layer, trained to fit its training set; the global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small only lose time to a second thread
    try:
        _fit(model, *dataset.tensors, seed=seed)
    finally:
        torch.set_num_threads(threads)
    return model


def _fit(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=WEIGHT_DECAY)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
