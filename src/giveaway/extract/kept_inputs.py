"""The records themselves, kept while a model runs over them: one tensor, or a list of strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from giveaway.checks import InputError, check_finite, fail
from giveaway.extract.batches import Batch
from giveaway.extract.rows import Rows, row_kind

KEPT_BYTES = 2 * 2**30
LATER = "give the records to audit as inputs=, where a memory map will do"


class KeptInputs:
    """What the model is given of each record, on the CPU, in the order of the batches.

    `wanted` True refuses what cannot be kept; None keeps floats, bytes and strings only, and else quietly nothing.
    """

    def __init__(self, wanted: bool | None, total: int | None) -> None:
        if wanted not in (None, True, False):
            raise fail("keep_inputs", "True, False or None", repr(wanted), "leave it out to keep what can be kept")
        self._wanted, self._total, self._keeping = wanted, total, wanted is not False
        self._tensors, self._texts = Rows("inputs", total), list[str]()
        self._kind: str | None = None
        self._bytes = 0

    def add(self, batch: Batch) -> None:
        """Keep the rows of `batch`, or give all of them up."""
        if not self._keeping:
            return
        try:
            self._keep(batch)
        except InputError:
            if self._wanted:
                raise
            self._keeping = False
            self._tensors, self._texts = Rows("inputs", None), []

    def joined(self) -> Any:
        """All rows; None where they were not kept."""
        if not self._keeping or self._kind is None:
            return None
        if self._texts:
            return self._texts
        tensor = self._tensors.joined()
        try:
            check_finite("inputs", tensor)
        except InputError:
            if self._wanted:
                raise
            return None
        return tensor

    def _keep(self, batch: Batch) -> None:
        rows = len(batch.targets)
        block = _only_input(batch, rows)
        text = isinstance(block, list)
        kind = "strings" if text else row_kind(block)
        if self._kind not in (None, kind):
            raise fail("keep_inputs", f"rows of {self._kind} in every batch", f"rows of {kind}", "make records alike")
        self._kind = kind
        if not text and self._wanted is None and not _is_seen_by_default(block):
            raise fail("keep_inputs", "tables or images of floats or bytes", kind, "say keep_inputs=True")
        self._bytes += sum(map(len, block)) if text else block.nbytes
        known = not text and self._total is not None
        size = block.nbytes // max(1, rows) * self._total if known else self._bytes
        if size > KEPT_BYTES:
            got = f"{'' if known else 'at least '}{size / 2**30:.3g} GiB"
            raise fail("keep_inputs", f"at most {KEPT_BYTES / 2**30:g} GiB of inputs", got, LATER)
        if text:
            self._texts.extend(block)
        else:
            self._tensors.add(block if known else block.clone())


def _only_input(batch: Batch, rows: int) -> Any:
    """The batch's one input, a tensor on the CPU or a list of strings with one row a record."""
    values = [*batch.arguments, *batch.keywords.values()]
    expected = "a model of one input, a tensor or strings"
    if len(values) != 1:
        raise fail("keep_inputs", expected, f"{len(values)} inputs", LATER)
    (value,) = values
    if isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        value = list(value)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        value = torch.from_numpy(np.ascontiguousarray(value))
    elif not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        raise fail("keep_inputs", expected, f"a {type(value).__name__}", LATER)
    if getattr(value, "ndim", 1) == 0 or len(value) != rows:
        raise fail("keep_inputs", "one row of input a record", f"other rows for {rows} targets", LATER)
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _is_seen_by_default(block: torch.Tensor) -> bool:
    """Images and tables; integers may be the ids of tokens, which are no quantities."""
    return block.ndim >= 2 and (block.is_floating_point() or block.dtype == torch.uint8)
