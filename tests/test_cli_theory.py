"""`giveaway theory` as a user runs it."""

import json

import numpy as np
import pytest
from scipy.stats import chi2

from giveaway.theory import epsilon_lower_bound, estimated_epsilon, expected_gap, fixed_design, random_design
from tests.test_cli import one_line


@pytest.fixture
def told(done):
    """Run `giveaway theory` with the options in a string; returns what --json says."""
    return lambda words: json.loads(done("theory", *words.split(), "--json"))


RECORD = "--leverage 5 --error 0.5 --freedom 100"


def test_the_fixed_design(told):
    for row, h in zip(told("tradeoff --h 0.2,0.7 --outputs 3 --fpr 0.01,0.2")["rows"], (0.2, 0.7), strict=True):
        for rate in (0.01, 0.2):
            by_hand = chi2.cdf((1 + h) / (1 - h) * chi2.ppf(rate, 3), 3)
            assert row[f"TPR at {rate:g}"] == pytest.approx(by_hand, rel=1e-9)
        assert row["AUC"] == pytest.approx(float(fixed_design.tradeoff(h, m=3).auc()))
    close = told("tradeoff --h 0.9999999,0.99999999")["rows"]
    assert [row["record"] for row in close] == ["h=0.9999999", "h=0.99999999"]


@pytest.mark.parametrize("test", ["threshold", "signed"])
def test_the_random_design(told, test):
    found = told(f"tradeoff --leverage 5 --error 0.5,1 --freedom 100 --variance 2 --test {test} --fpr 0.05")["rows"]
    expected = [random_design(5, e, 100, variance=2.0).tradeoff(test).tpr(0.05) for e in (0.5, 1.0)]
    np.testing.assert_allclose([row["TPR at 0.05"] for row in found], expected, rtol=1e-12)


def test_signed_is_the_default_and_words_say_estimate(done):
    out = done("theory", "tradeoff", *RECORD.split(), "--fpr", "0.05")
    assert "0.0557" in out  # threshold: 0.0536
    assert out.rstrip().endswith("An estimate from the theory's model, not a measurement and not a guarantee.")


def test_the_gap_both_ways(told):
    found = told("gap --leverage 1,5 --error 1 --freedom 50")["rows"]
    for row, leverage in zip(found, (1.0, 5.0), strict=True):
        assert row["exact"] == pytest.approx(float(expected_gap(random_design(leverage, 1.0, 50))))
        assert row["expansion"] == pytest.approx(row["exact"], rel=0.01)


def test_privacy_of_a_curve_is_an_estimate_and_of_counts_a_lower_bound(told):
    found = told("tradeoff --h 0.5 --delta 1e-3")
    expected = float(estimated_epsilon(fixed_design.tradeoff(0.5), 1e-3))
    assert found["rows"][0]["ε at δ=0.001"] == pytest.approx(expected)
    assert found["statement"].startswith("An estimate")
    found = told("privacy --true-positives 300 --members 1000 --false-positives 10 --nonmembers 1000")
    bound = epsilon_lower_bound(300, 1000, 10, 1000, delta=1e-5)
    assert found["rows"][0]["ε at δ=1e-05, at least"] == pytest.approx(float(bound.value))
    assert found["statement"].startswith("A lower bound")


@pytest.mark.parametrize("kind", ["png", "pdf", pytest.param("svg", marks=pytest.mark.slow)])
def test_figures(done, giveaway, drawn, tmp_path, kind):
    for words in (("tradeoff", "--h", "0.5"), ("gap", "--leverage", "1", "--error", "1", "--freedom", "9")):
        path = tmp_path / f"{words[0]}.{kind}"
        out = done("theory", *words, "--figure", path)
        assert out.rstrip().endswith(f"Wrote {path}")
        starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
        assert path.read_bytes().startswith(starts[kind])
        assert path.stat().st_size < 500_000
    line = one_line(giveaway("theory", "tradeoff", "--h", "0.5", "--figure", "curve.bmp"))
    assert line.startswith("figure: expected a known name, got 'bmp'")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tradeoff", "leverage: expected --leverage of a record, got none; give --leverage, --error and"),
        ("tradeoff --leverage 1", "error: expected --error of a record, got none"),
        ("tradeoff --h a", "h: expected numbers such as 0.1,0.5, got 'a'; separate them by commas"),
        ("tradeoff --h 0.5 --fpr ,", "fpr: expected numbers such as 0.1,0.5, got ','; separate them by commas"),
        ("tradeoff --h 2", "h: expected finite numbers in [0, 1], got 2"),
        ("tradeoff --h 0.5 --leverage 1", "leverage: expected --leverage rather than --h, got both"),
        ("tradeoff --h 0.5 --fpr 2", "fpr: expected"),
        ("tradeoff --h 0.5 --variance 2", "variance: expected --leverage rather than --h, got both"),
        ("privacy --members 9", "Missing option '--true-positives'."),
        ("tradeoff --leverage 1 --error 1 --freedom 9 --test best", "test: expected a known name, got 'best'"),
    ],
)
def test_bad_usage_is_one_line(giveaway, words, expected):
    assert one_line(giveaway("theory", *words.split())).startswith(expected)
