"""Leave-one-out scores against models really trained without the record, the most influential records included, and
linear and binary heads against the influence measures of statsmodels."""

import numpy as np
import pytest

import giveaway as ga
from giveaway.evaluation import spearman
from tests import oracles


def fitted(
    kind: str, *, n: int, l2: float, seed: int = 0, penalize: bool = True, scale: float = 1.0, outliers: bool = True
) -> tuple[dict, dict]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 4))
    if outliers:
        features[:3] *= 4.0
    truth = rng.normal(size=(4, 3))
    if kind == "squared":
        targets, loss = features @ truth + rng.standard_t(3, size=(n, 3)), "squared"
    else:
        targets, loss = (scale * features @ truth + rng.gumbel(size=(n, 3))).argmax(1), "cross_entropy"
    options = {"l2": l2, "penalize_intercept": penalize}
    _, outputs = oracles.refit(features, targets, loss, **options)
    return {"features": features, "outputs": outputs, "targets": targets, "loss": loss}, options


@pytest.mark.parametrize("penalize", [True, False])
@pytest.mark.parametrize("l2", [0.0, 2.0])
def test_squared_gap_is_the_real_one(l2: float, penalize: bool) -> None:
    arrays, options = fitted("squared", n=40, l2=l2, penalize=penalize)
    gaps = oracles.leave_one_out_refits(arrays["features"], arrays["targets"], "squared", **options)
    table = ga.audit(ga.Head(**arrays, **options))
    np.testing.assert_allclose(table["loo_gap"], gaps, rtol=1e-10, atol=1e-10 * gaps.max())
    decile = np.argsort(-gaps)[:4]
    np.testing.assert_allclose(table["loo_gap"][decile], gaps[decile], rtol=1e-10)


def test_squared_group_gap_is_the_real_one() -> None:
    arrays, options = fitted("squared", n=40, l2=1.0)
    groups = np.arange(40) // 3
    gaps = oracles.leave_group_out_refits(arrays["features"], arrays["targets"], "squared", groups, **options)
    table = ga.audit(ga.Head(**arrays, groups=groups, **options))
    np.testing.assert_allclose(table["loo_gap"], gaps, rtol=1e-10, atol=1e-10 * gaps.max())


