"""Work spread over threads in large pieces.

Torch splits each operation over its threads and waits for the slowest after every one; on a busy machine, or on
operations as small as a cache, the waiting costs more than the work. Here a thread takes a whole piece instead, and
the operations inside stay on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")


def in_threads(
    work: Callable[[Item], Any], items: Iterable[Item], device: torch.device, most: int | None = None
) -> None:
    """Call `work` on every item, on as many threads as torch is set to use (one where the arrays are on a GPU), or on
    `most` at a time."""
    threads = torch.get_num_threads()
    workers = 1 if device.type == "cuda" else min(threads, most or threads)
    if workers == 1:
        for item in items:
            work(item)
        return
    torch.set_num_threads(threads // workers)
    try:
        with ThreadPoolExecutor(workers) as pool:
            _feed(pool, work, items, 2 * workers)
    finally:
        torch.set_num_threads(threads)


def _feed(pool: ThreadPoolExecutor, work: Callable[[Item], Any], items: Iterable[Item], most: int) -> None:
    """Never more than `most` items waiting or in work, so that what they hold stays bounded."""
    pending: set[Future[Any]] = set()
    for item in items:
        if len(pending) >= most:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
        pending.add(pool.submit(work, item))
    for future in pending:
        future.result()
