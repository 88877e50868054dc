"""Traces from checkpoints: the losses of every record at every checkpoint, by plain loops; killed runs go on."""

import os
import signal
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from giveaway import LossTrace
from giveaway.extract import Batches, from_torch, trace_of_checkpoints
from giveaway.records.row_digests import identity_of
from tests.conftest import refused

N, HALF = 19, 1e-3
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
TARGETS = {
    "cross_entropy": (3, torch.arange(N) % 3),
    "one logit": (1, torch.arange(N) % 2),
    "binary_cross_entropy": (3, (X[:, :3] > 0).float()),
    "squared": (2, X[:, :2] * 3),
}


def network(outputs: int, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, outputs))


def saved(folder: Path, outputs: int, count: int = 12) -> str:
    """Weights of `count` networks in files whose names sort otherwise than their numbers; return the pattern."""
    for number in range(count):
        save_file(network(outputs, number).state_dict(), folder / f"epoch{number}.safetensors")
    return str(folder / "epoch*.safetensors")


def own_loss(kind: str, f: np.ndarray, y: np.ndarray) -> float:
    if kind == "squared":
        return float(((f - y) ** 2).sum())
    if kind == "cross_entropy":
        return float(np.log(np.exp(f - f[y]).sum()))
    return float(sum(np.log1p(np.exp(-o if t else o)) for o, t in zip(f, np.atleast_1d(y), strict=True)))


