"""Options of `giveaway audit` that do not come as flags: from a TOML file or as NAME=VALUE, and back to TOML."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from giveaway.checks import fail, nearest

WORDS = {str: "text", float: "a number", int: "a whole number", bool: "true or false"}


def read_config(given: Iterable[str], kinds: Mapping[str, type]) -> dict[str, Any]:
    """The options in TOML files and NAME=VALUE settings, in their order: a later one goes before an earlier one.

    A key that is no option, or a value not of its option's kind, is refused. A list of names in a file stands for the
    names joined by commas.
    """
    resolved: dict[str, Any] = {}
    for text in given:
        for key, value in (_setting(text, kinds) if _is_setting(text) else _file(text)).items():
            name = _known(key, kinds)
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


def _is_setting(text: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9_-]*=", text) is not None


def _file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise fail("config", "a readable TOML file, or NAME=VALUE", f"{path} ({error})", "correct it") from error


def _setting(text: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    key, _, value = text.partition("=")
    kind = kinds[_known(key, kinds)]
    if kind is str:
        return {key: value}
    try:
        return {key: {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)}
    except (KeyError, ValueError) as error:
        raise fail("config", f"{WORDS[kind]} for {key}", repr(value), "correct it") from error


def _known(key: str, kinds: Mapping[str, type]) -> str:
    name = key.replace("-", "_")
    if name not in kinds:
        raise fail("config", "options of this command", f"{key!r}", nearest(name, kinds))
    return name


def _toml(value: Any) -> str:
    # JSON's escapes are TOML's too, but for surrogate pairs; JSON leaves DEL as it is, which TOML does not take.
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    # a file name that is no UTF-8 holds halves of surrogate pairs
    return re.sub("[\ud800-\udfff]", lambda half: f"\\\\u{ord(half.group()):04x}", text)
