"""Loss traces: the loss of every record as training computed it, epoch by epoch."""

import copy
import glob
import json
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn

from giveaway.checks import as_tensor, check_whole, fail
from giveaway.records.row_digests import identity_of
from giveaway.storage.files import differences, write_atomically

HEADER_BYTES = 4096
FORMAT = "giveaway loss trace"
LARGEST = float(np.finfo(np.float16).max)
MOST_PENDING = 2**22  # rows on the device before their losses are moved to the CPU, and numbers before they are losses
MOST_KEPT = 2**18  # numbers in the outputs of a batch that are kept until there are many
ROUNDING = 1e-3  # how far below 0 the rounding of half precision may bring a loss
OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
CRITERIA = (*OF_CLASSES, nn.BCEWithLogitsLoss, nn.BCELoss, nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)

AFTERWARDS = ("checkpoints", "stages")  # whose losses training itself did not see

# what a model said of a batch: the plain criterion of its losses, outputs, targets
Outputs = tuple[Any, torch.Tensor, torch.Tensor]


class LossTrace:
    """The losses of `records` records as training computed them: one row an epoch.

    `LossTrace(50_000)` records in memory and `LossTrace(50_000, "run/losses.trace")` in a file, to which every finished
    epoch is added; `LossTrace("run/losses.trace")` reads that file. Under torchrun every process writes a file of its
    own beside it, and reading puts them together.

    records : how many records are trained on, or the file of a trace to read.
    targets, ids : in the order of the records; give one of them, so that an audit can tell whose losses these are.
        Without, the trace carries no identity.
    losses_per_epoch : after how many losses an epoch ends by itself; one a record by default. Give twice the number of
        records where each comes up in two views.
    resume : `trace.epochs` as it was when the checkpoint was saved from which training goes on. The file keeps those
        epochs and drops what came after; without it, a file that exists already is refused.
    made_of : what else must be the same when the recording goes on, by name.
    process : which of how many processes this is; by default as torchrun tells.

    An epoch ends with `end_epoch()`, or by itself as `losses_per_epoch` says. A record that comes up more than once in
    an epoch has the mean of its losses; one that does not come up, or whose loss was not finite, has NaN there. Losses
    are kept in float16, at most 65504.

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
        losses_per_epoch: int | None = None,
        resume: int | None = None,
        made_of: Mapping[str, Any] | None = None,
        process: tuple[int, int] | None = None,
    ) -> None:
        self._rows: list[torch.Tensor] = []
        self._values: list[torch.Tensor | Outputs] = []
        self._pending = self._numbers = self._added = 0
        self._file: BinaryIO | None = None
        self._epochs: list[np.ndarray] | np.ndarray = []
        self._plain: tuple[Any, Any] = (None, None)
        if isinstance(records, str | os.PathLike):
            self._read(Path(records))
            return
        self.records = check_whole("records", records, remedy="give the number of training records, or a trace's file")
        self.identity = identity_of(self.records, targets=targets, ids=ids)
        self._sums, self._counts = np.zeros(self.records), np.zeros(self.records)
        rank, self._world = process or (int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
        of_run = {"records": self.records, "processes": self._world, "identity": self.identity}
        self._header: dict[str, Any] = {"format": FORMAT, **of_run, "made_of": dict(made_of or {})}
        epoch = check_whole("losses_per_epoch", self.records if losses_per_epoch is None else losses_per_epoch)
        self._losses_per_epoch = -(-epoch // self._world)
        if path is not None:
            self._open(Path(path), rank, None if resume is None else check_whole("resume", resume, 0))
        elif self._world > 1:
            raise fail("path", "a file, where several processes train", "none", 'give one, as in "run/losses.trace"')
        elif resume is not None:
            raise fail("path", "a file beside resume", "none", "give the file that the trace was begun in")

    @classmethod
    def from_losses(
        cls, losses: Any, *, targets: Any = None, ids: Any = None, made_of: Mapping[str, Any] | None = None
    ) -> "LossTrace":
        """Make a trace of losses (epochs, records) that were recorded some other way; NaN where there is none."""
        held = as_tensor("losses", losses).cpu().numpy()
        if held.ndim != 2 or 0 in held.shape or held.dtype.kind != "f":
            got = f"{held.dtype} of shape {held.shape}"
            raise fail("losses", "floating-point numbers (epochs, records)", got, "give one row an epoch")
        trace = cls(held.shape[1], targets=targets, ids=ids, made_of=made_of)
        trace._epochs = _as_stored(np.where(np.isposinf(held), np.nan, held))
        return trace

    def add(self, rows: Any, losses: Any) -> None:
        """Record the losses (b,) of the records with these row numbers (b,), as training just computed them.

        Nothing waits for the GPU: losses stay on their device until the epoch ends. A captured CUDA graph would
        replay it without this; call it after the replay.
        """
        which, values = self._checked(rows), as_tensor("losses", losses)
        if values.shape != which.shape:
            remedy = 'compute them with reduction="none", one number a record, or use trace.loss'
            raise fail("losses", f"{len(which)} losses, one a row", f"shape {tuple(values.shape)}", remedy)
        self._append(which, values.clone() if values.dtype == torch.float32 else values.float())

    def loss(
        self, criterion: Callable[..., torch.Tensor], outputs: torch.Tensor, targets: torch.Tensor, rows: Any
    ) -> torch.Tensor:
        """Return `criterion(outputs, targets)`, the loss to train with, and record each record's own.

        `criterion` is one of torch's losses, or a function that returns one loss a record; their mean is returned then.
        Of torch's losses, what is recorded leaves out class weights and label smoothing, which say how training counts
        a record, not what the model says of it, and what `ignore_index` leaves out.
        """
        if type(criterion) not in CRITERIA:  # and is not kept, as it may be a method of the model
            each = criterion(outputs, targets)
            self.add(rows, each)
            return each.mean()
        if self._plain[0] is not criterion:
            plain: Any = copy.copy(criterion)  # with one value a record or output, without weights and smoothing
            plain._buffers = dict.fromkeys(plain._buffers)
            plain.reduction, plain.label_smoothing = "none", 0.0
            self._plain = (criterion, plain)
        which = self._checked(rows)
        if outputs.shape[0] != which.shape[0]:
            raise fail("rows", f"{len(outputs)} row numbers, one an output", str(len(which)), "give those of the batch")
        said, size = outputs.detach(), outputs.numel()
        if size > MOST_KEPT:
            self._append(which, _computed([(self._plain[1], said, targets)])[0])
        else:  # computing the losses of many batches at once costs much less
            self._append(which, (self._plain[1], said.clone(), targets.clone()), size)
        return criterion(outputs, targets)  # training is the same to the last bit

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

    def unfinished(self) -> dict[str, Any]:
        """Return what a checkpoint within an epoch must hold: the epochs that have ended, and the losses since."""
        self._settle()
        return {"epochs": self.epochs, "sums": self._sums.copy(), "counts": self._counts.copy(), "added": self._added}

    def go_on(self, unfinished: Mapping[str, Any]) -> None:
        """Take up an epoch where `unfinished` left it; the trace was begun with resume=unfinished["epochs"]."""
        self._sums[:], self._counts[:], self._added = unfinished["sums"], unfinished["counts"], int(unfinished["added"])

    @property
    def losses(self) -> np.ndarray:
        """The losses (epochs, records) in float16, NaN where a record did not come up; a memory map of a file."""
        if self._file is not None:
            return _rows_of(self._path, self.records)
        held = self._epochs
        return held if isinstance(held, np.ndarray) else np.asarray(held, np.float16).reshape(-1, self.records)

    @property
    def epochs(self) -> int:
        """The number of epochs that have ended."""
        return len(self._epochs if self._file is None else self.losses)

    @property
    def steps(self) -> str:
        """What a row is of: "epochs" of the training, or "checkpoints" or "stages" of the model that were asked."""
        return next((name for name in AFTERWARDS if name in self._header["made_of"]), "epochs")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the epochs that have ended to a file that `LossTrace(path)` and `giveaway audit --trace` read."""
        header = _header_bytes(self._header | {"processes": 1})
        write_atomically(path, lambda stream: stream.writelines((header, np.ascontiguousarray(self.losses).data)))

    def renamed(self, ids: Any, names: Any) -> "LossTrace":
        """Return the trace with `names` for its records, where their ids are these; else the trace as it is."""
        if "ids" not in self.identity or self.identity["ids"] != identity_of(len(ids), ids=ids)["ids"]:
            return self
        trace = copy.copy(self)
        trace.identity = self.identity | identity_of(len(names), ids=names)
        trace._header = self._header | {"identity": trace.identity}
        return trace

    def close(self) -> None:
        """Let go of the file; what was written can still be read."""
        if self._file is not None:
            self._epochs = self.losses
            self._file.close()
            self._file = None

    def __len__(self) -> int:
        return self.records

    def __repr__(self) -> str:
        return f"LossTrace(epochs={self.epochs}, records={self.records})"

    def _checked(self, rows: Any) -> torch.Tensor:
        if self._file is None and not isinstance(self._epochs, list):
            got, remedy = "one that was read", "begin it with the number of records"
            raise fail("trace", "one that is being recorded", got, remedy)
        which = rows if isinstance(rows, torch.Tensor) else as_tensor("rows", rows)
        if which.ndim != 1 or which.dtype not in (torch.int64, torch.int32):
            got = f"{str(which.dtype).removeprefix('torch.')} of shape {tuple(which.shape)}"
            raise fail("rows", "row numbers (b,)", got, "give each record's place in the data set (ga.indexed adds it)")
        return which

    def _append(self, rows: torch.Tensor, values: torch.Tensor | Outputs, numbers: int = 0) -> None:
        self._rows.append(rows.clone())
        self._values.append(values)
        self._pending += rows.shape[0]
        self._added += rows.shape[0]
        self._numbers += numbers
        if self._added >= self._losses_per_epoch:
            self.end_epoch()
        elif self._pending >= MOST_PENDING:
            self._settle()
        elif self._numbers >= MOST_PENDING:
            self._values, self._numbers = [*_computed(self._values)], 0  # on the device: nothing waits

    def _settle(self) -> None:
        """Add what is pending to the sums of the epoch: the only wait for the device."""
        if not self._rows:
            return
        rows, losses = _joined(self._rows), _joined(_computed(self._values))
        self._rows, self._values, self._pending, self._numbers = [], [], 0, 0
        if rows.min() < 0 or rows.max() >= self.records:
            wrong = int(rows[(rows < 0) | (rows >= self.records)][0])
            expected, remedy = f"row numbers from 0 to {self.records - 1}", "begin the trace with all records"
            raise fail("rows", expected, str(wrong), remedy)
        usable = np.isfinite(losses)
        self._sums += np.bincount(rows[usable], _not_negative(losses[usable]), self.records)
        self._counts += np.bincount(rows[usable], minlength=self.records)

    def _open(self, path: Path, rank: int, resume: int | None) -> None:
        self._path = path if self._world == 1 else path.with_name(f"{path.name}.{rank}-of-{self._world}")
        exists = self._path.exists()
        if exists and resume is None:
            remedy = "choose another, or give resume=EPOCHS to go on after so many finished epochs"
            raise fail("path", "a new file", f"{self._path}, which exists", remedy)
        if resume and not exists:
            got = f"{self._path}, which does not exist"
            raise fail("path", "the trace that this training began", got, "check the path, or begin again")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        # a loader's workers outlive a killed training, and would hold its lock
        held = weakref.ref(self._file)
        os.register_at_fork(after_in_child=lambda: None if (file := held()) is None else file.close())
        try:
            self._claim(self._file, resume, begun=exists)
        except BaseException:
            self._file.close()
            raise

    def _claim(self, file: BinaryIO, resume: int | None, *, begun: bool) -> None:
        """Lock the file, see that it is this training's, and cut it after `resume` epochs."""
        import fcntl  # not every system has it, and a trace in memory goes without

        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            got, remedy = f"{self._path}, in use by another run", "wait for that run, or call close() of its trace"
            raise fail("path", "a file of its own", got, remedy) from error
        if begun and (resume or self._path.stat().st_size):
            now, words = json.loads(json.dumps(self._header)), {"ids": "ids differ", "targets": "targets differ"}
            if different := differences(_header(self._path), now, words):
                raise fail("path", "the trace that this training began", "; ".join(different), "choose another file")
        if not resume:
            file.truncate(0)
            file.write(_header_bytes(self._header))
            file.flush()
        elif self.epochs < resume:
            got, remedy = f"{self.epochs} in {self._path}", "go on from an earlier checkpoint"
            raise fail("resume", f"at most the epochs of the trace, or {resume} of them there", got, remedy)
        else:
            file.truncate(HEADER_BYTES + 2 * self.records * resume)

    def _read(self, path: Path) -> None:
        parts = [path] if path.exists() else sorted(path.parent.glob(f"{glob.escape(path.name)}.*-of-*"))
        if not parts:
            raise fail("trace", "the file of a trace", f"{path}, which does not exist", "check the path")
        self._header, *others = (_header(part) for part in parts)
        self.records, self.identity, self._world = self._header["records"], self._header["identity"], 1
        if self._header["processes"] != len(parts) or any(other != self._header for other in others):
            expected = f"the files of all {self._header['processes']} processes of one training"
            raise fail("trace", expected, f"{len(parts)} beside {path}", "copy all of them, of one run")
        each = [_rows_of(part, self.records) for part in parts]
        self._epochs = each[0]
        if len(each) > 1:  # the mean over the processes that saw a record in an epoch
            with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # NaN where none did
                means = [np.nanmean(rows, 0, dtype=np.float32) for rows in zip(*each, strict=False)]
            self._epochs = np.asarray(means, np.float16).reshape(-1, self.records)


