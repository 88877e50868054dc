"""Matrix products in a chosen precision, summed in a wider one.

`bf16x3` stands for three bfloat16 products of the leading and trailing halves of both factors: sixteen bits of each,
at the speed of the matrix units.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from giveaway.checks import check_choice, fail

PRECISIONS = ("float64", "float32", "tf32", "bf16", "bf16x3")
ON_GPU_ONLY = ("tf32", "bf16", "bf16x3")
EXACT_FOR = {"float64": None, "float32": "float64", "tf32": "bf16x3", "bf16": "bf16x3"}


@dataclass(frozen=True)
class Precision:
    """How factors are rounded (`name`), and what vectors are kept in."""

    name: str

    @property
    def kept(self) -> torch.dtype:
        """What sums and vectors are kept in."""
        return torch.float64 if self.name == "float64" else torch.float32

    @property
    def between(self) -> torch.dtype:
        """What the result of one product is kept in until the next."""
        return torch.bfloat16 if self.name == "bf16" else self.kept

    @property
    def factor(self) -> torch.dtype:
        """What a factor is prepared as."""
        return self.between

    @property
    def trusted(self) -> float:
        """How far a residual may fall by such products before it has to be looked at in a higher precision."""
        return {"bf16": 0.1, "tf32": 0.03}.get(self.name, 1e-4)

    def product(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a @ b, rounded to `between`."""
        if self.name == "bf16x3":
            return _three_products(a, b)
        with _tf32(self.name == "tf32"):
            return a.to(self.factor) @ b.to(self.factor)

    def add_product(self, total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        """total += a @ b, with `total` of type `kept`."""
        if self.name == "bf16x3":
            total += _three_products(a, b)
        elif self.name == "bf16":
            total += torch.mm(a.to(torch.bfloat16), b.to(torch.bfloat16), out_dtype=torch.float32)
        else:
            with _tf32(self.name == "tf32"):
                total.addmm_(a.to(self.factor), b.to(self.factor))


def precision_named(name: str, device: torch.device, argument: str = "precision") -> Precision:
    """The precision that an option names; `auto` is the quickest that `device` has matrix units for."""
    if name == "auto":
        return Precision("bf16" if device.type == "cuda" else "float32")
    check_choice(argument, name, ("auto", *PRECISIONS[:4]))
    if name in ON_GPU_ONLY and device.type != "cuda":
        raise fail(argument, "float32 or float64 on a CPU", name, "leave it out, or add device='cuda'")
    return Precision(name)


def _three_products(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    total = torch.mm(a_high, b_high, out_dtype=torch.float32)
    total += torch.mm(a_low, b_high, out_dtype=torch.float32)
    total += torch.mm(a_high, b_low, out_dtype=torch.float32)
    return total


def _halves(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    high = a.to(torch.bfloat16)
    return high, (a - high.to(a.dtype)).to(torch.bfloat16)


@contextmanager
def _tf32(enabled: bool) -> Iterator[None]:
    """Whether float32 products may use TF32, for a while."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = enabled
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
