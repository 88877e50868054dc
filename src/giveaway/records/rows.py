"""Rows of a head: tensors, or lazy rows that lie in files or on another device until they are sliced."""

import copy
import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, check_shape, fail, rows_at_a_time

LARGE_BYTES = 64 * 2**20  # what lies in files is read window by window from this size on
BFLOAT16 = np.dtype([("bfloat16", "<i2")])  # NumPy has no such numbers: their bits
SCATTERED = 64  # rows looked up before their pages go: the system maps what lies around each, too
Pair = tuple[torch.Tensor, torch.Tensor]


class LazyRows(ABC):
    """An array of rows (n, …) that lies elsewhere; a slice or a tensor of row numbers reads them onto `device`."""

    checked_when_read = False  # whether NaN and infinity are refused in every read
    identity: str | None = None  # names the contents, where reading all of them to tell heads apart would cost too much

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> None:
        self.shape, self.ndim, self.dtype, self.device = shape, len(shape), dtype, torch.device(device)

    @abstractmethod
    def _read(self, which: slice | torch.Tensor) -> torch.Tensor:
        """Read consecutive rows, or those with these numbers, which are on the CPU, in this order."""

    def to(self, device: torch.device | str) -> Self:
        other = copy.copy(self)
        other.device = torch.device(device)
        return other

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def whole(self) -> torch.Tensor:
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
            return self._read(slice(start, max(start, stop)))
        if isinstance(which, torch.Tensor):
            numbers = which.detach().to("cpu", torch.int64)
            if which.ndim != 1 or which.dtype == torch.bool:
                raise IndexError("lazy rows are read by a vector of row numbers")
            if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
                raise IndexError(f"row numbers beyond the {len(self)} rows there are")
            return self._read(numbers)
        number = range(len(self))[which]
        return self._read(slice(number, number + 1))[0]

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("lazy rows are read in slices, not as one array")

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.shape} of {str(self.dtype).removeprefix('torch.')} on {self.device}"


Rows: TypeAlias = torch.Tensor | LazyRows


