"""Audits whose features never lie in memory: the same scores, in two passes of the model."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import giveaway as ga
from giveaway.curvature.choice import Sketch
from giveaway.extract import Cached, InMemory, Streamed, from_batches, from_file
from giveaway.records import ScoreTable
from tests.conftest import refused

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


def streamed(data: TensorDataset, batch_size: int, **options: object) -> tuple[Counting, ga.Head]:
    model = Counting()
    loader = DataLoader(data, batch_size=batch_size)
    return model, ga.from_torch(model, loader, l2=1.0, keep=Streamed(inputs=False), **options)


def test_the_model_runs_in_two_passes(data):
    model, head = streamed(data, 500)
    before = model.seen
    table = ga.audit(head)
    assert model.seen - before == 2 * N
    assert table.meta.optimum.relative_gradient > 0


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 37, 1024, N])
def test_neither_the_batches_nor_the_stream_show_in_the_scores(data, held, batch_size):
    """Exactly rounded sums would differ by 100·eps·cond(H); cond is about 3e3 here."""
    table = ga.audit(streamed(data, batch_size)[1])
    assert held.columns == table.columns
    for name in held.columns:
        np.testing.assert_allclose(table[name], held[name], rtol=1e-9, err_msg=name)


def test_arrays_in_batches_give_the_scores_of_arrays_in_files(tmp_path, data):
    x, y = data.tensors
    weight = np.random.default_rng(0).normal(size=(3, 5))
    np.savez(tmp_path / "rows.npz", features=x.numpy(), targets=y.numpy(), weight=weight, bias=np.zeros(3))

    class Batches:
        def __iter__(self):
            for start in range(0, N, 777):
                part = slice(start, start + 777)
                yield {"features": x[part].numpy(), "targets": y[part].numpy()}

    whole = ga.audit(from_file(tmp_path / "rows.npz", l2=0.5)[0])
    table = ga.audit(from_batches(Batches(), weight=weight, bias=np.zeros(3), l2=0.5))
    for name in whole.columns:
        np.testing.assert_allclose(table[name], whole[name], rtol=1e-9, err_msg=name)


def test_what_a_stream_cannot_do_is_said(data):
    assert refused("expected", ga.audit, streamed(data, 500)[1], curvature=Sketch()) == (
        "curvature: expected features that can be read many times for a sketch, got a stream that runs the model in "
        "every pass; pass keep=Cached(folder) to from_torch, or take curvature=Dense()"
    )
    refused(
        "features: expected rows that can be looked up in any order, got a stream",
        ga.audit,
        streamed(data, 500, groups=np.arange(N) // 2)[1],
        scores=["newton"],
    )


def test_a_cache_serves_a_sketch(tmp_path, data, held):
    model = Counting()
    head = ga.from_torch(model, data, l2=1.0, keep=Cached(tmp_path / "kept", inputs=False))
    seen = model.seen
    table = ga.audit(head, scores=["newton"], curvature=Sketch(probes=64))
    assert model.seen == seen == N + 7 * 3 * 256  # batches 0 to 4, 8 and 16 again, and twice in halves
    assert np.median(np.abs(table["newton"] / held["newton"] - 1)) < 0.2
