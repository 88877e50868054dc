"""A training that two processes share records the trace of one process."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from giveaway import LossTrace, indexed
from tests import forked

N = 60


def shared(path: str) -> None:
    """Train in torchrun's environment, or alone: both take the same records in every step."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(N, 4), torch.randint(3, (N,)))
    model, rank = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), 0
    if world > 1:
        torch.distributed.init_process_group("gloo")
        model, rank = nn.parallel.DistributedDataParallel(model), torch.distributed.get_rank()
    sampler = DistributedSampler(data, world, rank, seed=7)
    loader = DataLoader(indexed(data), batch_size=10 // world, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trace, criterion = LossTrace(N, path, targets=data.tensors[1]), nn.CrossEntropyLoss()
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for step, (x, y, rows) in enumerate(loader):
            (trace.loss(criterion, model(x), y, rows) / 2).backward()
            if step % 2 == 1:  # gradients of two batches are accumulated
                optimizer.step()
                optimizer.zero_grad()
    if world > 1:
        del model  # one that outlives its process group can hang when it goes
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_record_the_trace_of_one(tmp_path: Path) -> None:
    plain = ("-m", "tests.records.test_loss_trace_runs")
    ended = [forked.python(*plain, tmp_path / "one"), *forked.team(*plain, tmp_path / "two")]
    assert [one.returncode for one in ended] == [0, 0, 0], ended[-1].stderr
    one, together = LossTrace(tmp_path / "one"), LossTrace(tmp_path / "two")
    assert not (tmp_path / "two").exists()
    assert together.identity == one.identity
    assert one.losses.shape == together.losses.shape == (4, N)
    assert not np.isnan(together.losses).any()
    np.testing.assert_allclose(together.losses, one.losses, rtol=2e-3, atol=1e-5)
    assert (np.abs(np.diff(np.array(one.losses, float), axis=0)) > 1e-3).all(1).any()


if __name__ == "__main__":
    shared(sys.argv[1])
