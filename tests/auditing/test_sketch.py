"""Whole audits with a sketched curvature against the same audits with a dense one, and against naive loops."""

from functools import cache

import numpy as np
import pytest
import torch

import giveaway as ga
from giveaway.auditing import scoring
from giveaway.curvature import products
from giveaway.curvature import sketch as sketch_module
from giveaway.curvature.choice import Auto, Dense, Sketch
from giveaway.evaluation import recall_at, spearman
from giveaway.extract import from_file
from giveaway.records import ScoreTable
from tests import oracles
from tests.conftest import made_arrays, made_head, refused

CURVED = ("gls_trace", "gls_frobenius", "gls_spectral", "gls_trace_logit", "gls_frobenius_logit", "gls_spectral_logit")
EVERY = ("default", *(name for name in CURVED if name.endswith("_logit")))
CURVED += ("leverage", "influence", "newton", "loo_gap")
MAIN = ["gls_trace", "influence", "newton"]


def classes_head(
    n: int, d: int, m: int, *, tails: float = np.inf, l2: float = 1.0, sure: float = 1.0, seed: int = 0
) -> ga.Head:
    """Confident and partly wrong; `tails` are those of Student's distribution, lengths of the feature vectors."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, d)) * np.geomspace(1, 0.1, d)
    if np.isfinite(tails):
        features *= np.sqrt(tails / rng.chisquare(tails, size=(n, 1)))
    direction = features / np.linalg.norm(features, axis=1, keepdims=True)
    # how sure it is differs from record to record, and the scores with it by orders of magnitude
    outputs = (direction @ rng.normal(size=(d, m)) + rng.normal(size=(n, m))) * np.exp(rng.normal(size=(n, 1)))
    outputs *= sure
    targets = np.where(rng.random(n) < 0.9, outputs.argmax(1), rng.integers(0, m, n))
    return ga.Head(features, outputs, targets, loss="cross_entropy", l2=l2)


@cache
def small() -> ga.Head:
    return classes_head(600, 6, 5, l2=0.5)


@cache
def dense_of_small() -> ScoreTable:
    return ga.audit(small(), scores=EVERY, curvature=Dense())


def sketch(head: ga.Head, *, scores=EVERY, optimum="assumed", **options) -> ScoreTable:
    return ga.audit(head, scores=scores, optimum=optimum, curvature=Sketch(**options))


def errors_of(table: ScoreTable, exact: ScoreTable, name: str) -> np.ndarray:
    return table[name] / exact[name] - 1


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


@cache
def by_probes(probes: int) -> ScoreTable:
    return sketch(small(), probes=probes)


@pytest.mark.parametrize("name", CURVED)
def test_errors_fall_with_the_root_of_the_probes(name):
    counts = [32, 128, 512, 1024]
    errors = [rms(errors_of(by_probes(q), dense_of_small(), name)) for q in counts]
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert -0.6 <= slope <= -0.4, dict(zip(counts, errors, strict=True))
    assert errors[2] < 1.5 * (2 / 512) ** 0.5


def test_what_does_not_need_the_curvature_is_as_it_was():
    for name in ("loss", "gradient_norm", "entropy", "margin"):
        np.testing.assert_array_equal(by_probes(32)[name], dense_of_small()[name])
    assert by_probes(32).columns == dense_of_small().columns


@cache
def of_other_seeds() -> list[ScoreTable]:
    return [sketch(small(), probes=128, seed=seed) for seed in range(2, 8)]


@pytest.mark.parametrize("name", CURVED)
def test_the_error_that_is_stated_is_the_real_one(name):
    """Over some draws: in one, records share their directions and so their errors."""
    tables = of_other_seeds()
    stated = rms(np.array([table.meta.curvature.relative_errors[name] for table in tables]))
    real = rms(np.stack([errors_of(table, dense_of_small(), name) for table in tables]))
    assert stated == pytest.approx(real, rel=0.25)


@cache
def with_errors() -> ScoreTable:
    return sketch(small(), probes=256, errors=True)


@pytest.mark.parametrize("name", CURVED)
def test_errors_a_record(name):
    """From four parts, whose spread is Student's with three degrees: 61 % lie within one, 91 % within 2.5."""
    table = with_errors()
    off = np.abs(table[name] - dense_of_small()[name]) / table.attributes[name + "_error"]
    assert 0.5 < np.mean(off <= 1) < 0.75
    assert np.mean(off <= 2.5) > 0.82
    np.testing.assert_array_equal(table[name], by_probes(256)[name])


