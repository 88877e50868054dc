"""Counts against enumeration, known laws, drawn records whose effect sizes are known, and measured truth."""

import warnings
from itertools import product

import numpy as np
import pytest
from benchmarks.data import adult, adult_matrices
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, nct, norm
from sklearn.ensemble import RandomForestClassifier

from giveaway.attacks.lira import lira_within
from giveaway.evaluation import defensible_count, effect_sizes, success_rate
from giveaway.evaluation.counts import (
    _drawn,
    _quantiles,
    _surely,
    benjamini_hochberg,
    coin_p_values,
    coins_of_effect,
    pooled_shapes,
)
from giveaway.records import Signals
from tests.conftest import refused
from tests.evaluation.test_ranking import measured, simulated

EFFECT = 1.04


def drawn(effect, models, *, seed=0, share=0.5, ratio=1.0, shapes=("normal", "normal")) -> Signals:
    """φ with these effect sizes, a standard deviation of 1 with the record and of `ratio` without it."""
    rng = np.random.default_rng(seed)
    members = rng.random((models, len(effect))) < share
    draw = {"normal": rng.standard_normal, "left": lambda size: 1 - rng.standard_exponential(size)}
    draw["right"] = lambda size: -draw["left"](size)
    inside, outside = (draw[shape](members.shape) for shape in shapes)
    gap = np.asarray(effect) * np.sqrt((1 + ratio**2) / 2)
    return Signals(np.where(members, inside + gap, ratio * outside), members, "phi")


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("cifar10", {16: 25}),
        pytest.param("cifar10", {16: 25, 32: 33, 64: 40}, marks=pytest.mark.slow),
        pytest.param("bloodmnist", {16: 3, 32: 5, 64: 8}, marks=pytest.mark.slow),
    ],
)
def test_enough_is_flagged_on_measured_signals_with_few_false_discoveries(shared, name, least):
    signals, _ = measured(shared, name)
    for draw, (size, percent) in enumerate(least.items()):
        order = np.random.default_rng(draw).permutation(signals.models)
        count = defensible_count(signals.of_models(order[:size]))
        truth = effect_sizes(signals.of_models(order[size:])).effect_size > EFFECT
        assert 100 * count.flagged.mean() >= percent
        assert (~truth)[count.flagged].mean() < 0.05
        assert 0.8 * count.flagged.sum() < count.at_least <= min(count.flagged.sum(), truth.sum())


def test_the_statistic_is_the_classical_noncentral_t_where_variances_and_numbers_are_equal():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=(2, 8))
    outside = outside.mean() + (outside - outside.mean()) * inside.std() / outside.std() - 2
    pooled = np.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
    t = (inside.mean() - outside.mean()) / (pooled * np.sqrt(2 / 8))
    variance = np.array([[inside.var(ddof=1)], [outside.var(ddof=1)]])
    found = _quantiles(np.full((2, 1), 8.0), variance, np.array([inside.mean() - outside.mean()]), EFFECT)
    assert found[0] == pytest.approx(norm.isf(nct.sf(t, 14, EFFECT * 2)), rel=1e-9)


@pytest.mark.parametrize("models", [8, 40])
@pytest.mark.parametrize(
    ("share", "ratio", "shapes"), [(0.5, 1.0, ("normal", "normal")), (0.7, 3.0, ("left", "right"))]
)
def test_p_values_at_the_boundary_are_uniform_or_larger(models, share, ratio, shapes):
    p = defensible_count(drawn(np.full(4000, EFFECT), models, share=share, ratio=ratio, shapes=shapes)).p_values
    p = p[p < 1]
    for level in (0.002, 0.01, 0.05, 0.2):
        assert (p <= level).mean() <= level + 3 * np.sqrt(level / len(p))
    assert (p <= 0.2).mean() > 0.08  # and not much larger


