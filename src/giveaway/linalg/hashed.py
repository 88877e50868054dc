"""Hashes of whole numbers in whole numbers: no device rounds them."""

from __future__ import annotations

import torch


def mixed(words: torch.Tensor) -> torch.Tensor:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014), on 64-bit words with wrap-around."""
    words = words + _signed(0x9E3779B97F4A7C15)
    words = (words ^ _shifted(words, 30)) * _signed(0xBF58476D1CE4E5B9)
    words = (words ^ _shifted(words, 27)) * _signed(0x94D049BB133111EB)
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift to the right that brings in zeros; torch's own brings in the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64)
