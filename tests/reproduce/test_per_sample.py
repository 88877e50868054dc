"""The per-sample paper's settings: small runs, what they keep, and the oracles of their attacks and measures."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from benchmarks.networks import build_transformer, build_with_dropout
from benchmarks.reproduce import __main__ as command
from benchmarks.reproduce.job import Job
from benchmarks.reproduce.per_sample import data as sets
from benchmarks.reproduce.per_sample import glyphs
from benchmarks.reproduce.per_sample.agreement import METRICS, figures, repeated
from benchmarks.reproduce.per_sample.attacks import Truth, attack_truth, balanced_accuracy, best_threshold, halves_of
from benchmarks.reproduce.per_sample.experiment import run
from benchmarks.reproduce.per_sample.pictures import highest
from benchmarks.reproduce.per_sample.settings import EXPERIMENTS
from benchmarks.stacked import Training

from giveaway.attacks import AttackScores, rmia
from giveaway.attacks.shadow_store import balanced_membership, model_membership
from giveaway.checks import InputError
from giveaway.records import Signals


def job(folder, name="energy_mlp", **options):
    folder.mkdir(exist_ok=True)
    return Job(name, None, folder, models=6, targets=2, small=True, out=folder, **options)


def run_small(name, folder, **options):
    job(folder, name, **options).run()
    return json.loads((folder / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A small run of Energy, and its folder."""
    folder = tmp_path_factory.mktemp("energy")
    return folder, run_small("energy_mlp", folder)


@pytest.fixture
def copied(ran, tmp_path):
    shutil.copytree(ran[0], tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.slow
def test_a_setting_runs_small_and_its_numbers_come_from_what_it_kept(tmp_path):
    result = run_small("california_mlp", tmp_path)
    assert result["small"]
    assert (result["models"], result["targets"]) == (6, 2)
    assert set(result["agreement"]) == {"lira", "lira_tied", "effect_size", "rmia", "shokri"}
    scores = {"loss", "gradient_norm", "input_gradient_norm", "influence", "newton", "fused", "whole_network"}
    assert set(result["agreement"]["lira"]) == scores
    assert result["newton_over_influence"]["largest_error"] < 1e-6  # 1/(1 − h), one output
    assert {"references", "targets", "attacks", "surrogates", "fused", "whole_network"} <= set(result["seconds"])
    with np.load(tmp_path / "california_mlp.npz") as kept, np.load(tmp_path / "truth-6" / "lira.npz") as truth:
        assert kept["success_lira"].dtype == np.float16
        found = []
        for number in range(2):
            with np.load(tmp_path / "scores" / f"{number}.npz") as columns:
                rows = np.flatnonzero(model_membership(10_000 + number, sets.SMALL[0], seed=0))
                order = naive_order(truth["success"][rows], truth["effect"][rows])
                best = set(np.argsort(-columns["newton"])[: round(len(rows) * 0.05)])
                sought = set(np.argsort(-order)[: round(len(rows) * 0.05)])
                found.append(len(best & sought) / len(sought))
        mean, std = result["agreement"]["lira"]["newton"]["5%"]
        assert mean == pytest.approx(np.mean(found), abs=1e-4)
        assert std == pytest.approx(np.std(found, ddof=1), abs=1e-4)


def naive_order(success, effect):
    pairs = sorted(range(len(success)), key=lambda row: (success[row], effect[row]))
    order = np.empty(len(success))
    order[pairs] = np.arange(len(success))
    return order


@pytest.mark.slow
def test_a_command_stops_in_time_says_run_again_and_goes_on_to_the_same_numbers(ran, tmp_path, capsys):
    arguments = ["run", "energy_mlp", "--small", "--models", "6", "--work", str(tmp_path), "--device", "cpu"]
    stops = 0
    while command.main([*arguments, "--limit", "0"]) == command.RUN_AGAIN:
        stops += 1
        assert "run again to go on" in capsys.readouterr().out
    assert 2 <= stops < 20
    work = tmp_path / "energy_mlp-small"
    assert str(work) in capsys.readouterr().out
    assert json.loads((work / "energy_mlp.json").read_text())["agreement"] == ran[1]["agreement"]


@pytest.mark.slow
def test_what_is_known_of_the_references_is_enough_without_them(ran, copied):
    for gone in ("references", "targets", "scores"):
        shutil.rmtree(copied / gone)
    (copied / "seconds.json").unlink()
    again = run_small("energy_mlp", copied)
    assert not (copied / "references").exists()
    for name in ("agreement", "fit", "attacks", "half_of_the_references_with_the_other"):
        assert again[name] == ran[1][name]
    for phase in ("references", "attacks"):
        assert again["seconds"][phase] == ran[1]["seconds"][phase]


@pytest.mark.slow
def test_a_truth_of_other_data_is_refused(copied, monkeypatch):
    shutil.rmtree(copied / "references")
    with pytest.raises(SystemExit, match=r"truth-6 is of another seed: take another folder"):
        run_small("energy_mlp", copied, seed=1)
    made_table = sets.made_table
    monkeypatch.setattr(sets, "made_table", lambda count: [values[::-1] for values in made_table(count)])
    with pytest.raises(SystemExit, match=r"truth-6 is of another inputs, targets: take another folder"):
        run_small("energy_mlp", copied)


@pytest.mark.slow
def test_a_refused_run_leaves_the_folder_to_the_right_one(ran, copied):
    shutil.rmtree(copied / "truth-6")
    with pytest.raises(InputError, match="seed"):
        run_small("energy_mlp", copied, seed=1)
    assert run_small("energy_mlp", copied)["agreement"] == ran[1]["agreement"]


def test_a_run_needs_its_data_and_small_summaries(tmp_path):
    with pytest.raises(SystemExit, match="--data"):
        command.main(["run", "energy_mlp", "--work", str(tmp_path)])
    with pytest.raises(ValueError, match="bytes"):
        job(tmp_path).save({}, {"noise": np.random.default_rng(0).normal(size=4_000_000)})


def write_cifar100(folder):
    """As torchvision leaves it: 300 images to train on, 80 others."""
    inside = folder / "cifar-100-python"
    inside.mkdir()
    rng = np.random.default_rng(0)
    made = {name: rng.integers(0, 256, (count, 32, 32, 3), np.uint8) for name, count in (("train", 300), ("test", 80))}
    for name, pixels in made.items():
        rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)  # red, then green, then blue planes
        held = {"data": rows, "fine_labels": [row % 100 for row in range(len(rows))], "coarse_labels": [0] * len(rows)}
        (inside / name).write_bytes(pickle.dumps(held))
    return made


