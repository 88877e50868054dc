"""Rows of a head: tensors, or lazy rows that are read when they are sliced, and windows of them in memory."""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, rows_at_a_time

LARGE_BYTES = 64 * 2**20  # what lies in files is read window by window from this size on
SCATTERED = 64  # rows looked up before their pages go: the system maps what lies around each, too


class LazyRows(ABC):
    """An array of rows (n, …) that lies elsewhere; a slice or a tensor of row numbers reads them onto `device`."""

    looked_up = True  # whether rows can be read in any order
    checked_when_read = False  # whether NaN and infinity are refused in every read

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device

    @abstractmethod
    def to(self, device: torch.device | str) -> LazyRows:
        """Return the same rows, read onto `device`."""

    @abstractmethod
    def _consecutive(self, start: int, stop: int) -> torch.Tensor:
        """Read rows `start` to `stop`."""

    @abstractmethod
    def _numbered(self, numbers: torch.Tensor) -> torch.Tensor:
        """Read the rows with these numbers, in this order; `numbers` is on the CPU."""

    @property
    def ndim(self) -> int:
        """The number of axes, the rows included."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes that all rows would take in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def identity(self) -> str | None:
        """A text that names the contents, where reading all of them to tell heads apart would cost too much."""
        return None

    def is_floating_point(self) -> bool:
        """Whether the numbers are floats, as torch.Tensor.is_floating_point."""
        return self.dtype.is_floating_point

    def with_outputs(self, outputs: torch.Tensor | LazyRows, which: slice) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Read these rows and those of `outputs` at once, where one read gives both; None where it does not."""
        return None

    def whole(self) -> torch.Tensor:
        """Read all rows, in pieces, into one tensor on `device`."""
        out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        size = rows_at_a_time(self)
        for start in range(0, len(self), size):
            out[start : start + size] = self[start : start + size]
        return out

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: int | slice | torch.Tensor) -> torch.Tensor:
        if isinstance(which, slice):
            start, stop, step = which.indices(len(self))
            if step != 1:
                raise IndexError("lazy rows are read in slices of step 1")
            return self._consecutive(start, max(start, stop))
        if isinstance(which, torch.Tensor):
            numbers = which.detach().to("cpu", torch.int64)
            if which.ndim != 1 or which.dtype == torch.bool:
                raise IndexError("lazy rows are read by a vector of row numbers")
            if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
                raise IndexError(f"row numbers beyond the {len(self)} rows there are")
            return self._numbered(numbers)
        number = range(len(self))[which]
        return self._consecutive(number, number + 1)[0]

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("lazy rows are read in slices, not as one array")

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.shape} of {str(self.dtype).removeprefix('torch.')} on {self.device}"


