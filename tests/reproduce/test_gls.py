"""The GLS paper's experiments: what is trained, scored and kept is what naive computations give."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from benchmarks.networks import ResNet
from benchmarks.reproduce.gls import averaged
from benchmarks.reproduce.gls.leverage import DAMPING, Solving, Target
from benchmarks.reproduce.gls.training import (
    DEPTHS,
    Images,
    Run,
    Schedule,
    Trainer,
    layers_of,
    made_images,
    members_of,
    phi_of,
)
from benchmarks.reproduce.gls.truth import GAPS, GRID, of_model, said_by_summaries, said_of_target, tradeoff
from benchmarks.reproduce.gls.work import Store
from benchmarks.reproduce.job import Job
from scipy.stats import norm, spearmanr
from sklearn.metrics import roc_auc_score
from torch import nn

import giveaway as ga
from giveaway.attacks import AttackScores, lira, lira_within
from giveaway.evaluation import effect_sizes
from giveaway.network import InverseCurvature, Network, score_records
from giveaway.records import Signals

CPU = torch.device("cpu")


def test_each_record_is_in_four_of_every_five_models():
    members = np.stack([members_of(number, 203, seed=3) for number in range(10)])
    assert (members[:5].sum(0) == 4).all()
    assert (members[5:].sum(0) == 4).all()
    assert set(members.sum(1)) <= {162, 163}
    assert (members[0] != members[5]).any()
    np.testing.assert_array_equal(members[7], members_of(7, 203, seed=3))


def test_phi_is_the_statistic_of_lira():
    logits = torch.randn(20, 10, generator=torch.Generator().manual_seed(0)) * 5
    labels = torch.arange(20) % 10
    signals = Signals(logits.numpy()[None], np.ones((1, 20), bool), kind="logits", labels=labels.numpy())
    np.testing.assert_allclose(phi_of(logits, labels), signals.statistic()[0, :, 0], rtol=1e-6)


def test_resnet_18_has_the_layers_of_the_paper():
    model = ResNet()
    assert sum(value.numel() for value in model.parameters()) == 11_173_962
    counts = []
    for depth in DEPTHS[1:3]:
        own = dict(model.top.named_parameters())
        names = layers_of(model.top, depth)
        counts.append(sum(own[key].numel() for key in own if any(key.startswith(f"{name}.") for name in names)))
    assert counts == [5_130 + k * (512 * 512 * 9 + 2 * 512) for k in (1, 3)]


class Watching(nn.Module):
    """Keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 10))
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return x.mean((2, 3)) @ self.weight


@pytest.mark.parametrize("shift", [0, 4])
def test_images_are_shifted_and_flipped_as_asked(shift):
    images = made_images()
    trainer = Trainer(Watching, images, Schedule(epochs=1, batch=40, shift=shift), CPU)
    (model,) = trainer.train(Run(members_of(0, len(images.labels), 0), seed=5))
    (lane,) = trainer._lanes
    x = images.records / 255
    x = (x - x.mean((0, 1, 2))) / x.std((0, 1, 2))
    rows, (down, right, flipped) = lane.rows.numpy(), lane.moved.numpy()
    assert set(down) | set(right) == set(range(2 * shift + 1))
    assert set(flipped) == {0, 1}
    for seen, row, top, left, flip in zip(model.seen[-1].numpy(), rows, down, right, flipped, strict=True):
        padded = np.pad(x[row], ((shift, shift), (shift, shift), (0, 0)))
        cut = padded[top : top + 8, left : left + 8]
        np.testing.assert_allclose(seen, (cut[:, ::-1] if flip else cut).transpose(2, 0, 1), atol=1e-5)


@pytest.mark.slow
def test_training_learns_and_depends_on_its_seed_alone():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 300)
    colours = rng.integers(0, 256, (10, 3))
    x = np.clip(colours[labels][:, None, None] + rng.normal(0, 10, (300, 8, 8, 3)), 0, 255).astype(np.uint8)
    images = Images(x[:240], labels[:240], x[240:], labels[240:])
    trainer = Trainer(partial(ResNet, 10, (6, 6, 6, 8), 1), images, Schedule(epochs=12, batch=24, rate=0.2), CPU, 2)
    members = members_of(0, 240, 0)
    (model,) = trainer.train(Run(members, seed=1))
    first = trainer.logits(model).clone()
    assert float((trainer.logits(model, held_out=True).argmax(1) == trainer.held_out_y).float().mean()) > 0.6
    other, again = trainer.train(Run(members, seed=2), Run(members, seed=1))
    assert not torch.equal(first, trainer.logits(other))
    torch.testing.assert_close(first, trainer.logits(again))


