"""The hash against SplitMix64 as it is defined, in Python's own whole numbers."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway.linalg.probes import mixed

ALL = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix(state: int) -> int:
    """The number that a SplitMix64 generator in `state` gives next."""
    word = (state + GOLDEN) & ALL
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & ALL
    return word ^ (word >> 31)


def as_signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def test_the_published_sequence_of_seed_zero():
    """The first three numbers of a generator started at 0."""
    states = torch.tensor([as_signed(GOLDEN * k & ALL) for k in range(3)])
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert mixed(states).tolist() == [as_signed(word) for word in published]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=20))
def test_every_word_as_defined(words):
    assert mixed(torch.tensor(words)).tolist() == [as_signed(splitmix(word & ALL)) for word in words]