@pytest.mark.parametrize(
    ("precision", "error"), [pytest.param("float64", 1e-6, marks=pytest.mark.slow), ("float32", 1e-4)]
)
def test_the_same_table_however_work_is_cut(monkeypatch, precision, error):
    options = {"probes": 64, "precision": precision, "tolerance": 1e-5}
    whole = sketch(small(), **options)
    size = 8 if precision == "float64" else 4
    monkeypatch.setattr(products, "HOST_BYTES", 4 * 5 * 32 * 64)
    monkeypatch.setattr(products, "LEAST_ROWS", 8)
    monkeypatch.setattr(sketch_module, "HOST_WINDOW_BYTES", 17 * 5 * 64 * size)
    monkeypatch.setattr(sketch_module, "MOST_AT_ONCE", 64)
    monkeypatch.setattr(scoring, "WINDOW", 50)
    cut = sketch(small(), **options)
    for name in CURVED:
        # what still counts as a direction of a record's step is a matter of rounding
        allowed = 1e-3 if name in ("newton", "loo_gap") else error
        np.testing.assert_allclose(cut[name], whole[name], rtol=allowed, err_msg=name)


def test_what_is_done_already_is_told_in_spans_that_no_memory_and_no_threads_change():
    """A checkpoint, and several processes, count in them."""
    made = {}
    for memory, threads in ((1e-4, 1), (1e-4, 3), (64.0, 3)):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        curvature = sketch_module.SketchedCurvature(small(), Sketch(probes=32, memory=memory))
        spans = list(scoring.record_spans(small(), curvature))
        made[memory, threads] = [span.rows for span in spans], curvature.windows_at_once
        torch.set_num_threads(before)
    rows, looks = zip(*made.values(), strict=True)
    assert rows[0] == rows[1] == rows[2]
    assert looks[0] == looks[1] == 1 < looks[2]


def test_the_same_table_however_many_probes_at_once(monkeypatch):
    options = {"probes": 128, "precision": "float64", "tolerance": 1e-7}
    whole = sketch(small(), **options)
    monkeypatch.setattr(sketch_module, "MOST_AT_ONCE", 32)
    cut = sketch(small(), **options)
    assert (whole.meta.curvature.probes_at_once, cut.meta.curvature.probes_at_once) == (128, 32)
    for name in CURVED:
        np.testing.assert_allclose(cut[name], whole[name], rtol=1e-4, err_msg=name)


def test_seeds_are_other_draws_and_the_same_seed_the_same():
    again, other = sketch(small(), probes=128), sketch(small(), probes=128, seed=1)
    for name in CURVED:
        np.testing.assert_array_equal(again[name], by_probes(128)[name])
        assert rms(other[name] / by_probes(128)[name] - 1) > 0.05
    assert other.meta.curvature.seed == 1


@cache
def high() -> tuple[ga.Head, ScoreTable, ScoreTable]:
    """Leverages up to 0.99: the head, its dense table, its sketched one."""
    head = classes_head(1_500, 6, 5, tails=1.0, l2=1e-4, seed=3)
    return head, ga.audit(head, scores=[*MAIN, "loo_gap"], curvature=Dense()), sketch(head, scores=MAIN, probes=512)


def test_newton_where_leverage_is_high():
    head, exact, table = high()
    features, outputs, targets = (a.numpy() for a in (head.features, head.outputs, head.targets))
    top = oracles.top_eigenvalues(features, outputs, targets, head.loss, l2=head.l2)
    assert top.max() > 0.99
    off = np.abs(errors_of(table, exact, "newton"))
    own = np.argsort(-exact["newton"])[:15]
    decile = np.argsort(-top)[:150]
    assert np.median(off[own]) <= 0.05
    assert np.median(off[decile]) <= 0.05
    assert recall_at(table["newton"], exact["newton"], 0.01, 0.01) >= 0.9
    solved = table.meta.curvature
    assert solved.high_leverage_from == 0.5
    assert solved.high_leverage == pytest.approx(int((top > 0.5).sum()), abs=4)
    assert solved.high_leverage - 1 <= solved.solved_exactly <= solved.high_leverage


def test_records_solved_again_are_exact():
    """And their stated errors are zero, of what was solved for; those of leverage stay."""
    head, exact, _ = high()
    table = sketch(head, scores=[*MAIN, "loo_gap"], probes=64, errors=True)
    for name in ("influence", "newton", "loo_gap"):
        again = table.attributes[name + "_error"] == 0
        assert again.sum() == table.meta.curvature.solved_exactly > 0
        assert np.abs(errors_of(table, exact, name)[again]).max() < 2e-3
        assert rms(errors_of(table, exact, name)[~again]) > 0.05
    assert (table.attributes["gls_trace_error"] > 0).all()