def test_cifar100_is_read_from_the_folder_that_torchvision_writes(tmp_path):
    written = write_cifar100(tmp_path)
    x, y, x_test, y_test = sets.cifar100(tmp_path)
    np.testing.assert_array_equal(x, written["train"])
    np.testing.assert_array_equal(x_test, written["test"])
    assert (y[101], y_test[79]) == (1, 79)
    made = sets.cifar100_images(tmp_path)
    assert (made.records, len(made.inputs), made.outputs) == (300, 380, 100)
    np.testing.assert_allclose(made.inputs[:300].mean((0, 2, 3)), 0, atol=1e-4)


@pytest.mark.slow
def test_the_recipe_of_cifar100_runs_on_that_folder(tmp_path):
    """From the folder to the results, with fewer epochs and a narrower network."""
    write_cifar100(tmp_path)
    experiment = next(each for each in EXPERIMENTS if each.name == "cifar100_resnet20")
    assert experiment.training == Training(50, 256, "sgd", 1e-3, weight_decay=5e-4, momentum=0.9, precision="bfloat16")
    quick = replace(experiment, build=experiment.build_small, training=replace(experiment.training, epochs=1))
    work = tmp_path / "work"
    work.mkdir()
    run(quick, Job(quick.name, tmp_path, work, models=8, targets=1, out=tmp_path))
    result = json.loads((tmp_path / "cifar100_resnet20.json").read_text())
    assert (result["records"], result["others"], result["records_a_model"]) == (300, 80, 150)
    scores = {"loss", "gradient_norm", "input_gradient_norm", "entropy", "influence", "newton", "fused"}
    assert set(result["agreement"]["lira"]) == scores
    assert set(result["attacks"]) == {"lira", "rmia", "shokri"}