@pytest.mark.slow
@pytest.mark.parametrize("shapes", [("normal", "normal"), ("left", "right")])
@pytest.mark.parametrize(("share", "ratio"), [(0.5, 3.0), (0.8, 3.0), (0.2, 0.5)])
def test_false_discoveries_stay_below_their_rate_where_variances_differ(share, ratio, shapes):
    effect = np.where(np.arange(3000) < 900, 4.0, EFFECT)
    count = defensible_count(drawn(effect, 24, share=share, ratio=ratio, shapes=shapes))
    assert count.flagged[900:].sum() <= 0.065 * max(count.flagged.sum(), 20)
    assert count.at_least <= 900
    assert not defensible_count(drawn(np.full(2000, EFFECT), 24, share=share, ratio=ratio, shapes=shapes)).flagged.any()


def test_power_is_as_said_and_grows_with_the_models():
    rare = np.where(np.arange(1000) < 10, 8.0, 0.0)
    powers = []
    for models in (8, 24, 128):
        count = defensible_count(drawn(rare, models))
        powers.append(count.power)
        assert not count.flagged[10:].any()
    assert powers == sorted(powers)
    assert powers[0] < 0.2
    assert powers[-1] > 0.99
    assert count.flagged[:10].all()
    assert count.at_least >= 8
    half = np.where(np.arange(3000) < 900, 2 * EFFECT, EFFECT)
    count = defensible_count(drawn(half, 40))
    assert count.flagged[:900].mean() == pytest.approx(count.power, abs=0.05)


def test_membership_that_says_nothing_is_never_flagged(shared):
    signals, _ = measured(shared, "cifar10")
    some = signals.of_models(slice(0, 32)).of_records(slice(0, 250))
    for seed in range(2):
        members = np.random.default_rng(seed).permuted(some.members, axis=0)
        count = defensible_count(Signals(some.values[..., 0], members, "phi"))
        assert not count.flagged.any()
        assert (count.at_least, count.by_success) == (0, 0)


@pytest.mark.slow
def test_any_flag_is_as_rare_as_said_where_no_effect_is_allowed():
    """The false discovery rate is then the chance of any flag: 100 runs show no more than a binomial of that rate."""
    flagged = sum(defensible_count(simulated(np.zeros(150), 16, seed), effect=0.0).flagged.any() for seed in range(100))
    assert flagged <= binom.ppf(0.999, 100, 0.05)


@pytest.mark.slow
def test_the_lower_bound_holds_at_its_confidence():
    effect = np.where(np.arange(1000) < 300, 3.0, EFFECT)
    counts = [defensible_count(drawn(effect, 48, seed=seed, share=0.6, ratio=2.0)) for seed in range(20)]
    true = [count.flagged[:300].sum() for count in counts]  # what is claimed of the flagged is more than is asked
    assert sum(count.at_least > found for count, found in zip(counts, true, strict=True)) <= binom.ppf(0.99, 20, 0.05)
    assert np.mean([count.at_least for count in counts]) > 0.6 * np.mean(true)


@pytest.mark.parametrize("value", [10.0, np.float16(9.55), 708.0])
def test_records_without_any_variance_are_counted(value):
    members = np.random.default_rng(0).random((128, 500)) < 0.5
    count = defensible_count(Signals(np.where(members, value, -value), members, "phi"))
    assert count.flagged.all()
    assert count.at_least >= 495
    assert count.power > 0.9
    assert count.by_success >= 495
    turned = defensible_count(Signals(np.where(members, -value, value), members, "phi"))
    same = defensible_count(Signals(np.full(members.shape, value), members, "phi"))
    assert not turned.flagged.any()
    assert not same.flagged.any()
    assert (same.p_values == 1).all()


def test_labels_alone_are_counted_beside_outputs_that_vary():
    signals = drawn(np.where(np.arange(400) < 200, 6.0, 0.0), 64)
    phi = signals.values[..., 0].copy()
    phi[:, ::2] = np.where(phi[:, ::2] > 3, 10.0, -10.0)
    count = defensible_count(Signals(phi, signals.members, "phi"))
    assert count.flagged[:200].all()
    assert not count.flagged[200:].any()
    assert 190 <= count.at_least <= 200