@torch.no_grad()
def _computed(batches: Iterable[torch.Tensor | Outputs]) -> list[torch.Tensor]:
    """Return losses in the order of the batches; those of outputs are computed, alike ones together."""
    found: list[Any] = []

    def kind_of(batch: torch.Tensor | Outputs) -> tuple[Any, ...]:
        if isinstance(batch, torch.Tensor):
            return ()
        return (id(batch[0]), *((tensor.shape[1:], tensor.dtype, tensor.device) for tensor in batch[1:]))

    for kind, alike in groupby(batches, kind_of):
        if not kind:
            found += alike
            continue
        criteria, several, wanted = zip(*alike, strict=True)
        criterion, outputs, targets = criteria[0], torch.cat(several).float(), torch.cat(wanted).detach()
        soft = targets.is_floating_point()
        each = criterion(outputs, targets.float() if soft else targets)
        if type(criterion) in OF_CLASSES and not soft:  # NaN where all labels of a record are ignored
            counted = targets != criterion.ignore_index
            found.append(each / counted if each.ndim == 1 else each.flatten(1).sum(1) / counted.flatten(1).sum(1))
        else:
            found.append(each if each.ndim == 1 else each.flatten(1).mean(1))
    return found


def _joined(parts: Sequence[torch.Tensor]) -> np.ndarray:
    one = len({part.device for part in parts}) == 1  # then there is one copy to wait for
    return torch.cat(list(parts) if one else [part.cpu() for part in parts]).cpu().numpy()