@pytest.mark.parametrize("kind", TARGETS)
def test_every_checkpoint_gives_a_row_of_losses_in_the_order_of_its_number(tmp_path: Path, kind: str) -> None:
    outputs, y = TARGETS[kind]
    loss = {"one logit": "auto", "squared": "auto"}.get(kind, kind)
    model = network(outputs, 99).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trace = trace_of_checkpoints(model, saved(tmp_path, outputs), TensorDataset(X, y), loss=loss, batches=Batches(5))
    for epoch in range(12):
        with torch.no_grad():
            f = network(outputs, epoch).eval()(X).double().numpy()
        expected = [own_loss(kind, f[row], y[row].numpy()) for row in range(N)]
        np.testing.assert_allclose(trace.losses[epoch], expected, rtol=HALF, atol=1e-6)
    assert trace.epochs == 12
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_files_go_in_the_order_given(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    files, data = [tmp_path / f"epoch{number}.safetensors" for number in (7, 2)], TensorDataset(X, torch.arange(N) % 3)
    trace, other = (trace_of_checkpoints(network(3), order, data) for order in (files, files[::-1]))
    np.testing.assert_array_equal(trace.losses, other.losses[::-1])
    assert (trace.losses[0] != trace.losses[1]).any()


@pytest.mark.parametrize("kind", TARGETS)
def test_its_rows_are_those_of_the_head(tmp_path: Path, kind: str) -> None:
    outputs, y = TARGETS[kind]
    loss = {"one logit": "auto"}.get(kind, kind)
    model, data = network(outputs), TensorDataset(X, y)
    head = from_torch(model, data, loss=loss)
    trace = trace_of_checkpoints(model, saved(tmp_path, outputs, 2), data, loss=loss)
    assert trace.identity == identity_of(N, targets=head.targets)
    names = [{"x": x, "y": t, "id": f"scan-{row}"} for row, (x, t) in enumerate(zip(X, y, strict=True))]
    model.forward = lambda x: nn.Sequential.forward(model, x)
    named = trace_of_checkpoints(model, str(tmp_path / "*"), names, loss=loss, batches=Batches(inputs="x"))
    assert named.identity == identity_of(N, targets=head.targets, ids=[f"scan-{row}" for row in range(N)])


class Deadly(Dataset):
    """Records that kill the process when they are read once too often."""

    def __init__(self, reads: int) -> None:
        self.reads = reads

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        if self.reads == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.reads -= 1
        return X[row], row % 3


def test_a_killed_run_goes_on_at_the_checkpoint_where_it_stopped(tmp_path: Path) -> None:
    pattern, options = saved(tmp_path, 3, 5), {"batches": Batches(4)}
    trace_of_checkpoints(network(3), pattern, Deadly(-1), out=tmp_path / "whole", **options)
    out = tmp_path / "killed"
    # two passes read the records alone; two checkpoints are whole then
    process = get_context("fork").Process(
        target=trace_of_checkpoints, args=(network(3), pattern, Deadly(4 * N + 7)), kwargs={"out": out, **options}
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert LossTrace(out).epochs == 2
    calls, model = [], network(3)
    model.register_forward_hook(lambda *_: calls.append(1))
    trace = trace_of_checkpoints(model, pattern, Deadly(-1), out=out, **options)
    assert len(calls) == 3 * -(-N // 4)
    assert trace.epochs == 5
    assert out.read_bytes() == (tmp_path / "whole").read_bytes()
    calls.clear()
    assert trace_of_checkpoints(model, pattern, Deadly(-1), out=out, **options).epochs == 5
    assert calls == []


def test_a_run_goes_on_only_with_what_it_was_begun_with(tmp_path: Path) -> None:
    pattern, out, data = saved(tmp_path, 3, 3), tmp_path / "losses.trace", TensorDataset(X, torch.arange(N) % 3)
    trace_of_checkpoints(network(3), pattern, data, out=out)
    again = {"model": network(3), "checkpoints": pattern, "data": data, "out": out}
    others = TensorDataset(X + 1, torch.arange(N) % 3)
    refused("the trace that this training began, got data differ", trace_of_checkpoints, **{**again, "data": others})
    other_loss = {**again, "loss": "cross_entropy"}
    refused("got loss was 'auto', is 'cross_entropy'; choose another file", trace_of_checkpoints, **other_loss)
    save_file(network(3, 50).state_dict(), tmp_path / "epoch1.safetensors")
    refused("got checkpoints differ; choose another file", trace_of_checkpoints, **again)
    saved(tmp_path, 3, 4)
    refused("checkpoints differ; checkpoints was 3, is 4", trace_of_checkpoints, **again)


class Changing(Dataset):
    """Records that `change` once they were read three times: in the first pass, by themselves, and for a checkpoint."""

    def __init__(self, change: str) -> None:
        self.change, self.reads = change, 0

    def __len__(self) -> int:
        return N + {"fewer": -3, "more": 5}.get(self.change, 0) * (self.reads >= 3 * N)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        self.reads += 1
        other = self.change == "other" and row == 9 and self.reads > 3 * N
        return X[row % N] + float(other), row % N % 3


CHANGES = {
    "other": "the same inputs and targets in every pass, got others in a later pass, the first in row 9; turn off",
    "fewer": "expected 19 records in every pass, got 16 rows of a later one; pass a dataset",
    "more": "expected 19 records in every pass, got 20 rows of a later one",
}


@pytest.mark.parametrize("change", CHANGES)
def test_records_that_change_between_checkpoints_are_refused(tmp_path: Path, change: str) -> None:
    pattern, data = saved(tmp_path, 3, 3), Changing(change)
    refused(CHANGES[change], trace_of_checkpoints, network(3), pattern, data, batches=Batches(4))


def test_what_cannot_be_a_trace_is_refused(tmp_path: Path) -> None:
    pattern, data = saved(tmp_path, 3, 3), TensorDataset(X, torch.arange(N) % 3)
    model = network(3)
    refused("at least 2 checkpoints, got 0 files", trace_of_checkpoints, model, tmp_path / "*.pt", data)
    refused("files that can be read, got nowhere", trace_of_checkpoints, model, ["nowhere", "there"], data)
    shuffled = DataLoader(data, batch_size=4, shuffle=True)
    refused("every record once, in dataset order", trace_of_checkpoints, model, pattern, shuffled)
    noisy = [(x + torch.rand(4), row % 3) for row, x in enumerate(X)]
    again = type(
        "Noisy", (list,), {"__getitem__": lambda self, row: (list.__getitem__(self, row)[0] + torch.rand(4), 0)}
    )
    words = "the same inputs and targets in every pass, got 19 of 19 that differ between two passes, the first in row 0"
    refused(words, trace_of_checkpoints, model, pattern, again(noisy), loss="squared")
    refused(r"checkpoints: epoch0\.safetensors: weights", trace_of_checkpoints, nn.Linear(4, 3), pattern, data)
    tokens = nn.Unflatten(1, (2, 2))
    for number in range(2):
        torch.save(tokens.state_dict() | {"_": torch.zeros(number)}, tmp_path / f"{number}.pt")
    tokens.load_state_dict = lambda state: None
    refused(r"outputs \(records, classes or values\), got shape", trace_of_checkpoints, tokens, tmp_path / "*.pt", data)
    save_file(network(3, 0).state_dict(), tmp_path / "epoch_last.safetensors")
    words = r"different checkpoints, got epoch_last\.safetensors with the weights of epoch0\.safetensors; leave one"
    refused(words, trace_of_checkpoints, model, pattern, data)


def test_the_command_writes_a_trace(tmp_path: Path, done, giveaway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("users_checkpoints.py").write_text(
        "from tests.extract.test_traces import N, X, TensorDataset, network, torch\n"
        "def make(): return network(3)\n"
        "def data(): return TensorDataset(X, torch.arange(N) % 3)\n"
    )
    saved(tmp_path, 3, 11)
    words = ("trace", "--model", "users_checkpoints:make", "--data", "users_checkpoints:data")
    out = done(*words, "--checkpoints", "epoch*.safetensors", "--device", "cpu", "--batch-size", 7)
    assert "Wrote giveaway.trace: the losses of 19 records at 11 checkpoints" in out
    assert "Running your code: users_checkpoints:make and users_checkpoints:data" in done.err
    expected = trace_of_checkpoints(network(3), "epoch*.safetensors", TensorDataset(X, torch.arange(N) % 3))
    np.testing.assert_array_equal(LossTrace("giveaway.trace").losses, expected.losses)
    told = done(*words, "--checkpoints", "epoch*.safetensors", "--json")
    assert told == '{"file": "giveaway.trace", "checkpoints": 11, "records": 19}\n'
    code, _, err = giveaway(*words, "--checkpoints", "epoch*.safetensors", "--loss", "squared")
    assert code == 2
    assert err.endswith("got loss was 'auto', is 'squared'; choose another file\n")
