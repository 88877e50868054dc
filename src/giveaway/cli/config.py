"""Options of `giveaway audit` that do not come as flags: from a TOML file or as NAME=VALUE, and back to TOML."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

WORDS = {str: "text", float: "a number", int: "a whole number", bool: "true or false"}
RARE: dict[str, tuple[type, str]] = {  # options without a flag of their own: what they hold, and what they do
    "title": (str, "What was audited, for the heading of both pages."),
    "top": (int, "How many rows to print; 10 by default."),
    "by": (str, "person or record: what to rank where the records have groups."),
    "optimum": (str, "assumed, corrected (the head was stopped early) or refit (bring it to its optimum first)."),
    "penalize_intercept": (bool, "Whether l2 acts on the bias."),
    "frozen": (bool, "Nothing before the head was trained on these records."),
    "reduction": (str, "For a layer that sees tokens: mean, first or last."),
    "batch_size": (int, "Records at a time through the model."),
    "stream": (bool, "Run the model again in every pass and keep nothing."),
    "kernel": (str, "Add lood_kl and lood_mean, of a Gaussian process with this kernel: nngp, rbf, ..."),
    "noise": (float, "Add them too: the variance of the targets around the process's functions."),
    "probes": (int, "Of a sketch of the head, 256 by default: its error is about √(2/probes)."),
    "tolerance": (float, "The residual at which the solves of a sketch or a depth stop; 1e-3 by default."),
    "precision": (str, "Of the products inside a sketch's solves: float64, float32, on a GPU also tf32 or bf16."),
    "memory": (float, "Gigabytes that the curvature, or a piece of a depth's work, may take."),
    "allow_unconverged": (bool, "Use a sketch, or a depth, whose solves did not reach the tolerance."),
    "errors": (bool, "Add the standard error of every sketched score."),
    "seed": (int, "Of the probes of a sketch and of a depth."),
    "l2_sensitivity": (bool, "Tell how much the ranking depends on l2."),
    "depth_method": (str, "For --depth: sketch, exact (solves for every record) or ekfac (approximate)."),
    "depth_curvature": (str, "Of exact ones: ggn or hessian."),
    "depth_probes": (int, "Of a depth's sketch, 64 by default."),
    "map": (str, "Map of features in the report: auto, pca, tsne or none."),
    "what_if": (bool, "Score the rest again without the most exposed."),
}


def read_config(given: Iterable[str], kinds: Mapping[str, type]) -> dict[str, Any]:
    """The options in TOML files and NAME=VALUE settings, in their order: a later one goes before an earlier one.

    A key that is no option, or a value not of its option's kind, is refused. A list of names in a file stands for the
    names joined by commas.
    """
    from giveaway.checks import fail

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
    from giveaway.checks import fail

    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise fail("config", "a readable TOML file, or NAME=VALUE", f"{path} ({error})", "correct it") from error


def _setting(text: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    from giveaway.checks import fail

    key, _, value = text.partition("=")
    kind = kinds[_known(key, kinds)]
    if kind is str:
        return {key: value}
    try:
        return {key: {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)}
    except (KeyError, ValueError) as error:
        raise fail("config", f"{WORDS[kind]} for {key}", repr(value), "correct it") from error


def _known(key: str, kinds: Mapping[str, type]) -> str:
    from giveaway.checks import fail, nearest

    name = key.replace("-", "_")
    if name not in kinds:
        raise fail("config", "options of this command", f"{key!r}", nearest(name, kinds))
    return name


def _toml(value: Any) -> str:
    # JSON's escapes are TOML's too, but for surrogate pairs; JSON leaves DEL as it is, which TOML does not take.
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    # a file name that is no UTF-8 holds halves of surrogate pairs
    return re.sub("[\ud800-\udfff]", lambda half: f"\\\\u{ord(half.group()):04x}", text)
