"""The GLS paper's experiments: what is trained, scored and measured is what naive computations give."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from benchmarks.networks import ResNet
from benchmarks.reproduce.__main__ import RUN_AGAIN, main
from benchmarks.reproduce.claims import UNMEASURED
from benchmarks.reproduce.gls import run as settings
from benchmarks.reproduce.gls.leverage import DAMPING, Solving, Target
from benchmarks.reproduce.gls.pictures import draw
from benchmarks.reproduce.gls.run import SMALL
from benchmarks.reproduce.gls.training import (
    DEPTHS,
    Images,
    Schedule,
    Trainer,
    layers_of,
    made_images,
    members_of,
    phi_of,
)
from benchmarks.reproduce.gls.truth import GRID, between_targets, of_model, tradeoff
from benchmarks.reproduce.gls.work import Store, Work
from benchmarks.reproduce.job import RESULTS, Job
from benchmarks.reproduce.page import claims_of, read_paper, section
from scipy.stats import norm, spearmanr
from sklearn.metrics import roc_auc_score
from torch import nn

from giveaway.attacks import AttackScores
from giveaway.figures import save_figure
from giveaway.network import InverseCurvature, Network, score_records
from giveaway.records import Signals

NAME, MORE = "gls_resnet18", "gls_full_model"
CPU = torch.device("cpu")


def small_run(work, *wishes, name=NAME):
    return main(["run", name, "--small", "--work", str(work), "--device", "cpu", *wishes])


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A small run in two commands, and its folder."""
    work = tmp_path_factory.mktemp("work")
    assert small_run(work, "--limit", "0") == RUN_AGAIN
    assert small_run(work) == 0
    return work / f"{NAME}-small"


@pytest.fixture(scope="module")
def result(ran):
    return json.loads((ran / f"{NAME}.json").read_text())


@pytest.fixture(scope="module")
def more(ran):
    """A small run of more targets beside it, in two commands."""
    assert small_run(ran.parent, "--limit", "0", name=MORE) == RUN_AGAIN
    assert small_run(ran.parent, name=MORE) == 0
    return ran.parent / f"{MORE}-small"


# training


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
    trainer.train(members_of(0, len(images.labels), 0), seed=5)
    x = images.records / 255
    x = (x - x.mean((0, 1, 2))) / x.std((0, 1, 2))
    rows, (down, right, flipped) = trainer._rows.numpy(), trainer._moved.numpy()
    assert set(down) | set(right) == set(range(2 * shift + 1))
    assert set(flipped) == {0, 1}
    for seen, row, top, left, flip in zip(trainer.model.seen[-1].numpy(), rows, down, right, flipped, strict=True):
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
    trainer = Trainer(partial(ResNet, 10, (6, 6, 6, 8), 1), images, Schedule(epochs=12, batch=24, rate=0.2), CPU)
    members = members_of(0, 240, 0)
    trainer.train(members, seed=1)
    first = trainer.logits().clone()
    assert float((trainer.logits(held_out=True).argmax(1) == trainer.held_out_y).float().mean()) > 0.6
    trainer.train(members, seed=2)
    assert not torch.equal(first, trainer.logits())
    trainer.train(members, seed=1)
    torch.testing.assert_close(first, trainer.logits())


def test_one_cycle_goes_up_and_down_to_nothing():
    rates = Schedule(rate=0.4, warm_up=0.25).rates(100)
    assert rates.argmax() == 24
    assert rates.max() == pytest.approx(0.4)
    assert rates[-1] == 0
    assert rates[0] < 0.05


# leverage


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


# measures


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


def test_tradeoff_is_what_thresholds_give_at_both_ends_of_the_leverage():
    rng = np.random.default_rng(1)
    members = rng.random((7, 500)) < 0.5
    leverage = rng.normal(size=500)
    leverage[:40] = np.nan
    scores = rng.normal(size=(7, 500)) + members * (1 + leverage)  # the highest are found, the lowest the wrong way
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


def kept_phi(folder, numbers):
    held = [np.load(folder / "keep" / f"model-{number:03d}.npz")["phi"].astype(np.float64) for number in numbers]
    return np.stack(held), np.stack([members_of(number, 250, 0) for number in numbers])


def naive_effect(inside, outside):
    return (inside.mean() - outside.mean()) / np.sqrt((inside.var() + outside.var()) / 2)


def naive(here, inside, outside):
    """All metrics of one record from φ of a target and of the models with and without the record."""
    accused = outside.mean() + norm.isf(0.05) * outside.std()
    return {
        "lira": norm.logpdf(here, inside.mean(), inside.std()) - norm.logpdf(here, outside.mean(), outside.std()),
        "deviation_ratio": outside.std() / inside.std(),
        "mean_gap": abs(inside.mean() - outside.mean()),
        "effect_size": naive_effect(inside, outside),
        "tpr_fitted": norm.sf((accused - inside.mean()) / inside.std()),
        "minus_phi": -here,
    }


