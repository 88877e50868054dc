"""The audit folder: what it holds, when it is refused, how it is removed."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import secrets
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.attacks.shadow_store import is_shadow_folder, remove_shadows
from giveaway.auditing.checkpoint import FOLDER as UNFINISHED
from giveaway.auditing.checkpoint import remove_checkpoint
from giveaway.checks import ROWS_PER_CHECK, fail, rows_at_a_time
from giveaway.extract.feature_cache import is_feature_cache, remove_feature_cache
from giveaway.extract.shared_extraction import is_shared_cache, remove_shared_cache
from giveaway.records import Head, ScoreTable
from giveaway.records.lazy_rows import LazyRows
from giveaway.records.score_table import MARKER
from giveaway.storage.files import private_folder, write_atomically, write_json
from giveaway.version import VERSION

BLOCK_BYTES = 1 << 24  # of an array at a time


def fingerprint(head: Head, inputs: Any = None, given: dict[str, Any] | None = None) -> str:
    """SHA-256 of everything in a head, and in the records themselves, that a score can depend on.

    `inputs` go before those that the head holds; `given` are those of the network, where it is looked through.
    """
    names = ("features", "outputs", "targets", "weight", "bias", "sample_weight")
    arrays = {name: getattr(head, name) for name in names}
    arrays |= {"inputs": head.inputs if inputs is None else inputs}
    options = (head.loss, head.l2, head.intercept, head.penalize_intercept, head.frozen)
    named = {f"given {name}": value for name, value in (given or {}).items()}
    return digest_of(arrays | {"ids": head.ids, "groups": head.groups} | named, options)


def digest_of(arrays: dict[str, Any], options: tuple[Any, ...] = ()) -> str:
    """SHA-256 of named tensors, arrays, lists of strings or tables (None where there is none) and of options."""
    digest = hashlib.sha256(repr(options).encode())
    for name, value in arrays.items():
        if hasattr(value, "iloc"):
            digest.update(f"{name}{value.shape}".encode())
            for place, column in enumerate(value.columns):
                _add(digest, repr(column), np.asarray(value.iloc[:, place]))
        elif value is not None:
            _add(digest, name, value)
    return digest.hexdigest()


def _add(digest: Any, name: str, value: Any) -> None:
    """Name, shape, type and contents, the last in blocks of rows, so that a memory map stays one."""
    if isinstance(value, LazyRows):
        _add_lazy(digest, name, value)
        return
    if not isinstance(value, torch.Tensor | np.ndarray | list | tuple):
        value = np.asarray(value)
    shape = (len(value),) if isinstance(value, list | tuple) else tuple(value.shape)
    digest.update(f"{name}{shape}{getattr(value, 'dtype', 'list')}".encode())
    if shape == ():
        digest.update(value.tobytes())
        return
    objects = isinstance(value, list | tuple) or value.dtype == object
    rows = ROWS_PER_CHECK if objects else max(1, BLOCK_BYTES * len(value) // max(1, value.nbytes))
    for start in range(0, len(value), rows):
        digest.update(_bytes_of(value[start : start + rows]))


def _add_lazy(digest: Any, name: str, rows: LazyRows) -> None:
    """As a tensor of the same rows, unless something shorter stands for them."""
    digest.update(f"{name}{tuple(rows.shape)}{rows.dtype}".encode())
    if rows.identity is not None:
        digest.update(rows.identity.encode())
        return
    size = rows_at_a_time(rows)
    for start in range(0, len(rows), size):
        digest.update(_bytes_of(rows[start : start + size]))


def _bytes_of(block: Any) -> bytes:
    if isinstance(block, torch.Tensor):
        kept = block.detach().cpu().contiguous()
        return kept.view(torch.uint8).numpy().tobytes() if kept.numel() else b""
    if isinstance(block, np.ndarray) and block.dtype.kind != "O":
        return np.ascontiguousarray(block).tobytes()
    cells = block.ravel().tolist() if isinstance(block, np.ndarray) else block
    return "".join(f"{type(cell).__name__}{len(text := str(cell))}:{text}" for cell in cells).encode(
        "utf-8", "surrogatepass"
    )


def provenance(digest: str, config: dict[str, Any], weights: str | None = None) -> dict[str, Any]:
    """What the folder's result came from: the digest of its inputs, that of the network's weights where more of it than
    the head was looked through, options, versions."""
    versions = {"giveaway": VERSION, **{name: metadata.version(name) for name in ("torch", "numpy", "scipy")}}
    return {
        "audit": secrets.token_hex(8),  # names the audit where its digest, which can confirm a guess, must not stand
        "date": datetime.date.today().isoformat(),
        "inputs_sha256": digest,
        **({} if weights is None else {"weights_sha256": weights}),
        "config": config,
        "versions": {**versions, "python": platform.python_version()},
    }


def check_folder(folder: str | Path, expected: dict[str, Any]) -> Path:
    """A folder that can be written and holds nothing, or an audit of the same inputs and options."""
    path = Path(folder)
    marker = path / MARKER
    if marker.is_file():
        different = _differences(_read_marker("out", path).get("provenance", {}), expected)
        if different:
            raise fail("out", "an audit of the same inputs and options", "; ".join(different), "choose another folder")
    elif path.is_dir() and any(file.name != UNFINISHED for file in path.iterdir()):
        raise fail("out", "a new, empty or earlier audit folder", f"{path} with other files", "choose another folder")
    return private_folder(path)


def save_audit(folder: Path, tables: dict[str, ScoreTable], pages: dict[str, str | bytes], config_toml: str) -> None:
    """Write every file of the folder; an interrupted call takes away again what it added.

    audit.json is there first, so that a killed run can be purged or run again, and gets the metadata last.
    """
    files = [f"{name}.{kind}" for name in tables for kind in ("npz", "csv")] + [*pages, "config.toml", MARKER]
    earlier = _read_marker("out", folder) if (folder / MARKER).is_file() else {}
    files += [name for name in earlier.get("files", []) if name not in files]  # a validation's pages stay listed
    signals = {name: earlier[name] for name in ("signals",) if name in earlier}
    main = next(iter(tables.values()))
    new = [folder / name for name in files if not (folder / name).exists()]
    try:
        if folder / MARKER in new:
            provisional = {"complete": False, "provenance": main.meta.get("provenance", {}), "files": files}
            write_json(folder / MARKER, provisional)
        for name, table in tables.items():
            table.save_columns(folder, name)
        for name, page in {**pages, "config.toml": config_toml}.items():
            _write(folder / name, page)
        write_json(folder / MARKER, {**main.meta, **signals, "files": files})
    except BaseException:
        for path in new:
            path.unlink(missing_ok=True)
        raise


def save_page(folder: str | Path, name: str, page: str | bytes) -> Path:
    """Write one more page, text or a picture's bytes, into an audit folder and list it in audit.json."""
    path = Path(folder)
    found = _read_marker("folder", path)
    if name not in found.get("files", []):  # listed first, so that purge finds what a killed call leaves
        write_json(path / MARKER, {**found, "files": [*found.get("files", [MARKER]), name]})
    _write(path / name, page)
    return path / name


