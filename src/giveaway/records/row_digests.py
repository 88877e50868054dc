"""Digests of records, which tell whether an audit, signals of other models and a trace are of the same records.

An audit and signals have a keyed digest for each record, so that the rows that differ can be named. The key stays in
the audit's folder: without it nobody can look up a guess. A trace has one digest of all ids and one of all targets.
"""

import math
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from giveaway.checks import CHECK_BYTES, ROWS_PER_CHECK, as_tensor, check_names, fail
from giveaway.storage.arrays import array_digest, read_arrays, to_numpy
from giveaway.storage.folder import MarkedFolder

CLASSES = "classes"
FEATURE_BYTES = 2**28  # larger features are not read once more


@dataclass(frozen=True, eq=False)
class RowDigests:
    """Digests (n,) of 64 bits by kind of contents: classes or targets, and inputs or features with the shape of a row.

    key : None where it is not known, as beside signals; `keyed_by` names it.
    """

    of: Mapping[str, np.ndarray]
    keyed_by: str
    key: bytes | None = None

    @classmethod
    def of_head(cls, head: Any) -> "RowDigests":
        """Digest targets, inputs and features of a head under a new key; lazy or large features are left out."""
        small = isinstance(head.features, torch.Tensor) and head.linear and head.features.nbytes <= FEATURE_BYTES
        contents = {"targets": head.targets, "inputs": head.inputs, "features": head.features if small else None}
        return cls({}, "", secrets.token_bytes(32)).again(**contents)

    def again(self, **contents: Any) -> "RowDigests":
        """Digest the targets, inputs or features of other rows under the same key; what has no rows is left out."""
        if self.key is None:
            raise fail("digests", "those of an audit, with their key", "those of signals", "take table.digests")
        of = {}
        for name, value in contents.items():
            rows = _as_rows(value)
            if rows is None or (name == "targets" and _is_text(rows)):
                continue
            rows = _target_rows(as_tensor("targets", rows)) if name == "targets" else rows
            kind = f"{name} {tuple(np.shape(rows)[1:])}{' of text' if _is_text(rows) else ''}"
            if kind == "targets (1,)" and bool(((rows >= 0) & (rows == rows.round())).all()):
                kind = CLASSES
            of[kind] = _digested(rows, self.key)
        return RowDigests(of, blake2b(b"name", digest_size=8, key=self.key).hexdigest(), self.key)

    def check(self, n: int) -> None:
        if any(values.shape != (n,) or values.dtype != np.uint64 for values in self.of.values()):
            raise fail("digests", f"{n} of 64 bits a kind, one a record", "others", "take table.digests.again(...)")

    def at(self, rows: Any) -> "RowDigests":
        return replace(self, of={kind: values[rows] for kind, values in self.of.items()})

    def compared(self, other: "RowDigests") -> tuple[bool, str]:
        """Return whether it is proved that both are of the same records, and what differs, "" where nothing does: all
        targets must be the same, and one of inputs and features, which the other side need not tell apart."""
        if other.keyed_by != self.keyed_by:
            return False, ""
        common = [kind for kind in self.of if kind in other.of]
        changed = {kind: np.flatnonzero(self.of[kind] != other.of[kind]) for kind in common}
        contents = [kind for kind in common if kind.startswith(("inputs", "features"))]
        wrong = [kind for kind in common if kind not in contents and len(changed[kind])]
        if contents and all(len(changed[kind]) for kind in contents):
            wrong.append(min(contents, key=lambda kind: len(changed[kind])))
        if wrong:
            rows = changed[wrong[0]]
            return False, f"other {wrong[0].partition(' ')[0]} in {len(rows)} of them, first in row {rows[0]}"
        return bool(contents) or any(len(np.unique(self.of[kind])) == len(self.of[kind]) for kind in common), ""

    def stage(self, folder: MarkedFolder, name: str) -> None:
        """Write the digests with their key for the next commit of an audit's folder."""
        arrays = {"key": np.frombuffer(self.key or b"", np.uint8), **self.of}
        folder.stage(name, lambda stream: np.savez(stream, allow_pickle=False, **arrays))

    @classmethod
    def load(cls, folder: MarkedFolder, name: str) -> "RowDigests | None":
        """Read what `stage` wrote; None where there is nothing, as in folders of earlier versions."""
        if not (path := folder.verified(name)).is_file():
            return None
        arrays = read_arrays("folder", path, "an audit")
        return replace(cls({}, "", arrays.pop("key", np.zeros(1, np.uint8)).tobytes()).again(), of=arrays)


