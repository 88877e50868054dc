"""A folder of arrays: shards of rows in .npz or .safetensors files in name order, or an .npy file an array."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from giveaway.checks import fail
from giveaway.extract.stored_arrays import COMPRESSED, StoredArray, read_npy, read_stored, stacked
from giveaway.records.rows import LARGE_BYTES

ROWS = ("features", "outputs", "targets", "sample_weight", "ids", "groups")
ONCE = ("weight", "bias", "l2")
KINDS = (".npy", ".npz", ".safetensors")
HEAD = "head"  # the name of the file that may hold weight, bias and l2 beside the shards


def read_folder(folder: Path) -> tuple[dict[str, Any], list[str], list[str]]:
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


def _read_npy_files(files: list[Path]) -> tuple[dict[str, Any], list[str], list[str]]:
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


def _read_shards(files: list[Path]) -> tuple[dict[str, Any], list[str], list[str]]:
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