def test_models_side_by_side_take_as_many_steps():
    images = made_images()
    trainer = Trainer(Watching, images, Schedule(epochs=1, batch=40), CPU, together=2)
    every = np.ones(len(images.labels), bool)
    with pytest.raises(ValueError, match=r"up to 2 models of as many batches of 40 expected, got 2 of \[100, 250\]"):
        trainer.train(Run(every, 0), Run(np.arange(250) < 100, 1))
    with pytest.raises(ValueError, match="got 3 of"):
        trainer.train(*[Run(every, seed) for seed in range(3)])


def test_one_cycle_goes_up_and_down_to_nothing():
    rates = Schedule(rate=0.4, warm_up=0.25).rates(100)
    assert rates.argmax() == 24
    assert rates.max() == pytest.approx(0.4)
    assert rates[-1] == 0
    assert rates[0] < 0.05


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    model = ResNet(4, (3, 3, 4, 4))
    x, y = torch.randn(24, 3, 8, 8), torch.arange(24) % 4
    model.train()
    for _ in range(5):  # running averages
        model(x)
    few = {depth: 8 for depth in DEPTHS[1:]}
    solving = Solving(few, few, {depth: 300 for depth in few}, tolerance=1e-5, memory=10**8)
    return Target(model.double(), x.double(), y, solving)


def test_last_layer_is_the_closed_form(target):
    columns, told = target.score(DEPTHS[0])
    g = torch.cat([target.features(), torch.ones(24, 1)], 1).numpy()
    p = torch.softmax(target.model(target.x), 1).detach().numpy()
    w = np.einsum("nc,cd->ncd", p, np.eye(4)) - np.einsum("nc,nd->ncd", p, p)
    h = sum(np.kron(w[j], np.outer(g[j], g[j])) for j in range(24))
    inverse = np.linalg.inv(h + told["damping"] * np.eye(len(h)))
    assert told["damping"] == pytest.approx(24 * DAMPING[DEPTHS[0]])
    for j in range(24):
        wide = np.kron(np.eye(4), g[j][None])
        gls = w[j] @ wide @ inverse @ wide.T
        assert columns["gls_trace"][j] == pytest.approx(np.trace(gls), rel=1e-5)
        # the norms look away from what softmax cannot see: the same constant on all outputs
        seen = np.eye(4) - 0.25
        assert columns["gls_frobenius"][j] == pytest.approx(np.linalg.norm(gls @ seen), rel=1e-5)
        assert columns["gls_spectral"][j] == pytest.approx(np.linalg.norm(gls @ seen, 2), rel=1e-5)


@pytest.mark.parametrize("depth", DEPTHS[1:3])
def test_the_last_group_alone_gives_the_leverage_of_the_whole_network(target, depth):
    columns, told = target.check(depth, [0, 7])
    names = [f"top.{name}" for name in layers_of(target.model.top, depth)]
    network = Network(target.model, (target.x, target.y), loss="cross_entropy", parameters=names)
    assert told["parameters"] == network.size
    inverse = InverseCurvature(network, damping=24 * DAMPING[depth], tolerance=1e-6, most_steps=1000)
    exact = score_records(inverse, [0, 7], scores=["gls_trace"])["gls_trace"]
    np.testing.assert_allclose(columns["gls_trace"], exact, rtol=1e-3)