def test_where_few_records_are_solved_again_they_are_the_highest(monkeypatch):
    monkeypatch.setitem(scoring.REDONE_OPERATIONS, "cpu", 0)
    head, _, _ = high()
    table = sketch(head, scores=["newton"], probes=32, errors=True)
    again = table.attributes["newton_error"] == 0
    assert again.sum() == table.meta.curvature.solved_exactly == 32 // 8 < table.meta.curvature.high_leverage
    features, outputs, targets = (a.numpy() for a in (head.features, head.outputs, head.targets))
    top = oracles.top_eigenvalues(features, outputs, targets, head.loss, l2=head.l2)
    assert again[np.argsort(-top)[:2]].all()


@pytest.mark.parametrize("kind", ["squared_many", "one_logit", "soft_labels", "multi_label"])
def test_other_losses(kind):
    head = made_head(kind, n=300, l2=0.3, sample_weight=np.random.default_rng(1).random(300) + 0.1)
    exact, table = ga.audit(head, scores=EVERY, curvature=Dense()), sketch(head, probes=1024)
    for name in set(CURVED) & set(exact.columns):
        assert rms(errors_of(table, exact, name)) < 1.6 * (2 / 1024) ** 0.5, name
    assert table.columns == exact.columns


@pytest.mark.parametrize("kind", ["squared_many", "one_logit", "classes"])
def test_people(kind):
    arrays = made_arrays(kind, n=60, d=3)
    groups = np.random.default_rng(2).integers(0, 30, 60)
    options = {"l2": 0.3, "sample_weight": np.random.default_rng(1).random(60) + 0.1}
    table = sketch(ga.Head(**arrays, groups=groups, **options), probes=1024, scores=["influence", "newton", "loo_gap"])
    assert table.meta.unit == "person"
    exact = oracles.group_scores(**arrays, groups=groups, **options)
    for name in table.columns:
        off = np.abs(table[name] / exact[name] - 1)
        assert np.median(off) < (2 / 1024) ** 0.5, name
        assert spearman(table[name], exact[name]) > 0.99, name


def test_sample_weights_against_a_naive_loop():
    weight = np.random.default_rng(1).random(60) + 0.1
    arrays = made_arrays("classes")
    table = sketch(ga.Head(**arrays, l2=0.3, sample_weight=weight), probes=1024)
    exact = oracles.head_scores(**arrays, l2=0.3, sample_weight=weight)
    for name in CURVED:
        assert rms(table[name] / exact[name] - 1) < 2 * (2 / 1024) ** 0.5, name


@pytest.mark.parametrize("kind", ["squared_many", "classes", "multi_label"])
def test_a_head_before_its_optimum(kind):
    arrays = made_arrays(kind, seed=3)
    theta = np.random.default_rng(4).normal(size=(5, arrays["outputs"].shape[1]))
    arrays["outputs"] = np.column_stack([arrays["features"], np.ones(60)]) @ theta
    head = ga.Head(**arrays, l2=0.5, weight=theta[:-1].T, bias=theta[-1])
    table = sketch(head, optimum="corrected", probes=1024, scores=["newton"])
    exact = oracles.unconverged_newton(**arrays, l2=0.5, theta=theta)
    assert np.abs(table["newton"] - exact).max() < 0.1 * np.abs(exact).max()
    assert spearman(table["newton"], exact) > 0.99
    plain = sketch(head, probes=1024, scores=["newton"])
    assert np.median(np.abs(plain["newton"] - exact)) > 2 * np.median(np.abs(table["newton"] - exact))


@pytest.mark.parametrize("kind", ["squared_many", "classes", "one_logit"])
def test_refit_gets_to_the_same_optimum(kind):
    arrays = made_arrays(kind)
    theta, _ = oracles.refit(
        arrays["features"], arrays["targets"], arrays["loss"], l2=0.4, n_outputs=arrays["outputs"].shape[1]
    )
    head = ga.Head(**arrays, l2=0.4)
    table = sketch(head, optimum="refit", probes=64, scores=["loss", "newton"])
    outputs = np.column_stack([arrays["features"], np.ones(60)]) @ theta
    name = oracles.kind_of(head.loss, head.m)
    expected = oracles.losses(outputs, oracles.target_matrix(arrays["targets"], head.loss, head.m), name)
    np.testing.assert_allclose(table["loss"], expected, rtol=1e-7, atol=1e-10)
    dense = ga.audit(head, scores=["loss"], curvature=Dense(), optimum="refit")
    np.testing.assert_allclose(table["loss"], dense["loss"], rtol=1e-7, atol=1e-10)
    assert table.meta.optimum.note == "at its optimum"


