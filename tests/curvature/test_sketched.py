"""The sketch as the audit uses it: Z against an explicit inverse, separate outputs, precisions, memory."""

import numpy as np
import pytest
import torch

from giveaway import Head
from giveaway.curvature import sketch as sketched_module
from giveaway.curvature.blocks import CAP
from giveaway.curvature.sketch import Sketch, SketchedCurvature, records_to_redo
from giveaway.linalg.cg import SolveError
from giveaway.linalg.precision import signs
from tests import oracles
from tests.conftest import made_arrays, made_head
from tests.curvature.cases import (
    OPTIONS,
    PENALIZED,
    dense_inverse,
    explicit_curvature,
    explicit_root,
    gradient_like,
)

KINDS = ["squared_many", "one_logit", "classes", "soft_labels", "multi_label"]


def blocks_of(head: Head, curvature: SketchedCurvature, size: int = 1, probes: slice | None = None):
    """Of all records, or groups of `size` consecutive ones."""
    n, window = head.n // size, head.window(slice(0, head.n))
    of_outputs = curvature.loss.curvature(window.outputs.to(torch.float64).view(n, size, -1))
    return curvature.window_blocks(window, size)(slice(0, n), of_outputs, window.weights.view(n, size), probes)


@pytest.mark.parametrize("options", PENALIZED)
@pytest.mark.parametrize("kind", KINDS)
def test_solutions_against_an_explicit_inverse(kind, options):
    head = made_head(kind, **OPTIONS[options])
    curvature = SketchedCurvature(head, Sketch(probes=40, precision="float64", tolerance=1e-9, seed=3))
    root = explicit_root(head)
    omega = signs(3, torch.arange(head.n + head.width), curvature.products.k, slice(0, 40)).numpy()
    expected = np.linalg.pinv(explicit_curvature(head), hermitian=True) @ (root.T @ omega.reshape(len(root), -1))
    found = curvature.z.reshape(len(expected), -1).numpy() * 40**0.5
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * np.abs(expected).max())
    v = gradient_like(head)
    solved = (dense_inverse(head, 0.4) @ v.numpy().ravel()).reshape(v.shape)
    np.testing.assert_allclose(curvature.solve(v), solved, rtol=0, atol=1e-7 * np.abs(solved).max())
    assert curvature.residual <= 1e-9


@pytest.mark.parametrize("kind", ["squared_many", "classes"])
def test_float32_with_residuals_in_float64(kind):
    head = made_head(kind, l2=0.4)
    wide, narrow = (
        SketchedCurvature(head, Sketch(probes=64, precision=name, tolerance=1e-4)) for name in ("float64", "auto")
    )
    assert narrow.z.dtype == torch.float32
    assert (narrow.report["precision"], narrow.report["residual_precision"]) == ("float32", "float64")
    right = narrow.products.draw(0, slice(0, 64), wide.precision)
    left = narrow.products.apply(narrow.z.double() * 8.0, wide.precision) - right
    true = torch.linalg.vector_norm(left, dim=(0, 1)) / torch.linalg.vector_norm(right, dim=(0, 1))
    assert float(true.max()) <= 1.01e-4
    assert float(true.max()) == pytest.approx(narrow.residual, rel=0.02, abs=1e-6)
    torch.testing.assert_close(narrow.z.double(), wide.z, rtol=0, atol=1e-2 * float(wide.z.abs().max()))


@pytest.mark.parametrize("at_once", [32, 64])
def test_blocks_of_probes_that_fit_the_memory(at_once):
    head = made_head("classes", l2=0.4)
    whole = SketchedCurvature(head, Sketch(probes=128, precision="float64", tolerance=1e-8))
    one = sketched_module.ARRAYS * head.width * head.m * 8
    cut = SketchedCurvature(
        head, Sketch(probes=128, precision="float64", tolerance=1e-8, memory=(4 * one * at_once + 1) / 1e9)
    )
    assert (whole.at_once, cut.at_once) == (128, at_once)
    torch.testing.assert_close(cut.z, whole.z, rtol=0, atol=1e-6 * float(whole.z.abs().max()))
    tiny = SketchedCurvature(head, Sketch(probes=33, memory=1e-9))
    assert (tiny.at_once, tiny.report["preconditioner"]) == (1, "shared")


def test_what_is_reported():
    report = SketchedCurvature(made_head("classes", l2=0.4), Sketch(probes=32, seed=9)).report
    steps, residual = report.pop("steps"), report.pop("residual")
    assert 1 <= steps < 20
    assert 0 < residual <= 1e-3
    assert report == {
        "curvature": "sketch",
        "parameters": 20,
        "probes": 32,
        "probes_at_once": 32,
        "seed": 9,
        "precision": "float32",
        "precision_begun_with": "float32",
        "residual_precision": "float64",
        "tolerance": 1e-3,
        "preconditioner": "class blocks",
        "fused_passes": False,
        "threads": torch.get_num_threads(),
        "l2": 0.4,
    }


