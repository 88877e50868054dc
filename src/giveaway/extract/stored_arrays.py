"""Arrays in .npy, .npz and .safetensors files and in folders of them; the large ones are mapped where they lie."""

from __future__ import annotations

import json
import math
import zipfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.checks import as_tensor, fail
from giveaway.extract.user_files import reading
from giveaway.records.rows import LARGE_BYTES, FileRows, LazyRows

NO_PICKLE = "Object arrays"  # how NumPy begins to refuse them
COMPRESSED = "{} compressed, so read whole: numpy.savez would leave them on disk"
SAFETENSORS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<i2", "BOOL": "?", "U8": "u1", "I8": "i1",
    "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8", "U64": "<u8",
}  # fmt: skip
ROWS = ("features", "outputs", "targets", "sample_weight", "ids", "groups")
ONCE = ("weight", "bias", "l2")
KINDS = (".npy", ".npz", ".safetensors")
HEAD = "head"  # the name of the file that may hold weight, bias and l2 beside the shards

Wanted = Callable[[str], bool]
FolderArrays = tuple[dict[str, Any], list[str], list[str]]  # arrays, names of others, and notes


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array of a file, mapped or read; bfloat16 as its bits, which is all that NumPy can hold of it."""

    array: np.ndarray
    bfloat16: bool = False
    compressed: bool = False

    def value(self) -> np.ndarray | torch.Tensor:
        """As it is stored; bfloat16 in float32."""
        if not self.bfloat16:
            return self.array
        return torch.from_numpy(np.array(self.array)).view(torch.bfloat16).to(torch.float32)

    def rows(self, name: str) -> np.ndarray | torch.Tensor | LazyRows:
        """As a head takes it: lazily where it is large and mapped."""
        large = self.bfloat16 and isinstance(self.array, np.memmap) and self.array.nbytes >= LARGE_BYTES
        return FileRows(name, [self.array], bfloat16=True) if large else self.value()


def read_stored(argument: str, path: Path, wanted: Wanted, large: int) -> tuple[dict[str, StoredArray], list[str]]:
    """The wanted arrays of a file, mapped from `large` bytes on, and the names of the others, which are not read."""
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors}
    with reading(argument, path, f"{path.suffix} file") as file:
        try:
            return readers[path.suffix](file, wanted, large)
        except ValueError as error:
            if NO_PICKLE not in str(error):
                raise
            raise pickled(argument, file) from error


def read_npy(argument: str, path: Path, *, mapped: bool) -> StoredArray:
    """The array of an .npy file."""
    with reading(argument, path, ".npy file") as file:
        try:
            with file.open("rb") as stream:
                dtype, shape, order, offset = _npy_header(stream)
            if mapped and _count(shape):
                return StoredArray(_mapped(file, dtype, shape, order, offset))
            return StoredArray(np.load(file, allow_pickle=False))
        except ValueError as error:
            if NO_PICKLE not in str(error):
                raise
            raise pickled(argument, file) from error


def pickled(argument: str, file: Path) -> Exception:
    """The refusal of a file whose arrays are Python objects."""
    remedy = "save plain numbers and strings (no object arrays) with numpy.savez"
    return fail(argument, "arrays that need no pickle", f"{file.name}, which needs it", remedy)


def read_folder(folder: Path) -> FolderArrays:
    """The known arrays of a folder, the names of others, and notes."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.suffix in KINDS)
    kinds = sorted({file.suffix for file in files if file.stem != HEAD} or {file.suffix for file in files})
    if not files:
        remedy = "save shards there, or features.npy, targets.npy, weight.npy and bias.npy"
        raise fail(
            "file", f"a folder with {', '.join(KINDS[:2])} or {KINDS[2]} files", f"none in {folder.name}", remedy
        )
    if len(kinds) > 1:
        got = f"{' and '.join(kinds)} in {folder.name}"
        raise fail("file", "files of one kind in the folder", got, "keep one kind there, and move the others away")
    return _read_npy_files(files) if kinds == [".npy"] else _read_shards(files)


