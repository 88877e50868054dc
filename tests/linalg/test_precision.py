"""Precisions of products: what they keep, what they are taken apart into, and where they are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from giveaway.checks import InputError
from giveaway.linalg.precision import CHOICES, Precision, exact_for, precision_named

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def made(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, columns)))


@pytest.mark.parametrize(("name", "error"), [("float64", 1e-14), ("float32", 1e-6)])
def test_products_and_sums_of_them(name, error):
    precision = Precision(name)
    a, b, before = made(30, 20, 0), made(20, 9, 1), made(30, 9, 2)
    expected = np.array([[sum(x * y for x, y in zip(row, column, strict=True)) for column in b.T] for row in a])
    product = precision.product(precision.parts(a), precision.parts(b))
    assert product.dtype == precision.between == precision.dtype
    np.testing.assert_allclose(product, expected, rtol=0, atol=error * np.abs(expected).max())
    total = before.clone().to(precision.dtype)
    precision.add_product(total, precision.parts(a), precision.parts(b))
    np.testing.assert_allclose(total, before.numpy() + expected, rtol=0, atol=error * np.abs(expected).max())


@pytest.mark.parametrize("a", [made(40, 40, 3), 1e-20 * made(40, 40, 4), torch.zeros(3, 3).double()])
def test_halves_hold_sixteen_bits(a):
    """The leading and the trailing eight bits together, as float32 would have them to a part in 2^16."""
    high, low = Precision("bf16x3").parts(a.float())
    assert high.dtype == low.dtype == torch.bfloat16
    both = high.double() + low.double()
    assert float((both - a).abs().max()) <= 2.0**-16 * float(a.abs().max())
    (one,) = Precision("bf16").parts(a.float())
    assert one.dtype == torch.bfloat16
    assert torch.equal(one, high)


def test_three_products_of_halves_are_worth_sixteen_bits():
    """The scheme that a GPU runs, multiplied out in float64: what is left out is of the size 2^-16."""
    a, b = made(50, 64, 5).float(), made(64, 50, 6).float()
    (ah, al), (bh, bl) = ([part.double() for part in Precision("bf16x3").parts(t)] for t in (a, b))
    exact, size = a.double() @ b.double(), a.abs().double() @ b.abs().double()
    assert float(((ah @ bh - exact).abs() / size).max()) > 2.0**-12
    assert float(((ah @ bh + al @ bh + ah @ bl - exact).abs() / size).max()) < 2.0**-16


def test_what_is_kept_between_products():
    kept = {name: (Precision(name).dtype, Precision(name).between) for name in (*CHOICES[1:], "bf16x3")}
    assert kept == {
        "float64": (torch.float64, torch.float64),
        "float32": (torch.float32, torch.float32),
        "tf32": (torch.float32, torch.float32),
        "bf16": (torch.float32, torch.bfloat16),
        "bf16x3": (torch.float32, torch.float32),
    }


def test_a_residual_is_looked_at_in_a_higher_precision():
    bits = {"bf16": 8, "tf32": 11, "bf16x3": 16, "float32": 24, "float64": 53}
    for device in (CPU, GPU):
        for cheap in CHOICES[1:]:
            exact = exact_for(Precision(cheap), device)
            assert exact is None if cheap == "float64" else bits[exact.name] > bits[cheap]
            assert device is GPU or exact is None or exact.name.startswith("float")
            # a recursion is not trusted below what its products resolve
            assert Precision(cheap).trusted >= 2.0 ** -bits[cheap]


def test_the_setting_of_tf32_comes_back():
    before = torch.backends.cuda.matmul.allow_tf32
    for own in (True, False):
        torch.backends.cuda.matmul.allow_tf32 = own
        try:
            Precision("float32").product((torch.ones(2, 2),), (torch.ones(2, 2),))
            assert torch.backends.cuda.matmul.allow_tf32 is own
            with pytest.raises(RuntimeError):
                Precision("tf32").product((torch.ones(2, 2),), (torch.ones(3, 2),))
            assert torch.backends.cuda.matmul.allow_tf32 is own
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


def test_auto_is_the_quickest_of_a_device():
    assert precision_named("auto", CPU) == Precision("float32")
    assert precision_named("auto", GPU) == Precision("bf16")
    assert precision_named("float64", GPU) == Precision("float64")
    assert precision_named("tf32", GPU) == Precision("tf32")


def test_matrix_units_that_a_cpu_has_not():
    with pytest.raises(InputError) as caught:
        precision_named("tf32", CPU)
    assert str(caught.value) == (
        "precision: expected bf16, float32 or float64 on a CPU, got tf32; leave it out, or compute on a GPU"
    )


def test_products_in_bfloat16_on_a_cpu():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(40, 30, generator=generator), torch.randn(30, 20, generator=generator)
    precision = Precision("bf16")
    expected = a.bfloat16().double() @ b.bfloat16().double()
    size = float(expected.abs().max())
    np.testing.assert_allclose(
        precision.product(precision.parts(a), precision.parts(b)).double(), expected, atol=size / 256
    )
    total = torch.ones(40, 20)
    precision.add_product(total, precision.parts(a), precision.parts(b))
    assert total.dtype == torch.float32
    np.testing.assert_allclose(total.double(), 1 + expected, atol=size / 256)


@pytest.mark.parametrize("name", ["half", "bf16x3", "", None])
def test_a_precision_that_there_is_not(name):
    """bf16x3 among them: it is what bf16 is looked at in, and no choice of its own."""
    with pytest.raises(InputError) as caught:
        precision_named(name, CPU)
    remedy = "did you mean bf16?" if name == "bf16x3" else "choose from auto, float64, float32, tf32, bf16"
    assert str(caught.value) == f"precision: expected a known name, got {name!r}; {remedy}"
