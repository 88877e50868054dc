"""Options from a TOML file, flags before it, and the resolved ones as TOML again."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from giveaway.checks import fail, nearest

WORDS = {str: "text", float: "a number", int: "a whole number", bool: "true or false"}


def read_config(path: str | Path, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The options in a TOML file; a key that is no option, or a value not of its option's kind, is refused.

    A list of names stands for the names joined by commas.
    """
    try:
        options = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise fail("config", "a readable TOML file", f"{path} ({error})", "correct it") from error
    resolved = {}
    for key, value in options.items():
        name = key.replace("-", "_")
        if name not in kinds:
            raise fail("config", "options of this command", f"{key!r}", nearest(name, kinds))
        if kinds[name] is str and isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = ",".join(value)
        allowed = (float, int) if kinds[name] is float else kinds[name]
        if not isinstance(value, allowed) or (isinstance(value, bool) and kinds[name] is not bool):
            raise fail("config", f"{WORDS[kinds[name]]} for {key}", repr(value), "correct it")
        resolved[name] = value
    return resolved


def to_toml(options: dict[str, Any]) -> str:
    """Flat options as TOML; what is None is left out."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in options.items() if value is not None)


def _toml(value: Any) -> str:
    # JSON's escapes are TOML's too, but for surrogate pairs; JSON leaves DEL as it is, which TOML does not take.
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return re.sub(
        "[\ud800-\udfff]", lambda half: f"\\\\u{ord(half.group()):04x}", text
    )  # bytes of a name that is no UTF-8
