"""Progress of long work on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from giveaway.auditing.cost import human_seconds

OnRows = Callable[[int], Any]
OnPart = Callable[[int, int], Any]
SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress_of(total: int, *, enabled: bool, work: str = "audit", unit: str = "rec") -> Iterator[OnRows]:
    """What to call with the number of rows just done: a bar on a terminal, lines elsewhere, nothing unless enabled."""
    if not enabled:
        yield lambda rows: None
    elif not sys.stderr.isatty():
        yield _one_at_a_time(_lines(total, work))
    else:
        from tqdm import tqdm  # audits run where only torch, NumPy, SciPy and scikit-learn are installed

        with tqdm(total=total, unit=unit, desc=work, file=sys.stderr, delay=1.0, leave=False) as bar:
            yield _one_at_a_time(bar.update)


@contextmanager
def parts_of(*, enabled: bool, work: str, unit: str) -> Iterator[OnPart]:
    """What to call with the number of parts done and that of all of them, which may grow: shown with the time left."""
    if not enabled:
        yield lambda done, total: None
    elif not sys.stderr.isatty():
        yield _lines_with_time_left(work, unit)
    else:
        from tqdm import tqdm

        with tqdm(unit=unit, desc=work, file=sys.stderr, delay=1.0, leave=False) as bar:

            def on_part(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            yield on_part


def announce(words: str, *, enabled: bool) -> None:
    """Say on stderr what begins now and cannot say how far it is."""
    if enabled:
        print(words, file=sys.stderr)


def _one_at_a_time(on_rows: OnRows) -> OnRows:
    """Threads report their rows as they finish them."""
    lock = threading.Lock()

    def locked(rows: int) -> None:
        with lock:
            on_rows(rows)

    return locked


def _lines(total: int, work: str) -> OnRows:
    done, said = 0, time.monotonic()

    def on_rows(rows: int) -> None:
        nonlocal done, said
        done += rows
        if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            print(f"{work}: {min(100, 100 * done // total)} %", file=sys.stderr)

    return on_rows


def _lines_with_time_left(work: str, unit: str) -> OnPart:
    before, said = 0, time.monotonic()

    def on_part(done: int, total: int) -> None:
        nonlocal before, said
        now = time.monotonic()
        if done > before and now - said >= SECONDS_BETWEEN_LINES:
            # by the pace since the line before: what a killed run had done was taken up at once
            left = (total - done) * (now - said) / (done - before)
            before, said = done, now
            print(f"{work}: {done} of {total} {unit}s, {human_seconds(left)} left", file=sys.stderr)

    return on_part
