"""Rows that come in one order only: batches of any size, read again in each pass and cut to the slices needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import RLock
from typing import Literal

import torch

from giveaway.checks import InputError, check_finite, fail
from giveaway.records.rows import LazyRows, on_device

PARTS = ("features", "outputs")
Pair = tuple[torch.Tensor, torch.Tensor]


class Stream:
    """Features and outputs of records that are read from the start in each pass; one window of them is in memory.

    Slices in increasing order go on with the pass under way, an earlier one begins another. `begin` gives the batches
    of one pass, of any sizes, and refuses records that are others than before; `name` stands for their contents, and
    `of_layer` says that the outputs are what a linear layer made of the features, so that no pass has to show it.
    """

    def __init__(
        self,
        begin: Callable[[], Iterator[Pair]],
        n: int,
        like: Pair,
        *,
        name: str | None = None,
        of_layer: bool = False,
    ) -> None:
        self.n, self.name, self.of_layer = n, name, of_layer
        self.like = tuple(part[:0].detach().cpu().clone() for part in like)
        self._begin, self._lock = begin, RLock()
        self._passing: Iterator[Pair] = iter(())
        self._at = n + 1  # the row that the pass under way gives next; beyond the end where there is none
        self._spare: list[Pair] = []  # rows of the last batch that nobody asked for yet
        self._held: tuple[int, Pair] | None = None

    def rows(self, device: torch.device | str = "cpu") -> tuple[StreamedRows, StreamedRows]:
        """Return features and outputs, to pass to a Head."""
        return StreamedRows(self, "features", device), StreamedRows(self, "outputs", device)

    def read(self, start: int, stop: int) -> Pair:
        """Read features and outputs of rows `start` to `stop` at once."""
        with self._lock:
            if self._held is not None:
                first, pair = self._held
                if first <= start and stop <= first + len(pair[0]):
                    return _cut(pair, start - first, stop - first)
            if start == stop:
                return self.like[0], self.like[1]
            try:
                self._go_to(start)
                pair = self._next(stop - start)
                if stop == self.n:
                    self._end()
                for name, part in zip(PARTS, pair, strict=True):
                    check_finite(name, part, start)
            except BaseException:
                self._drop()
                raise
            self._held = (start, pair)
            return pair

    def _go_to(self, start: int) -> None:
        self._held = None
        if start < self._at:
            self._drop()
            self._passing, self._at = self._begin(), 0
        while self._at < start:
            self._next(min(start - self._at, 1_024))

    def _next(self, count: int) -> Pair:
        """Read the next `count` rows."""
        parts, missing = [], count
        while missing:
            batch = self._spare.pop() if self._spare else next(self._passing, None)
            if batch is None:
                raise self._other_rows(f"{self._at + count - missing}")
            if len(batch[0]) > missing:
                self._spare.append(_cut(batch, missing, len(batch[0])))
                batch = _cut(batch, 0, missing)
            parts.append(batch)
            missing -= len(batch[0])
        self._at += count
        if len(parts) == 1:
            # a copy: what is left of the batch must not keep all of it in memory
            return parts[0][0].clone(), parts[0][1].clone()
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _end(self) -> None:
        """End the pass: refuse rows that follow, and let the source check what it gave."""
        rest = [*self._spare, *self._passing]
        if any(len(features) for features, _ in rest):
            raise self._other_rows(f"more than {self.n}")
        self._drop()

    def _drop(self) -> None:
        if (close := getattr(self._passing, "close", None)) is not None:
            close()
        self._passing, self._at, self._spare, self._held = iter(()), self.n + 1, [], None

    def _other_rows(self, rows: str) -> InputError:
        expected = f"{self.n} records in every pass"
        return fail("data", expected, f"{rows} in another", "pass data that can be read again and again")


class StreamedRows(LazyRows):
    """The features or the outputs of a stream."""

    looked_up = False
    checked_when_read = True

    def __init__(
        self, stream: Stream, part: Literal["features", "outputs"], device: torch.device | str = "cpu"
    ) -> None:
        self.stream, self.part = stream, part
        like = stream.like[PARTS.index(part)]
        super().__init__((stream.n, *like.shape[1:]), like.dtype, torch.device(device))

    @property
    def identity(self) -> str | None:
        """The name of the stream."""
        return self.stream.name

    def to(self, device: torch.device | str) -> StreamedRows:
        """Return the same stream, read onto `device`."""
        return StreamedRows(self.stream, self.part, device)

    def with_outputs(self, outputs: torch.Tensor | LazyRows, which: slice) -> Pair | None:
        """Read these rows, and those of the outputs of the same stream, at once."""
        if not isinstance(outputs, StreamedRows) or outputs.stream is not self.stream:
            return None
        start, stop, _ = which.indices(len(self))
        pair = dict(zip(PARTS, self.stream.read(start, max(start, stop)), strict=True))
        return on_device(pair[self.part], self.device), on_device(pair[outputs.part], outputs.device)

    def _consecutive(self, start: int, stop: int) -> torch.Tensor:
        return on_device(self.stream.read(start, stop)[PARTS.index(self.part)], self.device)

    def _numbered(self, numbers: torch.Tensor) -> torch.Tensor:
        got, remedy = "a stream, read from its start", "keep the rows on disk: from_torch(..., cache=DIR)"
        raise fail(self.part, "rows that can be looked up in any order", got, remedy)


def _cut(pair: Pair, start: int, stop: int) -> Pair:
    return pair[0][start:stop], pair[1][start:stop]
