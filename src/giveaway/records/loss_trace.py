"""Loss traces: the loss of every record as training computed it, epoch by epoch."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from giveaway.checks import as_tensor, check_names, check_whole, fail
from giveaway.storage.arrays import array_digest

HEADER_BYTES = 4096
FORMAT = "giveaway loss trace"
LARGEST = float(np.finfo(np.float16).max)
MOST_PENDING = 2**22  # rows on the device before their losses are moved to the CPU
CRITERIA = (nn.CrossEntropyLoss, nn.NLLLoss, nn.BCEWithLogitsLoss, nn.BCELoss, nn.MSELoss, nn.L1Loss, nn.HuberLoss)


class LossTrace:
    """The losses of `records` records as training computed them: one row an epoch.

    `LossTrace(50_000)` records in memory and `LossTrace(50_000, "run/losses.trace")` in a file, to which every finished
    epoch is added; `LossTrace("run/losses.trace")` reads that file. Under torchrun every process writes a file of its
    own beside it, and reading puts them together.

    Parameters
    ----------
    records : how many records are trained on, or the file of a trace to read.
    targets, ids : (n,), in the order of the records; one of them, so that an audit can tell whose losses these are.
    resume : how many epochs training had finished when it was interrupted. The file keeps those and drops what came
        after; without it, a file that exists already is refused.

    An epoch ends with `end_epoch()`, or by itself once as many losses were added as there are records. A record that
    comes up more than once in an epoch has the mean of its losses; one that does not come up, or whose loss was not
    finite, has NaN there. Losses are kept in float16, at most 65504.

    Examples
    --------
    >>> trace = LossTrace(3, targets=[0, 1, 1])
    >>> for losses in ([2.0, 4.0, 1.0], [0.25, 1.0, 0.0]):
    ...     trace.add([0, 1, 2], torch.tensor(losses))
    >>> trace
    LossTrace(epochs=2, records=3)
    >>> trace.losses[1].tolist()
    [0.25, 1.0, 0.0]
    """

    def __init__(
        self,
        records: int | str | os.PathLike[str],
        path: str | os.PathLike[str] | None = None,
        *,
        targets: Any = None,
        ids: Any = None,
        resume: int | None = None,
    ) -> None:
        self._rows: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._pending = self._added = 0
        self._file: BinaryIO | None = None
        if isinstance(records, str | os.PathLike):
            self._read(Path(records))
            return
        self.records = check_whole("records", records, remedy="give the number of training records, or a trace's file")
        self.identity = identity_of(self.records, targets=targets, ids=ids)
        self._epochs: Sequence[np.ndarray] = []
        self._sums, self._counts = np.zeros(self.records), np.zeros(self.records)
        rank, self._world = _process()
        if path is not None:
            self._open(Path(path), rank, resume)
        elif self._world > 1:
            raise fail("path", "a file, where several processes train", "none", 'give one, as in "run/losses.trace"')

    @classmethod
    def from_losses(cls, losses: Any, *, targets: Any = None, ids: Any = None) -> LossTrace:
        """Make a trace of losses (epochs, records) that were recorded some other way; NaN where there is none."""
        held = as_tensor("losses", losses).cpu().numpy()
        if held.ndim != 2 or 0 in held.shape or held.dtype.kind != "f":
            got = f"{held.dtype} of shape {held.shape}"
            raise fail("losses", "floating-point numbers (epochs, records)", got, "give one row an epoch")
        if bool((held < 0).any()):
            raise fail(
                "losses", "losses of at least 0", f"{held[held < 0][0]:g}", "give the losses, not log-likelihoods"
            )
        trace = cls(held.shape[1], targets=targets, ids=ids)
        trace._epochs = _as_stored(held)
        return trace

    def add(self, rows: Any, losses: Any) -> None:
        """Record the losses (b,) of the records with these row numbers (b,), as training just computed them.

        Nothing waits for the GPU: losses stay on their device until the epoch ends.
        """
        if self._file is None and not isinstance(self._epochs, list):
            raise fail(
                "trace", "one that is being recorded", "one that was read", "begin it with the number of records"
            )
        which, values = as_tensor("rows", rows), as_tensor("losses", losses)
        if which.ndim != 1 or which.dtype not in (torch.int64, torch.int32):
            got = f"{str(which.dtype).removeprefix('torch.')} of shape {tuple(which.shape)}"
            raise fail("rows", "row numbers (b,)", got, "give each record's place in the data set (ga.indexed adds it)")
        if values.shape != which.shape:
            remedy = 'compute them with reduction="none", one number a record, or use trace.loss'
            raise fail("losses", f"{len(which)} losses, one a row", f"shape {tuple(values.shape)}", remedy)
        self._rows.append(which.clone() if isinstance(rows, torch.Tensor) else which)
        self._values.append(values.float() if values.dtype != torch.float32 else values.clone())
        self._pending += len(which)
        self._added += len(which)
        if self._added >= -(-self.records // self._world):
            self.end_epoch()
        elif self._pending >= MOST_PENDING:
            self._settle()

    def loss(
        self,
        criterion: Callable[..., torch.Tensor],
        outputs: torch.Tensor,
        targets: torch.Tensor,
        rows: Any,
    ) -> torch.Tensor:
        """Return `criterion(outputs, targets)`, the loss to train with, and record each record's own.

        `criterion` is one of torch's losses, or a function that returns one loss a record; their mean is returned then.
        """
        if not isinstance(criterion, CRITERIA):
            each = criterion(outputs, targets)
            self.add(rows, each)
            return each.mean()
        unreduced = copy.copy(criterion)
        unreduced.reduction = "none"
        each = unreduced(outputs, targets)
        self.add(rows, each.flatten(1).mean(1) if each.ndim > 1 else each)
        if isinstance(criterion, nn.CrossEntropyLoss | nn.NLLLoss):
            return criterion(outputs, targets)  # its mean may weigh classes and leave records out
        return {"mean": each.mean, "sum": each.sum, "none": lambda: each}[criterion.reduction]()

    def end_epoch(self) -> None:
        """Write down every record's mean loss in the epoch that ends here; do nothing where no loss was added to it."""
        if self._added == 0:
            return
        self._settle()
        with np.errstate(invalid="ignore", divide="ignore"):
            epoch = _as_stored(self._sums / self._counts)
        if self._file is None:
            self._epochs = [*self._epochs, epoch]
        else:
            self._file.seek(0, os.SEEK_END)
            self._file.write(epoch.tobytes())
            self._file.flush()
            os.fsync(self._file.fileno())
        self._sums[:], self._counts[:], self._added = 0, 0, 0

    @property
    def losses(self) -> np.ndarray:
        """The losses (epochs, records) in float16, NaN where a record did not come up; a memory map of a file."""
        if self._file is not None:
            return _rows_of(self._path, self.records)
        return np.asarray(self._epochs).reshape(-1, self.records)

    @property
    def epochs(self) -> int:
        """The number of epochs that have ended."""
        return len(self.losses)

    def __len__(self) -> int:
        return self.records

    def __repr__(self) -> str:
        return f"LossTrace(epochs={self.epochs}, records={self.records})"

    def _settle(self) -> None:
        """Add what is pending to the sums of the epoch: the only wait for the device."""
        rows, losses = (torch.cat([part.cpu() for part in parts]).numpy() for parts in (self._rows, self._values))
        self._rows, self._values, self._pending = [], [], 0
        if rows.min() < 0 or rows.max() >= self.records:
            wrong = int(rows[(rows < 0) | (rows >= self.records)][0])
            raise fail(
                "rows", f"row numbers from 0 to {self.records - 1}", str(wrong), "begin the trace with all records"
            )
        if (losses < 0).any():
            raise fail("losses", "losses of at least 0", f"{losses.min():g}", "give the losses, not log-likelihoods")
        usable = np.isfinite(losses)
        self._sums += np.bincount(rows[usable], losses[usable], self.records)
        self._counts += np.bincount(rows[usable], minlength=self.records)

    def _open(self, path: Path, rank: int, resume: int | None) -> None:
        """Begin the file, or go on with it after `resume` epochs."""
        import fcntl  # not every system has it, and a trace in memory goes without

        self._path = path if self._world == 1 else _rank_file(path, rank)
        header = {"format": FORMAT, "records": self.records, "processes": self._world, "identity": self.identity}
        if resume is None and self._path.exists():
            remedy = "choose another, or give resume=EPOCHS to go on after so many finished epochs"
            raise fail("path", "a new file", f"{self._path}, which exists", remedy)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        self._file = os.fdopen(handle, "r+b")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise fail(
                "path", "a file of its own", f"{self._path}, in use by another run", "wait for that run"
            ) from error
        if resume:
            stored = _header(self._path)
            if stored != header:
                different = next(name for name in header if stored.get(name) != header[name])
                remedy = "give the trace that this training began"
                raise fail("path", f"the same {different} as before", f"{self._path} of another training", remedy)
            if self.epochs < resume:
                got, remedy = f"{self.epochs} in {self._path}", "go on from an earlier checkpoint"
                raise fail("resume", f"at most the epochs of the trace, or {resume} of them there", got, remedy)
            self._file.truncate(HEADER_BYTES + 2 * self.records * resume)
        else:
            self._file.truncate(0)
            self._file.write(json.dumps(header).encode().ljust(HEADER_BYTES - 1) + b"\n")
            self._file.flush()

    def _read(self, path: Path) -> None:
        parts = [path]
        if not path.exists():
            parts = sorted(path.parent.glob(f"{path.name}.*-of-*"))
        if not parts:
            raise fail("trace", "the file of a trace", f"{path}, which does not exist", "check the path")
        headers = [_header(part) for part in parts]
        self.records, self.identity, self._world = headers[0]["records"], headers[0]["identity"], 1
        if headers[0]["processes"] != len(parts) or headers.count(headers[0]) != len(parts):
            expected = f"the files of all {headers[0]['processes']} processes of one training"
            raise fail("trace", expected, f"{len(parts)} beside {path}", "copy all of them, of one run")
        each = [_rows_of(part, self.records) for part in parts]
        if len(each) > 1:
            last = min(map(len, each))
            each = [np.stack([_mean([part[epoch] for part in each]) for epoch in range(last)])]
        self._epochs = each[0]


