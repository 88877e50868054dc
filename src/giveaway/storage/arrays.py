"""Arrays as files and as digests, a block of rows at a time: neither a memory map nor lazy rows are ever held whole."""

import hashlib
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from giveaway.checks import ROWS_PER_CHECK, InputError, check_memory, fail, rows_at_a_time

BLOCK_BYTES = 1 << 24  # of an array digested at a time
PICKLED = ("Object arrays", "Python objects in dtype")  # how NumPy begins to refuse them
PLAIN = "save plain numbers and strings (no object arrays) with numpy.savez"


@contextmanager
def reading(argument: str, path: str | os.PathLike[str], kind: str, plain: str = PLAIN) -> Iterator[Path]:
    """Read `path` inside; turn any failure to read it as `kind` into an InputError about `argument`."""
    file = Path(path)
    try:
        if not file.is_file():
            raise fail(argument, "a file that exists", str(file), "check the path")
        yield file
    except (InputError, MemoryError):
        raise
    except PermissionError as error:
        raise fail(argument, "a file that can be read", str(file), "check its permissions") from error
    except (ImportError, AttributeError) as error:
        got = f"{file.name}, which needs {getattr(error, 'name', None) or 'code that is not here'}"
        remedy = "run from the folder that holds that code, or install it"
        raise fail(argument, "a file whose code can be imported", got, remedy) from error
    except Exception as error:  # damaged zips, pickles and JSON fail with nearly every exception there is
        if isinstance(error, ValueError) and any(words in str(error) for words in PICKLED):
            raise fail(argument, "arrays that need no pickle", f"{file.name}, which needs it", plain) from error
        got = f"{file.name}, truncated or not of that format"
        raise fail(argument, f"a whole {kind}", got, "write the file again") from error


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
    with reading(argument, path, f"file written by {writer}") as file, np.load(file, allow_pickle=False) as stored:
        return {name: read_member(stored, name) for name in stored.files}


def read_member(stored: Any, name: str) -> np.ndarray:
    """Read one array of an open .npz; refuse one of other bytes than its header says, or of more than there is room."""
    info = next(info for info in stored.zip.infolist() if info.filename in (name, f"{name}.npy"))
    with stored.zip.open(info) as stream:
        dtype, shape, _, _ = npy_header(stream, info.file_size)
    size = math.prod(shape) * dtype.itemsize
    check_memory(name, size, what="an array", got=f"shape {shape}", remedy="store it as .npy, which is mapped")
    return stored[name]


def npy_header(stream: Any, end: int | None = None) -> tuple[np.dtype, tuple[int, ...], Any, int]:
    """Return type, shape, order and where the numbers begin; refuse pickled objects, and numbers that do not end at
    `end`, where that is given."""
    if (version := np.lib.format.read_magic(stream)) not in ((1, 0), (2, 0)):
        raise ValueError("another version")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError(f"{PICKLED[0]} are not read")
    begin = stream.tell()
    if min(shape, default=0) < 0 or end not in (None, begin + math.prod(shape) * dtype.itemsize):
        raise ValueError("an array that ends elsewhere")
    return dtype, shape, "F" if fortran else "C", begin


def packed(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays to be stored, text as UTF-8 and where each one ends: NumPy makes all as wide as the longest."""
    stored = {name: values for name, values in arrays.items() if values.dtype.kind != "U" or not values.ndim}
    for name in arrays.keys() - stored.keys():
        encoded = [text.encode("utf-8", "surrogatepass") for text in arrays[name].tolist()]
        stored[f"text:{name}"] = np.frombuffer(b"".join(encoded), np.uint8)
        stored[f"ends:{name}"] = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    return stored


def unpacked(stored: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    arrays = {name: values for name, values in stored.items() if not name.startswith(("text:", "ends:"))}
    for name in (name.removeprefix("text:") for name in stored if name.startswith("text:")):
        text, ends = stored[f"text:{name}"].tobytes(), stored[f"ends:{name}"]
        pairs = zip([0, *ends.tolist()], ends.tolist(), strict=False)
        texts = [text[start:end].decode("utf-8", "surrogatepass") for start, end in pairs]
        needed = 4 * len(texts) * max(map(len, texts), default=0)
        check_memory(name, needed, what="names", got=f"{len(texts)}", remedy="make the longest shorter")
        arrays[name] = np.array(texts, dtype=str)
    return arrays


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
    text = "".join(f"{type(cell).__name__}{len(shown := str(cell))}:{shown}" for cell in cells)
    return text.encode("utf-8", "surrogatepass")