def stacked(name: str, parts: list[StoredArray]) -> Any:
    """Rows of several files, one below the other: lazily where they are large, else in memory."""
    if name not in ("features", "outputs"):
        return np.concatenate([np.asarray(part.value()) for part in parts])
    arrays = [part.array.reshape(-1, 1) if part.array.ndim == 1 and name == "outputs" else part.array for part in parts]
    as_tensor(name, arrays[0][:0])  # refuses what is not numbers
    rows = FileRows(name, arrays, bfloat16=parts[0].bfloat16)
    return rows if rows.nbytes >= LARGE_BYTES else rows.whole()


def _read_npy_files(files: list[Path]) -> FolderArrays:
    """features.npy, or features-*.npy in name order, and so on; inputs.npy in one piece, mapped."""
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for file in files:
        places[file.stem.split("-", 1)[0]].append(file)
    stored: dict[str, Any] = {}
    for name in [name for name in places if name in (*ROWS, *ONCE, "inputs")]:
        found = places.pop(name)
        if len(found) > 1 and (name not in ROWS or any(file.stem == name for file in found)):
            got = " and ".join(file.name for file in found[:2])
            raise fail(name, f"{name}.npy" + (f" or {name}-*.npy" if name in ROWS else ""), got, "keep one of them")
        parts = [read_npy("file", file, mapped=name in (*ROWS[:2], "inputs")) for file in found]
        _check_alike(name, parts, found)
        stored[name] = stacked(name, parts) if name in ROWS else parts[0].value()
    return stored, sorted(places), []


def _read_shards(files: list[Path]) -> FolderArrays:
    shards: list[tuple[Path, dict[str, StoredArray]]] = []
    once: dict[str, tuple[Path, StoredArray]] = {}
    ignored: set[str] = set()
    for file in files:
        found, others = read_stored("file", file, lambda name: name in ROWS + ONCE, large=0)
        ignored |= set(others)
        for name in [name for name in found if name in ONCE]:
            if name in once:
                got = f"one in {once[name][0].name} and one in {file.name}"
                raise fail(name, f"one {name} for all shards", got, f"keep it in one of them, or in {HEAD}.npz")
            once[name] = (file, found.pop(name))
        if found:
            shards.append((file, found))
    stored: dict[str, Any] = {name: part.value() for name, (_, part) in once.items()}
    notes = []
    for name in ROWS:
        having = [(file, found[name]) for file, found in shards if name in found]
        if not having:
            continue
        if len(having) < len(shards):
            lacking = next(file.name for file, found in shards if name not in found)
            raise fail(name, "the same arrays in every shard", f"no {name} in {lacking}", "write it there as well")
        _check_alike(name, [part for _, part in having], [file for file, _ in having])
        for (file, part), (_, found) in zip(having, shards, strict=True):
            beside = next(other for other in ROWS if other in found)
            if len(part.array) != len(found[beside].array):
                expected = f"{len(found[beside].array)} rows in {file.name}, as of {beside}"
                raise fail(name, expected, f"{len(part.array)} rows", "write one row a record in every array")
        size = sum(part.array.nbytes for _, part in having)
        if name in ROWS[:2] and size >= LARGE_BYTES and any(part.compressed for _, part in having):
            notes.append(COMPRESSED.format(name))
        stored[name] = stacked(name, [part for _, part in having])
    return stored, sorted(ignored), notes


def _check_alike(name: str, parts: list[StoredArray], files: list[Path]) -> None:
    """One row of every file is like one row of the first."""
    for part, file in zip(parts, files, strict=True):
        first = parts[0]
        if name in ROWS and part.array.ndim == 0:
            raise fail(name, f"rows in {file.name}", "a single number", "write one row a record")
        if name in ROWS and part.array.shape[1:] != first.array.shape[1:]:
            expected = f"rows of shape {first.array.shape[1:]} as in {files[0].name}"
            got = f"rows of shape {part.array.shape[1:]} in {file.name}"
            raise fail(name, expected, got, "write all shards with the same columns")
        kinds = [(str(each.array.dtype), each.bfloat16) for each in (first, part)]
        if name in ROWS[:2] and kinds[0] != kinds[1]:
            got = f"{kinds[1][0]} in {file.name}"
            raise fail(name, f"{kinds[0][0]} as in {files[0].name}", got, "write all shards in one precision")


