"""Arrays as files and as digests, a block of rows at a time: neither a memory map nor lazy rows are ever held whole."""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import torch

from giveaway.checks import ROWS_PER_CHECK, fail, rows_at_a_time

BLOCK_BYTES = 1 << 24  # of an array digested at a time


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return `tensor` as an array on the CPU; bfloat16, which NumPy does not have, as float32."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


def write_npy(stream: BinaryIO, dtype: np.dtype, shape: tuple[int, ...], blocks: Iterable[np.ndarray] = ()) -> None:
    """Write an .npy of `shape` from blocks of its rows; the header is as long for any number of rows."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    for block in blocks:
        stream.write(np.ascontiguousarray(block).data)


def write_archive(stream: BinaryIO, arrays: Mapping[str, Any]) -> None:
    """Write the .npz that numpy.savez would write, without pickle; lazy rows and tensors are written block by block."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, value in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                if is_lazy(value) or isinstance(value, torch.Tensor):
                    dtype = to_numpy(torch.empty(0, dtype=value.dtype)).dtype
                    write_npy(member, dtype, tuple(value.shape), map(to_numpy, _blocks(value)))  # type: ignore[arg-type]
                else:
                    np.lib.format.write_array(member, np.asanyarray(value), allow_pickle=False)


def read_arrays(argument: str, path: str | os.PathLike[str], writer: str) -> dict[str, np.ndarray]:
    """Read every array of the .npz that `writer` wrote to `path`; refuse another or a truncated file."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        missing = isinstance(error, FileNotFoundError)
        got = f"{path}, which does not exist" if missing else f"{path}, truncated or another file"
        raise fail(argument, f"a file written by {writer}", got, "check the path, or write it again") from error


def is_lazy(value: Any) -> bool:
    """Whether `value` is rows that are read when they are sliced (records.rows.LazyRows)."""
    return hasattr(value, "identity")


def digest_of(arrays: Mapping[str, Any], options: tuple[Any, ...] = ()) -> str:
    """SHA-256 of named tensors, arrays, lists of strings or tables (None where there is none) and of options."""
    digest = hashlib.sha256(repr(options).encode())
    for name, value in arrays.items():
        if hasattr(value, "iloc") and hasattr(value, "columns"):
            digest.update(f"{name}{value.shape}".encode())
            for place, column in enumerate(value.columns):
                _add(digest, repr(column), np.asarray(value.iloc[:, place]))
        elif value is not None:
            _add(digest, name, value)
    return digest.hexdigest()


def array_digest(value: np.ndarray | torch.Tensor) -> str:
    """SHA-256 of the shape, type and contents of one array."""
    digest = hashlib.sha256(f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}".encode())
    for block in _blocks(value):
        digest.update(_bytes_of(block))
    return digest.hexdigest()


def _add(digest: Any, name: str, value: Any) -> None:
    """Add name, shape, type and contents; of lazy rows that name their contents, that name."""
    lazy = is_lazy(value)
    if not lazy and not isinstance(value, torch.Tensor | np.ndarray | list | tuple):
        value = np.asarray(value)
    shape = (len(value),) if isinstance(value, list | tuple) else tuple(value.shape)
    digest.update(f"{name}{shape}{getattr(value, 'dtype', 'list')}".encode())
    if lazy and value.identity is not None:
        digest.update(value.identity.encode())
    else:
        for block in _blocks(value):
            digest.update(_bytes_of(block))


def _blocks(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor) and value.is_contiguous():
        value = value.view(-1)
    elif getattr(value, "ndim", 1) == 0:
        value = value.reshape(1)
    if is_lazy(value):
        rows = rows_at_a_time(value)
    elif isinstance(value, list | tuple) or value.dtype == object:
        rows = ROWS_PER_CHECK
    else:
        rows = max(1, BLOCK_BYTES * len(value) // max(1, value.nbytes))
    for start in range(0, len(value), rows):
        yield value[start : start + rows]


def _bytes_of(block: Any) -> bytes:
    if isinstance(block, torch.Tensor):
        contiguous = block.detach().cpu().contiguous()
        return contiguous.view(torch.uint8).numpy().tobytes() if contiguous.numel() else b""
    if isinstance(block, np.ndarray) and block.dtype.kind != "O":
        return np.ascontiguousarray(block).tobytes()
    cells = block.ravel().tolist() if isinstance(block, np.ndarray) else block
    return "".join(f"{type(cell).__name__}{len(text := str(cell))}:{text}" for cell in cells).encode(
        "utf-8", "surrogatepass"
    )