class FileRows(LazyRows):
    """Memory maps, one below the other; pages are released once they are read, so that memory stays at a window.

    `bfloat16` says that 16-bit integers are the bits of bfloat16, which NumPy does not have; they are given as float32.
    """

    def __init__(
        self,
        argument: str,
        arrays: Sequence[np.ndarray],
        *,
        bfloat16: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.argument, self.arrays, self.bfloat16 = argument, list(arrays), bfloat16
        self._starts = np.cumsum([0, *(len(array) for array in self.arrays)])
        shape = (int(self._starts[-1]), *self.arrays[0].shape[1:])
        dtype = torch.float32 if bfloat16 else self._converted(self.arrays[0][:0]).dtype
        super().__init__(shape, dtype, torch.device(device))

    def to(self, device: torch.device | str) -> FileRows:
        """Return the same files, read onto `device`."""
        return FileRows(self.argument, self.arrays, bfloat16=self.bfloat16, device=device)

    def _consecutive(self, start: int, stop: int) -> torch.Tensor:
        blocks = []
        for array, first in zip(self.arrays, self._starts.tolist(), strict=False):
            low, high = max(start - first, 0), min(stop - first, len(array))
            if low < high:
                blocks.append(np.array(array[low:high]))
                _release(array)
        block = np.concatenate(blocks) if len(blocks) > 1 else blocks[0] if blocks else np.array(self.arrays[0][:0])
        return self._sent(block)

    def _numbered(self, numbers: torch.Tensor) -> torch.Tensor:
        wanted = numbers.numpy()
        block = np.empty((len(wanted), *self.shape[1:]), dtype=self.arrays[0].dtype)
        owner = np.searchsorted(self._starts, wanted, side="right") - 1
        for place in np.unique(owner):
            here = np.flatnonzero(owner == place)
            for some in np.array_split(here, -(-len(here) // SCATTERED)):
                block[some] = self.arrays[place][wanted[some] - self._starts[place]]
                _release(self.arrays[place])
        return self._sent(block)

    def _sent(self, block: np.ndarray) -> torch.Tensor:
        if self.bfloat16:  # widened on the device: half as much to send
            return on_device(torch.from_numpy(block).view(torch.bfloat16), self.device).to(self.dtype)
        return on_device(self._converted(block), self.device)

    def _converted(self, block: np.ndarray) -> torch.Tensor:
        tensor = as_tensor(self.argument, np.asarray(block))
        return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


class HostRows(LazyRows):
    """A tensor on the CPU, sent to another device window by window."""

    def __init__(self, tensor: torch.Tensor, device: torch.device | str) -> None:
        self.tensor = tensor
        super().__init__(tuple(tensor.shape), tensor.dtype, torch.device(device))

    def to(self, device: torch.device | str) -> HostRows:
        """Return the same tensor, sent to `device`."""
        return HostRows(self.tensor, device)

    def _consecutive(self, start: int, stop: int) -> torch.Tensor:
        return on_device(self.tensor[start:stop], self.device)

    def _numbered(self, numbers: torch.Tensor) -> torch.Tensor:
        return on_device(self.tensor[numbers], self.device)


class LinearRows(LazyRows):
    """Outputs of a linear layer, features @ weight.T + bias in float64, computed as they are read."""

    checked_when_read = True

    def __init__(
        self, features: torch.Tensor | LazyRows, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        self.features = features
        self.weight = weight.to(features.device, torch.float64)
        self.bias = None if bias is None else bias.to(features.device, torch.float64)
        self.looked_up = isinstance(features, torch.Tensor) or features.looked_up
        super().__init__((len(features), len(weight)), torch.float64, features.device)

    @property
    def identity(self) -> str:
        """A constant: the features and weights that outputs are computed from tell heads apart."""
        return "features @ weight.T + bias"

    def to(self, device: torch.device | str) -> LinearRows:
        """Return the same outputs, computed on `device`."""
        return self.over(self.features.to(device))

    def over(self, features: torch.Tensor | LazyRows) -> LinearRows:
        """Return the same layer's outputs for other features."""
        return LinearRows(features, self.weight, self.bias)

    def reads(self, features: torch.Tensor | LazyRows) -> bool:
        """Whether the outputs are computed from these very features."""
        mine = self.features
        if isinstance(mine, torch.Tensor) and isinstance(features, torch.Tensor):
            layouts = ((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in (mine, features))
            return next(layouts) == next(layouts)
        return mine is features

    def comes_from(self, features: torch.Tensor | LazyRows, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Whether the outputs are those of this layer on these very features."""
        zero = self.weight.new_zeros(len(self.weight))
        mine, other = (zero if value is None else value.to(zero) for value in (self.bias, bias))
        return self.reads(features) and torch.equal(self.weight, weight.to(zero)) and torch.equal(mine, other)

    def of(self, block: torch.Tensor, which: slice | torch.Tensor) -> torch.Tensor:
        """Compute the outputs of rows `which`, whose features are `block`; refuse numbers beyond float64."""
        outputs = torch.matmul(block.to(torch.float64), self.weight.T)
        if self.bias is not None:
            outputs += self.bias
        first = which.indices(len(self))[0] if isinstance(which, slice) else which
        check_finite("outputs", outputs, first)
        return outputs

    def _consecutive(self, start: int, stop: int) -> torch.Tensor:
        return self.of(self.features[start:stop], slice(start, stop))

    def _numbered(self, numbers: torch.Tensor) -> torch.Tensor:
        numbers = numbers.to(self.device)
        return self.of(self.features[numbers], numbers)


def on_device(block: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Send `block` to `device`; to a GPU through pinned memory, from which it is copied at the full rate of the bus."""
    if device.type == "cuda" and block.device.type == "cpu":
        return block.pin_memory().to(device, non_blocking=True)
    return block.to(device)


def map_of(array: np.ndarray) -> mmap.mmap | None:
    """Return the memory map that `array` lies in; None where it lies in memory."""
    return getattr(array, "_mmap", None)


def _release(array: np.ndarray) -> None:
    """Release the pages that were read; not of maps in other modes, which may hold changes that no file has."""
    mapped = map_of(array)
    if mapped is not None and getattr(array, "mode", "") == "r" and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)


def as_float_rows(argument: str, value: Any) -> torch.Tensor | LazyRows:
    """Return `value` as a tensor of floats that shares its memory where possible; a large memory map as lazy rows."""
    if argument == "outputs" and isinstance(value, np.ndarray | torch.Tensor) and value.ndim == 1:
        value = value.reshape(-1, 1)  # a memory map stays one
    if isinstance(value, LazyRows):
        return value
    if isinstance(value, np.memmap) and map_of(value) is not None and value.ndim and value.nbytes >= LARGE_BYTES:
        return FileRows(argument, [value])
    rows = as_tensor(argument, value)
    if argument == "outputs" and rows.ndim == 1:
        rows = rows.unsqueeze(1)
    return rows if rows.is_floating_point() else rows.to(torch.float64)


def read_together(
    features: torch.Tensor | LazyRows, outputs: torch.Tensor | LazyRows, which: slice | torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Read rows of both; a file or a stream only once."""
    if isinstance(features, LazyRows) and isinstance(which, slice):
        together = features.with_outputs(outputs, which)
        if together is not None:
            return together
    block = features[which]
    if isinstance(outputs, LinearRows) and outputs.reads(features):
        return block, outputs.of(block, which)
    return block, outputs[which]


def selected_rows(rows: torch.Tensor | LazyRows, numbers: torch.Tensor) -> torch.Tensor:
    """Read the rows with these numbers, in this order; of a stream in one pass, which ends at the last of them."""
    numbers = numbers.to(rows.device)
    if isinstance(rows, torch.Tensor) or rows.looked_up:
        return rows[numbers]
    out = torch.empty(len(numbers), *rows.shape[1:], dtype=rows.dtype, device=rows.device)
    size = rows_at_a_time(rows)
    for start in range(0, int(numbers.max()) + 1 if len(numbers) else 0, size):
        here = (numbers >= start) & (numbers < start + size)
        block = rows[start : start + size]
        out[here] = block[numbers[here] - start]
    return out


def check_numbers(argument: str, rows: torch.Tensor | LazyRows) -> None:
    """Refuse NaN and infinity in one pass, unless the rows are checked whenever they are read."""
    if not (isinstance(rows, LazyRows) and rows.checked_when_read):
        check_finite(argument, rows)


def placed(
    features: torch.Tensor | LazyRows,
    outputs: torch.Tensor | LazyRows,
    device: torch.device,
    resident: bool | None,
) -> tuple[torch.Tensor | LazyRows, torch.Tensor | LazyRows]:
    """Return both for use on `device`: held there if `resident`; if that is None, as far as half of a GPU has room."""
    room = float("inf") if resident else 0.0
    if resident is None and device.type == "cuda":
        room = torch.cuda.mem_get_info(device)[0] / 2
    moved = _placed(features, device, room)
    if isinstance(outputs, LinearRows) and outputs.reads(features):
        outputs = outputs.over(moved)
    taken = moved.nbytes if isinstance(moved, torch.Tensor) else 0
    return moved, _placed(outputs, device, room - taken)


def _placed(rows: torch.Tensor | LazyRows, device: torch.device, room: float) -> torch.Tensor | LazyRows:
    if isinstance(rows, HostRows):
        rows = rows.tensor
    if isinstance(rows, torch.Tensor):
        held = rows.device == device or device.type == "cpu" or rows.nbytes <= room
        return rows.to(device) if held else HostRows(rows.cpu(), device)
    lazy = rows if rows.device == device else rows.to(device)
    return lazy.whole() if lazy.looked_up and lazy.nbytes <= room else lazy


@dataclass(frozen=True, eq=False)
class Window:
    """Some records of a head in memory, on one device: their row numbers, features, outputs, targets and weights."""

    numbers: torch.Tensor
    features: torch.Tensor
    outputs: torch.Tensor
    targets: torch.Tensor
    sample_weight: torch.Tensor | None
    intercept: bool

    def __len__(self) -> int:
        return len(self.features)

    @property
    def width(self) -> int:
        """Columns of the design matrix: the features, and the bias column if the head has one."""
        return self.features.shape[1] + int(self.intercept)

    @property
    def weights(self) -> torch.Tensor:
        """Weights of the records in the training loss, ones where none were given."""
        if self.sample_weight is not None:
            return self.sample_weight
        return torch.ones(len(self), dtype=torch.float64, device=self.features.device)

    def part(self, which: slice) -> Window:
        """Return some of these rows; nothing is copied."""
        weight = None if self.sample_weight is None else self.sample_weight[which]
        return Window(
            self.numbers[which],
            self.features[which],
            self.outputs[which],
            self.targets[which],
            weight,
            self.intercept,
        )

    def rows(self, dtype: torch.dtype = torch.float64, columns: int | None = None) -> torch.Tensor:
        """Return rows of the design matrix, the bias column last, or zeros after it up to `columns`."""
        d = self.features.shape[1]
        out = torch.empty(len(self), columns or self.width, dtype=dtype, device=self.features.device)
        out[:, :d] = self.features
        out[:, d : self.width] = 1.0
        out[:, self.width :] = 0.0
        return out

    def columns(self) -> torch.Tensor:
        """Return the same rows in float64 as the columns of a contiguous (width, records) matrix."""
        block = self.features
        out = torch.empty(self.width, len(block), dtype=torch.float64, device=block.device)
        # converting while transposing would be slower
        out[: block.shape[1]] = block.T if block.dtype == torch.float64 else block.T.contiguous()
        out[block.shape[1] :] = 1.0
        return out

    def row_norms(self) -> torch.Tensor:
        """Return ‖x‖ of the rows of the design matrix."""
        norms = torch.linalg.vector_norm(self.features.to(torch.float64), dim=1)
        return torch.hypot(norms, torch.ones_like(norms)) if self.intercept else norms
