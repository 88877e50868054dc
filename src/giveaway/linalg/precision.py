"""Matrix products in a chosen precision, and random signs that are the same on every device (docs/derivations.md)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from giveaway.checks import check_choice, fail

CHOICES = ("auto", "float64", "float32", "tf32", "bf16")
WORD = 32  # probes that one hash serves

Parts = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Precision:
    """float64, float32, tf32, bf16 or bf16x3; tf32 and bf16x3 are a GPU's."""

    name: str

    @property
    def dtype(self) -> torch.dtype:
        """The type of sums and vectors."""
        return torch.float64 if self.name == "float64" else torch.float32

    @property
    def between(self) -> torch.dtype:
        """The type of one product until the next."""
        return torch.bfloat16 if self.name == "bf16" else self.dtype

    @property
    def trusted(self) -> float:
        """How far a residual may fall by such products before it is computed in a higher precision."""
        return {"bf16": 0.02, "tf32": 0.01}.get(self.name, 1e-4)

    def parts(self, a: torch.Tensor) -> Parts:
        """Return a factor as the matrix units multiply it."""
        if self.name != "bf16x3":
            return (a.to(self.between),)
        high = a.to(torch.bfloat16)
        return high, (a - high).to(torch.bfloat16)

    def product(self, a: Parts, b: Parts) -> torch.Tensor:
        """Return a @ b in the type `between`."""
        if self.name == "bf16x3":
            total = torch.zeros(len(a[0]), b[0].shape[1], device=a[0].device)
            self.add_product(total, a, b)
            return total
        with tf32_products(self.name == "tf32"):
            return a[0] @ b[0]

    def add_product(self, total: torch.Tensor, a: Parts, b: Parts) -> None:
        """total += a @ b, with `total` of type `dtype`."""
        if self.name not in ("bf16", "bf16x3"):
            with tf32_products(self.name == "tf32"):
                total.addmm_(a[0], b[0])
            return
        trailing = [(a[1], b[0]), (a[0], b[1])] if self.name == "bf16x3" else []
        for one, other in [(a[0], b[0]), *trailing]:
            if total.is_cuda:
                torch.addmm(total, one, other, out_dtype=torch.float32, out=total)
            else:
                total += one @ other  # torch rounds a CPU's product to bfloat16 first


def precision_named(name: str, device: torch.device) -> Precision:
    """Return the precision that an option names; `auto` is the quickest that `device` has matrix units for."""
    check_choice("precision", name, CHOICES)
    if name == "auto":
        return Precision("bf16" if device.type == "cuda" else "float32")
    if name == "tf32" and device.type != "cuda":
        raise fail("precision", "bf16, float32 or float64 on a CPU", name, "leave it out, or compute on a GPU")
    return Precision(name)


def higher_than(precision: Precision, device: torch.device) -> Precision | None:
    """Return the next precision to try where products in this one are too rough; None after the highest."""
    ladder = ("bf16", "tf32", "float32", "float64") if device.type == "cuda" else ("bf16", "float32", "float64")
    higher = ladder[ladder.index(precision.name) + 1 :]
    return Precision(higher[0]) if higher else None


def exact_for(precision: Precision, device: torch.device) -> Precision | None:
    """Return the precision in which residuals of solves with such products are computed; None where it is its own."""
    if precision.name == "float64":
        return None
    if precision.name == "float32":
        return Precision("float64")
    return Precision("bf16x3" if device.type == "cuda" else "float32")


@contextmanager
def tf32_products(enabled: bool) -> Iterator[None]:
    """Allow or forbid TF32 in float32 products inside the block."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = enabled
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


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
    words = words + (0x9E3779B97F4A7C15 - (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ _shifted(words, shift)) * (factor - (1 << 64))
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift to the right and bring in zeros; torch's own shift brings in the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