def test_auto_goes_by_the_memory():
    little = ga.audit(small(), scores=["newton"], curvature=Auto(memory=1e-6, sketch=Sketch(probes=32)))
    assert little.meta.curvature.kind == "sketch"
    assert little.meta.curvature.chosen == ("dense takes 1.25e-05 GB, which does not fit the budget of 1e-06 GB")
    ample = ga.audit(small(), scores=["newton"], curvature=Auto(memory=1.0))
    assert ample.meta.curvature.kind == "dense"
    assert ample.meta.curvature.chosen == "dense takes 1.25e-05 GB, which fits the budget of 1 GB"
    assert ga.audit(small(), scores=["newton"]).meta.curvature.kind == "dense"
    assert by_probes(32).meta.curvature.chosen == "asked for"
    # small as the budget is, the sketch is that of an ample one, up to what it is solved to
    np.testing.assert_allclose(little["newton"], by_probes(32)["newton"], rtol=0.02)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"probes": 31}, "probes: expected a whole number of at least 32, got 31; 256 suits most heads"),
        ({"probes": 64.0}, "probes: expected a whole number of at least 1, got 64.0; 256 suits most heads"),
        ({"probes": True}, "probes: expected a whole number of at least 1, got True; 256 suits most heads"),
        ({"tolerance": 0.0}, "tolerance: expected a number between 0 and 1, got 0; 1e-3 suits most heads"),
        ({"tolerance": 1.0}, "tolerance: expected a number between 0 and 1, got 1; 1e-3 suits most heads"),
        (
            {"precision": "tf32"},
            "precision: expected bf16, float32 or float64 on a CPU, got tf32; leave it out, or compute on a GPU",
        ),
        (
            {"scores": ["loss"], "errors": True},
            "errors: expected a sketched curvature, got none: these scores are exact; leave errors out",
        ),
    ],
)
def test_the_words_of_refusals(options, words):
    assert refused("expected", sketch, small(), **options) == words


def test_the_words_for_memory_and_tolerance():
    for value in (-1.0, float("nan"), "much"):
        refused(r"^memory: expected .*, got .*; give it in gigabytes$", Auto, memory=value)
        refused(r"^tolerance: expected .*, got .*; 1e-3 suits most heads$", Sketch, tolerance=value)


def test_a_head_that_is_sure_of_every_record():
    """Margins of 20 and no penalty: what curvature there is, is all theirs."""
    arrays = made_arrays("classes")
    rng = np.random.default_rng(1)
    arrays["outputs"] = 20.0 * np.eye(5)[arrays["targets"]] + rng.normal(size=(60, 5))
    head = ga.Head(**arrays)
    exact, table = ga.audit(head, scores=MAIN, curvature=Dense()), sketch(head, scores=MAIN, probes=128)
    for name in MAIN:
        assert rms(errors_of(table, exact, name)) < 1.6 * (2 / 128) ** 0.5, name


def assert_ranks_alike(table: ScoreTable, exact: ScoreTable, bound: float) -> None:
    assert spearman(table["influence"], exact["influence"]) >= 0.999
    assert spearman(table["newton"], exact["newton"]) >= 0.999
    assert recall_at(table["influence"], exact["influence"], 0.01, 0.01) >= 0.9
    for name in MAIN:
        off = errors_of(table, exact, name)
        assert rms(off) < bound, name
        assert table.meta.curvature.relative_errors[name] == pytest.approx(rms(off), rel=0.25), name


@pytest.mark.slow
def test_three_thousand_records_of_thirty_classes():
    head = classes_head(3_000, 40, 30, sure=4.0, tails=5.0)
    exact = ga.audit(head, scores=MAIN, curvature=Dense())
    assert_ranks_alike(sketch(head, scores=MAIN, probes=512), exact, 0.08)


@pytest.mark.slow
def test_a_measured_model(shared):
    """Every tenth of its training records, under the penalty of all."""
    whole, _ = from_file(shared / "truth" / "cifar10_cnn_target_200.npz", l2=0.01)
    features, outputs, targets = (array[::10] for array in (whole.features, whole.outputs, whole.targets))
    head = ga.Head(features, outputs, targets, loss="cross_entropy", l2=0.01)
    exact = ga.audit(head, scores=MAIN, curvature=Dense())
    assert_ranks_alike(sketch(head, scores=MAIN, probes=512), exact, 0.08)


@pytest.mark.slow
def test_a_closer_solve_moves_no_score_by_more_than_the_solves_do():
    """Rounding along a shift of all outputs, which softmax does not see, once passed for a direction of a record."""
    rng = np.random.default_rng(0)
    centres, targets = rng.normal(size=(4, 6)), rng.integers(4, size=9_000)
    features = centres[targets] + 1.2 * rng.normal(size=(9_000, 6))
    outputs = features @ centres.T - 0.5 * (centres**2).sum(1)
    head = ga.Head(features, outputs, targets, "cross_entropy", l2=1.0)
    options = {"scores": ["influence", "newton", "leverage"], "probes": 64, "precision": "float64"}
    near, nearer = (sketch(head, **options, tolerance=t) for t in (1e-8, 1e-11))
    for name in near.columns:
        np.testing.assert_allclose(near[name], nearer[name], rtol=1e-7, err_msg=name)
