"""The command `demo`: a small network trained on scikit-learn's digits, then audited like any other model."""

from typing import Any

import click

from giveaway.cli.options import AS_JSON
from giveaway.text import say

WEIGHT_DECAY = 1e-4
EPOCHS = 60


@click.command()
@click.option("--out", default="giveaway-demo", show_default=True, help="Folder for the audit.")
@click.option("--overwrite", is_flag=True, help="Remove another audit that is in --out.")
@AS_JSON
def demo(out: str, overwrite: bool, as_json: bool) -> None:
    """Train a small network on digits and audit it."""
    from giveaway.auditing.store import AuditFolder
    from giveaway.cli.audit_folder import audit_into, tell_of_audit
    from giveaway.extract import from_torch
    from giveaway.records import LossTrace

    dataset = digits_dataset()
    say(f"Training a small network on {len(dataset)} digits, and recording their losses ...", err=True)
    trace = LossTrace(len(dataset), targets=dataset.tensors[1])
    model = train_digits_network(dataset, trace=trace)
    head = from_torch(model, dataset, l2=WEIGHT_DECAY * len(dataset))
    place, config = AuditFolder(out), {"demo": "digits", "show_records": True}
    tables = audit_into(place, head, config, {"trace": trace}, overwrite=overwrite)
    tell_of_audit(place, tables, top=10, as_json=as_json)


def digits_dataset() -> Any:
    """Return a TensorDataset of half of the digits, 899 images of 8 × 8 with their classes."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images[::2, None]).to(torch.float32) / 16.0
    return torch.utils.data.TensorDataset(images, torch.from_numpy(digits.target[::2]))


def train_digits_network(dataset: Any, *, seed: int = 0, trace: Any = None) -> Any:
    """Train a network with one hidden layer on the digits; a LossTrace records their losses as they come up."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    images, labels = dataset.tensors
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=WEIGHT_DECAY)
    loss_of = nn.CrossEntropyLoss()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small only lose time to a second thread
    try:
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(images), generator=generator).split(64):
                optimizer.zero_grad()
                outputs, targets = model(images[batch]), labels[batch]
                loss = loss_of(outputs, targets) if trace is None else trace.loss(loss_of, outputs, targets, batch)
                loss.backward()
                optimizer.step()
    finally:
        torch.set_num_threads(threads)
    return model
