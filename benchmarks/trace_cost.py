"""What recording a loss trace adds to a training step.

Steps of training without a trace and with one are timed in turn in one process, one by one on the CPU (CPU seconds of
all threads), in blocks of 20 on a GPU (wall seconds): `each` computes the losses of its records and their mean without
keeping them, `add` hands them on to trace.add, and `loss` leaves all that to trace.loss. A round is an epoch. Its ratio
is the median step of a way, with its share of writing the epoch to a file, to the median plain step; the result is the
median of the rounds, with quartiles.

mlp : two hidden layers of 512 on 784 inputs, batches of 128.
small_mlp : the mlp recipe, two hidden layers of 64 on 30 inputs, batches of 64: about the shortest step there is.
resnet9 : the resnet9 recipe on images of 3 × 32 × 32 in bfloat16, batches of 500.
loader : not a step, but a DataLoader of tensors in batches of 128 against the same with ga.indexed.

    python -m benchmarks.trace_cost [--device cuda] [--which mlp small_mlp resnet9 loader] [--rounds 15]
        [--small] [--to DIR]
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measuring import RESULTS, cpu_timed, digits, read_options, timed, write_parts
from benchmarks.recipes import RECIPES, build_mlp
from giveaway import LossTrace, indexed

Step = Callable[[int], Any]
CLASSES = 10
BLOCK = 20  # steps between two looks at the clock, for which a GPU must be waited for
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


def steps_of(which: str, device: str, folder: str, *, small: bool) -> tuple[dict[str, Step], dict[str, LossTrace], int]:
    """Functions that take a training step, plain and in two ways with a trace; the traces; and steps an epoch."""
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
    traces = {
        way: LossTrace(records, Path(folder) / f"{which}-{way}", targets=y, losses_per_epoch=2 * records)
        for way in ("add", "loss")
    }

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = torch.arange(step * size, (step + 1) * size)  # as a loader hands them over, on the CPU
        return x[rows[0] : rows[0] + size], y[rows[0] : rows[0] + size], rows

    def outputs(inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=half):
            return model(inputs)

    def finish(loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def plain(step: int) -> None:
        inputs, targets, _ = batch(step)
        finish(mean(outputs(inputs), targets))

    def losses_alone(step: int) -> None:
        inputs, targets, _ = batch(step)
        finish(each(outputs(inputs), targets).mean())

    def add(step: int) -> None:
        inputs, targets, rows = batch(step)
        losses = each(outputs(inputs), targets)
        finish(losses.mean())
        traces["add"].add(rows, losses)

    def loss(step: int) -> None:
        inputs, targets, rows = batch(step)
        finish(traces["loss"].loss(mean, outputs(inputs), targets, rows))

    return {"plain": plain, "each": losses_alone, "add": add, "loss": loss}, traces, steps


def loader_steps(*, small: bool) -> tuple[dict[str, Step], dict[str, LossTrace], int]:
    """Functions that fetch and collate a batch: plain, and with row numbers."""
    data = TensorDataset(torch.randn(12_800, 784), torch.zeros(12_800))
    sources = {"plain": data, "indexed": indexed(data)}
    batches = {way: iter(_forever(DataLoader(source, 128, shuffle=True))) for way, source in sources.items()}
    return {way: lambda _, way=way: next(batches[way]) for way in sources}, {}, 2 if small else 100


def _forever(loader: DataLoader) -> Iterator[Any]:
    while True:
        yield from loader


def measure(
    ways: dict[str, Step], traces: dict[str, LossTrace], steps: int, rounds: int, device: str
) -> dict[str, Any]:
    """Take every step in every way, in turn; the first round does not count."""
    gpu = torch.device(device).type == "cuda"
    clock, block = (lambda work: timed(work, device)) if gpu else cpu_timed, BLOCK if gpu else 1
    names, spent = list(ways), []
    for turn in range(rounds + 1):
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number, start in enumerate(range(0, steps, block)):
            stop, first = min(start + block, steps), (turn + number) % len(names)
            for way in names[first:] + names[:first]:
                took = clock(lambda way=way: [ways[way](step) for step in range(start, stop)])[1]  # noqa: B023
                seconds[way].append(took / (stop - start))
        ends = {way: clock(trace.end_epoch)[1] / steps for way, trace in traces.items()}
        spent.append({way: float(np.median(each)) + ends.get(way, 0.0) for way, each in seconds.items()})
    plain = np.array([each["plain"] for each in spent[1:]])
    found: dict[str, Any] = {"rounds": rounds, "steps": steps, "plain_ms_a_step": digits(1e3 * np.median(plain))}
    for way in names[1:]:
        more = 100 * (np.array([each[way] for each in spent[1:]]) / plain - 1)
        low, middle, high = np.quantile(more, [0.25, 0.5, 0.75])
        found[way] = {"more_percent": digits(middle, 2), "quartiles_percent": digits([low, high], 2)}
    return found


def main() -> None:
    options = read_options(
        __doc__, which=("mlp", "small_mlp", "resnet9", "loader"), device="cpu", rounds=15, small=False, to=RESULTS
    )
    kind = "gpu" if torch.device(options.device).type == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as folder:

        def measured(which: str) -> dict[str, Any]:
            if which == "loader":
                return measure(*loader_steps(small=options.small), options.rounds, "cpu")
            made = steps_of(which, options.device, folder, small=options.small)
            return measure(*made, options.rounds, options.device)

        write_parts(options.to / f"trace_cost_{kind}.json", options.which, measured, device=options.device)


if __name__ == "__main__":
    main()
