"""Random loaders and models: whoever is accepted has the right name on every row, and the model is as it was.

A loader may sort, reverse, roll, repeat or drop records, in its sampler, its collate function, its data set or its own
loop; a model may mix the rows of a batch, or not be a function of the record at all. One way of each is drawn, with the
size of a batch and where features are kept. What is accepted is held against the model on every record alone.
"""

import copy
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

import giveaway as ga
from giveaway.checks import InputError
from giveaway.extract.batches import Batches
from giveaway.extract.torch_head import Cached, InMemory

COUNT = 400
FEATURES, CLASSES = 5, 3
Mixing = Callable[[torch.Tensor], torch.Tensor]


def two_swapped(x: torch.Tensor) -> torch.Tensor:
    order = torch.arange(len(x))
    order[[0, -1]] = order[[-1, 0]]
    return order


def middle_sorted(x: torch.Tensor) -> torch.Tensor:
    order = torch.arange(len(x))
    order[1:-1] = 1 + x[1:-1].flatten(1)[:, 0].argsort() if len(x) > 2 else order[1:-1]
    return order


MIXINGS: dict[str, Mixing] = {
    "sorted": lambda x: x.flatten(1)[:, 0].argsort(),
    "reversed": lambda x: torch.arange(len(x)).flip(0),
    "rolled": lambda x: torch.arange(len(x)).roll(1),
    "two swapped": two_swapped,
    "the middle sorted": middle_sorted,
}


class Records(Dataset):
    def __init__(self, n: int, rng: np.random.Generator, order: Callable[[list[int]], list[int]] | None = None) -> None:
        self.x, self.y = (
            torch.from_numpy(rng.normal(size=(n, FEATURES))).float(),
            torch.from_numpy(rng.integers(0, CLASSES, n)),
        )
        if order is not None:
            self.__getitems__ = lambda rows: [self[row] for row in order(rows)]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[row], self.y[row]


class WithIds(Records):
    def __getitem__(self, row: int) -> Any:
        return self.x[row], self.y[row], row


class Mixer(nn.Module):
    """Mixes rows between two layers, and with `back` puts the outputs right again."""

    def __init__(self, mixing: Mixing | None, back: bool = False) -> None:
        super().__init__()
        self.first, self.head, self.mixing, self.back = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES), mixing, back

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mixing is None or len(x) < 2:
            return self.head(self.first(x).relu())
        order = self.mixing(x)
        said = self.head(self.first(x[order]).relu())
        return said[order.argsort()] if self.back else said