class FileRows(LazyRows):
    """Memory maps, one below the other, whose pages are released once they are read; BFLOAT16 comes as float32."""

    def __init__(self, argument: str, arrays: Sequence[np.ndarray]) -> None:
        self.argument, self.arrays = argument, list(arrays)
        self._starts = np.cumsum([0, *(len(array) for array in self.arrays)])
        shape = (int(self._starts[-1]), *self.arrays[0].shape[1:])
        super().__init__(shape, self._sent(np.array(self.arrays[0][:0]), "cpu").dtype, "cpu")

    def _read(self, which: slice | torch.Tensor) -> torch.Tensor:
        if isinstance(which, slice):
            blocks = [np.array(self.arrays[0][:0])]
            for array, first in zip(self.arrays, self._starts.tolist(), strict=False):
                low, high = max(which.start - first, 0), min(which.stop - first, len(array))
                if low < high:
                    blocks.append(np.array(array[low:high]))
                    _release(array)
            return self._sent(blocks[-1] if len(blocks) <= 2 else np.concatenate(blocks), self.device)
        wanted = which.numpy()
        block = np.empty((len(wanted), *self.shape[1:]), dtype=self.arrays[0].dtype)
        owner = np.searchsorted(self._starts, wanted, side="right") - 1
        for place in np.unique(owner):
            here = np.flatnonzero(owner == place)
            for some in np.array_split(here, -(-len(here) // SCATTERED)):
                block[some] = self.arrays[place][wanted[some] - self._starts[place]]
                _release(self.arrays[place])
        return self._sent(block, self.device)

    def _sent(self, block: np.ndarray, device: Any) -> torch.Tensor:
        if block.dtype == BFLOAT16:  # widened on the device: half as much to send
            return _on_device(_bfloat16(block), torch.device(device)).float()
        return _on_device(_as_floats(self.argument, block), torch.device(device))


class HostRows(LazyRows):
    """A tensor on the CPU, sent to another device window by window."""

    def __init__(self, tensor: torch.Tensor, device: torch.device | str) -> None:
        self.tensor = tensor
        super().__init__(tuple(tensor.shape), tensor.dtype, device)

    def _read(self, which: slice | torch.Tensor) -> torch.Tensor:
        return _on_device(self.tensor[which], self.device)


class LinearRows(LazyRows):
    """Outputs of a linear layer, features @ weight.T + bias in float64, computed as they are read."""

    checked_when_read = True
    identity = "features @ weight.T + bias"  # which are digested themselves, and tell heads apart

    def __init__(self, features: Rows, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.features = features
        self.weight = weight.to(features.device, torch.float64)
        self.bias = None if bias is None else bias.to(features.device, torch.float64)
        super().__init__((len(features), len(weight)), torch.float64, features.device)

    def to(self, device: torch.device | str) -> "LinearRows":
        return self.over(self.features.to(device))

    def over(self, features: Rows) -> "LinearRows":
        return LinearRows(features, self.weight, self.bias)

    def reads(self, features: Rows) -> bool:
        """Whether the outputs are computed from these very features."""
        mine = self.features
        if isinstance(mine, torch.Tensor) and isinstance(features, torch.Tensor):
            layouts = ((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in (mine, features))
            return next(layouts) == next(layouts)
        return mine is features

    def comes_from(self, features: Rows, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Whether the outputs are those of this layer on these very features."""
        zero = self.weight.new_zeros(len(self.weight))
        mine, other = (zero if value is None else value.to(zero) for value in (self.bias, bias))
        return self.reads(features) and torch.equal(self.weight, weight.to(zero)) and torch.equal(mine, other)

    def of(self, block: torch.Tensor, which: slice | torch.Tensor) -> torch.Tensor:
        """Compute the outputs of rows `which`, whose features are `block`; refuse numbers beyond float64."""
        outputs = torch.matmul(block.to(torch.float64), self.weight.T)
        if self.bias is not None:
            outputs += self.bias
        check_finite("outputs", outputs, which.indices(len(self))[0] if isinstance(which, slice) else which)
        return outputs

    def _read(self, which: slice | torch.Tensor) -> torch.Tensor:
        return self.of(self.features[which if isinstance(which, slice) else which.to(self.device)], which)


def linear_outputs(features: Rows, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | LinearRows:
    """Return features @ weight.T + bias in float64, (n, m); large outputs are computed only as they are read."""
    check_shape("features", features, (None, None), "(records, features)")
    check_shape("weight", weight, (None, features.shape[1]), f"(outputs, {features.shape[1]}), a column a feature")
    if bias is not None:
        check_shape("bias", bias, (len(weight),), f"({len(weight)},), one number an output")
    lazy, size = LinearRows(features, weight, bias), rows_at_a_time(features)
    if lazy.nbytes >= LARGE_BYTES:
        return lazy
    blocks = (features[start : start + size].to(torch.float64) for start in range(0, len(features), size))
    outputs = torch.cat([block @ weight.to(torch.float64).T for block in blocks])
    return outputs if bias is None else outputs.add_(bias.to(torch.float64))


def _on_device(block: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Send `block` to `device`; to a GPU through pinned memory, from which it is copied at the full rate of the bus."""
    if device.type == "cuda" and block.device.type == "cpu":
        return block.pin_memory().to(device, non_blocking=True)
    return block.to(device)


def _release(array: np.ndarray) -> None:
    """Release the pages that were read; not of maps in other modes, which may hold changes that no file has."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and getattr(array, "mode", "") == "r" and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)


def as_float_rows(argument: str, value: Any) -> Rows:
    """Return `value` as a tensor of floats that shares its memory where possible; a large memory map as lazy rows."""
    if isinstance(value, LazyRows):
        return value
    rows: Any = value if isinstance(value, torch.Tensor) else np.asanyarray(value)
    if argument != "features" and rows.ndim == 1:
        rows = rows.reshape(-1, 1)  # a memory map stays one
    # what is computed from a map is of its type, but lies in memory
    if getattr(rows, "_mmap", None) is not None and rows.ndim and rows.nbytes >= LARGE_BYTES:
        return FileRows(argument, [rows])
    return _as_floats(argument, rows)


def _as_floats(argument: str, rows: Any) -> torch.Tensor:
    tensor = as_tensor(argument, rows)
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


def widened(array: np.ndarray) -> np.ndarray:
    """Return BFLOAT16 as float32, and other arrays as they are."""
    return array if array.dtype != BFLOAT16 else _bfloat16(np.array(array)).float().numpy()


def _bfloat16(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.view("<i2")).view(torch.bfloat16)


def placed(rows: Rows, device: torch.device, room: float) -> Rows:
    """Return `rows` for use on `device`: held there if they take at most `room` bytes, else read window by window."""
    if isinstance(rows, HostRows):
        rows = rows.tensor
    if isinstance(rows, torch.Tensor):
        held = rows.device == device or device.type == "cpu" or rows.nbytes <= room
        return rows.to(device) if held else HostRows(rows.cpu(), device)
    lazy = rows if rows.device == device else rows.to(device)
    return lazy.whole() if lazy.nbytes <= room else lazy


def check_same_kind(name: str, block: Any, first: Any) -> None:
    if (kind := row_kind(block)) != (known := row_kind(first)):
        raise fail(name, f"rows of {known} in every batch", f"rows of {kind}", "make all records alike")


def row_kind(block: Any) -> str:
    if isinstance(block, list):
        return "strings"
    return f"shape {tuple(block.shape[1:])} and type {str(block.dtype).removeprefix('torch.')}"
