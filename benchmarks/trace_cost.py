"""What recording a loss trace adds to a training step.

An epoch of training is timed without a trace and with one, in turn, in one process: `add` is a loop that has the losses
of its records and hands them on, `loss` leaves them to trace.loss. The trace goes to a file, and its writing at the end
of the epoch counts. Each ratio is the median over rounds of an epoch with a trace to the epoch without in that round;
on the CPU these are CPU seconds of all threads, on a GPU wall seconds.

mlp : two hidden layers of 512 on 784 inputs, batches of 128.
small_mlp : the mlp recipe, two hidden layers of 64 on 30 inputs, batches of 64: about the shortest step there is.
resnet9 : the resnet9 recipe on images of 3 × 32 × 32 in bfloat16, batches of 500.
loader : not a step, but a DataLoader of tensors in batches of 128 against the same with ga.indexed.

    python -m benchmarks.trace_cost [--device cuda] [--which mlp small_mlp resnet9 loader] [--rounds 15]
        [--small] [--to DIR]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measuring import RESULTS, cpu_timed, digits, read_options, timed, write_parts
from giveaway import LossTrace, indexed
from giveaway.attacks.recipes import RECIPES, build_mlp

CLASSES = 10
CASES: dict[str, tuple[tuple[int, ...], int, int]] = {  # the shape of a record, batch size, steps an epoch
    "mlp": ((784,), 128, 100),
    "small_mlp": ((30,), 64, 300),
    "resnet9": ((3, 32, 32), 500, 100),
}


def build(which: str, shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    if which == "mlp":
        return build_mlp(shape, CLASSES, hidden=(512, 512))
    made = RECIPES["resnet9" if which == "resnet9" else "mlp"].build
    assert made is not None
    return made(shape, CLASSES)


def epochs_of(which: str, device: str, folder: str, *, small: bool) -> dict[str, Callable[[], None]]:
    """Functions that train for an epoch: plain, and in two ways with a trace."""
    shape, size, steps = CASES[which]
    size, steps = (4, 2) if small else (size, steps)
    records = size * steps
    torch.manual_seed(1)
    x, y = torch.randn(records, *shape).to(device), torch.randint(CLASSES, (records,)).to(device)
    model, half = build(which, shape).to(device), which == "resnet9"
    optimizer = (
        torch.optim.SGD(model.parameters(), 0.01, momentum=0.9) if half else torch.optim.Adam(model.parameters())
    )
    mean, each = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")
    traces = {way: LossTrace(records, Path(folder) / f"{which}-{way}", targets=y) for way in ("add", "loss")}

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        for rows in torch.randperm(records).split(size):
            where = rows.to(device)
            yield x[where], y[where], rows

    def outputs(inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=half):
            return model(inputs)

    def finish(loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def plain() -> None:
        for inputs, targets, _ in batches():
            finish(mean(outputs(inputs), targets))

    def add() -> None:
        for inputs, targets, rows in batches():
            losses = each(outputs(inputs), targets)
            finish(losses.mean())
            traces["add"].add(rows, losses)

    def loss() -> None:
        for inputs, targets, rows in batches():
            finish(traces["loss"].loss(mean, outputs(inputs), targets, rows))

    return {"plain": plain, "add": add, "loss": loss}


def loaders(*, small: bool) -> dict[str, Callable[[], None]]:
    """Functions that read a data set once: plain, and with row numbers."""
    data = TensorDataset(torch.randn(256 if small else 12_800, 784), torch.zeros(256 if small else 12_800))

    def read(source: Any) -> None:
        for _ in DataLoader(source, batch_size=128, shuffle=True):
            pass

    return {"plain": lambda: read(data), "indexed": lambda: read(indexed(data))}


def measure(ways: dict[str, Callable[[], None]], rounds: int, steps: int, device: str) -> dict[str, Any]:
    """Time every way once a round, each round beginning with another, after a round that does not count."""
    clock = (lambda work: timed(work, device)) if torch.device(device).type == "cuda" else cpu_timed
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    names = list(ways)
    for turn in range(rounds + 1):
        for way in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[way].append(clock(ways[way])[1])
    plain = np.array(seconds.pop("plain")[1:])
    found: dict[str, Any] = {"rounds": rounds, "plain_ms_a_step": digits(1e3 * np.median(plain) / steps)}
    for way, spent in seconds.items():
        more = np.array(spent[1:]) / plain - 1
        middle = np.quantile(more, [0.5, 0.25, 0.75])
        found[way] = {"more_percent": digits(100 * middle[0], 2), "quartiles_percent": digits(100 * middle[1:], 2)}
    return found


def main() -> None:
    options = read_options(
        __doc__, which=("mlp", "small_mlp", "resnet9", "loader"), device="cpu", rounds=15, small=False, to=RESULTS
    )
    kind = "gpu" if torch.device(options.device).type == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as folder:

        def measured(which: str) -> dict[str, Any]:
            if which == "loader":
                return measure(loaders(small=options.small), options.rounds, 2 if options.small else 100, "cpu")
            ways = epochs_of(which, options.device, folder, small=options.small)
            return measure(ways, options.rounds, 2 if options.small else CASES[which][2], options.device)

        write_parts(options.to / f"trace_cost_{kind}.json", options.which, measured, device=options.device)


if __name__ == "__main__":
    main()