@pytest.mark.slow
def test_logistic_error_shrinks_as_theory_says() -> None:
    """A record moves the optimum by O(1/n) and one Newton step errs by the square of that, so the relative error of
    loo_gap falls as 1/n; newton drops the square of the move as well, which costs it a larger constant."""
    sizes = [60, 120, 240]
    errors: dict[str, list[float]] = {"loo_gap": [], "newton": []}
    for n in sizes:
        per_seed: dict[str, list[float]] = {name: [] for name in errors}
        for seed in range(2):
            arrays, options = fitted("classes", n=n, l2=0.5, seed=seed, scale=0.5, outliers=False)
            table = ga.audit(ga.Head(**arrays, **options))
            decile = table.order("influence")[: n // 10]
            others = np.random.default_rng(seed).choice(table.order("influence")[n // 10 :], 15, replace=False)
            gaps = oracles.leave_one_out_refits(
                arrays["features"], arrays["targets"], "cross_entropy", records=np.r_[decile, others], **options
            )
            for name in errors:
                assert spearman(table[name][np.r_[decile, others]], gaps) > 0.99
                apart = np.abs(table[name][decile] / gaps[: len(decile)] - 1)
                per_seed[name].append(float(np.median(apart)))
        for name in errors:
            errors[name].append(float(np.mean(per_seed[name])))
    for name, values in errors.items():
        slope = np.polyfit(np.log(sizes), np.log(values), 1)[0]
        assert -1.4 < slope < -0.7, (name, values)
    assert errors["loo_gap"][-1] < 0.03
    assert errors["newton"][-1] < 0.06
    assert (np.array(errors["loo_gap"]) < errors["newton"]).all()


def test_ratios_as_leverage_goes_to_one() -> None:
    """influence/gap → 2(1−h)² and newton/gap → 2(1−h)."""
    features = np.random.default_rng(0).normal(size=(50, 2))
    features[0] *= 10_000.0
    arrays = {"features": features, "outputs": np.zeros((50, 1)), "targets": np.ones((50, 1)), "loss": "squared"}
    table = ga.audit(ga.Head(**arrays, intercept=False))
    h, gap = table["leverage"][0], table["loo_gap"][0]
    assert 1 - h < 1e-3
    assert table["influence"][0] / gap == pytest.approx(2 * (1 - h) ** 2, rel=2e-3)
    assert table["newton"][0] / gap == pytest.approx(2 * (1 - h), rel=2e-3)


@pytest.mark.parametrize("kind", ["squared", "classes"])
def test_a_copy_hides_the_record_but_not_the_person(kind: str) -> None:
    arrays, options = fitted(kind, n=40, l2=0.5)
    watched = int(np.argmax(ga.audit(ga.Head(**arrays, **options))["newton"]))
    own, person = [], []
    for copies in (1, 2, 3):
        rows = np.r_[np.arange(40), np.full(copies - 1, watched)]
        features, targets = arrays["features"][rows], arrays["targets"][rows]
        _, outputs = oracles.refit(features, targets, arrays["loss"], **options)
        head = dict(features=features, outputs=outputs, targets=targets, loss=arrays["loss"], **options)
        own.append(ga.audit(ga.Head(**head)))
        person.append(ga.audit(ga.Head(**head, groups=rows)))
    for name in ("newton", "loo_gap"):
        assert own[0][name][watched] > own[1][name][watched] > own[2][name][watched]
        assert person[0][name][watched] < person[1][name][watched] < person[2][name][watched]
    assert own[1].meta.repeats.exact == 2
    if kind == "squared":
        gaps = oracles.leave_group_out_refits(features, targets, "squared", rows, **options)
        np.testing.assert_allclose(person[2]["loo_gap"], gaps, rtol=1e-9)


@pytest.fixture
def features() -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(120, 3))
    x[:4] *= 4.0
    return x


def test_linear_against_statsmodels(features: np.ndarray) -> None:
    sm = pytest.importorskip("statsmodels.api")
    y = features @ [1.0, -1.0, 0.5] + np.random.default_rng(1).standard_t(3, size=120)
    fit = sm.OLS(y, sm.add_constant(features)).fit()
    influence = fit.get_influence()
    table = ga.audit(ga.Head(features, fit.fittedvalues[:, None], y, "squared"))
    h = influence.hat_matrix_diag
    np.testing.assert_allclose(table["leverage"], h, rtol=1e-10)
    left_out = influence.resid_press
    np.testing.assert_allclose(table["loo_gap"], left_out**2 - fit.resid**2, rtol=1e-9, atol=1e-13)
    cooks = influence.cooks_distance[0]
    np.testing.assert_allclose(table["influence"], cooks * 2 * 4 * fit.mse_resid * (1 - h) ** 2, rtol=1e-9)


def test_binary_against_statsmodels(features: np.ndarray) -> None:
    sm = pytest.importorskip("statsmodels.api")
    y = (features @ [1.0, -1.0, 0.5] + np.random.default_rng(2).logistic(size=120) > 0).astype(int)
    fit = sm.GLM(y, sm.add_constant(features), family=sm.families.Binomial()).fit(tol=1e-14, maxiter=100)
    influence = fit.get_influence()
    logits = np.log(fit.fittedvalues / (1 - fit.fittedvalues))
    table = ga.audit(ga.Head(features, logits[:, None], y, "cross_entropy"))
    h = influence.hat_matrix_diag
    np.testing.assert_allclose(table["leverage"], h, rtol=1e-8)
    # Cook's distance of a GLM is r²h/(k(1−h)²) with the Pearson residual r, and (y−p)²/w = r²
    squared = influence.cooks_distance[0] * 4 * (1 - h) ** 2 / h
    np.testing.assert_allclose(table["influence"], squared * h, rtol=1e-7)
    np.testing.assert_allclose(table["newton"], squared * h / (1 - h), rtol=1e-7)