@pytest.mark.slow
def test_a_forest_on_adult_is_counted_without_contradicting_its_success(shared):
    """Where votes of all and none make φ infinite, records of success 1.0 go uncounted; half a vote mends it."""
    columns, labels = adult(shared / "data")
    x, y = np.hstack(adult_matrices(columns[:1500])), labels[:1500]
    rng = np.random.default_rng(0)
    members = np.stack([rng.permutation(1500) < 750 for _ in range(32)])
    forest = RandomForestClassifier(50, random_state=0)
    values = np.stack([forest.fit(x[rows], y[rows]).predict_proba(x) for rows in members])
    missed = []
    for step in (None, np.finfo(np.float64).tiny):
        signals = Signals(values, members, "probabilities", y, step=step)
        count, success = defensible_count(signals), success_rate(lira_within(signals))
        enough = np.minimum(members.sum(axis=0), (~members).sum(axis=0)) >= 8
        missed.append(int(((success == 1) & enough & ~count.flagged).sum()))
    assert missed[0] == 0 < missed[1]


@pytest.mark.parametrize(("n_in", "n_out"), [(3, 5), (6, 6), (12, 4)])
def test_coin_test_holds_its_level_for_every_pair_of_coins_at_the_boundary(n_in, n_out):
    """By enumeration; the boundary is found by solving δ = effect numerically, not by its formula."""
    cases = np.array(list(product(range(n_in + 1), range(n_out + 1)))).T
    p = coin_p_values(coins_of_effect(EFFECT), np.array([[n_in], [n_out]]) * np.ones_like(cases), cases)
    grid = np.linspace(0, 1, 2001)
    for heads_in in np.linspace(0.36, 1, 30):
        spread = np.sqrt((heads_in * (1 - heads_in) + grid * (1 - grid)) / 2)
        above = (heads_in - grid) > EFFECT * spread
        heads_out = grid[~above & (grid < heads_in)].min(initial=heads_in)
        chance = binom.pmf(cases[0], n_in, heads_in) * binom.pmf(cases[1], n_out, heads_out)
        for level in (0.001, 0.01, 0.05, 0.2):
            assert chance[p <= level].sum() <= level
    assert p[-1 - n_out] == p.min() > 0  # all heads with, all tails without
    symmetric = 0.5 * (1 + EFFECT / np.sqrt(EFFECT**2 + 4))
    assert p.min() >= symmetric ** (n_in + n_out) * (1 - 1e-3)


@pytest.mark.parametrize("models", [4, 8, 60])
@pytest.mark.parametrize("shape", [(0.0, 0.0), (2.0, 0.0), (-1.0, 0.0), (0.0, 0.2)])
def test_shape_is_recovered_from_small_samples(shape, models):
    phi = _drawn(shape, (models, 40_000), np.random.default_rng(5)) * 3 + 1
    z = (phi - phi.mean(axis=0)) / phi.std(axis=0)
    low, high, between = pooled_shapes((z**3).mean(axis=0), (z**4).mean(axis=0), models)
    assert between < 0.1
    assert 0.5 * (low[0] + high[0]) == pytest.approx(shape[0], abs=0.6 / np.sqrt(models))
    assert low[1] == pytest.approx(shape[1], abs=0.06)
    assert phi.mean() == pytest.approx(1, abs=0.05)
    assert phi.std() == pytest.approx(3, rel=0.05)


def test_shapes_of_records_that_differ_are_told_apart_from_chance():
    rng = np.random.default_rng(0)
    phi = np.concatenate([_drawn((skewness, 0.0), (20, 5000), rng) for skewness in (-2.0, 2.0)], axis=1)
    z = (phi - phi.mean(axis=0)) / phi.std(axis=0)
    low, high, between = pooled_shapes((z**3).mean(axis=0), (z**4).mean(axis=0), 20)
    means = [(z**3).mean(axis=0)[rows].mean() for rows in (slice(5000), slice(5000, None))]
    assert between == pytest.approx((means[1] - means[0]) / 2, rel=0.03)
    assert (low[0], high[0], low[1]) == pytest.approx((-2, 2, 0), abs=0.2)


