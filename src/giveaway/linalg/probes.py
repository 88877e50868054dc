"""Random signs that depend only on a seed and on what they stand for: the same on every device, however work is cut.

A hash of (seed, record, word, output) gives WORD signs at once, one a probe. It is computed in whole numbers, which no
device rounds.
"""

from __future__ import annotations

import torch

WORD = 32  # probes that one hash serves


def signs(
    seed: int, numbers: torch.Tensor, outputs: int, probes: slice, *, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """Return ±1 as (records, outputs, probes) for records with these numbers."""
    device = numbers.device
    first = probes.start // WORD
    words = torch.arange(first, (probes.stop - 1) // WORD + 1, device=device)
    of_seed = mixed(torch.tensor(seed, dtype=torch.int64, device=device))
    of_record = mixed(of_seed + numbers.to(torch.int64))
    of_output = mixed(of_record[:, None] + torch.arange(outputs, device=device))
    hashed = mixed(of_output[:, :, None] + words)
    # 32 bits are enough from here on, and half of the memory
    bits = (hashed >> 32).to(torch.int32).unsqueeze(3) >> torch.arange(WORD, device=device, dtype=torch.int32)
    wanted = slice(probes.start - first * WORD, probes.stop - first * WORD)
    return bits.bitwise_and_(1).flatten(2)[:, :, wanted].to(dtype).mul_(2).sub_(1)


def mixed(words: torch.Tensor) -> torch.Tensor:
    """Apply the finalizer of SplitMix64 (Steele, Lea and Flood 2014) to 64-bit words with wrap-around."""
    words = words + _signed(0x9E3779B97F4A7C15)
    words = (words ^ _shifted(words, 30)) * _signed(0xBF58476D1CE4E5B9)
    words = (words ^ _shifted(words, 27)) * _signed(0x94D049BB133111EB)
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift to the right and bring in zeros; torch's own shift brings in the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64)