def said_naively(own_phi, phi, members):
    """Metrics of every record, each an array, from models that are not the target."""
    rows = [
        naive(here, phi[members[:, record], record], phi[~members[:, record], record])
        for record, here in enumerate(own_phi)
    ]
    return {metric: np.array([row[metric] for row in rows]) for metric in rows[0]}


@pytest.mark.slow
def test_what_is_measured_is_what_a_naive_computation_gives(ran, result):
    phi, members = kept_phi(ran, range(20))
    said = [said_naively(phi[k], np.delete(phi, k, 0), np.delete(members, k, 0)) for k in range(20)]
    columns = [np.load(ran / "keep" / f"target-{number:03d}-last-layer.npz") for number in range(2)]
    for metric in said[0]:
        values = [spearmanr(columns[k]["gls_trace"], said[k][metric][members[k]]).statistic for k in range(2)]
        cell = result["depths"]["last layer"]["all"]["gls_trace"][metric]
        assert cell["mean"] == pytest.approx(np.mean(values), abs=2e-3), metric
        assert cell["of"] == 2
    for number in range(2):
        sizes = said[number]["effect_size"][members[number]]
        sought, best = np.argsort(sizes)[-2:], np.argsort(columns[number]["newton"])[-10:]  # of 200 records
        assert result["beside"]["newton"]["recall"][str(number)] == pytest.approx(np.isin(sought, best).mean())
    both = members[0] & members[1]
    expected = spearmanr(said[0]["lira"][both], said[1]["lira"][both]).statistic
    assert result["lira_of_two_targets"] == {"mean": pytest.approx(expected, abs=2e-3), "half_width": 0.0, "of": 1}
    auc = [roc_auc_score(members[number], said[number]["lira"]) for number in range(20)]
    assert result["attack"]["auc"]["mean"] == pytest.approx(np.mean(auc), abs=2e-4)
    one_half = np.arange(20) // 5 % 2 == 0
    halves = [
        [naive_effect(phi[side & own, record], phi[side & ~own, record]) for record, own in enumerate(members.T)]
        for side in (one_half, ~one_half)
    ]
    expected = spearmanr(*halves).statistic
    assert result["two_halves_of_the_models"]["effect_size"] == pytest.approx(expected, abs=2e-3)
    alone = AttackScores("lira", np.zeros((2, 5)), np.eye(2, 5, dtype=bool), {})
    assert between_targets(alone, 1) is None


@pytest.mark.slow
def test_more_targets_are_held_against_the_models_that_were_there_before(ran, more):
    """Naively, from the φ of those models themselves: what was kept of them in float16 is enough."""
    phi, members = kept_phi(ran, range(20))
    measured = json.loads((more / f"{MORE}.json").read_text())
    assert measured["references"] == {"setting": NAME, "models": 20}
    assert {path.stem for path in (more / "keep").glob("model-*")} == {"model-020", "model-021"}
    assert (measured["models"], measured["targets"]) == (20, 2)
    notes = [json.loads(str(np.load(more / "keep" / f"model-{number:03d}.npz")["told"])) for number in (20, 21)]
    mean = np.mean([note["accuracy_held_out"] for note in notes])
    assert measured["accuracy"]["accuracy_held_out"]["mean"] == pytest.approx(mean, abs=1e-4)
    found, with_last, of_last, first, means = [], [], [], [], np.full((2, 2, 250), np.nan)
    own_phi, own_members = kept_phi(more, (20, 21))
    for place, number in enumerate((20, 21)):
        own = own_members[place]
        gls, last = (
            np.load(more / "keep" / f"target-{number:03d}-{depth}.npz")["gls_trace"]
            for depth in ("full-model", "last-layer")
        )
        said = {metric: values[own] for metric, values in said_naively(own_phi[place], phi, members).items()}
        found.append({metric: spearmanr(gls, values).statistic for metric, values in said.items()})
        with_last.append(spearmanr(gls, last).statistic)
        of_last.append(spearmanr(last, said["lira"]).statistic)
        first.append(spearmanr(gls[:128], said["lira"][:128]).statistic)
        means[:, place, own] = [last - last.mean(dtype=float), gls - gls.mean(dtype=float)]
    full = measured["depths"]["full model"]
    assert set(full["all"]["gls_trace"]) == set(found[0])  # and no TPR, which takes every model's answer
    for metric in found[0]:
        expected = np.mean([each[metric] for each in found])
        assert full["all"]["gls_trace"][metric]["mean"] == pytest.approx(expected, abs=2e-3), metric
    assert full["with the last layer"]["mean"] == pytest.approx(np.mean(with_last), abs=2e-3)
    assert full["last layer of these targets"]["lira"]["mean"] == pytest.approx(np.mean(of_last), abs=2e-3)
    assert full["first"]["gls_trace"]["lira"]["mean"] == pytest.approx(np.mean(first), abs=2e-3)
    kept = np.load(more / f"{MORE}.npz")
    for name, expected in zip(("gls_0", "gls_3"), np.nanmean(means, 1), strict=True):
        np.testing.assert_allclose(kept[name], expected, atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["nothing", "target-000-full-model"])
