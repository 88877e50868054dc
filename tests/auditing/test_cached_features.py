"""Audits whose features lie in a cache: the same scores, and the model runs once."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import giveaway as ga
from giveaway.curvature.choice import Sketch
from giveaway.extract import Cached, InMemory
from giveaway.records import FileRows, ScoreTable, rows

N = 5_000


class Counting(torch.nn.Module):
    """A network that counts the records it has seen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.seen = torch.nn.Linear(5, 7), torch.nn.Linear(7, 3), 0
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return self.last(torch.tanh(self.first(x)))


@pytest.fixture(scope="module")
def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, 5, generator=generator, dtype=torch.float64)
    return TensorDataset(x, torch.randint(3, (N,), generator=generator))


@pytest.fixture(scope="module")
def held(data) -> ScoreTable:
    head = ga.from_torch(Counting(), data, l2=1.0, keep=InMemory(inputs=False))
    return ga.audit(head)


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 37, N])
def test_neither_the_batches_nor_the_windows_show_in_the_scores(tmp_path, monkeypatch, data, held, batch_size):
    """Exactly rounded sums would differ by 100·eps·cond(H); cond is about 3e3 here."""
    monkeypatch.setattr(rows, "LARGE_BYTES", 1)
    loader = DataLoader(data, batch_size=batch_size)
    head = ga.from_torch(Counting(), loader, l2=1.0, keep=Cached(tmp_path / "kept", inputs=False))
    assert isinstance(head.features, FileRows)
    table = ga.audit(head)
    assert held.columns == table.columns
    for name in held.columns:
        np.testing.assert_allclose(table[name], held[name], rtol=1e-9, err_msg=name)


def test_a_cache_serves_a_sketch(tmp_path, data, held):
    model = Counting()
    head = ga.from_torch(model, data, l2=1.0, keep=Cached(tmp_path / "kept", inputs=False))
    seen = model.seen
    table = ga.audit(head, scores=["newton"], curvature=Sketch(probes=64))
    assert model.seen == seen == N + 7 * 3 * 256  # batches 0 to 4, 8 and 16 again, and twice in halves
    assert np.median(np.abs(table["newton"] / held["newton"] - 1)) < 0.2
