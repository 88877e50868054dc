"""Options from a TOML file, flags before it, and the resolved ones as TOML again."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from giveaway.checks import fail, nearest


def read_config(path: str | Path, known: Iterable[str]) -> dict[str, Any]:
    """The options in a TOML file; a key that is no option is refused."""
    try:
        options = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise fail("config", "a readable TOML file", f"{path} ({error})", "correct it") from error
    names = list(known)
    for key in options:
        if key.replace("-", "_") not in names:
            raise fail("config", "options of this command", f"{key!r}", nearest(key, names))
    return {key.replace("-", "_"): value for key, value in options.items()}


def to_toml(options: dict[str, Any]) -> str:
    """Flat options as TOML; what is None is left out."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items() if value is not None)