def list_signals(folder: str | Path, signals: str | Path) -> None:
    """Name in audit.json the signals that the audit was validated with."""
    path = Path(folder)
    found = _read_marker("folder", path)
    named = str(Path(signals).resolve())
    if named not in found.get("signals", []):
        write_json(path / MARKER, {**found, "signals": [*found.get("signals", []), named]})


def listed_signals(folder: str | Path) -> list[Path]:
    """The signals that an audit was validated with, as far as they are still there; none for any other folder."""
    if not (Path(folder) / MARKER).is_file():
        return []
    return [Path(name) for name in _read_marker("folder", Path(folder)).get("signals", []) if Path(name).exists()]


def purge(folder: str | Path) -> int:
    """Remove the files that the folder's audit.json lists, and the folder if nothing else is in it.

    Folders of shadow models, of cached features and of unfinished audits are recognised by files of their own, and what
    was written there is removed. Signals that audit.json lists lie elsewhere and stay.
    """
    path = Path(folder)
    if not (path / MARKER).is_file():
        if is_shadow_folder(path):
            return remove_shadows(path)
        if is_feature_cache(path):
            return remove_feature_cache(path)
        if is_shared_cache(path):
            return remove_shared_cache(path)
    unfinished = remove_checkpoint(path)
    if unfinished and not (path / MARKER).is_file():
        if not any(path.iterdir()):
            path.rmdir()
        return unfinished
    listed = [Path(name).name for name in _read_marker("folder", path).get("files", [])]
    removed = unfinished
    for name in [*(name for name in listed if name != MARKER), MARKER]:  # last, so that a killed purge can be repeated
        halves = (file for file in path.iterdir() if file.name.startswith(f".{name}-") and file.suffix == ".part")
        for target in (path / name, *halves):
            if target.is_file():
                target.unlink()
                removed += 1
    if not any(path.iterdir()):
        path.rmdir()
    return removed


def _write(path: Path, page: str | bytes) -> None:
    content = page.encode("utf-8", "backslashreplace") if isinstance(page, str) else page
    write_atomically(path, lambda stream: stream.write(content))


def _read_marker(argument: str, folder: Path) -> dict[str, Any]:
    marker = folder / MARKER
    if not marker.is_file():
        raise fail(argument, f"an audit folder with {MARKER}", str(folder), "name the folder given to --out")
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise fail(argument, f"a readable {MARKER}", str(marker), "choose another folder")
    return found


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    names = ("inputs", "weights")
    lines = [f"{name} differ" for name in names if found.get(f"{name}_sha256") != expected.get(f"{name}_sha256")]
    old, new = found.get("config", {}), expected["config"]
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            lines.append(f"{key} was {old.get(key)!r}, is {new.get(key)!r}")
    return lines
