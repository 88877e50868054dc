"""An .npz written array by array, lazy rows in pieces: numpy.savez would hold each array as a whole."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import BinaryIO

import numpy as np

from giveaway.checks import rows_at_a_time
from giveaway.records.inputs import to_numpy
from giveaway.records.lazy_rows import LazyRows


def write_archive(stream: BinaryIO, arrays: Mapping[str, np.ndarray | LazyRows]) -> None:
    """What numpy.savez would write of the same arrays; no pickle."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, value in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                if isinstance(value, LazyRows):
                    _write_pieces(member, value)  # type: ignore[arg-type]
                else:
                    np.lib.format.write_array(member, np.asanyarray(value), allow_pickle=False)


def _write_pieces(member: BinaryIO, rows: LazyRows) -> None:
    size = rows_at_a_time(rows)
    for start in range(0, len(rows), size):
        block = to_numpy(rows[start : start + size])
        if start == 0:
            write_header(member, block.dtype, rows.shape)
        member.write(np.ascontiguousarray(block).data)


def write_header(stream: BinaryIO, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    """The header of an .npy, of the same length for any number of rows."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
