"""Pictures of the theory."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from giveaway.figures import gap_map
from giveaway.reporting.figures import tradeoff_curves
from giveaway.theory import expected_gap, fixed_design, random_design


def test_curves_are_the_curves():
    curves = {"a": fixed_design.tradeoff(0.3), "b": fixed_design.tradeoff(0.8)}
    axes = tradeoff_curves(curves, title="Two").axes[0]
    for label, curve in curves.items():
        (line,) = [drawn for drawn in axes.lines if drawn.get_label() == label]
        alpha = np.asarray(line.get_xdata())
        np.testing.assert_array_equal(line.get_ydata(), curve.beta(alpha))
        assert alpha[0] <= 1e-6
        assert alpha[-1] == 1
    (chance,) = [drawn for drawn in axes.lines if drawn.get_label() == "chance"]
    np.testing.assert_array_equal(chance.get_ydata(), 1 - np.asarray(chance.get_xdata()))
    assert axes.get_title(loc="left") == "Two"


def test_the_map_shows_the_exact_gap_over_squared_error_and_leverage():
    axes = gap_map(50.0, variance=2.0, largest_error=2.0, largest_leverage=4.0).axes[0]
    (mesh,) = axes.collections
    corners = mesh.get_coordinates()
    assert corners[-1, -1].tolist() == [4.0, 4.0]
    values = np.asarray(mesh.get_array()).reshape(corners.shape[:2])
    for i, j in ((0, 0), (60, 30), (-1, -1)):
        square, leverage = corners[i, j]
        design = random_design(leverage, np.sqrt(square), 50.0, variance=2.0)
        np.testing.assert_allclose(values[i, j], expected_gap(design), rtol=1e-12, atol=1e-15)


def test_in_the_caller_s_axes():
    figure = Figure()
    left, right = figure.subplots(1, 2)
    curves = {"a": fixed_design.tradeoff(0.3)}
    assert tradeoff_curves(curves, axes=left) is figure
    assert gap_map(50.0, axes=right) is figure
    for drawn, expected in zip(left.lines, tradeoff_curves(curves).axes[0].lines, strict=True):
        np.testing.assert_array_equal(drawn.get_data(), expected.get_data())
    (mesh,), (expected,) = right.collections, gap_map(50.0).axes[0].collections
    np.testing.assert_array_equal(mesh.get_array(), expected.get_array())
    _, _, bar = figure.axes
    assert bar.get_ylabel() == "mean of loss left out − loss trained on"
    assert bar.get_position().x0 > right.get_position().x1