def identity_of(records: int, *, targets: Any = None, ids: Any = None) -> dict[str, str]:
    """Return digests of all ids and of all targets, the same for the same names or numbers, whatever holds them."""
    digests = {}
    if ids is not None:
        names = check_names("ids", ids, records, unique=True).astype(str)
        digests["ids"] = array_digest(names.astype(f"<U{max(1, int(np.char.str_len(names).max()))}"))
    if targets is not None:
        held = as_tensor("targets", targets)
        if held.ndim == 0 or len(held) != records:
            got, remedy = f"shape {tuple(held.shape)}", "give those of the training records"
            raise fail("targets", f"{records} targets, one a record", got, remedy)
        digests["targets"] = array_digest(_target_rows(held))
    return digests


def _target_rows(targets: torch.Tensor) -> np.ndarray:
    """Return targets as float32 (n, columns), soft labels normalized as heads hold them."""
    rows = targets.cpu().double().reshape(len(targets), -1)
    total = rows.sum(1, keepdim=True)
    if rows.shape[1] > 1 and bool(((total - 1).abs() <= 1e-4).all()):
        rows = rows / total
    return rows.float().numpy()


def _as_rows(value: Any) -> Any:
    """Return an array, a sparse matrix or a list whose rows can be digested; None of other things, as a Dataset."""
    if hasattr(value, "tocsr"):
        return value.tocsr()
    if hasattr(value, "iloc"):
        value = value.to_numpy()
    if isinstance(value, torch.Tensor):
        return value.detach()
    with suppress(ValueError):  # rows of several lengths
        if isinstance(value, list | tuple) and not all(isinstance(row, str) for row in value):
            value = np.asarray(value)
        return value if isinstance(value, np.ndarray | list | tuple) and len(value) else None


def _is_text(rows: Any) -> bool:
    return not hasattr(rows, "dtype") or (isinstance(rows, np.ndarray) and rows.dtype.kind not in "fiub")


def _digested(rows: Any, key: bytes) -> np.ndarray:
    """Digest every row; numbers as float32, so that the type that holds them does not matter."""
    if isinstance(rows, np.ndarray) and not _is_text(rows) and rows.shape[1:] == (1,):
        distinct, where = np.unique(rows, return_inverse=True)
        return _hashed(distinct[:, None], key)[where.ravel()]
    count = len(rows) if isinstance(rows, list | tuple) else rows.shape[0]
    width = math.prod(getattr(rows, "shape", ())[1:])  # sparse rows are made dense, a few at a time
    size = max(1, min(ROWS_PER_CHECK, CHECK_BYTES // (4 * max(1, width))))
    return np.concatenate([_hashed(rows[start : start + size], key) for start in range(0, count, size)])


def _hashed(block: Any, key: bytes) -> np.ndarray:
    if _is_text(block):
        cells = block.tolist() if isinstance(block, np.ndarray) else block
        rows: Any = [repr(row).encode("utf-8", "surrogatepass") for row in cells]
    else:
        held = block.toarray() if hasattr(block, "toarray") else to_numpy(as_tensor("rows", block))
        numbers = np.ascontiguousarray(held, dtype=np.float32) + np.float32(0)  # −0 is 0
        rows = numbers.reshape(len(held), -1).view(np.uint8)
    return np.frombuffer(b"".join(blake2b(row, digest_size=8, key=key).digest() for row in rows), "<u8")