def test_run_goes_on_from_what_is_kept(ran, result, tmp_path, monkeypatch, lost):
    """The kept folder alone, on another machine, gives the same numbers; no target is trained again for what may be
    left out."""
    there = tmp_path / f"{NAME}-small"
    (there / "keep").mkdir(parents=True)
    for path in (ran / "keep").iterdir():
        if path.stem != lost:
            (there / "keep" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(Trainer, "__init__", lambda *given: pytest.fail("trained again"))
    assert small_run(tmp_path) == 0
    again = json.loads((there / f"{NAME}.json").read_text())
    if lost == "nothing":
        assert again == result
    assert set(result["depths"]) - set(again["depths"]) == ({"full model"} if lost != "nothing" else set())
    assert again["depths"]["2 last layers"] == result["depths"]["2 last layers"]


@pytest.mark.slow
def test_the_worst_of_the_targets_solves_is_told(ran, result):
    pieces = [np.load(ran / "keep" / f"target-{number:03d}-2-last-layers.npz") for number in range(2)]
    told = [json.loads(str(held["told"])) for held in pieces]
    measured = result["depths"]["2 last layers"]
    for name in ("solve_error", "worst_residual"):
        each = [note[name] for note in told]
        assert each[0] != each[1]
        assert measured[name] == pytest.approx(max(each), abs=1e-4)
    sums = [(10 ** held["gls_trace"].astype(np.float64)).sum() for held in pieces]
    assert measured["sum_of_traces"]["mean"] == pytest.approx(np.mean(sums), rel=1e-4)
    assert (measured["right_sides"], measured["unsolved"]) == (8, 0)


@pytest.mark.slow
def test_more_targets_without_weights_are_trained_and_scored_again(ran, more, tmp_path):
    shutil.copytree(ran, tmp_path / ran.name)
    there = tmp_path / more.name
    shutil.copytree(more, there)
    for path in [there / "weights" / "target-021.pt", there / "keep" / "target-021-full-model.npz"]:
        path.unlink()
    before = {path.name: path.stat().st_mtime_ns for path in (there / "keep").glob("*.npz")}
    assert small_run(tmp_path, name=MORE) == 0
    changed = {path.name for path in (there / "keep").glob("*.npz") if path.stat().st_mtime_ns != before.get(path.name)}
    assert changed == {"model-021.npz", "target-021-last-layer.npz", "target-021-full-model.npz"}


@pytest.mark.slow
def test_a_cpu_measures_what_is_kept_and_says_what_is_not(ran, more):
    job = Job(MORE, None, more, targets=2, device=CPU, small=True)
    work = Work(job, SMALL, range(20, 22))
    assert not work.measures_only(range(20, 22))  # small runs train on a CPU
    work.job = replace(job, small=False)
    assert work.measures_only(range(20, 22))
    with pytest.raises(SystemExit, match="3 of 5 models are missing: train them with --device cuda"):
        work.measures_only(range(20, 25))


@pytest.mark.slow
def test_more_targets_are_not_held_against_models_trained_otherwise(ran, tmp_path):
    there = tmp_path / ran.name
    there.mkdir()
    for path in ran.glob(f"{NAME}.*"):
        shutil.copy(path, there)
    told = json.loads((there / f"{NAME}.json").read_text())
    told["training"]["epochs"] += 1
    (there / f"{NAME}.json").write_text(json.dumps(told))
    with pytest.raises(SystemExit, match="gls_resnet18 was trained otherwise, or on other records"):
        small_run(tmp_path, name=MORE)
    (there / f"{NAME}.npz").unlink()
    with pytest.raises(SystemExit, match=r"needs gls_resnet18\.json and \.npz in"):
        small_run(tmp_path, name=MORE)


def test_more_targets_find_the_committed_models_or_say_what_they_need(tmp_path):
    told, summaries = settings._references(Job(MORE, None, tmp_path, out=tmp_path))
    assert told == json.loads((RESULTS / f"{NAME}.json").read_text())
    assert (summaries["deviation_out"] > 0).all()
    with pytest.raises(SystemExit, match=r"gls_full_model needs gls_resnet18\.json and \.npz in .*: run gls_resnet18"):
        small_run(tmp_path, name=MORE)


@pytest.mark.slow
def test_what_was_not_solved_is_left_out_and_said(tmp_path, monkeypatch, capsys):
    """Solves that end at their first step leave zeros behind, which would be ranked."""
    solving = replace(SMALL.solving, most_steps=dict.fromkeys(DEPTHS[1:], 1), tolerance=1e-6)
    monkeypatch.setattr(settings, "SMALL", replace(SMALL, solving=solving))
    assert small_run(tmp_path) == 0
    words = "not solved: a residual of 1 after 1 steps"
    assert f"target 0, 2 last layers: {words}, left out" in capsys.readouterr().out
    there = tmp_path / f"{NAME}-small"
    assert json.loads((there / "keep" / "target-000-2-last-layers.json").read_text())["ended"] == words
    result = json.loads((there / f"{NAME}.json").read_text())
    assert set(result["depths"]) == {"last layer"}
    assert words in result["not_to_be_had"]["2 last layers"]
    text = section("gls", {NAME: result})
    assert "0.51 ± 0.04 → not to be had" in text
    assert re.search(rf"2 last layers \(for some targets at least\): .*{words}", text)
    last_layer = claims_of("gls", {NAME: result})[3]
    assert last_layer.verdict == UNMEASURED
    assert "2 last layers not to be had" in last_layer.measured


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


@pytest.mark.parametrize("of", [2, 5])
@pytest.mark.slow
def test_page_has_the_numbers_of_the_results(result, of):
    result = json.loads(json.dumps(result))
    for depth in DEPTHS:
        for cell in result["depths"][depth]["all"]["gls_trace"].values():
            cell["of"] = of
    text = section("gls", {NAME: result})
    rows = {line.split("|")[1].strip(): line.split("|") for line in text.splitlines() if "→" in line and "|" in line}
    for title, metric in (("LiRA score", "lira"), ("σ_out/σ_in", "deviation_ratio"), ("TPR at 5 % FPR", "tpr")):
        for depth, cell in zip(DEPTHS, rows[title][2:], strict=False):
            value = result["depths"][depth]["all"]["gls_trace"][metric]
            printed, spread = read_paper("gls")["printed"]["table_2"][metric][depth]
            ours = f"{value['mean']:z.2f}" + (f" ± {value['half_width']:.2f}" if of == 5 else "")
            assert cell.strip().replace("−", "-") == f"{printed:.2f} ± {spread:.2f} → {ours}"
    first = text.split("over the first 128 training records")[1].splitlines()
    row = next(line for line in first if line.startswith("| TPR at 5 % FPR |")).split("|")[2:-1]
    expected = [result["depths"][depth]["first"]["gls_trace"]["tpr"]["mean"] for depth in DEPTHS]
    assert [cell.split("±")[0].strip().replace("−", "-") for cell in row] == [f"{value:z.2f}" for value in expected]
    assert f"{DEPTHS[0]}). We know of no cause" in text
    assert "below 0.88" in text
    view = result["beside"]["fused"]["view"]
    assert f"memorized M = {view['memorized']['mean']:.2f}" in text
    assert f"its own left-out error is {view['left_out_error']['mean']:.2f}" in text
    assert f"{result['depths']['full model']['parameters']:,}" in text


@pytest.mark.slow
def test_deeper_leverage_is_held_against_the_last_layer_of_the_same_targets(result):
    """The mean over all targets may be another."""
    for depth, measured in result["depths"].items():
        for metric, same in measured["last layer of these targets"].items():
            assert same["of"] == measured["targets"]
            if same["of"] == result["depths"]["last layer"]["targets"]:
                assert same == result["depths"]["last layer"]["all"]["gls_trace"][metric], depth


@pytest.mark.slow
def test_pictures_are_drawn_from_the_results(ran, more, tmp_path):
    pytest.importorskip("matplotlib")
    results = tmp_path / "results"
    results.mkdir()
    for path in [*ran.glob(f"{NAME}.*"), *more.glob(f"{MORE}.*")]:
        shutil.copy(path, results)
    figures = draw(results)
    depths = [label.get_text() for label in figures["gls_depths"].axes[0].get_xticklabels()]
    assert [depth.rstrip("*") for depth in depths] == [*DEPTHS, "full model,\nmore targets"]
    assert set(figures) == {f"gls_{name}" for name in ("theory", "depths", "tradeoff", "tsne")}
    for name, figure in figures.items():
        save_figure(figure, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000
