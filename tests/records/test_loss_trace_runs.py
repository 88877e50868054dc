"""Trainings that are killed again and again, or shared by two processes, record the trace of an undisturbed one."""

import os
import signal
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from giveaway import LossTrace, indexed
from giveaway.records.loss_trace import HEADER_BYTES
from tests import forked

N, EPOCHS, KILLS = 60, 90, 20


def made() -> tuple[TensorDataset, nn.Module, torch.optim.Optimizer]:
    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    data = TensorDataset(torch.randn(N, 4, generator=rng), torch.randint(3, (N,), generator=rng))
    return data, model, torch.optim.Adam(model.parameters(), 0.01)


def training(folder: Path, pause: float = 0.0) -> None:
    """Train as people do: a checkpoint an epoch, which a later run goes on from."""
    torch.set_num_threads(1)
    data, model, optimizer = made()
    checkpoint, done, recorded = folder / "checkpoint.pt", 0, 0
    if checkpoint.exists():
        stored = torch.load(checkpoint)
        model.load_state_dict(stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
        done, recorded = stored["epochs"], stored["trace_epochs"]
    trace = LossTrace(N, folder / "losses.trace", targets=data.tensors[1], resume=recorded)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(done, EPOCHS):
        torch.manual_seed(epoch)
        for x, y, rows in DataLoader(indexed(data), batch_size=15, shuffle=True):
            optimizer.zero_grad()
            trace.loss(criterion, model(x), y, rows).backward()
            optimizer.step()
            time.sleep(pause)
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**states, "epochs": epoch + 1, "trace_epochs": trace.epochs}, folder / "new.pt")
        os.replace(folder / "new.pt", checkpoint)


def epochs_in(file: Path) -> int:
    """Tell by the size alone: a training that goes on may be cutting the file this very moment."""
    return max(0, file.stat().st_size - HEADER_BYTES) // (2 * N) if file.exists() else 0


@pytest.mark.slow
def test_a_training_that_is_killed_at_twenty_random_moments_records_the_same_trace(tmp_path: Path) -> None:
    fork, rng = get_context("fork"), np.random.default_rng()
    made()[2].step()  # imports, for a second, what each of the trainings would import again
    folders = {name: tmp_path / name for name in ("whole", "killed")}
    for folder in folders.values():
        folder.mkdir()
    process = fork.Process(target=training, args=(folders["whole"],))
    process.start()
    process.join()
    file, reached = folders["killed"] / "losses.trace", 0
    for _ in range(KILLS):
        process = fork.Process(target=training, args=(folders["killed"], 0.01))
        process.start()
        while epochs_in(file) < reached:
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.1))  # about an epoch
        assert process.exitcode is None, "the training ended before it was killed"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        reached = epochs_in(file) + int(rng.integers(0, 3))
    assert 3 < epochs_in(file) < EPOCHS
    process = fork.Process(target=training, args=(folders["killed"],))
    process.start()
    process.join()
    whole, killed = (LossTrace(folder / "losses.trace") for folder in folders.values())
    assert whole.epochs == EPOCHS
    assert not np.isnan(whole.losses).any()
    assert (folders["killed"] / "losses.trace").read_bytes() == (folders["whole"] / "losses.trace").read_bytes()
    assert killed.identity == whole.identity


def shared(path: str) -> None:
    """Train in torchrun's environment, or alone: both take the same records in every step."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    data, model, _ = made()
    for module in model:
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # each process draws its own
    rank = 0
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
