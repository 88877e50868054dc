"""The audit folder: what it holds, when it is refused, how it is removed."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from giveaway.checks import ROWS_PER_CHECK, fail
from giveaway.files import private_folder, write_json, write_text
from giveaway.records import Head, ScoreTable

MARKER = "audit.json"


def fingerprint(head: Head) -> str:
    """SHA-256 of everything in a head that a score can depend on."""
    digest = hashlib.sha256()
    options = (head.loss, head.l2, head.intercept, head.penalize_intercept)
    digest.update(repr(options).encode())
    for name in ("features", "outputs", "targets", "weight", "bias", "sample_weight"):
        tensor: torch.Tensor | None = getattr(head, name)
        if tensor is None:
            continue
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        for start in range(0, len(tensor), ROWS_PER_CHECK):
            block = tensor[start : start + ROWS_PER_CHECK].cpu().contiguous()
            digest.update(block.view(torch.uint8).numpy().tobytes() if block.numel() else b"")
    for names in (head.ids, head.groups):
        if names is not None:
            digest.update(np.ascontiguousarray(names).tobytes())
    return digest.hexdigest()


def provenance(head: Head, config: dict[str, Any]) -> dict[str, Any]:
    """What the folder's result came from: inputs, options, versions."""
    versions = {name: metadata.version(name) for name in ("giveaway", "torch", "numpy", "scipy")}
    return {
        "inputs_sha256": fingerprint(head),
        "config": config,
        "versions": {**versions, "python": platform.python_version()},
    }


def check_folder(folder: str | Path, expected: dict[str, Any]) -> Path:
    """A folder that can be written and holds nothing, or an audit of the same inputs and options."""
    path = Path(folder)
    marker = path / MARKER
    if marker.is_file():
        try:
            found = json.loads(marker.read_text(encoding="utf-8")).get("provenance", {})
        except (OSError, ValueError) as error:
            raise fail("out", f"a readable {MARKER}", f"{marker} ({error})", "choose another folder") from error
        different = _differences(found, expected)
        if different:
            raise fail("out", "an audit of the same inputs and options", "; ".join(different), "choose another folder")
    elif path.is_dir() and any(path.iterdir()):
        raise fail("out", "a new, empty or earlier audit folder", f"{path} with other files", "choose another folder")
    return private_folder(path)


def save_audit(folder: Path, tables: dict[str, ScoreTable], pages: dict[str, str], config_toml: str) -> None:
    """Write every file of the folder; audit.json comes last and lists them."""
    for name, table in tables.items():
        table.save(folder, name)
    for name, text in {**pages, "config.toml": config_toml}.items():
        write_text(folder / name, text)
    files = [f"{name}.{kind}" for name in tables for kind in ("npz", "csv")] + [*pages, "config.toml", MARKER]
    main = next(iter(tables.values()))
    write_json(folder / MARKER, {**main.meta, "files": files})


def purge(folder: str | Path) -> int:
    """Remove the files that the folder's audit.json lists, and the folder if nothing else is in it."""
    path = Path(folder)
    marker = path / MARKER
    if not marker.is_file():
        raise fail("folder", f"an audit folder with {MARKER}", str(path), "name the folder given to --out")
    listed = json.loads(marker.read_text(encoding="utf-8")).get("files", [MARKER])
    removed = 0
    for name in listed:
        target = path / Path(name).name
        if target.is_file():
            target.unlink()
            removed += 1
    if not any(path.iterdir()):
        path.rmdir()
    return removed


def _differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    lines = []
    if found.get("inputs_sha256") != expected["inputs_sha256"]:
        lines.append("inputs differ")
    old, new = found.get("config", {}), expected["config"]
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            lines.append(f"{key} was {old.get(key)!r}, is {new.get(key)!r}")
    return lines
