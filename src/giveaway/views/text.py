"""Hashed n-grams of strings: a fixed number of columns for any vocabulary, nothing to fit (docs/derivations.md)."""

import re
import zlib
from typing import Any

import numpy as np
import torch

from giveaway.checks import fail
from giveaway.views.left_out import RecordFeatures

DIMENSIONS = 4096
BLOCK = 1024  # rows of features made at a time
CHARACTERS = (3, 4, 5)
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
WORD = re.compile(r"\w+")


def text_features(strings: Any, *, dimensions: int = DIMENSIONS) -> RecordFeatures:
    """Return features (rows, dimensions) of signed, hashed character n-grams and words, float32.

    >>> row = next(text_features(["ab"], dimensions=8)())
    >>> row.shape, round(float(row.norm()), 6)
    (torch.Size([1, 8]), 1.0)
    """
    if isinstance(strings, str):
        raise fail("strings", "a list of strings, one a record", "one string", "put it in a list")
    texts = strings.tolist() if isinstance(strings, np.ndarray) else list(strings)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise fail("strings", "strings", f"{type(text).__name__} in row {row}", "convert it to str")

    def of(rows: slice | torch.Tensor) -> torch.Tensor:
        chosen = texts[rows] if isinstance(rows, slice) else [texts[row] for row in rows.tolist()]
        cells, weights = [], []
        for row, text in enumerate(chosen):
            terms, counts = np.unique(_terms(text), return_counts=True)
            sign = 1.0 - 2.0 * (terms >> np.uint64(63)).astype(np.float64)
            column = (terms & np.uint64(0x7FFFFFFFFFFFFFFF)) % np.uint64(dimensions)
            cells.append(column.astype(np.int64) + row * dimensions)
            weights.append(sign * (1.0 + np.log(counts)))
        flat = np.bincount(np.concatenate(cells), np.concatenate(weights), minlength=len(chosen) * dimensions)
        # NumPy counts in integers where there is no term at all
        dense = torch.from_numpy(flat.astype(np.float64).reshape(len(chosen), dimensions))
        norm = dense.norm(dim=1, keepdim=True)
        return (dense / torch.where(norm > 0, norm, 1.0)).float()

    return RecordFeatures(len(texts), of, BLOCK)


def term_hash(codes: np.ndarray, size: int) -> np.ndarray:
    """Return the 64-bit hashes of all windows of `size` code points."""
    count = max(0, len(codes) - size + 1)
    value = np.full(count, size, dtype=np.uint64)
    for k in range(size):
        value = _mix((value ^ codes[k : k + count]) * MULTIPLIER)
    return value


def _mix(value: np.ndarray) -> np.ndarray:
    """Mix by the finalizer of splitmix64 (Steele, Lea, Flood, 2014): every bit depends on every bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _terms(text: str) -> np.ndarray:
    plain = text.lower()
    words = WORD.findall(plain)
    hashes = np.array([zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words], dtype=np.uint64)
    spaced = " ".join(plain.split())
    if not spaced:
        return hashes
    raw = f" {spaced} ".encode("utf-32-le", "surrogatepass")
    codes = np.frombuffer(raw, dtype="<u4").astype(np.uint64)
    return np.concatenate([_mix(hashes * MULTIPLIER), *(term_hash(codes, size) for size in CHARACTERS)])
