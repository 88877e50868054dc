"""Audit a torch model: a small convolutional network on scikit-learn's digits, with the losses of its training.

python examples/audit_torch.py [--out DIR]
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import giveaway as ga

WEIGHT_DECAY = 1e-4


def train(data: TensorDataset, trace: ga.LossTrace) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=WEIGHT_DECAY)
    criterion = nn.CrossEntropyLoss()
    for _ in range(20):
        for images, labels, rows in DataLoader(ga.indexed(data), batch_size=64, shuffle=True):
            optimizer.zero_grad()
            trace.loss(criterion, model(images), labels, rows).backward()
            optimizer.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="audit-torch", help="folder for the audit")
    out = parser.parse_args().out
    digits = load_digits()
    images = torch.tensor(digits.images[::3, None] / 16, dtype=torch.float32)
    data = TensorDataset(images, torch.tensor(digits.target[::3]))
    trace = ga.LossTrace(len(data), targets=data.tensors[1])
    model = train(data, trace)

    # a Dataset is read in order: a shuffling loader would be refused
    head = ga.from_torch(model, data, l2=len(data) * WEIGHT_DECAY)
    table = ga.audit(head, trace=trace)
    ga.report(table, out, head=head)  # with the head: a map

    view, fusion = table.meta.view, table.meta.fusion
    print(table.top(5))
    print(f"\nTraining took away {view.memorized:.0%} of the error that the other records make about a left-out one.")
    print("What each view counts in fused:", ", ".join(f"{name} {count:.2g}" for name, count in fusion.weights.items()))
    print(f"Wrote scores.csv, report.html and summary.html to {out}: share the last alone, as the others name records.")


if __name__ == "__main__":
    main()
