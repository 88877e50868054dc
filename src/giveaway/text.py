"""Text that other people wrote, harmless on a screen or a page: it cannot move the cursor or turn the line around."""

from __future__ import annotations

import re
import sys

# Control characters (C0, DEL, C1), marks that reorder a line (bidi), separators of lines and paragraphs, and halves of
# surrogate pairs, which no file can hold.
HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def shown_text(value: object, most: int = 80) -> str:
    """`value` as one line of at most `most` characters; what is hidden becomes a visible escape, … says it was cut.

    >>> shown_text("a\\x1b[31m\\u202eb")
    'a\\\\x1b[31m\\\\u202eb'
    >>> shown_text("x" * 10_000_000, most=8)
    'xxxxxxx…'
    """
    text = str(value)
    start = text[:most]  # first: a text may have megabytes
    shown = HIDDEN.sub(_escape, start)
    if len(text) <= most and len(shown) <= most:
        return shown
    kept = ""
    for character in start:
        more = HIDDEN.sub(_escape, character)
        if len(kept) + len(more) >= most:
            break
        kept += more
    return kept + "…"


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode("ascii")


def say(text: str = "", *, err: bool = False) -> None:
    """Print a line, or several, with every hidden character but tabs and line ends as a visible escape."""
    shown = HIDDEN.sub(lambda match: match.group() if match.group() in "\t\n" else _escape(match), text)
    print(shown, file=sys.stderr if err else sys.stdout, flush=True)