class Indexed(Dataset):
    """A data set whose items come with their row number; made by `indexed`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        item = self.dataset[row]
        if isinstance(item, dict):
            return {**item, "row": row}
        return (*item, row) if isinstance(item, tuple | list) else (item, row)


def indexed(dataset: Any) -> Indexed:
    """Return the data set with each item's row number added: last in a tuple, under "row" in a dictionary.

    Shuffle, augment, sample as you like: the row number says whose loss it is.
    """
    return Indexed(dataset)


def identity_of(records: int, *, targets: Any = None, ids: Any = None) -> dict[str, str]:
    """Return digests by which the rows of a trace are told from others: of ids, of targets."""
    digests = {}
    if ids is not None:
        digests["ids"] = array_digest(check_names("ids", ids, records, unique=True).astype(str))
    if targets is not None:
        held = as_tensor("targets", targets).cpu()
        if len(held) != records:
            raise fail(
                "targets", f"{records} targets, one a record", str(len(held)), "give those of the training records"
            )
        digests["targets"] = array_digest(held.float() if held.is_floating_point() else held.long())
    return digests


def _process() -> tuple[int, int]:
    """Return this process's rank and how many there are, as torchrun tells them."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def _rank_file(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.name}.{rank}-of-{_process()[1]}")


def _header(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream:
            header = json.loads(stream.read(HEADER_BYTES))
        if header["format"] == FORMAT and header["records"] > 0:
            return header
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise fail("trace", "a file that ga.LossTrace wrote", f"{path}, another file", "check the path")


def _rows_of(path: Path, records: int) -> np.ndarray:
    """Map the whole epochs of a file; half of one, which a kill left, does not count."""
    epochs = (path.stat().st_size - HEADER_BYTES) // (2 * records)
    if epochs < 1:
        return np.empty((0, records), np.float16)
    return np.memmap(path, np.float16, "r", offset=HEADER_BYTES, shape=(epochs, records))


def _as_stored(losses: np.ndarray) -> np.ndarray:
    return np.minimum(losses, LARGEST).astype(np.float16)


def _mean(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Average what several processes saw of one epoch, leaving out what they did not."""
    there = ~np.isnan(rows)
    total = np.where(there, rows, 0).sum(0, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        return (total / there.sum(0)).astype(np.float16)
