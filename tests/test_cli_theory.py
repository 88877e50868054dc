"""`giveaway theory` as a user runs it."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from scipy.stats import chi2

from giveaway.theory import epsilon_lower_bound, estimated_epsilon, expected_gap, fixed_design, random_design


@pytest.fixture
def run(giveaway):
    """Run `giveaway theory` and return its exit code, stdout and stderr."""
    return partial(giveaway, "theory")


def rows(output: str) -> list[dict]:
    return json.loads(output)["rows"]


def test_the_fixed_design(run):
    code, out, _ = run("tradeoff", "--h", "0.2,0.7", "--outputs", "3", "--fpr", "0.01,0.2", "--json")
    assert code == 0
    for row, h in zip(rows(out), (0.2, 0.7), strict=True):
        for rate in (0.01, 0.2):
            by_hand = chi2.cdf((1 + h) / (1 - h) * chi2.ppf(rate, 3), 3)
            assert row[f"TPR at {rate:g}"] == pytest.approx(by_hand, rel=1e-9)
        assert row["AUC"] == pytest.approx(float(fixed_design.tradeoff(h, m=3).auc()))


@pytest.mark.parametrize("test", ["threshold", "optimal", "signed"])
def test_the_random_design(run, test):
    words = ("--leverage", "5", "--error", "0.5,1", "--freedom", "100", "--variance", "2", "--test", test)
    code, out, _ = run("tradeoff", *words, "--fpr", "0.05", "--json")
    assert code == 0
    expected = [random_design(5, e, 100, variance=2.0).tradeoff(test).tpr(0.05) for e in (0.5, 1.0)]
    np.testing.assert_allclose([row["TPR at 0.05"] for row in rows(out)], expected, rtol=1e-12)


def test_signed_is_the_default_and_words_say_estimate(run):
    words = ("tradeoff", "--leverage", "5", "--error", "0.5", "--freedom", "100", "--fpr", "0.05")
    code, out, _ = run(*words)
    assert code == 0
    assert "0.0557" in out  # threshold: 0.0536
    assert out.rstrip().endswith("An estimate from the theory's model, not a measurement and not a guarantee.")


def test_the_gap_three_ways(run):
    code, out, _ = run("gap", "--leverage", "1,5", "--error", "1", "--freedom", "50", "--json")
    assert code == 0
    for row, leverage in zip(rows(out), (1.0, 5.0), strict=True):
        assert row["exact"] == pytest.approx(float(expected_gap(random_design(leverage, 1.0, 50))))
        assert abs(row["simulated"] - row["exact"]) < 4 * row["standard error"]
        assert row["expansion"] == pytest.approx(row["exact"], rel=0.01)


def test_privacy_of_a_curve_is_an_estimate(run):
    code, out, _ = run("privacy", "--h", "0.5", "--delta", "1e-3", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["rows"][0]["ε at δ=0.001"] == pytest.approx(float(estimated_epsilon(fixed_design.tradeoff(0.5), 1e-3)))
    assert told["statement"].startswith("An estimate")


def test_privacy_of_counts_is_a_lower_bound(run):
    counts = ("--true-positives", "300", "--members", "1000", "--false-positives", "10", "--nonmembers", "1000")
    code, out, _ = run("privacy", *counts, "--json")
    assert code == 0
    told = json.loads(out)
    bound = epsilon_lower_bound(300, 1000, 10, 1000, delta=1e-5)
    assert told["rows"][0]["ε at δ=1e-05, at least"] == pytest.approx(float(bound.value))
    assert told["statement"].startswith("A lower bound")


def test_close_numbers_stay_apart(run):
    _, out, _ = run("tradeoff", "--h", "0.9999999, 0.99999999", "--json")
    assert [row["record"] for row in rows(out)] == ["h=0.9999999", "h=0.99999999"]


def test_an_infinite_number_is_null_in_json(run):
    code, out, _ = run("gap", "--leverage", "1", "--error", "1", "--freedom", "50", "--json")
    assert code == 0
    assert "Infinity" not in out
    code, out, _ = run("privacy", "--h", "1", "--json")
    assert (code, rows(out)[0]["μ, greatest"]) == (0, None)


@pytest.mark.parametrize("kind", ["png", "pdf", pytest.param("svg", marks=pytest.mark.slow)])
def test_figures(run, tmp_path, kind):
    for words in (("tradeoff", "--h", "0.5"), ("gap", "--leverage", "1", "--error", "1", "--freedom", "9")):
        path = tmp_path / f"{words[0]}.{kind}"
        code, out, _ = run(*words, "--figure", str(path))
        assert code == 0
        assert out.rstrip().endswith(f"Wrote {path}")
        starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
        assert path.read_bytes().startswith(starts[kind])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tradeoff",), "leverage: expected --leverage of a record, got none; describe the record by"),
        (("tradeoff", "--leverage", "1"), "error: expected --error of a record, got none"),
        (("tradeoff", "--h", "a"), "h: expected numbers such as 0.1,0.5, got 'a'; separate them by commas"),
        (("tradeoff", "--h", "2"), "h: expected finite numbers in [0, 1], got 2"),
        (("tradeoff", "--h", "0.5", "--leverage", "1"), "leverage: expected --leverage rather than --h, got both"),
        (("tradeoff", "--h", "0.5", "--fpr", "2"), "fpr: expected"),
        (("tradeoff", "--h", "0.5", "--variance", "2"), "variance: expected --leverage rather than --h, got both"),
        (("gap", "--seed", "-5"), "Invalid value for '--seed'"),
        (("privacy", "--members", "9"), "true_positives: expected all four counts of a measured attack, got some"),
        (("gap", "--leverage", "1", "--error", "1", "--freedom", "2"), "freedom: expected n − p above 2, got 2"),
        (
            ("tradeoff", "--leverage", "1", "--error", "1", "--freedom", "9", "--test", "best"),
            "test: expected a known name, got 'best'",
        ),
        (
            ("tradeoff", "--h", "0.5", "--figure", "curve.bmp"),
            "figure: expected a file name ending in .png, .svg or .pdf, got curve.bmp; change its ending",
        ),
    ],
)
def test_bad_usage_is_one_line(run, words, told):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"giveaway: {told}")
    assert err.count("\n") == 1