def _read_npz(file: Path, wanted: Wanted, large: int) -> tuple[dict[str, StoredArray], list[str]]:
    found, others = {}, []
    with np.load(file, allow_pickle=False) as stored, file.open("rb") as stream:
        members = {info.filename.removesuffix(".npy"): info for info in stored.zip.infolist()}
        for name in stored.files:
            if not wanted(name):
                others.append(name)
                continue
            info = members[name]
            stands = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
            array = _mapped_member(file, stream, info) if stands and info.file_size >= large else None
            whole = stored[name] if array is None else array
            found[name] = StoredArray(whole, compressed=not stands and whole.nbytes >= large)
    return found, sorted(others)


def _mapped_member(file: Path, stream: Any, info: zipfile.ZipInfo) -> np.ndarray | None:
    """A map of a member that stands in the archive as it is; None where it is too small to be mapped."""
    stream.seek(info.header_offset)
    local = stream.read(30)
    if local[:4] != b"PK\x03\x04":
        raise ValueError("no local header")
    start = info.header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
    stream.seek(start)
    dtype, shape, order, offset = _npy_header(stream)
    if offset + _count(shape) * dtype.itemsize != start + info.file_size:
        raise ValueError("a member that ends elsewhere")
    return _mapped(file, dtype, shape, order, offset) if shape and _count(shape) else None


def _npy_header(stream: Any) -> tuple[np.dtype, tuple[int, ...], Any, int]:
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError("another version")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError(f"{NO_PICKLE} are not read")
    return dtype, shape, "F" if fortran else "C", stream.tell()


def _read_safetensors(file: Path, wanted: Wanted, large: int) -> tuple[dict[str, StoredArray], list[str]]:
    """The format is a length, a JSON header with each tensor's place, and the tensors' bytes, the last to the end."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= size - 8:
            raise ValueError("a header beyond the file")
        header = json.loads(stream.read(length))
    if not isinstance(header, dict):
        raise ValueError("another header")
    header.pop("__metadata__", None)
    ends = [int(entry["data_offsets"][1]) for entry in header.values()]
    if 8 + length + max(ends, default=0) != size:
        raise ValueError("tensors beyond the file")
    found = {}
    for name, entry in header.items():
        if wanted(name):
            found[name] = _safetensor(file, name, entry, 8 + length, large)
    return found, sorted(name for name in header if not wanted(name))


def _safetensor(file: Path, name: str, entry: dict[str, Any], start: int, large: int) -> StoredArray:
    kind, shape, (low, high) = str(entry["dtype"]), tuple(map(int, entry["shape"])), entry["data_offsets"]
    if kind not in SAFETENSORS:
        remedy = "convert it to float32 or int64 and write the file again"
        raise fail(name, f"numbers of a known type in {file.name}", f"type {kind[:12]}", remedy)
    dtype = np.dtype(SAFETENSORS[kind])
    if min(shape, default=0) < 0 or low < 0 or _count(shape) * dtype.itemsize != high - low:
        raise ValueError("a shape that is not that of its bytes")
    if high - low >= max(large, 1) and shape:
        return StoredArray(_mapped(file, dtype, shape, "C", start + low), kind == "BF16")
    with file.open("rb") as stream:
        stream.seek(start + low)
        return StoredArray(np.frombuffer(stream.read(high - low), dtype).reshape(shape).copy(), kind == "BF16")


def _count(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def _mapped(file: Path, dtype: np.dtype, shape: tuple[int, ...], order: Any, offset: int) -> np.memmap:
    if offset + _count(shape) * dtype.itemsize > file.stat().st_size:
        raise ValueError("an array beyond the file")
    return np.memmap(file, dtype, "r", offset, shape, order)
