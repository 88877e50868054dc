"""The options of `giveaway audit`: read from flags, TOML files and NAME=VALUE, and made into arguments of ga.audit."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from giveaway.checks import check_choice, check_number, fail, nearest
from giveaway.curvature.choice import Auto, Dense, Sketch, check_probes
from giveaway.extract.user_files import records_from
from giveaway.gp import Process
from giveaway.records import Head

WORDS = {str: "text", float: "a number", int: "a whole number", bool: "true or false"}
OF_SKETCH = ("probes", "tolerance", "precision", "memory", "allow_unconverged", "seed", "errors")


def read_config(given: Iterable[str], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the options in TOML files and NAME=VALUE settings; a later one goes before an earlier one.

    A key that is no option, or a value not of its option's kind, is refused. A list of names in a file stands for the
    names joined by commas.
    """
    resolved: dict[str, Any] = {}
    for text in given:
        setting = re.match(r"([A-Za-z][A-Za-z0-9_-]*)=(.*)", text, re.DOTALL)
        for key, value in ({setting[1]: setting[2]} if setting else _file(text)).items():
            name = key.replace("-", "_")
            if name not in kinds:
                raise fail("config", "options of this command", f"{key!r}", nearest(name, kinds))
            kind, read = kinds[name], value
            if setting and kind is not str:
                read = _parsed(value, kind)
            elif kind is str and isinstance(value, list) and all(isinstance(part, str) for part in value):
                read = ",".join(value)
            allowed = (float, int) if kind is float else kind
            if not isinstance(read, allowed) or (isinstance(read, bool) and kind is not bool):
                raise fail("config", f"{WORDS[kind]} for {key}", repr(value), "correct it")
            resolved[name] = read
    return resolved


def _file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise fail("config", "a readable TOML file, or NAME=VALUE", f"{path} ({error})", "correct it") from error


def _parsed(text: str, kind: type) -> Any:
    """Return the value that `text` spells, or None."""
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        return None


def to_toml(options: dict[str, Any]) -> str:
    """Write flat options as TOML; what is None is left out."""
    # JSON's escapes are TOML's too, but for surrogate pairs; JSON leaves DEL as it is, which TOML does not take.
    given = {key: json.dumps(value, ensure_ascii=False) for key, value in options.items() if value is not None}
    text = "".join(f"{key} = {value}\n" for key, value in given.items()).replace("\x7f", "\\u007f")
    # a file name that is no UTF-8 holds halves of surrogate pairs
    return re.sub("[\ud800-\udfff]", lambda half: f"\\\\u{ord(half.group()):04x}", text)


def options_of(config: Iterable[str], flags: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the options of --config, and the flags, which go before them."""
    options = read_config(config, kinds) | {name: value for name, value in flags.items() if value is not None}
    for name in {"top", "batch_size"} & options.keys():
        check_number(name, options[name], minimum=1, remedy="give a count")
    check_number("l2", options.get("l2", 0.0), minimum=0.0, remedy="give the penalty in summed-loss units")
    check_choice("by", options.get("by", "auto"), ("auto", "person", "record"))
    return options


def audited_head(head: Head, options: Mapping[str, Any]) -> Head:
    """Return the head with the records of --inputs, by person or by record."""
    if "inputs" in options:
        head = replace(head, inputs=records_from(options["inputs"]))
    elif head.inputs is None and {"kernel", "noise"} & options.keys():
        raise fail("inputs", "--inputs beside kernel and noise", "none", "name the file of the records")
    if options.get("by") == "person" and head.groups is None:
        raise fail("by", "--groups beside person", "none", "give a file with one person's name a record")
    return replace(head, groups=None) if options.get("by") == "record" else head


def audit_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ga.audit; --inputs ask for fused by name, so that unusable ones are an error."""
    scores = options.get("scores", "default,fused" if "inputs" in options else "default")
    process = {name: options[name] for name in ("kernel", "noise") if name in options}
    return {
        "curvature": _curvature(options),
        "scores": [name.strip() for name in scores.split(",")],
        "kernel": Process(**process) if process else None,
        "optimum": options.get("optimum", "assumed"),
    }


def _curvature(options: Mapping[str, Any]) -> Dense | Sketch | Auto:
    sketch = Sketch(**{name: options[name] for name in OF_SKETCH if name in options})
    check_probes(sketch)
    compare = options.get("l2_sensitivity")
    kind = options.get("curvature", "auto")
    if kind == "dense" and sketch.errors:
        raise fail("errors", "a sketched curvature", "none: dense scores are exact", "leave errors out")
    if kind == "dense":
        return Dense(l2_sensitivity=compare)
    if kind == "sketch":
        return replace(sketch, l2_sensitivity=compare)
    return Auto(memory=sketch.memory, sketch=sketch, l2_sensitivity=compare)
