"""The grid of models and its judge, at a size that takes seconds."""

import json
import sys

import numpy as np
import pytest
from benchmarks import exposed_share, exposed_share_grid
from benchmarks.exposed_share_grid import GRID, make, rates_of, tiny
from scipy.stats import norm

from giveaway.attacks.lira import lira
from giveaway.attacks.shadow_store import balanced_membership
from giveaway.attacks.thresholds import AttackScores
from giveaway.records import Signals


def data(name, n=60):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = rng.normal(size=(n, 3, 9, 9) if name == "blood" else (n, 5)) + y.reshape(
        -1, *([1] * (3 if name == "blood" else 1))
    )
    return x.astype(np.float32), y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("adult", "dropout"),
        ("adult", "smooth"),
        ("adult", "strangers"),
        ("adult", "dp4"),
        ("blood", "resnet_augmented"),
        ("blood", "cnn_dropout"),
    ],
)
def test_a_kind_holds_what_an_audit_has_and_what_was_measured(name, recipe):
    x, y = data(name)
    made = make(tiny(GRID[name][recipe]), x, y, 8, "cpu")
    n = 30 if recipe == "strangers" else 60
    assert made["phi"].shape == made["members"].shape == (exposed_share_grid.TARGETS, n)
    assert made["members"].sum(1).tolist() == [n // 2] * exposed_share_grid.TARGETS
    told = json.loads(str(made["told"]))
    assert told["epsilon"] == (4.0 if recipe == "dp4" else None)
    assert recipe != "dp4" or 3.9 < told["epsilon spent"] <= 4.0
    if recipe == "strangers":
        assert np.isnan(made["roots"]).all()  # no judged record was trained on
    else:
        seen = np.isfinite(made["roots"])
        assert not (seen & ~made["members"][:2]).any()
        assert seen.sum() == n if recipe != "dp4" else seen.sum() > 0.7 * n  # not every record was drawn
    assert np.isfinite(made["earlier"]).all() == (recipe != "dp4")
    assert ("mirrored" in made) == (name == "blood")


def test_rates_are_those_of_normals():
    rng = np.random.default_rng(1)
    members = balanced_membership(40, 5000, seed=0)
    scores = rng.normal(size=members.shape) + 2 * members - 1
    found = rates_of(AttackScores("known", scores, members, {}))
    np.testing.assert_allclose(found, [*norm.sf(norm.isf([0.001, 0.01]) - 2), norm.cdf(1)], atol=0.006)
    signals = Signals(scores[:, :300], members[:, :300], kind="phi")
    for number, quick in enumerate(exposed_share_grid.one_variance(signals).scores):
        own, others = (signals.of_models(which) for which in ([number], np.delete(np.arange(40), number)))
        slow = lira(own, others, variance="global_residual", centre="mean").scores[0]
        np.testing.assert_allclose(quick, slow, rtol=0.05, atol=0.02)
    measured = exposed_share_grid.attacked(Signals(scores, members, kind="phi"))
    assert measured["measured"][0, 3] > 0.99
    assert (measured["mean_in"] - measured["mean_out"]).mean() == pytest.approx(2.0, abs=0.02)


@pytest.mark.slow
def test_a_run_goes_on_where_it_was_and_is_judged(tmp_path, monkeypatch, capsys):
    carried, grid = tmp_path / "carried", tmp_path / "grid"
    carried.mkdir()
    for name in ("adult", "housing", "news"):
        x, y = data(name, 80)
        np.savez(carried / f"{name}.npz", x=x, y=y)
    run = ["", "--data", str(carried), "--to", str(grid), "--tiny", "--kinds", "adult", "housing", "news"]
    run += ["--recipes", "mlp", "linear"]

    def again(*more):
        monkeypatch.setattr(sys, "argv", [*run, *more])
        with pytest.raises(SystemExit) as ended:
            exposed_share_grid.main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    assert "6 kinds left" in again("--limit", "-1")
    assert again("--recipes", "mlp").count("LiRA") == 3
    assert again().count("LiRA") == 3  # the linear ones
    assert again().count("LiRA") == 0
    assert len(list(grid.iterdir())) == 6

    monkeypatch.setattr(exposed_share, "FEWEST", 30)
    monkeypatch.setattr(exposed_share, "RESAMPLES", 2)
    monkeypatch.setattr(sys, "argv", ["", "--grid", str(grid), "--out", str(tmp_path / "out.json")])
    exposed_share.main()
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["from members and held-out records"]["kinds"] == 6
    assert set(result["from members and held-out records"]["calibrations, by the set left out"]) == {
        "adult",
        "housing",
        "news",
    }


def test_the_judge_fits_what_it_is_told_and_leaves_the_set_out():
    rng = np.random.default_rng(2)
    truth = np.sort(rng.uniform(0.02, 0.4, size=(12, 4)), axis=0) + np.array([0, 0, 0.5, 0])
    raw = np.repeat(truth[:, None], len(exposed_share.TRIED), axis=1)
    cases = [
        exposed_share.Case(
            f"{data}_{k}", data, False, truth[k], raw[k], np.full(2, 0.01), np.zeros(4), {"spread": 0.2}, truth[k, :2]
        )
        for k, data in enumerate(["a", "b", "c"] * 4)
    ]
    fitted = exposed_share.fit(cases, use=(True, False))
    np.testing.assert_allclose(fitted.normals, 1.0, atol=1e-6)
    result = exposed_share.judged(cases, use=(True, False))
    assert result["within 25 % or 0.5 points"] == dict.fromkeys(exposed_share.FIGURES, 1.0)
    wrong = [
        exposed_share.Case(**{**vars(case), "truth": case.truth * [2, 2, 1, 2]}) if case.data == "a" else case
        for case in cases
    ]
    predicted, _, fitted = exposed_share.left_out(wrong, "spread", (True, False))
    own = [case.data == "a" for case in cases]
    np.testing.assert_allclose(predicted[own], truth[own], rtol=1e-2)  # as the others say
    assert min(fitted["b"]["normals"][0], fitted["c"]["normals"][0]) > 1.02


def test_success_counts_above_a_coin():
    truth = np.array([[0.001, 0.01, 0.6, 0.2]])
    for predicted, good in (([0.0055, 0.016, 0.62, 0.24], [1, 0, 1, 1]), ([0.001, 0.014, 0.63, 0.26], [1, 1, 0, 0])):
        assert exposed_share.within(np.array([predicted]), truth).astype(int).tolist() == [good]


def naive_rates(phi_in, phi_out, mean_in, sd_in, mean_out, sd_out):
    """LiRA on drawn φ, whose distributions it knows: one record after the other, one threshold."""

    def score(phi, i):
        return norm.logpdf(phi, mean_in[i], sd_in[i]) - norm.logpdf(phi, mean_out[i], sd_out[i])

    inside = np.concatenate([score(phi, i) for i, phi in enumerate(phi_in)])
    outside = np.sort(np.concatenate([score(phi, i) for i, phi in enumerate(phi_out)]))[::-1]
    rates = [(inside > outside[round(rate * len(outside))]).mean() for rate in exposed_share.RATES]
    return [*rates, ((inside > 0).mean() + (outside < 0).mean()) / 2]


def test_pooled_rates_are_those_of_drawn_models():
    rng = np.random.default_rng(0)
    n, draws = 12, 20_000
    mean_out = rng.normal(size=n)
    mean_in, sd_out = mean_out + np.linspace(-0.5, 3, n), np.linspace(0.5, 1.5, n)
    sd_in = sd_out * np.linspace(0.4, 1.0, n)
    phi_in = mean_in[:, None] + sd_in[:, None] * rng.normal(size=(n, draws))
    phi_out = mean_out[:, None] + sd_out[:, None] * rng.normal(size=(n, draws))
    measured = naive_rates(phi_in, phi_out, mean_in, sd_in, mean_out, sd_out)
    predicted = exposed_share.pooled_rates(mean_in, sd_in, mean_out, sd_out, np.full(n, 1 / n))
    np.testing.assert_allclose(predicted, measured, atol=0.006)
    # equal records, equal variances: the textbook's curve
    ones = np.ones(3)
    known = [*norm.sf(norm.isf(exposed_share.RATES) - 2.0), norm.cdf(1.0)]
    np.testing.assert_allclose(exposed_share.pooled_rates(2 * ones, ones, 0 * ones, ones, ones / 3), known, rtol=0.06)


@pytest.mark.parametrize(("s", "t", "lift"), [(0.4, 0.3, 0.9), (0.55, 0.5, -0.5), (0.35, 1.0, 0.4)])
def test_figures_of_known_gaps_are_those_of_the_records_normals(s, t, lift):
    level = np.linspace(-3, 3, 41)
    rise = np.sqrt((1 - s * s) * t * t + s * s * t)  # members' scores spread so much, over records and models together
    found = exposed_share.figures(level, lift + (rise - 1) * level, s)
    place = norm.ppf((np.arange(4000) + 0.5) / 4000) * np.sqrt(1 - s * s)
    mean, sd, equal = lift + t * place, np.full(4000, s * np.sqrt(t)), np.full(4000, 1 / 4000)
    np.testing.assert_allclose(
        found[:3], exposed_share.pooled_rates(mean, sd, place, np.full(4000, s), equal), rtol=0.03, atol=1e-3
    )
    effect = np.abs(mean - place) / np.sqrt((sd**2 + s * s) / 2)
    assert found[3] == pytest.approx((effect > 1.04).mean(), abs=2e-3)


def test_both_estimates_are_summed_on_their_scale():
    calibration = exposed_share.Calibration(normals=(1.0, 0.5, 0.0, 2.0), excluded=(0.0, 0.5, 1.0, 0.0))
    chance = np.array([0.001, 0.01, 0.5, 0.0])
    normals, published = np.array([0.03, 0.2, 0.8, 0.1]), np.array([0.3, 0.2])
    scale = exposed_share.combined(normals, published, calibration)
    found = exposed_share.unscaled(scale, chance)
    assert found[0] == pytest.approx(0.03)
    assert found[1] == pytest.approx(0.2)  # both say so, and count one half each
    odds = (0.2 - 0.01) / 0.8
    assert found[2] == pytest.approx(0.5 + 0.5 * odds / (1 + odds))
    assert scale[3] == pytest.approx(2 * np.arcsinh(0.1 / 0.9 / 0.005))
    np.testing.assert_allclose(exposed_share.unscaled(exposed_share.scaled(normals, chance), chance), normals)


def test_figures_where_nothing_was_learned():
    level = np.linspace(-2, 2, 9)
    np.testing.assert_allclose(exposed_share.figures(level, 0 * level, 0.4), exposed_share.NOTHING, atol=1e-9)