@pytest.fixture
def fonts():
    """Fonts that come with matplotlib: one with all characters, one without the signs of currencies."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return {name: (folder / f"{name}.ttf").read_bytes() for name in ("DejaVuSans", "cmr10")}


def test_characters_stand_on_one_line_and_fonts_that_lack_one_are_left_out(fonts):
    images = glyphs.draw(fonts["DejaVuSans"])
    assert images.shape == (100, 28, 28)
    inked = {character: np.flatnonzero(images[row].max(1)) for row, character in enumerate(glyphs.CHARACTERS)}
    assert inked["H"].max() == inked["x"].max() == glyphs.BASELINE - 1 < inked["p"].max()
    assert inked["H"].min() < inked["x"].min() < inked["."].min()
    assert glyphs.draw(fonts["cmr10"]) is None
    assert glyphs.draw(b"no font") is None


def test_images_that_two_fonts_share_are_kept_once(fonts, tmp_path, monkeypatch):
    packages = {"one": "DejaVuSans", "poor": "cmr10", "two": "DejaVuSans", "more": "DejaVuSans"}
    monkeypatch.setattr(glyphs, "_families", lambda: iter(packages))
    monkeypatch.setattr(glyphs, "_of_family", lambda name: glyphs.draw(fonts[packages[name]]))
    monkeypatch.setattr(glyphs, "FONTS", 3)
    kept = np.load(glyphs.write_glyphs(tmp_path))
    np.testing.assert_array_equal(kept["labels"], np.arange(100))
    np.testing.assert_array_equal(kept["images"], glyphs.draw(fonts["DejaVuSans"]))
    data = sets.glyphs(tmp_path)
    assert (data.records, data.inputs.shape, data.themselves.shape) == (83, (100, 784), (83, 1, 28, 28))
    np.testing.assert_array_equal(data.inputs[7] * 255, data.themselves[7].reshape(-1))
    monkeypatch.setattr(glyphs, "FONTS", 4)
    with pytest.raises(RuntimeError, match="only 3 fonts with all characters were found, 4 are wanted"):
        glyphs.write_glyphs(tmp_path / "more")


def test_resnet_20_has_its_layers_and_its_dropout():
    network = build_with_dropout((3, 32, 32), 100)
    layers = [layer for layer in network.modules() if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)]
    assert len([layer for layer in layers if getattr(layer, "kernel_size", None) == (3, 3)]) == 19
    assert isinstance(network[-1], torch.nn.Linear)
    assert network[-1].out_features == 100
    assert network[-2].p == 0.3
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(network.train()(x), network(x))
    assert torch.equal(network.eval()(x), network(x))


def test_a_transformer_does_not_see_what_is_not_there():
    torch.manual_seed(0)
    model = build_transformer((6,), 2, width=8).eval()
    numbers = torch.tensor([[5.0, 9.0, 3.0, 0.0, 0.0, 0.0]])
    shorter = build_transformer((4,), 2, width=8).eval()
    state = model.state_dict()
    state["0.places"] = state["0.places"][:4]
    shorter.load_state_dict(state)
    torch.testing.assert_close(model(numbers), shorter(numbers[:, :4]))


def test_ties_of_the_success_rate_are_in_the_order_of_the_effect():
    truth = Truth(np.array([0.5, 1.0, 1.0, 0.7]), np.array([9.0, 1.0, 2.0, 0.0]), 0.0, 0.0)
    assert truth.ordered.tolist() == [0, 2, 3, 1]
    # what ties in both is found by chance, and not in the order of rows
    truth = Truth(np.full(1000, 0.5), np.zeros(1000), 0.0, 0.0)
    assert figures(np.arange(1000.0), truth.ordered)[:4] == pytest.approx([0.05, 0.001, 0.01, 0.05])


def test_rmia_tells_records_apart_that_models_hardly_favour():
    """Probabilities of members are a tenth higher: none is favoured twice as much as others."""
    rng = np.random.default_rng(0)
    members = balanced_membership(40, 60, seed=0)
    p = np.clip(0.6 + 0.1 * members + 0.01 * rng.normal(size=members.shape), 0, 1)
    others = np.clip(0.6 + 0.01 * rng.normal(size=(40, 30)), 0, 1)
    logits, elsewhere = (2 * np.log(np.stack([values, 1 - values], axis=-1)) for values in (p, others))
    signals = Signals(logits, members, "logits", np.zeros(60, int), elsewhere, np.zeros(30, int))
    assert attack_truth("rmia", signals).accuracy > 0.95
    assert rmia(signals, signals, gamma=2.0).scores.max() == 0


def test_half_of_the_references_with_the_other():
    """Records that models remember are the same in both halves; noise is not; eight references have no halves."""
    rng = np.random.default_rng(0)
    members = balanced_membership(80, 400, seed=0)
    noise = rng.normal(size=members.shape)
    exposed = np.maximum(0, 4 - np.arange(400) / 10)

    def of_halves(signals):
        return repeated([attack_truth("lira", signals.of_models(own)) for own in halves_of(signals.models)])

    found = of_halves(Signals(noise + exposed * members, members, "phi"))
    assert found["top 1% in 5%"] > 0.7
    assert found["5%"] > 0.6
    nothing = of_halves(Signals(noise, members, "phi"))
    assert nothing["5%"] < 0.2
    assert abs(nothing["spearman"]) < 0.15 < found["spearman"]
    assert of_halves(Signals(noise[:8], members[:8], "phi")) is None
    assert sorted(np.concatenate(halves_of(80))) == list(range(80))


def test_the_best_threshold_is_the_best_of_all():
    rng = np.random.default_rng(0)
    scores, members = rng.integers(0, 9, (5, 30)) / 8, rng.random((5, 30)) < 0.5
    attack = AttackScores("rmia", scores + 0.1 * members.round(), members, {})
    every = [balanced_accuracy(attack, value) for value in np.linspace(-1, 2, 601)]
    assert balanced_accuracy(attack, best_threshold(attack)) == pytest.approx(max(every))


def test_few_records_still_have_one_at_the_top():
    score = np.arange(307.0)
    assert figures(score, score) == [1.0] * len(METRICS)


def test_images_of_the_highest_scores_are_in_their_order():
    images = np.random.default_rng(0).integers(0, 256, (30, 4, 4, 3), np.uint8)
    scores = ("newton", "influence", "fused")
    shown = {score: {"highest": list(range(place, place + 10))} for place, score in enumerate(scores)}
    axes = highest({"bloodmnist_head": shown}, {"bloodmnist_head": images}).axes
    assert len(axes) == 30
    for place, (row, column) in enumerate((row, column) for row in range(3) for column in range(10)):
        np.testing.assert_array_equal(axes[place].images[0].get_array(), images[row + column])
