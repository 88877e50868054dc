"""An .npy file written block by block under a temporary name, whatever the number of rows turns out to be."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from giveaway.checks import fail
from giveaway.extract.batches import check_same_kind
from giveaway.extract.linear_layer import storable
from giveaway.records.array_archive import write_header


class NpyWriter:
    """Rows of one array, readable by their owner only; `finish` gives the file its name."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0
        self._part = path.parent / f".{path.name}-{secrets.token_hex(4)}.part"
        self._stream = os.fdopen(os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w+b")
        self._like: torch.Tensor | None = None

    def add(self, block: torch.Tensor) -> None:
        """Append the rows of `block`, which are like those before."""
        block = storable(block).contiguous()
        if self._like is None:
            self._like = block[:0].clone()
            self._header()
        check_same_kind(self.path.stem, block, self._like)
        with _room():
            self._stream.write(block.numpy().data)
        self.rows += len(block)

    def finish(self) -> None:
        """Write the number of rows into the header and rename the file into place."""
        with _room():
            self._stream.seek(0)
            self._header()
            self._stream.close()
        os.replace(self._part, self.path)

    def close(self) -> None:
        """Leave the file as it is, under its temporary name unless it is finished."""
        with suppress(OSError):  # what could not be written before cannot be written now
            self._stream.close()

    def _header(self) -> None:
        assert self._like is not None
        write_header(self._stream, self._like.numpy().dtype, (self.rows, *self._like.shape[1:]))


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        got, remedy = error.strerror or str(error), "choose a folder on a larger disk, or stream=True"
        raise fail("cache", "room for the features", got, remedy) from error
