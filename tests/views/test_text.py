"""Hashed n-grams against counting terms by hand."""

import math
import re
import zlib
from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway.views.text import term_hash, text_features
from tests.views.made import gather

MASK = (1 << 64) - 1
EXPECTED_HASHES = ["0x339e8f5750fff36e", "0x5e3c62b8c14f7852"]
EXPECTED_ROW = [0.1051767, 0.1780796, 0.0729029, -0.8091397, -0.2103534, -0.4207067, 0.2103534, -0.1780796]


def mixed(value):
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def hash_of(term):
    value = len(term)
    for character in term:
        value = mixed(((value ^ ord(character)) * 0x9E3779B97F4A7C15) & MASK)
    return value


def by_hand(text, dimensions):
    """One term at a time, in Python's whole numbers."""
    text = text.lower()
    counts = Counter(mixed(zlib.crc32(w.encode()) * 0x9E3779B97F4A7C15 & MASK) for w in re.findall(r"\w+", text))
    spaced = f" {' '.join(text.split())} " if text.split() else ""
    for size in (3, 4, 5):
        counts.update(hash_of(spaced[i : i + size]) for i in range(len(spaced) - size + 1))
    row = np.zeros(dimensions)
    for value, count in counts.items():
        row[(value & (MASK >> 1)) % dimensions] += (-1.0 if value >> 63 else 1.0) * (1 + math.log(count))
    return row / (np.linalg.norm(row) or 1.0)


@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), min_size=1, max_size=6),
    dimensions=st.integers(1, 300),
    block=st.integers(1, 7),
)
def test_rows_are_counts_of_terms(texts, dimensions, block):
    made = gather(replace(text_features(texts, dimensions=dimensions), block=block))
    assert made.dtype == torch.float32
    expected = np.stack([by_hand(text, dimensions) for text in texts])
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_the_hash_is_the_same_on_every_machine_and_day():
    codes = np.array([ord(c) for c in "abcd"], dtype=np.uint64)
    assert [hex(int(value)) for value in term_hash(codes, 3)] == EXPECTED_HASHES
    row = gather(text_features(["The cat sat on the mat."], dimensions=8))[0]
    np.testing.assert_allclose(row.numpy(), EXPECTED_ROW, atol=1e-6)


def test_alike_texts_are_near_and_others_far():
    texts = ["the quick brown fox jumps", "The quick brown foxes  jumped", "gradient descent converges slowly", ""]
    rows = gather(text_features(texts))
    products = rows @ rows.T
    assert products[0, 1] > 0.5
    assert abs(products[0, 2]) < 0.15
    assert gather(text_features(["\ud800 broken"])).isfinite().all()
    assert not rows[3].any()
    np.testing.assert_allclose(rows[:3].norm(dim=1).numpy(), 1.0, rtol=1e-5)
