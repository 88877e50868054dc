"""What is printed cannot move the cursor, name the window or turn a line around."""

from __future__ import annotations

import re

import click

HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def say(text: str = "", *, err: bool = False) -> None:
    """Print a line, or several, with every hidden character as a visible escape."""
    click.echo(HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text), err=err)
