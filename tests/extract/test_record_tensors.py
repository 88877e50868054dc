"""What a model is given of its records: as the head's rows came, or refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from giveaway.checks import InputError
from giveaway.extract import from_torch
from giveaway.extract.model_records import inputs_of_head

N = 23
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 2


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.head(a + b)


class Named(Dataset):
    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> dict:
        return {"a": X[row], "b": 2 * X[row], "y": Y[row], "id": f"record {row}"}


def test_arguments_in_dataset_order():
    data = TensorDataset(X, Y)
    (found,) = inputs_of_head(data, from_torch(nn.Linear(3, 2), data), batch_size=5)
    assert torch.equal(found, X)


def test_several_arguments():
    data = [((X[row], 2 * X[row]), Y[row]) for row in range(N)]
    first, second = inputs_of_head(data, from_torch(Two(), data))
    assert torch.equal(first, X)
    assert torch.equal(second, 2 * X)


def test_keywords_in_the_order_of_the_head_s_ids():
    loader = DataLoader(Named(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
    head = from_torch(Two(), loader)
    loader.generator.manual_seed(2)  # another order
    found = inputs_of_head(loader, head)
    numbers = [int(name.removeprefix("record ")) for name in head.ids.tolist()]
    assert numbers != sorted(numbers)
    assert list(found) == ["a", "b"]
    assert torch.equal(found["a"], X[numbers])
    assert torch.equal(found["b"], 2 * X[numbers])


class Changing(Dataset):
    """Other names, fewer records or more inputs, once a head was read."""

    def __init__(self, how: str) -> None:
        self.how, self.later = how, False

    def __len__(self) -> int:
        return N - 1 if self.later and self.how == "shorter" else N

    def __getitem__(self, row: int) -> dict:
        record = {"input": X[row], "y": Y[row], "id": row + 100 * (self.later and self.how == "renamed")}
        if self.later and self.how == "more" and row > 10:
            record["mask"] = X[row]
        return record


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (
            "shorter",
            "data: expected 23 records in every pass, got 22 in another; pass a dataset that can be read again",
        ),
        ("renamed", "data: expected the same ids in every pass, got others in another; fix each record's id"),
        ("more", "data: expected the same inputs in every batch, each with a row a record, got inputs of shape (1, 3)"),
    ],
)
def test_another_pass_that_gives_others_is_refused(how, words):
    data = Changing(how)
    head = from_torch(nn.Linear(3, 2), data, batch_size=1)
    data.later = True
    with pytest.raises(InputError) as caught:
        inputs_of_head(data, head, batch_size=1)
    assert str(caught.value).startswith(words)


def test_more_than_memory_is_refused_before_it_is_read(monkeypatch):
    data = TensorDataset(X, Y)
    head = from_torch(nn.Linear(3, 2), data)
    monkeypatch.setattr("giveaway.checks.available_memory", lambda: 100)
    with pytest.raises(InputError, match=r"data: expected records that are kept within the 0\.0 GB of free memory"):
        inputs_of_head(data, head)
