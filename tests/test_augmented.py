"""Images changed at each use, the one-cycle rate, and the losses that training saw, against loops in plain torch."""

import math
import os
import time
from collections import Counter
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from benchmarks import stacked
from benchmarks.recipes import RECIPES, Augment, build_resnet9, train_recipe
from benchmarks.stacked import Training, train_stacked
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import nn

from giveaway.attacks.shadow_store import balanced_membership, model_seed
from tests import forked
from tests.attacks.made import mixed, shuffled
from tests.conftest import refused

RECORDS, EXTRA, MODELS = 37, 4, 4
MEMBERS = balanced_membership(MODELS, RECORDS, seed=0)  # halves of 18 and 19 records
SEEDS = [model_seed(number, seed=0) for number in range(MODELS)]
BOTH = Augment()


def images(count=RECORDS + EXTRA, shape=(2, 7, 6)):
    return np.random.default_rng(0).normal(size=(count, *shape))


LABELS = np.random.default_rng(1).integers(0, 3, RECORDS + EXTRA)


def draw(seed, step, place):
    """(down, right, whether mirrored): what the image at a place of a batch is changed by."""
    of_step = mixed((mixed(~seed % 2**64) + step) % 2**64)
    bits = mixed((of_step + place) % 2**64)
    return bits % 2**16 % 9, bits // 2**16 % 2**16 % 9, bool(bits // 2**32 % 2)


def changed(image, down, right, mirror, augment):
    """Pixel by pixel: where the window lies on the image with its border mirrored, and then the window mirrored."""
    _, height, width = image.shape
    if augment is None or not augment.crop:
        down = right = 4
    found = np.empty_like(image)
    for y in range(height):
        for x in range(width):
            beside = width - 1 - x if mirror and augment and augment.flip else x
            above, left = abs(y + down - 4), abs(beside + right - 4)
            found[:, y, x] = image[:, min(above, 2 * height - 2 - above), min(left, 2 * width - 2 - left)]
    return found


@given(
    seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3),
    step=st.integers(0, 2**20),
    width=st.integers(1, 6),
    augment=st.builds(Augment, st.booleans(), st.booleans()),
    shape=st.tuples(st.integers(1, 3), st.integers(5, 9), st.integers(5, 9)),
)
def test_every_image_is_cropped_and_mirrored_by_its_own_draw(seeds, step, width, augment, shape):
    pictures = images(8, shape)
    which = np.random.default_rng(2).integers(0, 8, (len(seeds), width))
    inside = torch.tensor(seeds)[:, None], torch.tensor([step])
    found = augment(torch.from_numpy(pictures))(torch.from_numpy(which), *inside).numpy()
    for model, seed in enumerate(seeds):
        for place in range(width):
            expected = changed(pictures[which[model, place]], *draw(seed, step, place), augment)
            np.testing.assert_array_equal(found[model, place], expected)


def test_draws_are_uniform_and_of_one_step_one_place_one_model():
    steps, places = 300, 40
    draws = np.array([[draw(5, step, place) for place in range(places)] for step in range(steps)])
    every = Counter(map(tuple, draws.reshape(-1, 3)))
    assert len(every) == 162
    assert chisquare(list(every.values())).pvalue > 1e-3
    same = (draws[1:] == draws[:-1]).all(-1).mean(), (draws[:, 1:] == draws[:, :-1]).all(-1).mean()
    other = np.array([draw(6, step, place) for step in range(steps) for place in range(places)])
    same += ((other == draws.reshape(-1, 3)).all(-1).mean(),)
    np.testing.assert_allclose(same, 1 / 162, atol=4 * math.sqrt(1 / 162 / steps / places))


