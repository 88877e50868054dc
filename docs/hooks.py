"""The page of all commands, written from the command line itself.

`python docs/hooks.py` rewrites docs/reference/commands.md; a build of the site takes a fresh one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from giveaway.cli import cli
from giveaway.cli.options import RARE

PAGE = "reference/commands.md"
KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}
INTRODUCTION = """\
# Commands

This page is written from the command line itself: `python docs/hooks.py` rewrites it.

Every command takes `-h` and `--help`. Exit codes: 0 done, 1 the work failed (such as a solve that did not converge), 2
bad input (one line: what was expected, what came, what to do), 3 a rule of a gate is not met, 130 interrupted.
"""


def commands_page() -> str:
    """The whole page as Markdown."""
    root = click.Context(cli, info_name="giveaway")
    sections = [_section(context) for context in _commands(root)]
    return "\n".join([INTRODUCTION, *sections]).rstrip() + "\n"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """For mkdocs: the site shows the commands as they are, whatever was written last."""
    return commands_page() if page.file.src_uri == PAGE else markdown


def _commands(context: click.Context) -> Iterator[click.Context]:
    """A context for every command below this one, in the order of --help."""
    group = context.command
    if not isinstance(group, click.Group):
        yield context
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield from _commands(click.Context(command, parent=context, info_name=name))


def _section(context: click.Context) -> str:
    command = context.command
    parameters = [parameter for parameter in command.get_params(context) if "--help" not in parameter.opts]
    lines = [f"## {context.command_path}", "", _prose(command.help or ""), ""]
    lines += ["```", f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}", "```", ""]
    rows = [_row(option, context) for option in parameters if isinstance(option, click.Option) and not option.hidden]
    if rows:
        lines += ["| option | | default |", "|---|---|---|", *rows, ""]
    if context.command_path == "giveaway audit":
        lines += ["Rarer options, in a TOML file or as `--config NAME=VALUE`:", "", "| option | | |", "|---|---|---|"]
        lines += [f"| `{name}` | {KINDS[kind]} | {words} |" for name, (kind, words) in RARE.items()] + [""]
    return "\n".join(lines)


def _row(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else " " + _cell(option.make_metavar(ctx=context).strip("[]"))
    help_text = (option.help or "") + (" Can be given several times." if option.multiple else "")
    default = option.get_default(context)
    shown = f"`{default}`" if option.show_default and default not in (None, ()) and not option.is_flag else ""
    return f"| {names}{value} | {_cell(help_text)} | {shown} |"


def _prose(help_text: str) -> str:
    """A docstring as Markdown: its paragraphs, without the marks that click reads."""
    return re.sub(r"\n{3,}", "\n\n", help_text.replace("\b", "").replace("\f", "")).strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


if __name__ == "__main__":
    path = Path(__file__).parent / PAGE
    path.parent.mkdir(exist_ok=True)
    path.write_text(commands_page(), encoding="utf-8")
    print(f"Wrote {path}")