def test_a_solve_that_does_not_get_there(monkeypatch):
    monkeypatch.setattr(sketched_module, "MOST_STEPS", 2)
    head = made_head("classes", l2=1e-4)
    with pytest.raises(SolveError, match=r"^solve: expected a residual of 1e-06 .* after 2 steps"):
        SketchedCurvature(head, Sketch(probes=32, tolerance=1e-6))
    used = SketchedCurvature(head, Sketch(probes=32, tolerance=1e-6, allow_unconverged=True))
    assert used.report["residual"] > 1e-6
    assert used.report["steps"] == 2


@pytest.mark.parametrize("kind", ["squared_many", "one_logit", "multi_label"])
def test_separate_outputs_stay_between_zero_and_one(kind):
    """w^½ B w^½ is never above one, however few the probes and high the leverage, and is right to √(2/q)."""
    arrays = made_arrays(kind)
    arrays["features"][3] *= 40
    arrays["outputs"] = 0.3 * np.random.default_rng(1).normal(size=arrays["outputs"].shape)
    head = Head(**arrays, l2=1e-3)
    exact = oracles.head_scores(**arrays, l2=1e-3)
    few = blocks_of(head, SketchedCurvature(head, Sketch(probes=32)))
    assert float(few.spread.min()) >= 0
    assert float(few.spread.max()) <= 1
    curvature = SketchedCurvature(head, Sketch(probes=2048))
    many = blocks_of(head, curvature)
    np.testing.assert_allclose(many.trace(), exact["gls_trace"], rtol=5 * (2 / 2048) ** 0.5)
    g = curvature.loss.diagonal(head.outputs).unsqueeze(1)  # any vector will do
    step = many.leave_out(many.image(g))
    assert step.step.isfinite().all()
    rest = 1 - many.trace().numpy() / head.m
    if kind == "squared_many":
        expected = 1 - exact["leverage"]
        np.testing.assert_allclose(rest, expected, rtol=5 * (2 / 2048) ** 0.5)
        assert expected.min() < 0.02


@pytest.mark.parametrize("kind", ["squared_many", "one_logit", "multi_label"])
def test_separate_outputs_of_groups(kind):
    head = made_head(kind, l2=0.3)
    groups = np.arange(60) // 3
    arrays = made_arrays(kind)
    exact = oracles.group_scores(**arrays, groups=groups, l2=0.3)
    blocks = blocks_of(head, SketchedCurvature(head, Sketch(probes=4096)), 3)
    values = torch.linalg.eigvalsh(blocks.spread.permute(2, 0, 1))
    assert -1e-9 <= float(values.min()) <= float(values.max()) <= CAP
    np.testing.assert_allclose(blocks.trace(), exact["gls_trace"], rtol=0.12)


@pytest.mark.parametrize("name", ["gls_frobenius", "gls_spectral", "gls_trace_logit", "gls_spectral_logit"])
@pytest.mark.parametrize("kind", ["squared_many", "one_logit"])
def test_groups_in_which_some_are_surer_than_others(kind, name):
    """What probes leave of the others' curvature must not be taken for a sure record's, whose own is far smaller."""
    arrays = made_arrays(kind)
    if kind == "one_logit":
        arrays["outputs"] = np.where(np.arange(60)[:, None] % 3 == 0, 12.0, 0.5)
    head = Head(**arrays, l2=0.3)
    exact = oracles.group_scores(**arrays, groups=np.arange(60) // 3, l2=0.3)[name]
    blocks = blocks_of(head, SketchedCurvature(head, Sketch(probes=2048)), 3)
    found = getattr(blocks, name.split("_")[1])(logit=name.endswith("_logit"))
    np.testing.assert_allclose(found, exact, rtol=5 * (2 / 2048) ** 0.5)


def test_blocks_by_some_of_the_probes():
    """A quarter of the probes is a sketch of its own: the mean over quarters is the whole, for what is linear in B."""
    head = made_head("classes", l2=0.4)
    curvature = SketchedCurvature(head, Sketch(probes=128, precision="float64"))
    whole = blocks_of(head, curvature).trace()
    quarters = [blocks_of(head, curvature, probes=slice(a, a + 32)).trace() for a in range(0, 128, 32)]
    torch.testing.assert_close(torch.stack(quarters).mean(0), whole, rtol=1e-12, atol=0)
    assert float((quarters[0] / whole - 1).abs().max()) > 0.02


def test_records_to_redo_are_the_highest_first():
    leverage = np.array([0.6, 0.2, 0.95, 0.5, 0.8, 0.51, 0.8])
    assert records_to_redo(leverage, 9).tolist() == [2, 4, 6, 0, 5]
    assert records_to_redo(leverage, 3).tolist() == [2, 4, 6]
    assert records_to_redo(leverage, 0).tolist() == []