@pytest.mark.parametrize("digits", [0, 6])
def test_an_attack_on_one_model_is_told_by_its_threshold(digits):
    rng = np.random.default_rng(0)
    members = rng.random((3, 60)) < 0.7
    scores = (rng.normal(size=(3, 60)) + members).round(digits)
    rows = rng.permutation(60)[:50]
    found = of_model(AttackScores("lira", scores, members, {}), 1, rows)
    here, own = scores[1, rows], members[1, rows]
    assert found.auc.value == pytest.approx(roc_auc_score(own, here), abs=1e-12)
    for alpha in (0.0, 0.03, 0.05, 0.31, 0.5, 0.99, 1.0):
        thresholds = [at for at in (*here, -np.inf, np.inf) if (here[~own] > at).mean() <= alpha]
        assert found.true_positive_rate[alpha].value == pytest.approx(max((here[own] > at).mean() for at in thresholds))


def test_the_lira_score_averaged_over_models_and_gaps_of_means():
    rng = np.random.default_rng(0)
    members = rng.random((40, 30)) < 0.5
    phi = rng.normal(1, 1 + rng.random(30), (40, 30)) + members * rng.random(30)
    signals = Signals(phi, members, kind="phi")
    said = said_of_target(signals, lira_within(signals), 3)
    rest = np.delete(np.arange(40), 3)
    within = lira_within(signals).scores
    p, loss = 1 / (1 + np.exp(-phi)), np.log(1 + np.exp(-phi))
    for record in range(30):
        inside = [model for model in rest if members[model, record]]
        outside = [model for model in rest if not members[model, record]]
        assert said["lira_mean"][record] == pytest.approx(np.mean([within[model, record] for model in inside]))
        for name, values in zip(GAPS, (phi, p, loss), strict=True):
            gap = abs(values[inside, record].mean() - values[outside, record].mean())
            assert said[name][record] == pytest.approx(gap)
    # from means and deviations alone: each model among its own references, and normal laws
    effect = effect_sizes(signals)
    moments = {name: getattr(effect, name) for name in ("mean_in", "mean_out", "deviation_in", "deviation_out")}
    by_moments = said_by_summaries(phi[3], moments)
    flattered = lira(signals, signals, centre="mean").scores
    many = rng.normal(size=400_000)
    for record in range(0, 30, 10):
        own = flattered[members[:, record], record]
        assert by_moments["lira_mean"][record] == pytest.approx(own.mean(), rel=1e-9)
        side = [moments[f"mean_{k}"][record] + moments[f"deviation_{k}"][record] * many for k in ("in", "out")]
        gap = abs(np.mean(1 / (1 + np.exp(-side[0]))) - np.mean(1 / (1 + np.exp(-side[1]))))
        assert by_moments["mean_gap_probability"][record] == pytest.approx(gap, abs=2e-3)
        assert by_moments["mean_gap"][record] == pytest.approx(abs(side[0].mean() - side[1].mean()), abs=1e-2)


def test_networks_trained_elsewhere_are_held_against_their_own_records(tmp_path, monkeypatch):
    """Rows of a target's file come in any order, and the references answered for some of its records only."""
    rng = np.random.default_rng(2)
    records, answered, models = 300, 200, 30
    members = rng.random((models, answered)) < 0.5
    phi = (rng.normal(size=(models, answered)) + members * rng.random(answered)).astype(np.float16)
    np.savez(tmp_path / "signals.npz", phi=phi, members=np.packbits(members, axis=1))
    index, features = rng.permutation(records)[:180], rng.normal(size=(180, 4)).astype(np.float16)
    weight, bias, targets = rng.normal(size=(3, 4)), rng.normal(size=3), rng.integers(0, 3, 180)
    np.savez(tmp_path / "one.npz", features=features, weight=weight, bias=bias, targets=targets, index=index)
    monkeypatch.setattr(averaged, "ELSEWHERE", {"made": ("signals.npz", slice(5, None), ["one.npz"], 0.5)})
    averaged.run_elsewhere(Job("gls_elsewhere", tmp_path, tmp_path, out=tmp_path))
    told = json.loads((tmp_path / "gls_elsewhere.json").read_text())
    assert (told["models"], told["targets"]) == ({"made": 25}, {"made": 1})

    outputs = features.astype(float) @ weight.T + bias
    scores = ga.audit(ga.Head(features.astype(float), outputs, targets, "cross_entropy", l2=0.5), scores=["gls_trace"])
    own = np.array([row[y] - np.log(np.exp(np.delete(row, y)).sum()) for row, y in zip(outputs, targets, strict=True)])
    first = sorted((record, place) for place, record in enumerate(index) if record < answered)
    kept, inside = phi[5:].astype(float), members[5:]
    for over, some in (("all", first), ("first", first[:128])):
        found = {"lira": [], "mean_gap": []}
        for record, place in some:
            sides = [kept[inside[:, record] == side, record] for side in (True, False)]
            found["lira"].append(np.subtract(*(norm.logpdf(own[place], side.mean(), side.std()) for side in sides)))
            found["mean_gap"].append(abs(sides[0].mean() - sides[1].mean()))
        leverage = [scores["gls_trace"][place] for _, place in some]
        for name, values in found.items():
            expected = spearmanr(leverage, values).statistic
            assert told["networks"]["made"][over][name]["mean"] == pytest.approx(expected, abs=1e-4)


