"""The table of leave-one-out distinguishability, against fitting again without each record or person in NumPy."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.spatial.distance import cdist, pdist

import giveaway as ga
from giveaway import checks
from giveaway.gp.kernels import RBF, Linear
from giveaway.gp.nngp import KernelChoice
from tests.conftest import refused
from tests.gp.test_kernels import arc_cosine


def gaussians(K: np.ndarray, y: np.ndarray, noise: float, seen: np.ndarray, at: np.ndarray) -> tuple:
    """Mean (q, C) and latent covariance of the rows `at` of K, for records `seen` (row numbers, may be none)."""
    cross = K[np.ix_(at, seen)]
    solved = np.linalg.solve(K[np.ix_(seen, seen)] + noise * np.eye(len(seen)), np.hstack([y[seen], cross.T]))
    outputs = y.shape[1]
    return cross @ solved[:, :outputs], K[np.ix_(at, at)] - cross @ solved[:, outputs:]


def gaussian_kl(mean, covariance, mean_, covariance_) -> float:
    """KL(N(mean, covariance) ‖ N(mean_, covariance_)) of one output."""
    change = mean_ - mean
    trace = np.trace(np.linalg.solve(covariance_, covariance))
    logs = np.linalg.slogdet(covariance_)[1] - np.linalg.slogdet(covariance)[1]
    return 0.5 * (logs - len(mean) + trace + change @ np.linalg.solve(covariance_, change))


def without_and_with(K, y, noise, left_out, at) -> tuple[float, float]:
    """KL and half the squared change of the mean at the rows `at` of K when `left_out` of the len(y) records go."""
    everyone = np.arange(len(y))
    mean, covariance = gaussians(K, y, noise, np.setdiff1d(everyone, left_out), at)
    mean_, covariance_ = gaussians(K, y, noise, everyone, at)
    kl = sum(gaussian_kl(mean[:, c], covariance, mean_[:, c], covariance_) for c in range(y.shape[1]))
    return kl, 0.5 * ((mean - mean_) ** 2).sum()


def brute_force(K, y, noise, groups=None) -> tuple[np.ndarray, np.ndarray]:
    """lood_kl and lood_mean of every record, or group of rows, by fitting again."""
    groups = [[i] for i in range(len(y))] if groups is None else groups
    found = [without_and_with(K, y.reshape(len(y), -1), noise, np.array(rows), np.array(rows)) for rows in groups]
    return tuple(np.array(column) for column in zip(*found, strict=True))


def rbf(x: np.ndarray, length: float) -> np.ndarray:
    return np.exp(-(cdist(x, x) ** 2) / (2 * length**2))


def median_rbf(x: np.ndarray) -> np.ndarray:
    flat = x.reshape(len(x), -1)
    return rbf(flat, np.median(pdist(flat)))


def data(n: int = 25, d: int = 2, outputs: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of which some lie far out, and targets of which some are far off."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x[: max(1, n // 8)] *= 3.0
    return x, np.sin(2 * x[:, :1]) + rng.standard_t(3, size=(n, outputs))


def agree(found, expected: tuple[np.ndarray, np.ndarray], rtol: float = 1e-8) -> None:
    np.testing.assert_allclose(found["lood_kl"], expected[0], rtol=rtol, atol=1e-11)
    np.testing.assert_allclose(found["lood_mean"], expected[1], rtol=rtol, atol=1e-13)


def test_the_oracle_knows_two_gaussians():
    """By numerical integration, so that the reference itself rests on something."""
    t = np.linspace(-30, 30, 200_001)
    p, q = (np.exp(-((t - m) ** 2) / (2 * v)) / np.sqrt(2 * np.pi * v) for m, v in ((0.3, 1.4), (-0.5, 0.8)))
    inside = p > 0
    integral = trapezoid(p[inside] * np.log(p[inside] / np.maximum(q[inside], 1e-300)), t[inside])
    found = gaussian_kl(np.array([0.3]), np.array([[1.4]]), np.array([-0.5]), np.array([[0.8]]))
    assert found == pytest.approx(integral, rel=1e-8)


# ------------------------------------------------------------------------------------------------ targets


@given(
    n=st.integers(2, 16),
    d=st.integers(1, 3),
    outputs=st.integers(1, 3),
    noise=st.sampled_from([0.02, 0.3, 2.0]),
    seed=st.integers(0, 999),
)
def test_values_as_they_are(n, d, outputs, noise, seed):
    x, y = data(n, d, outputs, seed)
    agree(ga.lood("rbf", x, y, noise), brute_force(median_rbf(x), y, noise), rtol=1e-6)


@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.float64, list])
def test_one_output_as_a_vector_or_a_column(kind):
    x, y = data(outputs=1)
    x, y = np.float32(x), np.float32(y)  # the same numbers for every type
    expected = brute_force(median_rbf(x.astype(float)), y.astype(float), 0.1)
    if kind is list:
        pair = x.tolist(), y.tolist()
    elif kind is torch.float64:
        pair = torch.from_numpy(x).to(kind), torch.from_numpy(y).to(kind)
    else:
        pair = x.astype(kind), y.astype(kind)
    agree(ga.lood("rbf", *pair, noise=0.1), expected)
    column = [value[0] for value in pair[1]] if kind is list else pair[1][:, 0]
    agree(ga.lood("rbf", pair[0], column, noise=0.1), expected)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32, bool])
def test_integers_are_classes_around_an_even_guess(kind):
    x, _ = data()
    classes = (np.arange(25) % 2 if kind is bool else np.arange(25) * 7 % 4).astype(kind)
    count = 2 if kind is bool else 4
    one_hot = (classes.astype(int)[:, None] == np.arange(count)) - 1.0 / count
    found = ga.lood("rbf", x, classes, 0.05)
    agree(found, brute_force(median_rbf(x), one_hot, 0.05))
    assert found.meta.outputs == count
    matrix = np.stack([classes, classes], 1).astype(kind)  # a matrix of integers is values
    agree(ga.lood("rbf", x, matrix, 0.1), brute_force(median_rbf(x), matrix.astype(float), 0.1))


# ------------------------------------------------------------------------------------------------ kernels


def test_a_kernel_by_name_choice_class_or_plain_callable():
    x, y = data()
    expected = brute_force(rbf(x, 0.8), y, 0.1)
    kernels = [KernelChoice("rbf", length=0.8), RBF(0.8), lambda X, Z: torch.exp(-(torch.cdist(X, Z) ** 2) / 1.28)]
    for kernel in kernels:
        agree(ga.lood(kernel, x, y, 0.1), expected, rtol=1e-7)
    agree(ga.lood("linear", x, y, 0.1), brute_force(x @ x.T, y, 0.1))
    both = ga.lood(lambda X, Z: Linear(1.0, 2.0)(X, Z) + RBF(0.8)(X, Z), x, y, 0.1)
    agree(both, brute_force(x @ x.T + 2.0 + rbf(x, 0.8), y, 0.1))
    agree(ga.lood("nngp", x, y, 0.1), brute_force(arc_cosine(x, 3), y, 0.1))
    laplace = np.exp(-cdist(x, x) / np.median(pdist(x)))
    agree(ga.lood("laplace", x, y, 0.1), brute_force(laplace, y, 0.1))


def test_convolutions_of_images():
    """Filters of one pixel: every position is a network of its own, and the read-out averages them."""
    x, y = data(d=12)
    images = x.reshape(25, 3, 2, 2)
    pixels = images.reshape(25, 3, 4)
    K = sum(arc_cosine(pixels[:, :, p], 1, weight=2.0) for p in range(4)) / 4
    agree(ga.lood(KernelChoice("conv_nngp", depth=1, filter_size=1), images, y, 0.1), brute_force(K, y, 0.1))


# ------------------------------------------------------------------------------------------------ people, names


GROUPS = np.array(["eve", "bob", "ann"])[np.random.default_rng(3).integers(0, 3, 25)]


@settings(max_examples=20)
@given(
    groups=st.lists(st.integers(-3, 9), min_size=2, max_size=14) | st.lists(st.sampled_from("cab"), min_size=3),
    outputs=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_groups_of_any_sizes(groups, outputs, seed):
    x, y = data(len(groups), 2, outputs, seed)
    found = ga.lood(RBF(1.0), x, y, 0.2, groups=groups)
    names = sorted(set(groups))
    assert found.ids.tolist() == names
    assert (found.meta.unit, found.meta.rows, found.meta.records) == ("person", len(names), len(groups))
    rows = [[i for i, group in enumerate(groups) if group == name] for name in names]
    agree(found, brute_force(rbf(x, 1.0), y, 0.2, rows), rtol=1e-6)


def test_a_person_a_record_is_the_record_and_copies_hide_no_person():
    x, y = data()
    plain = ga.lood("rbf", x, y, 0.1)
    agree(ga.lood("rbf", x, y, 0.1, groups=np.arange(25)), (plain["lood_kl"], plain["lood_mean"]))
    doubled = np.vstack([x, x[:1]]), np.vstack([y, y[:1]])
    person = np.r_[np.arange(25), 0]
    kernel = RBF(1.0)
    alone, copied = ga.lood(kernel, x, y, 0.1), ga.lood(kernel, *doubled, 0.1)
    assert copied["lood_kl"][0] < 0.7 * alone["lood_kl"][0]
    assert ga.lood(kernel, *doubled, 0.1, groups=person)["lood_kl"][0] > alone["lood_kl"][0]


def test_ids_stand_where_their_records_do():
    x, y = data()
    ids = np.array([f"r{i * 7 % 25}" for i in range(25)])
    found = ga.lood("rbf", x, y, 0.1, ids=ids)
    kl, _ = brute_force(median_rbf(x), y, 0.1)
    assert found.ids.tolist() == ids.tolist()
    assert found.top(1).ids[0] == ids[kl.argmax()]
    assert ga.lood("rbf", x, y, 0.1).ids.tolist() == list(range(25))


def test_the_metadata_says_what_was_done():
    x, y = data()
    meta = ga.lood(RBF(0.8), x, y, 0.1).meta.to_json()
    stated = {"unit": "record", "rows": 25, "records": 25, "outputs": 2, "kernel": "RBF(length=0.8)", "noise": 0.1}
    assert {key: meta[key] for key in stated} == stated
    M = rbf(x, 0.8) + 0.1 * np.eye(25)
    assert 0.5 * np.linalg.cond(M) < meta["condition"] < 1.0001 * np.linalg.cond(M)
    assert 0 <= meta["seconds"] < 60
    assert ga.lood("rbf", x, y, 0.1).meta.kernel.name == f"RBF(length={np.median(pdist(x)):g})"


# ------------------------------------------------------------------------------------------------ refusals


X, Y = data()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rbf", X[:, 0], Y, 0.1), "inputs: expected records as (n, …), got shape (25,); give one record a row"),
        (("rbf", X[:0], Y[:0], 0.1), "inputs: expected records as (n, …), got shape (0, 2)"),
        (
            ("rbf", np.where(X[7, 0] == X, np.nan, X), Y, 0.1),
            "inputs: expected finite numbers, got NaN or infinity first in row 7",
        ),
        (("rbf", X.astype(str), Y, 0.1), "inputs: expected an array of numbers, got dtype <U"),
        (("rbf", X, np.arange(25) - 2, 0.1), "targets: expected classes numbered from 0, got class -2; number them"),
        (("rbf", X, Y[:9], 0.1), "targets: expected shape (25,) or (25, outputs), got shape (9, 2)"),
        (("rbf", X, np.zeros(0, dtype=int), 0.1), "targets: expected shape (25,) or (25, outputs), got shape (0, 1)"),
        (
            ("rbf", X, np.where(Y[3, 1] == Y, np.inf, Y), 0.1),
            "targets: expected finite numbers, got NaN or infinity first in row 3",
        ),
        (("rbf", X, Y, 0.0), "noise: expected a variance above 0, got 0"),
        (("rbf", X, Y, -0.1), "noise: expected a finite number of at least 0, got -0.1"),
        (("rfb", X, Y, 0.1), "kernel: expected a known name, got 'rfb'; did you mean rbf?"),
        ((3.0, X, Y, 0.1), "kernel: expected a kernel's name, or a callable (X, Z) -> K, got 3.0"),
        ((RBF, X, Y, 0.1), "kernel: expected a kernel's name, or a callable (X, Z) -> K, got <class"),
        (("conv_nngp", X, Y, 0.1), "X: expected images"),
    ],
)
def test_what_is_refused(arguments, words):
    refused(f"^{re.escape(words)}", ga.lood, *arguments)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"ids": np.zeros(25, dtype=int)}, "ids: expected a different id for every record, got 1 repeated ids"),
        ({"ids": np.arange(9)}, "ids: expected one name a record, 25 in all, got shape (9,)"),
        ({"groups": np.arange(9)}, "groups: expected one name a record, 25 in all, got shape (9,)"),
        ({"groups": np.linspace(0, 1, 25)}, "groups: expected integers or strings, got dtype float64"),
        ({"groups": GROUPS, "ids": np.arange(25)}, "ids: expected no ids beside groups, got both; a row is a person"),
    ],
)
def test_names_that_are_refused(names, words):
    refused(f"^{re.escape(words)}", ga.lood, "rbf", X, Y, 0.1, **names)


def test_more_records_than_memory_are_refused_before_any_work(monkeypatch):
    def never(*_):
        raise AssertionError("the kernel was evaluated")

    free = 22 * 25**2
    monkeypatch.setattr(checks, "available_memory", lambda: free - 1)
    assert refused("^inputs: ", ga.lood, never, X, Y, 0.1) == (
        "inputs: expected matrices of records × records within the 0.0 GB of free memory, got 25 records, "
        "which need 0.0 GB; take a sample of them, or a machine with more memory"
    )
    monkeypatch.setattr(checks, "available_memory", lambda: free)
    agree(ga.lood(RBF(1.0), X, Y, 0.1), brute_force(rbf(X, 1.0), Y, 0.1))


def test_whole_numbers_that_are_no_classes_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(checks, "available_memory", lambda: 10**9)
    prices = np.arange(25) * 100_000_000
    words = r"one-hot classes within the 1\.0 GB .* got classes up to 2400000000, .*; number the classes from 0 without"
    refused(f"^targets: expected {words}", ga.lood, "rbf", X, prices, 0.1)
    agree(ga.lood("rbf", X, prices / 1e9, 0.1), brute_force(median_rbf(X), prices / 1e9, 0.1))