def test_an_image_does_not_depend_on_its_neighbours():
    records, step = BOTH(torch.from_numpy(images())), torch.tensor([3])
    seeds = torch.tensor(SEEDS)[:, None]
    which = torch.arange(20).reshape(4, 5)
    together = records(which, seeds, step)
    for model in range(4):
        torch.testing.assert_close(records(which[[model]], seeds[[model]], step), together[[model]], rtol=0, atol=0)
    others = which.clone()
    others[:, 1:] = 30
    assert torch.equal(records(others, seeds, step)[:, 0], together[:, 0])
    assert torch.equal(records(which[:, :2], seeds, step), together[:, :2])


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 50, 2000])
def test_one_cycle_is_torchs_with_straight_lines(steps):
    """OneCycleLR begins and ends with a step at (nearly) 0, which would be wasted: ours are the ones between."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)
    share = (0.25 * (steps + 1) + 1) / (steps + 2)
    lines = {"anneal_strategy": "linear", "div_factor": 1e12, "final_div_factor": 1e12, "cycle_momentum": False}
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, total_steps=steps + 2, pct_start=share, **lines)
    expected = []
    for _ in range(steps):
        optimizer.step()
        schedule.step()
        expected.append(schedule.get_last_lr()[0])
    found = Training(1, 8, learning_rate=0.4, schedule="one_cycle").rates(steps)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    passed = [step / (steps + 1) for step in range(1, steps + 1)]
    np.testing.assert_allclose(found, [0.4 * min(4 * p, (1 - p) / 0.75) for p in passed], rtol=1e-12)
    assert min(found) > 0
    assert max(found) <= 0.4


def with_batch_norm():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(80, 3)).double()


def without():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(80, 3)).double()


def one_at_a_time(make, number, training, members):
    """Train one model in plain torch; return the losses of each epoch as it computed them, and its outputs after it."""
    pictures, y = images(), torch.from_numpy(LABELS)
    torch.manual_seed(SEEDS[number])
    model = make()
    own = torch.from_numpy(np.flatnonzero(members[number]))
    steps = math.ceil(members.sum(1).max() / training.batch_size)
    optimizer = torch.optim.SGD(model.parameters(), 0.0, training.momentum, weight_decay=training.weight_decay)
    seen, said, step = [], [], 0
    for epoch in range(training.epochs):
        losses = np.full(len(y), np.nan)
        for batch in shuffled(own, SEEDS[number], epoch).tensor_split(steps):
            draws = [draw(SEEDS[number], step, place) for place in range(len(batch))]
            x = [changed(pictures[row], *drawn, training.augment) for row, drawn in zip(batch, draws, strict=True)]
            passed = (step + 1) / (steps * training.epochs + 1)
            optimizer.param_groups[0]["lr"] = training.learning_rate * min(4 * passed, (1 - passed) / 0.75)
            optimizer.zero_grad()
            each = nn.functional.cross_entropy(model(torch.from_numpy(np.stack(x))), y[batch], reduction="none")
            losses[batch] = each.detach()
            each.mean().backward()
            optimizer.step()
            step += 1
        seen.append(losses)
        said.append(model.eval()(torch.from_numpy(pictures)).detach().numpy())
        model.train()
    return np.stack(seen), np.stack(said)


@cache
def trained_alone(training):
    return [one_at_a_time(without, number, training, MEMBERS) for number in range(MODELS)]


@pytest.mark.parametrize(("at_once", "stack"), [(1, True), (3, True), (4, False)])
@pytest.mark.parametrize("augment", [BOTH, Augment(crop=False), None])
def test_augmented_training_and_what_it_saw_are_those_of_a_plain_loop(at_once, stack, augment):
    training = Training(3, 5, "sgd", 0.2, 1e-2, 0.9, "one_cycle", augment=augment)
    seen, said = {}, {}

    def record(number, epoch, losses, evaluate):
        assert len(seen.setdefault(number, [])) == epoch
        seen[number].append(losses.numpy())
        said.setdefault(number, []).append(evaluate().numpy())

    options = {"seeds": SEEDS, "models_at_once": at_once, "stack": stack, "on_epoch": record}
    found = dict(train_stacked(without, images(), LABELS, MEMBERS, training, **options))
    for number, (losses, outputs) in enumerate(trained_alone(training)):
        np.testing.assert_allclose(seen[number], losses, rtol=1e-6)  # NaN for records that it did not use
        assert np.isnan(seen[number]).sum() == 3 * (RECORDS + EXTRA - MEMBERS[number].sum())
        np.testing.assert_allclose(said[number], outputs, atol=1e-9)
        np.testing.assert_allclose(found[number], outputs[-1], atol=1e-9)


def test_looking_after_every_epoch_does_not_disturb_training(monkeypatch):
    members = balanced_membership(MODELS, 36, seed=0)
    training = Training(3, 6, "sgd", 0.2, momentum=0.9, schedule="one_cycle", augment=BOTH)
    kept, passes = [], []
    outputs = stacked._Trainer.outputs
    monkeypatch.setattr(stacked._Trainer, "outputs", lambda trainer: passes.append(1) or outputs(trainer))

    def record(number, epoch, losses, evaluate):
        kept.append((number, epoch, losses.numpy(), evaluate().numpy()))

    options = {"seeds": SEEDS, "models_at_once": 2}
    asked = dict(train_stacked(with_batch_norm, images(), LABELS, members, training, on_epoch=record, **options))
    assert len(passes) == 2 * (3 + 1)  # one for both models of a group: after each epoch, and at the end
    left = dict(train_stacked(with_batch_norm, images(), LABELS, members, training, **options))
    assert sorted((number, epoch) for number, epoch, *_ in kept) == [(n, e) for n in range(MODELS) for e in range(3)]
    for number, epoch, losses, outputs in kept:
        np.testing.assert_array_equal(asked[number], left[number])
        expected_losses, expected = one_at_a_time(with_batch_norm, number, training, members)
        np.testing.assert_allclose(losses, expected_losses[epoch], rtol=1e-6)
        np.testing.assert_allclose(outputs, expected[epoch], atol=1e-9)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


ON_GPU = [pytest.param("cuda", compiled, marks=GPU) for compiled in (False, True)]


@pytest.mark.parametrize(("device", "compiled"), [("cpu", True), *ON_GPU])
def test_side_by_side_and_compiled_models_train_and_see_the_same(device, compiled):
    members = balanced_membership(MODELS, 36, seed=0)  # 18 records in batches of 6: no filling
    training = Training(3, 6, "sgd", 0.2, 1e-2, 0.9, "one_cycle", augment=BOTH, compiled=compiled)
    seen, said = {}, {}

    def record(number, epoch, losses, evaluate):
        seen.setdefault(number, []).append(losses.numpy())
        said.setdefault(number, []).append(evaluate().numpy())

    options = {"seeds": SEEDS, "models_at_once": 2, "stack": False, "device": device, "on_epoch": record}
    list(train_stacked(with_batch_norm, images(), LABELS, members, training, **options))
    for number in range(MODELS):
        losses, outputs = one_at_a_time(with_batch_norm, number, training, members)
        np.testing.assert_allclose(seen[number], losses, rtol=1e-4, atol=1e-6)  # learning rates are float32 on a GPU
        np.testing.assert_allclose(said[number], outputs, atol=1e-5)


def small_ensemble(folder, **options):
    """Eight augmented ResNets in bfloat16, two at a time."""
    recipe = RECIPES["resnet9"]
    training = replace(recipe.training, epochs=4, batch_size=5)
    small = replace(recipe, build=partial(build_resnet9, channels=(4, 4, 8, 8)), training=training, models_at_once=2)
    pictures = images(RECORDS, (3, 9, 8))
    return train_recipe(small, pictures, LABELS[:RECORDS], models=8, folder=folder, **options)


@pytest.mark.slow
def test_augmented_shadow_models_go_on_after_a_kill(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    code = f"from tests.test_augmented import small_ensemble; small_ensemble({str(killed)!r})"
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # as here, or bits differ
    process = forked.started(["-c", code], environment, None, tmp_path)
    deadline = time.monotonic() + 120
    while len(list(killed.glob("model-*.npy"))) < 3 and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.kill()
    process.join()
    kept = {file.name: file.stat().st_mtime_ns for file in killed.glob("model-*.npy")}
    assert 3 <= len(kept) < 8
    again = []

    def untouched(done, models):
        again.append(done)
        if done < models:
            assert all((killed / name).stat().st_mtime_ns == written for name, written in kept.items())

    resumed = small_ensemble(killed, on_model=untouched)
    assert again == list(range(len(kept) + 1, 9))
    np.testing.assert_array_equal(resumed.values, small_ensemble(whole).values)
    changed = replace(RECIPES["resnet9"].training, epochs=4, batch_size=5, augment=Augment(crop=False))
    small = replace(RECIPES["resnet9"], build=partial(build_resnet9, channels=(4, 4, 8, 8)), training=changed)
    words = "got crop was True, is False"
    refused(words, train_recipe, small, images(RECORDS, (3, 9, 8)), LABELS[:RECORDS], models=8, folder=killed)


def test_augmentation_of_what_is_no_image_or_too_small_is_refused():
    words = r"augment: expected images \(records, channels, height, width\), got shape \(41, 5\); drop it"
    given = {"seeds": SEEDS, "membership": MEMBERS, "targets": LABELS}
    make = [lambda: nn.Linear(5, 3).double()]
    refused(words, lambda **k: list(train_stacked(*make, **k)), **given, inputs=np.zeros((41, 5)),
            training=Training(1, 8, augment=BOTH))  # fmt: skip
    words = r"inputs: expected images of 5 × 5 or more to crop, got 9 × 4; drop crop from augment"
    refused(words, BOTH, torch.zeros(3, 1, 9, 4))
    Augment(crop=False)(torch.zeros(3, 1, 1, 1))
    refused("inputs: expected images of 8 × 8 or more", build_resnet9, (3, 9, 7), 10)
    assert build_resnet9((3, 8, 9), 10).eval()(torch.zeros(1, 3, 8, 9)).shape == (1, 10)
