"""Benchmarks that need a GPU or an hour, at a size that this machine runs."""

import ast
import importlib
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import gpu_shadow, views_blood
from benchmarks import views_blood_truth as blood
from benchmarks.recipes import RECIPES, build_resnet9
from benchmarks.stacked import train_stacked
from scipy.stats import norm, spearmanr

from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.records import Signals

RECORDS, MODELS, TARGETS = 30, 4, 3
SMALL = replace(
    RECIPES["resnet9"],
    build=partial(build_resnet9, channels=(3, 4, 5, 6)),
    training=replace(RECIPES["resnet9"].training, epochs=2, batch_size=8, precision="float32"),
    models_at_once=2,
)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return rng.normal(size=(RECORDS, 3, 9, 10)).astype(np.float32), np.arange(RECORDS) % 3


def test_benchmarks_import_names_that_are_there():
    for file in Path(__file__).parents[1].glob("benchmarks/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("giveaway"):
                held = importlib.import_module(node.module)
                for name in (one.name for one in node.names if not hasattr(held, one.name)):
                    importlib.import_module(f"{node.module}.{name}")


@pytest.mark.slow
def test_truth_of_blood_is_resumed_and_holds_what_the_models_say(images, tmp_path):
    x, y = images
    whole = blood.make_truth(SMALL, x, y, tmp_path / "whole", models=MODELS, targets=TARGETS)

    def interrupt(done, models):
        if done == 1:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        blood.make_truth(SMALL, x, y, tmp_path / "killed", models=MODELS, targets=TARGETS, on_model=interrupt)
    first = blood.target_file(tmp_path / "killed", 0)
    written = first.stat().st_mtime_ns
    resumed = blood.make_truth(SMALL, x, y, tmp_path / "killed", models=MODELS, targets=TARGETS)
    assert first.stat().st_mtime_ns == written
    np.testing.assert_array_equal(resumed.values, whole.values)

    # the same models, asked for the relatives as rows that nobody trains on
    bordered = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], mode="reflect")  # a step is one pixel of nine or ten
    moved = [bordered[:, :, 1 - down : 10 - down, 1 - right : 11 - right] for down, right in blood.SHIFTS]
    everything = np.concatenate([x, x[..., ::-1], *moved])
    members = balanced_membership(MODELS, RECORDS, seed=blood.SEED)
    seeds = [model_seed(number, seed=blood.SEED) for number in range(MODELS)]
    make = partial(SMALL.build, x.shape[1:], 3)
    options = {"seeds": seeds, "models_at_once": 2, "stack": False}
    for number, outputs in train_stacked(make, everything, np.tile(y, 8), members, SMALL.training, **options):
        own = members[number]
        plain, mirror, *shift = outputs.reshape(8, RECORDS, 3)
        rest = plain[np.arange(3) != y[:, None]].reshape(RECORDS, 2)
        phi = plain[np.arange(RECORDS), y] - np.logaddexp(*rest.T)
        np.testing.assert_allclose(whole.values[number, :, 0], phi, rtol=2e-3, atol=2e-3)
        if number >= TARGETS:
            assert not blood.target_file(tmp_path / "whole", number).exists()
            continue
        with np.load(blood.target_file(tmp_path / "killed", number)) as file:
            held = {name: file[name] for name in file.files}
        with np.load(blood.target_file(tmp_path / "whole", number)) as file:
            for name in file.files:
                np.testing.assert_array_equal(file[name], held[name])
        np.testing.assert_array_equal(held["index"], np.flatnonzero(own))
        np.testing.assert_array_equal(held["held_index"], np.flatnonzero(~own))
        for name, said in (("outputs", plain), ("mirror", mirror)):
            np.testing.assert_allclose(held[name], said[own], atol=2e-3)
            other = "held_outputs" if name == "outputs" else f"{name}_held"
            np.testing.assert_allclose(held[other], said[~own], atol=2e-3)
        np.testing.assert_allclose(held["shift"], np.stack(shift)[:, own], atol=2e-3)
        np.testing.assert_allclose(held["shift_held"], np.stack(shift)[:, ~own], atol=2e-3)
        np.testing.assert_allclose(held["all_outputs"], plain, atol=1e-5)
        by_head = held["features"].astype(np.float64) @ held["weight"].T + held["bias"]
        np.testing.assert_allclose(by_head, held["outputs"], atol=2e-3)
        assert held["losses_seen"].shape == held["losses_after"].shape == (2, own.sum())
        last = np.logaddexp.reduce(plain, axis=1) - plain[np.arange(RECORDS), y]
        np.testing.assert_allclose(held["losses_after"][-1], last[own], atol=2e-3)
        assert not np.allclose(held["losses_seen"], held["losses_after"], atol=1e-2)


