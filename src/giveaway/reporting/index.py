"""Many audits on one page: what their summaries say, side by side, and nothing of their records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from giveaway.checks import fail
from giveaway.reporting.pages import page
from giveaway.reporting.summary import SCHEMA
from giveaway.text import shown_text

SHOWN = {"date", "rows", "unit", "ranked_by", "access", "statement"}


def index_page(folders: Sequence[str | Path]) -> str:
    """The page of the audits in `folders`, in the order given."""
    if not folders:
        raise fail("folders", "at least one audit folder", "none", "name the folders given to --out")
    return page("index.html", audits=[_entry(Path(folder)) for folder in folders])


def _entry(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    if not path.is_file():
        raise fail("folders", "audit folders with summary.json", str(folder), "run giveaway report there first")
    found = _read(path)
    if found.get("schema") != SCHEMA or not found.keys() >= SHOWN:
        expected, got = f"summaries of the schema {SCHEMA}", f"{path}, another"
        raise fail("folders", expected, got, "run giveaway report there again")
    return {
        "name": shown_text(folder.resolve().name, 60),
        "found": found,
        "gate": _gate(folder / "gate.json"),
    }


def _gate(path: Path) -> str:
    """The verdict that was given, and when."""
    if not path.is_file():
        return "none"
    found = _read(path)
    verdict = "met" if found.get("met") else "not met" if found.get("exit_code", 3) else "waived"
    return shown_text(f"{verdict}, {found.get('date', 'undated')}", 40)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise fail("folders", "readable JSON", str(path), "run giveaway report there again") from error
    if not isinstance(found, dict):
        raise fail("folders", "a JSON object", str(path), "run giveaway report there again")
    return found
