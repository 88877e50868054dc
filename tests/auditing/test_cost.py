"""The cost of an audit: operations against loops that count them, and the words."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from giveaway import Head
from giveaway.auditing import cost as module
from giveaway.auditing.cost import (
    STEPS,
    AuditCost,
    calibrate,
    human_bytes,
    price_process,
    price_view,
)
from giveaway.curvature.dense import DenseCurvature
from giveaway.gp.distinguishability import Process
from giveaway.text import human_seconds
from giveaway.views.left_out import RecordFeatures

IMAGENET = (1_281_167, 2_049, 1_000, "cross_entropy")
LARGE = AuditCost(*IMAGENET, probes=256)
RATE = 480e12


def counted_product(a: int, b: int, c: int) -> int:
    """Multiplications and additions of (a × b)·(b × c), one by one."""
    return sum(2 for _ in itertools.product(range(a), range(b), range(c)))


@pytest.mark.parametrize(
    ("loss", "m", "numbers"),
    [
        ("cross_entropy", 4, 6),
        ("cross_entropy", 2, 1),
        ("cross_entropy", 1, 1),
        ("squared", 5, 1),
        ("binary_cross_entropy", 3, 3),
    ],
)
def test_dense_products_are_those_of_feature_pairs_and_numbers_of_w(loss, m, numbers):
    n, d = 7, 5
    cost = AuditCost(n, d, m, loss)
    pairs = sum(1 for a in range(d) for b in range(a, d))
    products = counted_product(pairs, n, numbers) + counted_product(numbers, pairs, n)
    coupled = loss == "cross_entropy" and m > 1
    factors = (d * (m - 1)) ** 3 + n * m**3 / 3 if coupled else numbers * d**3
    assert cost.operations == pytest.approx(products + factors, rel=1e-12)


def test_sketch_counts_every_product():
    n, d, m, q = 4, 3, 2, 5
    cost = AuditCost(n, d, m, "cross_entropy", probes=q)
    forth, back = counted_product(n, d, m * q), counted_product(d, n, m * q)
    pairs = d * (d + 1) // 2
    preconditioner = counted_product(pairs, n, m) + (STEPS + 1) * m * counted_product(d, d, q) + m * d**3
    assert cost.operations == (STEPS + 1) * (forth + back) + preconditioner


@pytest.mark.parametrize("loss", ["cross_entropy", "squared", "binary_cross_entropy"])
def test_dense_memory_holds_what_a_dense_curvature_holds(loss):
    n, d, m = 300, 119, 4
    rng = np.random.default_rng(0)
    targets = rng.integers(0, m, n) if loss == "cross_entropy" else rng.integers(0, 2, (n, m)).astype(float)
    head = Head(rng.normal(size=(n, d)), outputs=rng.normal(size=(n, m)), targets=targets, loss=loss, l2=0.3)
    curvature = DenseCurvature(head)
    held = curvature.sums.pairs.nbytes + curvature.forms.pairs.nbytes
    held += sum(inverse.upper.nbytes for inverse in curvature.inverses)
    cost = AuditCost(n, d + 1, m, loss)
    assert 0.9 * held <= cost.bytes - 8 * 14 * n <= 1.5 * held
    assert AuditCost(n, d + 1, m, loss, held_bytes=77).bytes == cost.bytes + 77


def test_sketch_memory_is_of_the_probes_solved_at_once():
    whole = LARGE
    parts = replace(LARGE, probe_blocks=8)
    column = 4 * 2_049 * 1_000
    assert whole.bytes - parts.bytes == 6 * column * (256 - 32)
    assert whole.operations == parts.operations
    dense = AuditCost(*IMAGENET)
    assert dense.bytes > 30e12 > 1_000 * whole.bytes / 2


def test_seconds_come_from_the_rate_and_processes_share_the_records():
    one = replace(LARGE, rate=RATE)
    assert one.seconds == pytest.approx(one.operations / 480e12)
    four = replace(LARGE, processes=4, rate=RATE)
    _, d, m, _ = IMAGENET
    repeated = (STEPS + 1) * 2 * d * d * m * 256 + m * d**3
    assert four.seconds == pytest.approx(((one.operations - repeated) / 4 + repeated) / 480e12)
    assert LARGE.seconds is None


def test_the_rate_is_operations_over_time(monkeypatch):
    now = 0.0

    def product(left, right, out):
        nonlocal now
        now += next(taken)
        return out

    taken = iter([0.5, 0.02, 0.03, 0.02, 0.05])
    monkeypatch.setattr("giveaway.auditing.cost.perf_counter", lambda: now)
    monkeypatch.setattr(torch, "mm", product)
    rate = calibrate(torch.device("cpu"), torch.float32)
    assert rate == pytest.approx(2 * 1_024**3 / 0.02)


def test_the_words_of_a_sketch():
    assert replace(LARGE, device="cuda", rate=RATE).lines() == [
        "audit: 1,281,167 records × 2,049 features × 1,000 classes; sketched curvature, 256 probes; about 6.2e16 "
        "operations, 32 GB, 2 minutes on this GPU",
        "an estimate: matrix products at a measured rate; reading the features and small steps come on top",
    ]


def test_the_words_of_small_audits():
    one = AuditCost(1, 1, 1, "squared")
    assert one.lines()[0] == (
        "audit: 1 record × 1 feature × 1 output; dense curvature; about 5.0e0 operations, 128 bytes, time not measured"
    )
    labels = AuditCost(9_000, 65, 3, "binary_cross_entropy", processes=2, rate=35.4e9)
    assert "9,000 records × 65 features × 3 outputs; dense curvature" in labels.lines()[0]
    assert "under a second with 2 processes like this one" in labels.lines()[0]


def test_json_holds_everything_and_is_json():
    cost = replace(LARGE, rate=RATE)
    found = json.loads(json.dumps(cost.to_json(), allow_nan=False))
    assert found["operations"] == cost.operations
    assert (found["bytes"], found["rate"], found["probes"]) == (cost.bytes, 480e12, 256)
    assert found["notes"] == list(cost.notes)
    assert (found["records"], found["curvature"], found["loss"]) == (1_281_167, "sketch", "cross_entropy")


def test_seconds_and_bytes_in_words():
    seconds = {0.94: "under a second", 0.96: "1 s", 40.4: "40 s", 99.4: "99 s", 100: "2 minutes", 720: "12 minutes"}
    seconds |= {0.0: "under a second", 5_990: "100 minutes", 12_600: "3.5 hours", 180_000: "2.1 days"}
    assert {value: human_seconds(value) for value in seconds} == seconds
    sizes = {0: "0 bytes", 999: "999 bytes", 1_000: "1.0 kB", 9_949: "9.9 kB", 9_960: "10 kB", 21e9: "21 GB"}
    sizes |= {999.4e9: "999 GB", 999.6e9: "1.0 TB", 16.8e12: "17 TB", 5e18: "5,000 PB"}
    assert {value: human_bytes(value) for value in sizes} == sizes


def made_features(n: int, d: int) -> RecordFeatures:
    return RecordFeatures(n, lambda rows: torch.ones(n, d)[rows], n)


@pytest.mark.parametrize(
    ("n", "kind", "product", "factor", "expected"),
    [
        (6_000, "images", 1e30, 0.0, 6_000.0),  # a second a record
        (6_000, "images", 50.0, 0.0, 6_000 + 6_000**2 + 4_096**2 + 3_000**2),  # half of all pairs, 2 · 50 operations
        (2_000, "text", 1e30, 1.0, 2_000 + 2_000**3 + 13 * 2_000**3),
        (40_000, "images", 1e30, 1e9, 2 * 40_000),  # landmarks: once, and once for the nearest
        (40_000, "tabular", 1e30, 1e9, 3 * 40_000),
    ],
)
def test_a_view_is_priced_from_features_products_and_factors_that_were_timed(
    n, kind, product, factor, expected, monkeypatch
):
    monkeypatch.setattr(module, "calibrate", lambda *_: product)
    monkeypatch.setattr(module, "_factoring", lambda *given: factor)
    monkeypatch.setattr(module, "_quickest", lambda work, place: 256.0)
    cost = price_view(made_features(n, 50), kind, torch.device("cpu"))
    assert cost.seconds == pytest.approx(expected, rel=1e-6)
    assert (cost.records, cost.timed) == (n, 256)
    if kind == "images" and n == 6_000:
        assert cost.bytes == int(8 * 0.85 * n**2) + 4 * n * 50  # the factor, what lives beside it, and the features
        grouped = price_view(made_features(n, 50), kind, torch.device("cpu"), grouped=True)
        assert grouped.bytes == 8 * 1.5 * n**2 + 4 * n * 50


def test_a_process_is_priced_from_a_kernel_of_some_records(monkeypatch):
    monkeypatch.setattr(module, "_factoring", lambda *given: 1e-6)
    seen = []

    def quickest(work, place):
        seen.append(work().shape)
        return 1.0 if len(seen) == 3 else 0.01

    monkeypatch.setattr(module, "_quickest", quickest)
    cost = price_process(Process("rbf"), torch.arange(640.0).view(320, 2), torch.device("cpu"))
    assert seen == [(16, 16), (32, 32), (64, 64)]
    assert cost.seconds == pytest.approx(0.5 * (320 / 64) ** 2 + 1e-6 * 320**3)
    assert (cost.timed, cost.bytes) == (64, 22 * 320**2)
    assert cost.line() == "Gaussian process of 320 records: about 45 s, 2.3 MB, scaled up from 64 records timed here"