def test_truth_of_blood_from_the_command_line(images, tmp_path, monkeypatch, capsys):
    _, y = images
    pictures = np.random.default_rng(1).integers(0, 256, (RECORDS, 9, 10, 3)).astype(np.uint8)
    np.savez(tmp_path / "bloodmnist_28_train.npz", images=pictures, labels=y[:, None].astype(np.uint8))
    monkeypatch.setattr(blood, "recipe_of", lambda name: SMALL)
    command = ["", "--data", tmp_path, "--to", tmp_path / "to", "--device", "cpu", "--models", "4", "--targets", "1"]
    for limit, words in (("0", "1 of 4 models are stored"), ("0", "2 of 4"), ("99", "4 models in")):
        monkeypatch.setattr(sys, "argv", [*map(str, command), "--recipe", "resnet9", "--limit", limit])
        blood.main()
        assert words in capsys.readouterr().out
    with np.load(tmp_path / "to" / "blood_resnet9_signals.npz") as file:
        assert file["phi"].shape == (4, RECORDS)
        members = np.unpackbits(file["members"], axis=1)[:, :RECORDS].astype(bool)
        np.testing.assert_array_equal(members, balanced_membership(4, RECORDS, seed=blood.SEED))
        np.testing.assert_array_equal(file["labels"], y)


def test_the_plain_loop_crops_and_mirrors_every_image_by_its_own_draw():
    images = np.random.default_rng(0).normal(size=(3, 2, 10, 11)).astype(np.float32)
    bordered = np.pad(images, [(0, 0), (0, 0), (4, 4), (4, 4)], mode="reflect")
    windows = {}
    for row, image in enumerate(bordered):
        for top in range(9):
            for left in range(9):
                window = image[:, top : top + 10, left : left + 11]
                windows[row, window.tobytes()] = (top, left, False)
                windows[row, window[..., ::-1].tobytes()] = (top, left, True)
    random = torch.Generator().manual_seed(0)
    draws = [gpu_shadow.augmented(torch.from_numpy(images), random).numpy() for _ in range(600)]
    found = [[windows[row, image.tobytes()] for row, image in enumerate(draw)] for draw in draws]
    assert {each for row in found for each in row} == {(a, b, c) for a in range(9) for b in range(9) for c in (0, 1)}
    assert all(len(set(row)) > 1 for row in found[:20])


def test_the_convolutions_that_are_timed_alone_are_those_of_a_step():
    model = build_resnet9((3, 16, 16), 3, channels=(8, 16, 8, 8))
    inputs, images = [], torch.randn(5, 3, 16, 16)
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Conv2d)]
    hooks = [layer.register_forward_hook(lambda _, given, made: inputs.append(given[0].shape)) for layer in layers]
    model(images)
    for hook in hooks:
        hook.remove()
    calls = gpu_shadow.convolution_calls(model, images, SMALL.training)
    assert [layer for layer, _, _ in calls] == layers
    assert [x.shape for _, x, _ in calls] == inputs
    assert all(layer(x).shape == slope.shape for layer, x, slope in calls)
    assert [x.requires_grad for _, x, _ in calls] == [False] + [True] * 7
    assert gpu_shadow.convolutions_alone(model, images, SMALL.training) > 0


@pytest.mark.slow
def test_the_engine_is_timed_beside_a_plain_loop(monkeypatch, tmp_path):
    gentle = replace(SMALL.training, learning_rate=0.2)
    wider = replace(SMALL, build=partial(build_resnet9, channels=(8, 8, 8, 8)), training=gentle)
    monkeypatch.setitem(gpu_shadow.RECIPES, "resnet9", wider)
    labels = np.arange(60) % 3
    noise = np.random.default_rng(0).normal(size=(60, 3, 8, 8)).astype(np.float32)
    images = np.eye(3, dtype=np.float32)[labels][:, :, None, None] + 0.3 * noise
    monkeypatch.setattr(gpu_shadow, "made_images", lambda rows: (images, labels))
    command = ["", "--recipe", "resnet9", "--device", "cpu", "--rows", "60", "--models", "4", "--epochs", "12"]
    monkeypatch.setattr(sys, "argv", [*command, "--to", str(tmp_path)])
    gpu_shadow.main()
    found = json.loads((tmp_path / "gpu_shadow_resnet9.json").read_text())
    ratio = found["plain seconds a model"] / found["engine seconds a model"]
    assert found["plain / engine"] == pytest.approx(ratio, rel=1e-2)
    assert len(found["engine seconds a model, by group"]) == len(found["plain seconds a model, each"]) == 2
    assert found["environment"]["torch"] == torch.__version__
    assert found["seconds a model, convolutions alone"] > 0
    for loop in ("engine", "plain"):
        assert min(found[loop].values()) > 0.5  # 0.33 by chance


