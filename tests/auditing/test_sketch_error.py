"""The error that a sketch states, against the spread of scores worked out part by part, and against the real one."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway.auditing.scoring import SAMPLED_ROWS, LoadedSpan, record_spans, sampled_spans
from giveaway.curvature.sketch import Sketch, SketchedCurvature
from giveaway.scores.catalogue import relative_error, standard_errors
from tests import oracles
from tests.conftest import made_head


@given(st.lists(st.integers(1, 3_000), max_size=60))
def test_sampled_spans_are_spread_and_about_as_many_rows_as_wanted(sizes):
    looked = sampled_spans(sizes)
    assert looked.shape == (len(sizes),)
    if not sizes:
        return
    assert looked.any()
    rows = float(np.mean(sizes)) * looked.sum()
    if len(sizes) * np.mean(sizes) <= SAMPLED_ROWS:
        assert looked.all()
    else:
        assert SAMPLED_ROWS / 2 <= rows <= SAMPLED_ROWS + max(sizes)
    gaps = np.diff(np.flatnonzero(looked))
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


def test_standard_errors_are_the_spread_of_parts_of_the_probes():
    head = made_head("classes", l2=0.4, sample_weight=np.random.default_rng(1).random(60) + 0.2)
    curvature = SketchedCurvature(head, Sketch(probes=66, precision="float64", tolerance=1e-6))
    p = torch.softmax(head.outputs, 1).numpy()
    x = np.column_stack([head.features.numpy(), np.ones(60)])
    y = np.eye(5)[head.targets.numpy()]
    weight = np.asarray(head.sample_weight)
    parts = {"gls_trace": [], "influence": []}
    edges = [0, 16, 33, 49, 66]
    for a, b in pairwise(edges):
        z = curvature.z[:, :, a:b].numpy() * np.sqrt(66 / (b - a))
        trace, influence = np.empty(60), np.empty(60)
        for i in range(60):
            u = np.einsum("d,dkq->kq", x[i], z)
            W = np.diag(p[i]) - np.outer(p[i], p[i])
            trace[i] = weight[i] * np.trace(W @ u @ u.T)
            influence[i] = weight[i] * (p[i] - y[i]) @ u @ u.T @ (p[i] - y[i])
        parts["gls_trace"].append(trace)
        parts["influence"].append(influence)
    for span in record_spans(head, curvature):
        loaded = LoadedSpan(head, span, curvature, None)
        for batches in zip(*(loaded.batches(slice(a, b)) for a, b in pairwise(edges)), strict=True):
            found = standard_errors([batch for _, batch in batches], ["gls_trace", "influence"])
            for name in parts:
                expected = np.std(parts[name], axis=0, ddof=1) / 4**0.5
                np.testing.assert_allclose(found[name], expected[batches[0][0]], rtol=1e-6)


def test_relative_error_is_a_root_mean_square_over_rows_that_were_looked_at():
    score, error = np.array([1.0, 2.0, 4.0, 5.0, 0.0]), np.array([0.1, 0.4, 0.0, 0.0, 0.0])
    assert relative_error(score, error) == pytest.approx(np.sqrt((0.1**2 + 0.2**2) / 2), abs=1e-6)
    # a score of 0 whose parts vary is no less uncertain than one next to 0
    assert relative_error(np.zeros(3), np.ones(3)) == 10
    assert relative_error(np.ones(3), np.zeros(3)) is None
    # a row that is nearly zero does not speak for all
    assert relative_error(np.array([1e-30, 1.0]), np.array([1.0, 0.1])) == pytest.approx(10 / 2**0.5, rel=1e-3)


def test_the_spread_tells_the_real_error():
    """Over the rows, the mean square of stated errors is that of the real ones."""
    head = made_head("classes", l2=0.4, n=300)
    curvature = SketchedCurvature(head, Sketch(probes=128, precision="float64"))
    features, outputs, targets = (a.numpy() for a in (head.features, head.outputs, head.targets))
    exact = oracles.head_scores(features, outputs, targets, head.loss, l2=0.4)
    (span,) = record_spans(head, curvature)
    loaded = LoadedSpan(head, span, curvature, None)
    _, batch = next(loaded.batches())
    quarters = [next(loaded.batches(slice(a, a + 32)))[1] for a in range(0, 128, 32)]
    stated = standard_errors(quarters, ["gls_trace"])
    real = batch.blocks.trace().numpy() / exact["gls_trace"] - 1
    told = stated["gls_trace"].numpy() / exact["gls_trace"]
    assert np.sqrt(np.mean(told**2)) == pytest.approx(np.sqrt(np.mean(real**2)), rel=0.25)
