"""What is shown on a screen or a page: text of others that cannot move the cursor, and the progress of long work."""

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

OnRows = Callable[[int], Any]
OnPart = Callable[[int, int], Any]
OnStage = Callable[[str, int, int], Any]  # the name of a stage, how much of it is done, and how much there is
SECONDS_BETWEEN_LINES = 10.0

# Control characters (C0, DEL, C1), marks that reorder a line (bidi), separators of lines and paragraphs, what has no
# width (but for joiners, which are spelling), tags, and halves of surrogate pairs, which no file can hold.
MARKS = "\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
MARKS += "\U000e0000-\U000e007f"
HIDDEN = re.compile(f"[{MARKS}\ud800-\udfff]")
# What is not seen at the start of a cell, apart from these marks: joiners, fillers, selectors of shapes, no characters.
UNSEEN = "\xad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c\u200d\u2800\u3164\ufdd0-\ufdef\ufe00-\ufe0f\uffa0"
UNSEEN += "\ufff0-\ufff8\ufffe\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0080-\U000e0fff"
# A spreadsheet takes a cell for a formula by its first visible sign. Cells also begin where a program that separates by
# semicolons, tabs or bars, and does not heed quotes within a cell, would begin one.
FORMULA = re.compile(
    r"(?:^|(?<=[;|\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029]))"
    rf"(?=[\s{MARKS}{UNSEEN}\"]*[=+\-@＝＋－＠])"
)


def shown_text(value: object, most: int = 80) -> str:
    """`value` as one line of at most `most` characters; what is hidden becomes a visible escape, … says it was cut.

    >>> shown_text("a\\x1b[31m\\u202eb")
    'a\\\\u001b[31m\\\\u202eb'
    >>> shown_text("x" * 10_000_000, most=8)
    'xxxxxxx…'
    """
    text = str(value)
    start = text[:most]  # first: a text may have megabytes
    shown = HIDDEN.sub(_escape, start)
    if len(text) <= most and len(shown) <= most:
        return shown
    ends = accumulate(len(HIDDEN.sub(_escape, character)) for character in start)
    return shown[: max((end for end in ends if end < most), default=0)] + "…"


def shown_cell(value: object, most: int = 80) -> str:
    return f"{value:.4g}" if isinstance(value, float) else shown_text(value, most)


def _escape(found: re.Match[str]) -> str:
    """Escape as JSON does, so that a line of JSON stays one."""
    return re.sub("....", r"\\u\g<0>", found.group().encode("utf-16-be", "surrogatepass").hex())


def csv_cell(value: object) -> str:
    """Write a cell of a CSV file; an apostrophe stands wherever a spreadsheet could see the start of a formula."""
    if not isinstance(value, str):
        return repr(value)
    value = FORMULA.sub("'", value)
    # not the csv module, which leaves a lone carriage return bare: what follows it would start a row of its own
    return '"' + value.replace('"', '""') + '"' if any(mark in value for mark in ',"\r\n;\t|') else value


def say(text: str = "", *, err: bool = False) -> None:
    """Print a line, or several, with every hidden character but tabs and line ends as a visible escape."""
    shown = HIDDEN.sub(lambda match: match.group() if match.group() in "\t\n" else _escape(match), text)
    print(shown, file=sys.stderr if err else sys.stdout, flush=True)


def quiet(stage: str, done: int, total: int) -> None:
    """Show nothing."""


def interactive() -> bool:
    """Whether somebody watches: stderr is a terminal, or this is the kernel of a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def stages_of(*, enabled: bool | None, unit: str = "") -> Iterator[OnStage]:
    """Yield a function to call with the name of a stage, how much of it is done, and how much there is, which may grow:
    told in percent, or with a `unit` in numbers and the time left. None enables it where somebody watches."""
    if not (interactive() if enabled is None else enabled):
        yield quiet
    elif not interactive():
        before, last = 0, time.monotonic()

        def on_line(stage: str, done: int, total: int) -> None:
            nonlocal before, last
            now = time.monotonic()
            if (done > before or not unit) and now - last >= SECONDS_BETWEEN_LINES:
                shown = f"{min(100, 100 * done // total)} %"
                if unit:  # by the pace since the previous line: a resumed run reports earlier work all at once
                    left = (total - done) * (now - last) / (done - before)
                    shown = f"{done} of {total} {unit}s, {human_seconds(left)} left"
                before, last = done, now
                print(f"{stage}: {shown}", file=sys.stderr)

        yield on_line
    else:
        from tqdm import tqdm  # audits run where only torch, NumPy, SciPy and scikit-learn are installed

        shape = None if unit else "{desc}: {percentage:3.0f} %|{bar}| {elapsed}<{remaining}"
        with tqdm(unit=unit, file=sys.stderr, delay=1.0, leave=False, bar_format=shape) as bar:

            def on_bar(stage: str, done: int, total: int) -> None:
                if bar.desc != f"{stage}: ":
                    bar.reset(total)
                    bar.set_description(stage, refresh=False)
                bar.total = total
                bar.update(done - bar.n)

            yield on_bar


@contextmanager
def parts_of(*, enabled: bool | None, work: str, unit: str) -> Iterator[OnPart]:
    """Yield a function to call with the number of parts done and of all parts."""
    with stages_of(enabled=enabled, unit=unit) as on_stage:
        yield lambda done, total: on_stage(work, done, total)


@contextmanager
def progress_of(total: int, *, enabled: bool | None, work: str = "audit") -> Iterator[OnRows]:
    """Yield a function to call with the number of rows just done, from any thread."""
    lock, done = threading.Lock(), 0
    with stages_of(enabled=enabled) as on_stage:

        def on_rows(rows: int) -> None:
            nonlocal done
            with lock:
                done += rows
                on_stage(work, done, total)

        yield on_rows


def percent(share: float) -> str:
    """Write a share, or a ratio, as per cent to two digits: 100 % is all, and nothing less.

    >>> percent(0.0312), percent(0.9999), percent(1.0), percent(1.44)
    ('3.1 %', '99 %', '100 %', '144 %')
    """
    return f"{100 * share:.0f} %" if share >= 1 else f"{min(100 * share, 99.0):.2g} %"


def human_seconds(seconds: float) -> str:
    """Write a duration as people say it: 40 s, 12 minutes, 3.5 hours."""
    if seconds < 0.95:
        return "under a second"
    for most, unit, name in ((100, 1, "s"), (6_000, 60, "minutes"), (172_800, 3_600, "hours")):
        if seconds < most:
            return f"{seconds / unit:.1f} {name}" if name == "hours" else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.1f} days"