def test_the_truth_of_a_target_is_what_all_other_models_tell():
    rng = np.random.default_rng(0)
    members = balanced_membership(12, 2000, seed=0)
    phi = rng.normal(size=members.shape) + members * rng.gamma(0.5, 2.0, 2000)
    effect, flagged = views_blood.truth_of(Signals(phi, members, kind="phi"), 3)
    own, scores = np.flatnonzero(members[3]), []
    for row in range(2000):
        inside = [phi[model, row] for model in range(12) if model != 3 and members[model, row]]
        outside = [phi[model, row] for model in range(12) if model != 3 and not members[model, row]]
        if members[3, row]:
            gap = np.mean(inside) - np.mean(outside)
            expected = gap / np.sqrt((np.var(inside) + np.var(outside)) / 2)
            assert effect[own.searchsorted(row)] == pytest.approx(expected)
        ways = [norm.logpdf(phi[3, row], np.median(side), np.std(side)) for side in (inside, outside)]
        scores.append(ways[0] - ways[1])
    outside = sorted(score for score, member in zip(scores, members[3], strict=True) if not member)
    assert len(outside) == 1000
    np.testing.assert_array_equal(flagged, [scores[row] > outside[-2] for row in own])  # one of a thousand passes
    assert 0 < flagged.sum() < len(own)

    score = effect + rng.normal(size=len(own))
    best = sorted(range(len(own)), key=lambda place: -score[place])
    true = sorted(range(len(own)), key=lambda place: -effect[place])
    found = views_blood.measures(score, effect, flagged)
    assert found[0] == len(set(best[:50]) & set(true[:10])) / 10
    assert found[1] == len(set(best[:50]) & set(true[:50])) / 50
    assert found[2] == pytest.approx(spearmanr(score, effect).statistic)
    assert found[3] == sum(flagged[place] for place in best[:10]) / 10


def test_where_another_score_is_better_is_said():
    ours, other = ([0.5, 0.6, 0.7, 0.8], [0.7, 0.6, 0.7, 0.8]), ([0.8, 0.5, 0.7, 0.8], [0.8, 0.5, 0.7, 0.8])
    found = [{"fused": f, "loss": o} for f, o in zip(ours, other, strict=True)]
    assert views_blood.losing(found, "fused") == ["top 1 % in 5 %: loss by 0.2000 ± 0.1000"]
    assert views_blood.losing(found, "loss") == ["top 5 % in 5 %: fused by 0.1000 ± 0.0000"]


def test_what_others_rank_by():
    rng = np.random.default_rng(0)
    outputs, labels = rng.normal(size=(5, 3)), np.array([0, 2, 1, 1, 0])
    seen, after = rng.gamma(1.0, size=(8, 5)), rng.gamma(1.0, size=(8, 5))
    held = {"outputs": outputs, "mirror": outputs[:, ::-1], "losses_seen": seen, "losses_after": after}
    found = views_blood.by_hand(held, labels)
    for row in range(5):
        shares = np.exp(outputs[row]) / np.exp(outputs[row]).sum()
        assert found["loss"][row] == pytest.approx(-np.log(shares[labels[row]]))
        assert found["loss of the mirror image"][row] == pytest.approx(-np.log(shares[2 - labels[row]]))
        assert found["mean loss seen"][row] == pytest.approx(sum(seen[:, row]) / 8)
        assert found["mean √loss seen"][row] == pytest.approx(sum(np.sqrt(seen[:, row])) / 8)
        for name, losses in (("as published", after), ("of losses seen", seen)):
            q = sorted(losses[:, row])  # eight values: quartiles at 1.75 and 5.25 steps
            expected = q[5] + 0.25 * (q[6] - q[5]) - (q[1] + 0.75 * (q[2] - q[1]))
            assert found[f"LT-IQR {name}"][row] == pytest.approx(expected)


@pytest.mark.slow
def test_the_head_to_head_on_blood_runs_from_truth_to_result(images, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    pictures = np.clip(rng.normal(100 + 20 * y[:, None, None, None], 60, (240, 9, 10, 3)), 0, 255).astype(np.uint8)
    np.savez(tmp_path / "bloodmnist_28_train.npz", images=pictures, labels=y[:, None].astype(np.uint8))
    plain = replace(SMALL.training, epochs=6, batch_size=30, learning_rate=0.2)
    monkeypatch.setattr(blood, "recipe_of", lambda name: replace(SMALL, training=plain))
    folders = ["--data", tmp_path, "--recipe", "resnet9", "--device", "cpu", "--targets", 2]
    monkeypatch.setattr(sys, "argv", ["", *map(str, [*folders, "--to", tmp_path, "--models", 8])])
    blood.main()
    out = tmp_path / "result.json"
    monkeypatch.setattr(sys, "argv", ["", *map(str, [*folders, "--truth", tmp_path, "--out", out])])
    views_blood.main()
    found = json.loads(out.read_text())["resnet9"]
    scores = found["scores, mean and standard error"]
    assert {"loss", "LT-IQR as published", "trace", "fused", "fused without newton", "fused without trace"} <= {*scores}
    assert scores["trace"] == scores["mean √loss seen"]  # the audit's view is the one computed by hand
    assert scores["the effect size itself"][:3] == [[1.0, 0.0]] * 3
    assert found["environment"]["torch"] == torch.__version__
    assert all(
        {"trace", "head", "left_out", "relatives"} <= {*each}
        for each in found["what each view counts, target by target"]
    )
