"""Features and outputs of a head as rows: what is held, what is read lazily, and how both are read together."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, check_finite, rows_at_a_time
from giveaway.records.lazy_rows import FileRows, HostRows, LazyRows, LinearRows, map_of
from giveaway.records.streamed_rows import StreamedRows

LARGE_BYTES = 64 * 2**20  # what lies in files is read window by window from this size on


def as_float_rows(argument: str, value: Any) -> torch.Tensor | LazyRows:
    """`value` as a tensor of floats that shares its memory where possible; a large memory map as lazy rows."""
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
    """Rows of both, reading a file or a stream once."""
    if isinstance(features, StreamedRows) and isinstance(outputs, StreamedRows) and isinstance(which, slice):
        return features.with_outputs(outputs, which)
    block = features[which]
    if isinstance(outputs, LinearRows) and outputs.reads(features):
        return block, outputs.of(block, which)
    return block, outputs[which]


def gathered(rows: torch.Tensor | LazyRows, numbers: torch.Tensor) -> torch.Tensor:
    """The rows with these numbers, in this order; of a stream by one pass, which ends at the last of them."""
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
    if not isinstance(rows, LinearRows | StreamedRows):
        check_finite(argument, rows)


def placed(
    features: torch.Tensor | LazyRows,
    outputs: torch.Tensor | LazyRows,
    device: torch.device,
    resident: bool | None,
) -> tuple[torch.Tensor | LazyRows, torch.Tensor | LazyRows]:
    """Both for use on `device`: held there if `resident` or, if that is None, as far as half of a GPU has room."""
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