def test_tradeoff_is_what_thresholds_give_at_both_ends_of_the_leverage():
    rng = np.random.default_rng(1)
    members = rng.random((7, 500)) < 0.5
    leverage = rng.normal(size=500)
    leverage[:40] = np.nan
    gained = members * (1 + np.nan_to_num(leverage))  # the highest are found, the lowest the wrong way
    scores = rng.normal(size=(7, 500)) + gained
    known = sorted((value, row) for row, value in enumerate(leverage) if row >= 40)
    ends = {"highest": [row for _, row in known[-9:]], "lowest": [row for _, row in known[:9]]}
    members[3, ends["lowest"]] = True  # nobody to tell apart
    told, curves = tradeoff(leverage, AttackScores("lira", scores, members, {}))
    attacked = [0, 1, 2, 4, 5, 6]
    assert (told["records"], told["attacks"]) == (9, len(attacked))
    areas = []
    for (name, rows), curve in zip(ends.items(), curves, strict=True):
        missed, area = [], []
        for model in attacked:
            here, own = scores[model, rows], members[model, rows]
            area.append(roc_auc_score(own, here))
            allowed = [[at for at in (*here, -np.inf) if (here[~own] > at).mean() <= alpha] for alpha in GRID]
            missed.append([min((here[own] <= at).mean() for at in thresholds) for thresholds in allowed])
        np.testing.assert_allclose(curve[0], np.mean(missed, 0), atol=1e-12)
        np.testing.assert_allclose(curve[1], np.percentile(missed, 2.5, axis=0), atol=1e-12)
        np.testing.assert_allclose(curve[2], np.percentile(missed, 97.5, axis=0), atol=1e-12)
        assert told[name]["auc"]["mean"] == pytest.approx(np.mean(area), abs=1e-4)
        assert told[name]["tpr_at_5"]["mean"] == pytest.approx(1 - np.mean(missed, 0)[5], abs=1e-4)
        areas.append(area)
    higher = np.mean([a > b for a, b in zip(*areas, strict=True)])
    assert higher > 0.5
    assert told["share_of_models_higher"] == pytest.approx(higher, abs=1e-4)


def test_a_target_without_weights_is_trained_and_scored_again(tmp_path):
    kept = Store(tmp_path, {"seed": 0})
    kept.save_model(3, np.zeros(5), {})
    kept.save_piece(3, "2 last layers", {"gls_trace": np.array([1e-9, 10.0])}, {"seconds": 1.0})
    np.testing.assert_allclose(kept.piece(3, "2 last layers")[0]["gls_trace"], [-9, 1], atol=1e-2)
    assert not kept.load_weights(3, nn.Linear(1, 1))
    other, same = nn.Linear(2, 1), nn.Linear(2, 1)
    digest = kept.save_weights(3, same)
    assert not kept.load_weights(3, other)  # of a model that was trained elsewhere
    kept.save_model(3, np.zeros(5), {"weights": digest})
    assert kept.load_weights(3, other)
    torch.testing.assert_close(other.weight, same.weight)
    kept.give_up(3, "full model", "out of memory")
    assert kept.settled(3, "full model")
    assert not kept.has_piece(3, "full model")
    kept.save_model(3, np.ones(5), {})
    assert not kept.settled(3, "2 last layers")
    assert not kept.settled(3, "full model")
    with pytest.raises(SystemExit, match="another seed"):
        Store(tmp_path, {"seed": 1})
