"""Precisions of products, and random signs: what they depend on, and where they are refused."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.linalg.precision import CHOICES, WORD, Precision, exact_for, mixed, precision_named, signs

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def made(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, columns)))


@pytest.mark.parametrize(("name", "error"), [("float64", 1e-14), ("float32", 1e-6), ("bf16", 1 / 256)])
def test_products_and_sums_of_them(name, error):
    precision = Precision(name)
    a, b, before = made(30, 20, 0), made(20, 9, 1), made(30, 9, 2)
    if name == "bf16":
        a, b = a.bfloat16().double(), b.bfloat16().double()
    expected = np.array([[sum(x * y for x, y in zip(row, column, strict=True)) for column in b.T] for row in a])
    product = precision.product(precision.parts(a), precision.parts(b))
    assert product.dtype == precision.between
    np.testing.assert_allclose(product.double(), expected, rtol=0, atol=error * np.abs(expected).max())
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


def test_precisions_by_name():
    assert [precision_named("auto", device).name for device in (CPU, GPU)] == ["float32", "bf16"]
    assert [precision_named(name, GPU).name for name in ("float64", "tf32")] == ["float64", "tf32"]
    with pytest.raises(InputError) as caught:
        precision_named("tf32", CPU)
    assert str(caught.value) == (
        "precision: expected bf16, float32 or float64 on a CPU, got tf32; leave it out, or compute on a GPU"
    )


@pytest.mark.parametrize("name", ["half", "bf16x3", "", None])
def test_a_precision_that_there_is_not(name):
    """bf16x3 among them: it is what bf16 is looked at in, and no choice of its own."""
    with pytest.raises(InputError) as caught:
        precision_named(name, CPU)
    remedy = "did you mean bf16?" if name == "bf16x3" else "choose from auto, float64, float32, tf32, bf16"
    assert str(caught.value) == f"precision: expected a known name, got {name!r}; {remedy}"


RECORDS, OUTPUTS, PROBES = 40, 3, 3 * WORD + 7


def all_signs(seed: int, **options) -> np.ndarray:
    return signs(seed, torch.arange(RECORDS), OUTPUTS, slice(0, PROBES), **options).numpy()


@given(
    seed=st.integers(0, 1 << 62),
    rows=st.lists(st.integers(0, RECORDS - 1), min_size=1, max_size=8),
    cut=st.tuples(st.integers(0, PROBES - 1), st.integers(1, PROBES)).filter(lambda cut: cut[0] < cut[1]),
    outputs=st.integers(1, OUTPUTS),
)
def test_any_rows_and_any_cut_of_the_probes_are_parts_of_the_whole(seed, rows, cut, outputs):
    part = signs(seed, torch.tensor(rows), outputs, slice(*cut))
    np.testing.assert_array_equal(part, all_signs(seed)[rows, :outputs, cut[0] : cut[1]])
    assert set(np.unique(part)) <= {-1.0, 1.0}


@pytest.mark.parametrize("numbers", [torch.int32, torch.int64])
def test_the_same_in_every_precision(numbers):
    rows = torch.arange(RECORDS, dtype=numbers)
    single = signs(5, rows, OUTPUTS, slice(0, PROBES), dtype=torch.float32)
    assert single.dtype == torch.float32
    np.testing.assert_array_equal(single, all_signs(5))
    np.testing.assert_array_equal(signs(5, rows, OUTPUTS, slice(0, PROBES), dtype=torch.bfloat16).float(), all_signs(5))


def test_no_global_generator_is_read_or_moved():
    torch.manual_seed(1)
    first = all_signs(9)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    np.testing.assert_array_equal(all_signs(9), first)
    assert torch.equal(before, torch.get_rng_state())


def test_seeds_give_unrelated_signs():
    """Neighbouring seeds too: agreements of two are a fair coin's."""
    drawn = [all_signs(seed).ravel() for seed in (0, 1, 2, -1, 1 << 40)]
    for a in range(len(drawn)):
        for b in range(a):
            assert abs(np.mean(drawn[a] * drawn[b])) < 4.5 / drawn[a].size ** 0.5
    shifted = signs(1, torch.arange(RECORDS), OUTPUTS, slice(0, PROBES)).numpy()[1:]
    assert abs(np.mean(shifted * all_signs(0)[:-1])) < 4.5 / shifted.size**0.5


@pytest.mark.parametrize("kept", ["records", "outputs", "probes"])
def test_mean_and_correlations_of_pairs(kept):
    """Within 5.5 standard errors: of some 8,000 pairs the largest of independent ones is at about 4."""
    drawn = signs(3, torch.arange(128), 128, slice(0, 128)).numpy()
    axis = ("records", "outputs", "probes").index(kept)
    flat = np.moveaxis(drawn, axis, 0).reshape(128, -1)
    assert np.abs(flat.mean(1)).max() < 5.5 / flat.shape[1] ** 0.5
    together = (flat @ flat.T / flat.shape[1])[np.triu_indices(128, 1)]
    assert np.abs(together).max() < 5.5 / flat.shape[1] ** 0.5
    # and not too even: the pairs' own spread is that of independent signs
    assert together.std() * flat.shape[1] ** 0.5 == pytest.approx(1.0, abs=0.05)


def test_products_of_three_are_fair():
    """Pairs could be uncorrelated while a third follows from them."""
    drawn = signs(4, torch.arange(400), 8, slice(0, 64)).numpy()
    flat = drawn.reshape(400 * 8, 64)
    for a, b, c in ((0, 1, 2), (0, 31, 32), (5, 37, 63), (30, 31, 62)):
        assert abs(np.mean(flat[:, a] * flat[:, b] * flat[:, c])) < 4.5 / len(flat) ** 0.5


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
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [splitmix(GOLDEN * k & ALL) for k in range(3)] == published


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=20))
def test_every_word_as_defined(words):
    assert mixed(torch.tensor(words)).tolist() == [as_signed(splitmix(word & ALL)) for word in words]