@pytest.mark.slow
def test_false_discoveries_stay_below_their_rate_where_shapes_differ():
    """Half of the records at the boundary have their long tails toward each other, half away from each other."""
    effect = np.where(np.arange(3000) < 900, 4.0, EFFECT)
    kinds = [
        drawn(effect, 64, seed=seed, shapes=shapes) for seed, shapes in ((0, ("left", "right")), (0, ("right", "left")))
    ]
    phi = kinds[0].values[..., 0].copy()
    phi[:, ::2] = kinds[1].values[:, ::2, 0]
    count = defensible_count(Signals(phi, kinds[0].members, "phi"))
    assert count.flagged[:900].mean() > 0.95
    assert count.flagged[900:].sum() <= 0.065 * count.flagged.sum()
    assert count.at_least <= 900


def test_benjamini_hochberg_by_hand():
    p = np.array([0.01, 0.04, 0.03, 0.005, 0.8])
    assert benjamini_hochberg(p, 0.05, 5)[0].tolist() == [True, True, True, True, False]
    rejected, threshold = benjamini_hochberg(p, 0.025, 5)
    assert rejected.tolist() == [True, False, False, True, False]
    assert threshold == pytest.approx(0.01)
    assert benjamini_hochberg(p, 0.025, 2.5)[0].tolist() == [True, True, True, True, False]
    assert benjamini_hochberg(p[4:], 0.025, 5)[1] == pytest.approx(0.005)


def test_lower_bound_by_hand():
    factor = np.log(20) / np.log(1 + np.log(20))  # 2.1622
    assert _surely(np.full(100, 1e-9), 1000, 0.05) == 98
    assert _surely(np.concatenate([np.full(50, 1e-9), np.full(50, 0.02)]), 1000, 0.05) == 100 - int(factor * 21)
    assert _surely(np.zeros(0), 1000, 0.05) == 0
    assert _surely(np.full(2, 1e-9), 10, 0.05) == 0


@settings(max_examples=6)
@given(
    models=st.integers(6, 20),
    records=st.integers(1, 30),
    kind=st.sampled_from(["normal", "rounded", "labels", "constant", "one outlier"]),
    seed=st.integers(0, 10**6),
)
def test_edge_cases_give_probabilities_and_no_warning(models, records, kind, seed):
    rng = np.random.default_rng(seed)
    members = rng.random((models, records)) < rng.random()
    members[:3, 0], members[3:6, 0] = True, False
    phi = rng.normal(size=members.shape) + 3 * members
    phi = {"rounded": np.round(phi), "labels": 10 * np.sign(phi), "constant": 0 * phi + 7}.get(kind, phi)
    if kind == "one outlier":
        phi[0] = 1e6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        count = defensible_count(Signals(phi, members, "phi"))
        moved = defensible_count(Signals(phi * 4 - 8, members, "phi"))
    judged = np.minimum(members.sum(axis=0), (~members).sum(axis=0)) >= 3
    np.testing.assert_array_equal(count.judged, judged)
    assert (count.p_values[~judged] == 1).all()
    assert ((count.p_values >= 0) & (count.p_values <= 1)).all()
    assert 0 <= count.power <= 1
    assert count.at_least <= count.flagged.sum() <= count.judged.sum() <= count.records == records
    np.testing.assert_allclose(moved.p_values, count.p_values, rtol=1e-6, atol=1e-12)


def test_what_it_says_and_what_is_refused():
    signals = drawn(np.where(np.arange(300) < 100, 6.0, 0.0), 32)
    count = defensible_count(signals)
    assert str(count).startswith(f"at least {count.at_least} of 300 records (")
    assert "(confidence 95 %); 100 are flagged (about 5 % of these or fewer" in str(count)
    none = str(defensible_count(drawn(np.zeros(300), 8)))
    assert none.startswith("how many of 300 records have an effect size above 1.04 cannot be stated; 0 are flagged (")
    few = "models: expected records with 3 models or more on either side, got none in 5 models"
    refused(few, defensible_count, signals.of_models(slice(0, 5)))
    refused("false_discovery: expected a rate between 0 and 1, got 2", defensible_count, signals, false_discovery=2)
    refused("confidence: expected a rate between 0 and 1, got 1", defensible_count, signals, confidence=1)
    refused("effect: expected", defensible_count, signals, effect=-1)
