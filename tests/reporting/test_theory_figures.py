"""Pictures of the theory."""

from __future__ import annotations

import numpy as np

from giveaway.reporting.theory_figures import gap_map, tradeoff_curves
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