class NoFunction(Mixer):
    def __init__(self, how: str) -> None:
        super().__init__(None)
        self.how, self.norm = how, nn.BatchNorm1d(6, track_running_stats=False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "input changed":
            x += 0.1
        hidden = self.first(x).relu()
        if self.how == "dropout":
            hidden = nn.functional.dropout(hidden, 0.5, training=True)
        elif self.how == "train":
            self.train()
        elif self.how == "norm of the batch":
            hidden = self.norm(hidden)
        elif self.how == "counter":
            self.calls += 1
            hidden = hidden + 0.01 * self.calls
        elif self.how == "parameters":
            with torch.no_grad():
                self.first.weight.mul_(1.001)
        elif self.how == "mean of the batch":
            hidden = hidden - hidden.mean(0)
        return self.head(hidden)


def loader_of(how: str, mixing: str, n: int, size: int, rng: np.random.Generator) -> tuple[Any, bool]:
    """Return what is given as data, and whether its batches carry ids."""
    order = MIXINGS[mixing]
    mixed = {"sampler": lambda data: order(data.x).tolist()}
    data = Records(n, rng)
    if how == "plain":
        return (data if rng.random() < 0.5 else DataLoader(data, batch_size=size)), False
    if how == "ids":
        return DataLoader(WithIds(n, rng), batch_size=size, shuffle=bool(rng.random() < 0.5)), True
    if how == "shuffle":
        return DataLoader(data, batch_size=size, shuffle=True), False
    if how == "sampler":
        return DataLoader(data, batch_size=size, sampler=mixed["sampler"](data)), False
    if how == "batch sampler":
        return DataLoader(data, batch_sampler=list(torch.tensor(mixed["sampler"](data)).split(size))), False  # type: ignore[arg-type]
    if how == "subset":
        return DataLoader(Subset(data, mixed["sampler"](data)), batch_size=size), False
    if how == "drop last":
        return DataLoader(data, batch_size=size, drop_last=True), False
    if how == "getitems":
        return DataLoader(
            Records(n, rng, lambda rows: [rows[k] for k in order(torch.tensor(rows)[:, None])]), batch_size=size
        ), False

    def collate(items: list[Any]) -> Any:
        x, y = default_collate(items)
        rows = order(x)
        if how == "one repeated":
            rows = torch.cat([rows[:1], torch.arange(len(x))[1:]]) if len(x) > 1 else rows * 0
        if how == "one dropped":
            rows = torch.arange(len(x))[: max(1, len(x) - 1)]
        return (x[rows], y) if how == "inputs alone" else (x[rows], y[rows])

    if how in ("collate", "one repeated", "one dropped", "inputs alone"):
        return DataLoader(data, batch_size=size, collate_fn=collate), False

    class Own(DataLoader):
        def __iter__(self) -> Any:
            batches = list(super().__iter__())
            return iter(
                batches[::-1] if how == "own loop" else [batches[-1], *batches[1:-1], batches[0]][: len(batches)]
            )

    return Own(data, batch_size=size), False


LOADERS = ("plain", "ids", "shuffle", "sampler", "batch sampler", "subset", "drop last", "getitems", "collate")
LOADERS += ("one repeated", "one dropped", "inputs alone", "own loop", "own loop swapped")
NOT_FUNCTIONS = ("dropout", "train", "norm of the batch", "counter", "parameters", "input changed", "mean of the batch")


def one(rng: np.random.Generator, place: str) -> tuple[str, str]:
    """Return what was tried, and "right", "refused" or what is wrong."""
    n, size = int(rng.integers(6, 40)), int(rng.integers(2, 12))
    mixing = str(rng.choice(list(MIXINGS)))
    way = rng.random()
    how, model, name = "plain", Mixer(None), "plain"
    if way < 0.5:
        how = str(rng.choice(LOADERS))
    elif way < 0.75:
        back = bool(rng.random() < 0.5)
        model, name = Mixer(MIXINGS[mixing], back), f"mixing{', put right' if back else ''}"
    else:
        name = str(rng.choice(NOT_FUNCTIONS))
        model = NoFunction(name)
    model.train(bool(rng.random() < 0.5))
    data, with_ids = loader_of(how, mixing, n, size, rng)
    kept = [InMemory(), Cached(f"{place}/{rng.integers(1 << 60)}")][int(rng.integers(2))]
    tried = f"{how}, {name}" + (f", {mixing}" if "mixing" in name else "")
    before, mode = copy.deepcopy(model.state_dict()), model.training
    alone = copy.deepcopy(model).eval()
    given = {"batches": Batches(ids=2)} if with_ids else {}
    records = data.dataset if isinstance(data, DataLoader) else data
    expected = [records[row][:2] for row in range(len(records))]
    try:
        head = ga.from_torch(model, data, layer="head", keep=kept, relatives=False, **given)
        ids = np.asarray(head.ids).astype(int)
        outputs, targets = head.outputs[0 : head.n].numpy(), head.targets.numpy()
    except InputError as error:
        if "\n" in str(error):
            return tried, "more than one line"
        answer = "refused"
        if "changed" in str(error) and name in ("parameters", "counter"):  # by its own forward, as the error says
            return tried, answer
    else:
        answer = "right" if head.n == len(expected) else "another number of rows"
        with torch.no_grad():
            wanted = torch.cat([alone(x[None].clone()) for x, _ in expected]).numpy()
        labels = np.array([int(y) for _, y in expected])
        if answer == "right" and not (np.allclose(outputs, wanted[ids], atol=1e-5) and (targets == labels[ids]).all()):
            answer = "a wrong name"
    if model.training != mode or any(not torch.equal(before[key], value) for key, value in model.state_dict().items()):
        return tried, "the model was changed"
    return tried, answer


def hunt(count: int, seed: int) -> dict[str, Any]:
    rng, ended, wrong = np.random.default_rng(seed), Counter[str](), list[str]()
    random.seed(seed)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory(prefix="hunt-") as place:
        for _ in range(count):
            tried, answer = one(rng, place)
            ended[f"{tried}: {answer}"] += 1
            if answer not in ("right", "refused"):
                wrong.append(f"{tried}: {answer}")
    return {"loaders and models": count, "wrong": len(wrong), "first": wrong[:5], "ended": dict(sorted(ended.items()))}
