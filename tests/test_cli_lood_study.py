"""The closer look at chosen records: its pages against fitting again in NumPy, and against the best attack."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from giveaway.cli.lood import FPR, study
from giveaway.gp.attack import record_attack
from giveaway.gp.distinguishability import divergence
from giveaway.gp.kernels import RBF
from giveaway.gp.posterior import Posterior, fit
from tests.conftest import refused
from tests.gp.test_lood import brute_force, data, rbf, without_and_with

NOISE = 0.1
DIGITS = 1e-9  # cells have ten of them


def fitted(n: int = 20, outputs: int = 2, seed: int = 0) -> tuple[Posterior, np.ndarray, np.ndarray]:
    x, y = data(n, 2, outputs, seed)
    return fit(RBF(1.0), x, y, NOISE), x, y


def page(found, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(found[name])))


def best_queries(found) -> np.ndarray:
    return np.load(io.BytesIO(found["optimized.npz"]))["queries"]


def numbers(rows: list[dict[str, str]], name: str) -> np.ndarray:
    return np.array([float(row[name]) for row in rows])


# ------------------------------------------------------------------------------------------------ records


@pytest.mark.parametrize("outputs", [1, 3])
def test_records_have_the_values_of_lood_and_of_the_best_attack(outputs):
    posterior, x, y = fitted(outputs=outputs)
    rows = np.array([17, 3, 8])
    found = study(posterior, rows)
    assert list(found) == ["records.csv"]
    lines = page(found, "records.csv")
    assert [int(line["row"]) for line in lines] == rows.tolist()
    kl, mean = brute_force(rbf(x, 1.0), y, NOISE)
    np.testing.assert_allclose(numbers(lines, "lood_kl"), kl[rows], rtol=1e-7)
    np.testing.assert_allclose(numbers(lines, "lood_mean"), mean[rows], rtol=1e-7)
    attack = record_attack(posterior, fpr=FPR)
    np.testing.assert_allclose(numbers(lines, "attack_auc"), attack.auc[rows], rtol=DIGITS)
    for place, rate in enumerate((0.001, 0.01, 0.1)):
        np.testing.assert_allclose(numbers(lines, f"attack_tpr_at_{rate:g}"), attack.tpr[rows, place], rtol=DIGITS)
    assert found["records.csv"].splitlines()[0] == (
        "row,lood_kl,lood_mean,attack_auc,attack_tpr_at_0.001,attack_tpr_at_0.01,attack_tpr_at_0.1"
    )


# ------------------------------------------------------------------------------------------------ queries


@settings(max_examples=15)
@given(count=st.integers(1, 4), outputs=st.integers(1, 2), seed=st.integers(0, 99))
def test_queries_one_by_one_and_all_together(count, outputs, seed):
    posterior, x, y = fitted(12, outputs, seed)
    queries = 2.0 * np.random.default_rng(seed + 1).normal(size=(count, 2))
    rows = [5, 0, 11]
    lines = page(study(posterior, rows, queries=queries), "queries.csv")
    K = rbf(np.vstack([x, queries]), 1.0)
    asked = {str(place): np.array([12 + place]) for place in range(count)}
    asked |= {"all": np.arange(12, 12 + count)} if count > 1 else {}
    assert [(line["query"], int(line["row"])) for line in lines] == [(name, row) for name in asked for row in rows]
    for line in lines:
        kl, mean = without_and_with(K, y, NOISE, [int(line["row"])], asked[line["query"]])
        assert float(line["lood_kl"]) == pytest.approx(kl, rel=1e-5, abs=1e-8)
        assert float(line["lood_mean"]) == pytest.approx(mean, rel=1e-6, abs=1e-10)


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        (np.zeros(2), "queries: expected queries as (q, 2), got shape (2,); shape them as the inputs"),
        (np.zeros((0, 2)), "queries: expected queries as (q, 2), got shape (0, 2)"),
        (np.zeros((1, 1, 2)), "queries: expected queries as (q, 2), got shape (1, 1, 2)"),
        (np.array([[0.0, 1.0], [np.nan, 1.0]]), "queries: expected finite numbers, got NaN or infinity first in row 1"),
        (np.array([["a", "b"]]), "queries: expected an array of numbers"),
        (np.ones((2, 2)), "queries: expected positive definite predictive covariances"),
    ],
)
def test_queries_that_are_refused(queries, words):
    posterior, _, _ = fitted()
    assert refused("expected", study, posterior, [0], queries=queries).startswith(words)


# ------------------------------------------------------------------------------------------------ the best queries


def test_the_record_itself_is_the_best_query_of_the_divergence():
    posterior, x, _ = fitted(outputs=1)
    rows = divergence(posterior).kl.argsort(descending=True)[:4]
    found = study(posterior, rows, optimize="kl", starts=6, steps=400)
    lines = page(found, "optimized.csv")
    assert [int(line["row"]) for line in lines] == rows.tolist()
    own = divergence(posterior).kl[rows].numpy()
    np.testing.assert_allclose(numbers(lines, "value_at_the_record"), own, rtol=DIGITS)
    assert (numbers(lines, "value") <= own * (1 + 1e-9)).all()
    assert (numbers(lines, "ratio") > 1 - 1e-3).all()
    np.testing.assert_allclose(numbers(lines, "ratio"), numbers(lines, "value") / own, rtol=1e-8)
    np.testing.assert_allclose(best_queries(found), x[rows], atol=0.05)
    assert all(0 <= int(line["starts_converged"]) <= 6 for line in lines)


def test_the_mean_moves_more_elsewhere():
    posterior, x, y = fitted(outputs=2)
    rows = np.arange(20)
    found = study(posterior, rows, optimize="mean", starts=10)
    lines = page(found, "optimized.csv")
    own = brute_force(rbf(x, 1.0), y, NOISE)[1]
    np.testing.assert_allclose(numbers(lines, "value_at_the_record"), own, rtol=1e-7)
    assert (numbers(lines, "value") >= own * (1 - 1e-9)).all()
    assert numbers(lines, "ratio").max() > 1.02
    # what is stated is the distance there, by fitting again
    at = best_queries(found)
    K = rbf(np.vstack([x, at]), 1.0)
    for row in rows:
        _, mean = without_and_with(K, y, NOISE, [row], np.array([20 + row]))
        assert float(lines[row]["value"]) == pytest.approx(mean, rel=1e-7)


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([True, False], {}, "rows: expected row numbers, got dtype bool"),
        (["a"], {}, "rows: expected an array of numbers"),
        ([[1, 2]], {}, "records: expected single records, (R,), got shape (1, 2); name each record by its row"),
        ([0], {"optimize": "median"}, "objective: expected a known name, got 'median'; did you mean mean"),
    ],
)
def test_what_is_refused(rows, options, words):
    posterior, _, _ = fitted()
    assert refused("expected", study, posterior, rows, **options).startswith(words)