def _not_negative(losses: np.ndarray) -> np.ndarray:
    if (lowest := losses.min(initial=0.0, where=~np.isnan(losses))) < -ROUNDING:
        raise fail("losses", "losses of at least 0", f"{lowest:g}", "give the losses, not log-likelihoods")
    return np.maximum(losses, 0)


def _as_stored(losses: np.ndarray) -> np.ndarray:
    return np.minimum(_not_negative(losses), LARGEST).astype(np.float16)


def _header_bytes(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header).encode()
    if len(text) >= HEADER_BYTES:
        raise fail("made_of", f"less than {HEADER_BYTES} bytes", str(len(text)), "give digests")
    return text.ljust(HEADER_BYTES - 1) + b"\n"


def _header(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, KeyError, TypeError), open(path, "rb") as stream:
        header = json.loads(stream.read(HEADER_BYTES))
        if header["format"] == FORMAT and header["records"] > 0:
            return header
    raise fail("trace", "a file that ga.LossTrace wrote", f"{path}, another file", "check the path")


def _rows_of(path: Path, records: int) -> np.ndarray:
    """Map the whole epochs of a file; half of one, which a kill left, does not count."""
    if (epochs := (path.stat().st_size - HEADER_BYTES) // (2 * records)) < 1:
        return np.empty((0, records), np.float16)
    return np.memmap(path, np.float16, "r", offset=HEADER_BYTES, shape=(epochs, records))
