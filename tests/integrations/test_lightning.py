"""Losses recorded while Lightning trains: against what the module itself saw, resumed, and on two devices."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import giveaway as ga
from giveaway.checks import InputError

pytestmark = pytest.mark.slow
N = 70
X = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


@pytest.fixture(scope="module")
def pl():
    return pytest.importorskip("lightning.pytorch")


@pytest.fixture
def module(pl):
    class Module(pl.LightningModule):
        def __init__(self, form="tuple"):
            super().__init__()
            self.layer, self.form, self.seen = nn.Linear(5, 2), form, []

        def training_step(self, batch, batch_idx):
            x, y, rows = batch if self.form != "dict" else (batch["x"], batch["y"], batch["row"])
            each = nn.functional.cross_entropy(self.layer(x), y, reduction="none")
            self.seen.append((self.current_epoch, rows.clone(), each.detach().clone()))
            return {"loss": each.mean(), "losses": each}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    return Module


class Dictionaries(torch.utils.data.Dataset):
    def __len__(self):
        return N

    def __getitem__(self, row):
        return {"x": X[row], "y": Y[row]}


def loader(data=None, **options):
    return DataLoader(ga.indexed(TensorDataset(X, Y) if data is None else data), batch_size=16, shuffle=True, **options)


def trainer(pl, tmp_path, callback, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(
        default_root_dir=tmp_path, callbacks=[callback], **{"enable_checkpointing": False, **quiet, **options}
    )


def expected(seen, epochs):
    losses = np.full((epochs, N), np.nan, np.float16)
    for epoch, rows, each in seen:
        losses[epoch, rows.numpy()] = each.numpy()
    return losses


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_the_losses_are_those_of_the_training(pl, module, tmp_path, form):
    from giveaway.integrations.lightning import RecordLosses

    callback = RecordLosses(tmp_path / "losses.trace", N, targets=Y)
    model = module(form)
    data = Dictionaries() if form == "dict" else None
    trainer(pl, tmp_path, callback, max_epochs=3, accumulate_grad_batches=2).fit(model, loader(data))
    trace = ga.LossTrace(tmp_path / "losses.trace")
    assert trace.epochs == 3
    np.testing.assert_array_equal(trace.losses, expected(model.seen, 3))
    head = ga.from_torch(model.layer, TensorDataset(X, Y))
    assert "trace" in ga.audit(head, trace=trace).columns


def test_a_sampler_that_repeats_and_an_epoch_cut_short(pl, module, tmp_path):
    from giveaway.integrations.lightning import RecordLosses

    twice = DataLoader(ga.indexed(TensorDataset(X, Y)), batch_size=20, sampler=[*range(N), *range(N)])
    callback = RecordLosses(tmp_path / "twice.trace", N)
    trainer(pl, tmp_path, callback, max_epochs=2).fit(module(), twice)
    assert ga.LossTrace(tmp_path / "twice.trace").epochs == 2  # of Lightning's, not of as many losses
    callback = RecordLosses(tmp_path / "short.trace", N)
    trainer(pl, tmp_path, callback, max_epochs=2, limit_train_batches=2).fit(module(), loader())
    assert np.isnan(ga.LossTrace(tmp_path / "short.trace").losses).sum(1).tolist() == [N - 32, N - 32]


def test_a_resumed_run_goes_on_in_the_same_file(pl, module, tmp_path):
    from giveaway.integrations.lightning import RecordLosses

    class Killed(module):
        def training_step(self, batch, batch_idx):
            if self.current_epoch == 3:
                raise RuntimeError("killed")
            return super().training_step(batch, batch_idx)

    path = tmp_path / "losses.trace"
    saving = {"enable_checkpointing": True, "max_epochs": 5}
    keep = pl.callbacks.ModelCheckpoint(tmp_path, every_n_epochs=2, save_top_k=-1, filename="{epoch}")
    first = trainer(pl, tmp_path, RecordLosses(path, N, targets=Y), **saving)
    first.callbacks.append(keep)
    killed = Killed()
    with pytest.raises(RuntimeError, match="killed"):
        first.fit(killed, loader())
    assert ga.LossTrace(path).epochs == 3
    again, model = RecordLosses(path, N, targets=Y), module()
    trainer(pl, tmp_path, again, **saving).fit(model, loader(), ckpt_path=tmp_path / "epoch=1.ckpt")
    trace = ga.LossTrace(path)
    assert trace.epochs == 5  # the third, which came after the checkpoint, was recorded again
    np.testing.assert_array_equal(trace.losses[:2], expected(killed.seen, 3)[:2])
    np.testing.assert_array_equal(trace.losses[2:], expected(model.seen, 5)[2:])
    with pytest.raises(InputError, match=r"path: expected a new file, got .*losses.trace, which exists"):
        trainer(pl, tmp_path, RecordLosses(path, N), max_epochs=1).fit(module(), loader())


@pytest.mark.parametrize("when", [{"save_on_train_epoch_end": False}, {"every_n_train_steps": 5}])
def test_a_checkpoint_before_the_end_of_its_epoch_is_refused(pl, module, tmp_path, when):
    """Lightning takes such an epoch for done, and goes on with the next: the trace would lose it."""
    from giveaway.integrations.lightning import RecordLosses

    class Validated(module):
        def validation_step(self, batch, batch_idx): ...

    path = tmp_path / "losses.trace"
    saving = {"enable_checkpointing": True, "limit_val_batches": 1}
    keep = pl.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, filename="{epoch}", **when)
    first = trainer(pl, tmp_path, RecordLosses(path, N), max_epochs=3, **saving)
    first.callbacks.append(keep)
    first.fit(Validated(), loader(), loader())
    before = ga.LossTrace(path).losses.copy()
    again = trainer(pl, tmp_path, RecordLosses(path, N), max_epochs=5, **saving)
    words = r"ckpt_path: expected a checkpoint with 2 recorded epochs, got 1; .*save_on_train_epoch_end=True"
    with pytest.raises(InputError, match=words):
        again.fit(Validated(), loader(), loader(), ckpt_path=tmp_path / "epoch=1.ckpt")
    np.testing.assert_array_equal(ga.LossTrace(path).losses, before)


def test_what_is_refused(pl, module, tmp_path):
    from giveaway.integrations.lightning import RecordLosses

    class Bare(module):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx)["loss"]

    run = trainer(pl, tmp_path, RecordLosses(tmp_path / "a.trace", N), max_epochs=1)
    with pytest.raises(InputError, match=r'training_step: expected a dictionary with "losses", one a record'):
        run.fit(Bare(), loader())

    class Plain(module):
        def training_step(self, batch, batch_idx):
            return super().training_step((batch, Y[:16], torch.arange(16)), batch_idx)

    run = trainer(pl, tmp_path, RecordLosses(tmp_path / "b.trace", N), max_epochs=1, limit_train_batches=1)
    with pytest.raises(InputError, match=r"batch: expected row numbers in it, got Tensor; load ga.indexed"):
        run.fit(Plain(), DataLoader(X, batch_size=16))


DEVICES = """
import sys, torch, lightning.pytorch as pl, giveaway as ga
from giveaway.integrations.lightning import RecordLosses
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
    def training_step(self, batch, batch_idx):
        x, y, rows = batch
        return {"loss": self.layer(x).mean(), "losses": rows.float() + self.current_epoch}
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

data = TensorDataset(torch.zeros(70, 5), torch.zeros(70).long())
quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
quiet |= dict(accelerator="cpu", devices=2, strategy="ddp", callbacks=[RecordLosses(sys.argv[1], 70)])
run = pl.Trainer(max_epochs=2, **quiet)
run.fit(Module(), DataLoader(ga.indexed(data), batch_size=8, shuffle=True))
"""


def test_two_devices_write_a_file_each(pl, tmp_path):
    script = tmp_path / "run.py"
    script.write_text(textwrap.dedent(DEVICES))
    path = tmp_path / "losses.trace"
    done = subprocess.run([sys.executable, str(script), str(path)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(Path(tmp_path).glob("losses.trace*")) == [Path(f"{path}.{rank}-of-2") for rank in (0, 1)]
    trace = ga.LossTrace(path)
    np.testing.assert_array_equal(trace.losses, [np.arange(N), np.arange(N) + 1])
