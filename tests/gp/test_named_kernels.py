"""Kernels in words: the right kernel with the right options, and what they refuse."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist, pdist

from giveaway.checks import InputError
from giveaway.gp import named_kernels
from giveaway.gp.conv_nngp import ConvNNGP, ConvNTK
from giveaway.gp.kernels import Sphere
from giveaway.gp.named_kernels import KINDS, TAKES, KernelChoice, median_distance
from giveaway.gp.nngp import NNGP, NTK


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def arc_cosine(x: np.ndarray, depth: int, *, weight: float = 2.0, bias: float = 0.0) -> np.ndarray:
    """The NNGP of a ReLU network between all rows, from the formula of Cho and Saul."""
    k = weight * x @ x.T / x.shape[1] + bias
    for _ in range(depth):
        scale = np.sqrt(np.outer(np.diag(k), np.diag(k)))
        angle = np.arccos(np.clip(k / scale, -1.0, 1.0))
        np.fill_diagonal(angle, 0.0)
        k = bias + weight * scale * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    return k


def on_sphere(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(1, keepdims=True)
    return centred * np.sqrt(x.shape[1]) / np.linalg.norm(centred, axis=1, keepdims=True)


def agree(found: torch.Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------------------------------------ each name


@pytest.mark.parametrize("length", [None, 0.7])
def test_rbf_and_laplace(length):
    x = drawn(13, 3)
    own = length or np.median(pdist(x.numpy()))
    distance = cdist(x.numpy(), x.numpy())
    agree(KernelChoice("rbf", length=length).kernel(x)(x, x), np.exp(-(distance**2) / (2 * own**2)))
    agree(KernelChoice("laplace", length=length).kernel(x)(x, x), np.exp(-distance / own))


def test_linear():
    x = drawn(6, 3)
    gram = x.numpy() @ x.numpy().T
    agree(KernelChoice("linear").kernel(x)(x, x), gram)
    agree(KernelChoice("linear", weight_variance=0.3, bias_variance=2.0).kernel(x)(x, x), 0.3 * gram + 2.0)


def test_nngp():
    x = drawn(7, 4)
    agree(KernelChoice("nngp").kernel(x)(x, x), arc_cosine(x.numpy(), 3))
    chosen = KernelChoice("nngp", depth=2, weight_variance=1.5, bias_variance=0.2)
    agree(chosen.kernel(x)(x, x), arc_cosine(x.numpy(), 2, weight=1.5, bias=0.2))


@pytest.mark.parametrize(
    ("name", "kind"), [("nngp", NNGP), ("ntk", NTK), ("conv_nngp", ConvNNGP), ("conv_ntk", ConvNTK)]
)
def test_networks_take_every_option_of_theirs(name, kind):
    x = drawn(4, 2, 9, 9)
    own = {"weight_variance": 1.3, "bias_variance": 0.4}
    if name.startswith("conv"):
        own |= {"filter_size": 2, "stride": 2, "padding": "valid", "readout": "pool"}
    found = KernelChoice(name, depth=2, activation="gelu", **own).kernel(x)
    assert type(found) is kind
    agree(found(x, x), kind(2, "gelu", **own)(x, x).numpy())
    plain = KernelChoice(name).kernel(x)
    assert type(plain) is kind
    agree(plain(x, x), kind(3)(x, x).numpy())
    assert not torch.allclose(plain(x, x), found(x, x), rtol=0.1)
    # every option moves the kernel: none is dropped on the way
    for option in own:
        others = {key: value for key, value in own.items() if key != option}
        without = KernelChoice(name, depth=2, activation="gelu", **others).kernel(x)
        assert not torch.allclose(without(x, x), found(x, x), rtol=1e-3), option


def test_on_the_sphere_records_are_centred_and_scaled_first():
    x = drawn(9, 6)
    mapped = on_sphere(x.numpy())
    np.testing.assert_allclose((mapped**2).sum(1), 6.0)
    agree(KernelChoice("nngp", sphere=True).kernel(x)(x, x), arc_cosine(mapped, 3))
    agree(KernelChoice("linear", sphere=True).kernel(x)(x, x), mapped @ mapped.T)
    # the typical length is that of the records as the kernel sees them
    length = np.median(pdist(mapped))
    agree(KernelChoice("rbf", sphere=True).kernel(x)(x, x), np.exp(-(cdist(mapped, mapped) ** 2) / (2 * length**2)))
    assert isinstance(KernelChoice("rbf", sphere=True).kernel(x), Sphere)
    # neither brightness nor contrast of a record matters then
    changed = 3.0 * x + drawn(9, 1, seed=1)
    agree(
        KernelChoice("rbf", sphere=True).kernel(x)(changed, changed), KernelChoice("rbf", sphere=True).kernel(x)(x, x)
    )


def test_images_are_flattened_for_the_typical_length():
    x = drawn(8, 2, 3, 3)
    length = np.median(pdist(x.numpy().reshape(8, -1)))
    expected = np.exp(-(cdist(x.numpy().reshape(8, -1), x.numpy().reshape(8, -1)) ** 2) / (2 * length**2))
    agree(KernelChoice("rbf").kernel(x)(x, x), expected)


# ------------------------------------------------------------------------------------------------ the typical length


@settings(max_examples=50, deadline=None)
@given(n=st.integers(2, 30), d=st.integers(1, 4), seed=st.integers(0, 999))
def test_the_typical_length_is_the_median_of_all_distances(n, d, seed):
    x = drawn(n, d, seed=seed)
    assert median_distance(x) == pytest.approx(np.median(pdist(x.numpy())), rel=1e-9)


def test_repeated_records_do_not_count_and_one_record_has_length_one():
    x = drawn(5, 2)
    repeated = torch.cat([x[:1].expand(40, -1), x[1:]])
    apart = pdist(repeated.numpy())
    assert median_distance(repeated) == pytest.approx(np.median(apart[apart > 0]), rel=1e-9)
    assert median_distance(x[:1]) == 1.0
    assert median_distance(x[:1].expand(7, -1)) == 1.0


@pytest.mark.parametrize("n", [20, 21, 39, 40, 45, 200])
def test_of_many_records_an_even_sample_is_measured(monkeypatch, n):
    monkeypatch.setattr(named_kernels, "SAMPLED", 20)
    x = torch.zeros(n, 1, dtype=torch.float64)
    x[:, 0] = torch.arange(n) ** 2.0  # sorted, and denser at the start: the first rows alone would mislead
    sampled, everything = median_distance(x), float(np.median(pdist(x.numpy())))
    assert sampled == pytest.approx(everything, rel=0.15)


# ------------------------------------------------------------------------------------------------ refusals


OPTIONS = {
    "length": 0.5,
    "depth": 2,
    "activation": "erf",
    "weight_variance": 1.0,
    "bias_variance": 0.0,  # 0 and False are given, not left out
    "filter_size": 3,
    "stride": 1,
    "padding": "same",
    "readout": "pool",
}


def test_every_option_is_known_here():
    assert {field.name for field in fields(KernelChoice)} == {"name", "sphere", *OPTIONS}
    assert set.union(*map(set, TAKES.values())) == set(OPTIONS)
    assert TAKES.keys() == KINDS.keys()


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", KINDS)
def test_an_option_is_taken_or_refused_in_words(name, option):
    choice = KernelChoice(name, **{option: OPTIONS[option]})
    if option in TAKES[name]:
        assert choice.options() == {option: OPTIONS[option]}
        return
    takers = ", ".join(other for other in KINDS if option in TAKES[other])
    words = f"{option}: expected one of the kernels {takers}, got {name}; drop {option}, or choose another kernel"
    with pytest.raises(InputError) as error:
        choice.options()
    assert str(error.value) == words
    with pytest.raises(InputError, match=f"^{option}: "):
        choice.kernel(drawn(3, 1, 4, 4))


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (KernelChoice("rbg"), "kernel: expected a known name, got 'rbg'; did you mean rbf?"),
        (KernelChoice(""), "kernel: expected a known name, got ''; choose from rbf, laplace"),
        (KernelChoice("rbf", length=0.0), "length: expected a positive number, got 0.0"),
        (KernelChoice("rbf", length=-1.0), "length: expected a finite number of at least 0, got -1.0"),
        (KernelChoice("nngp", depth=0), "depth: expected a whole number of hidden layers, at least 1, got 0"),
        (KernelChoice("ntk", activation="rellu"), "activation: expected one of relu, leaky_relu, erf"),
        (KernelChoice("linear", weight_variance=-1.0), "weight_variance: expected a finite number of at least 0"),
        (KernelChoice("conv_nngp", readout="max"), "readout: expected a known name, got 'max'"),
        (KernelChoice("conv_nngp", padding="full"), "padding: expected a known name, got 'full'"),
    ],
)
def test_bad_choices(choice, words):
    with pytest.raises(InputError) as error:
        choice.kernel(drawn(3, 1, 4, 4))
    assert str(error.value).startswith(words)
