import math
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
import torch
from benchmarks import stacked
from benchmarks.recipes import Augment
from benchmarks.stacked import EpochBatches, Training, train_stacked
from torch import nn

from giveaway.attacks.shadow_store import balanced_membership, model_seed
from giveaway.checks import InputError
from tests.attacks.made import shuffled

RECORDS, EXTRA, MODELS = 37, 4, 6
MEMBERS = balanced_membership(MODELS, RECORDS, seed=0)  # halves of 18 and 19 records
SEEDS = [model_seed(number, seed=0) for number in range(MODELS)]


def data(shape=(5,), classes=3):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(RECORDS + EXTRA, *shape))
    return inputs, rng.integers(0, classes, RECORDS + EXTRA)


def mlp():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def with_batch_norm():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)).double()


def one_at_a_time(make_model, inputs, targets, number, training, loss, members=MEMBERS):
    """The same batches, written out with torch's own modules and optimizers."""
    x, y = torch.from_numpy(inputs), torch.from_numpy(targets)
    torch.manual_seed(SEEDS[number])
    model = make_model()
    own = torch.from_numpy(np.flatnonzero(members[number]))
    sizes = members.sum(1)
    steps = min(math.ceil(sizes.max() / training.batch_size), sizes.min())
    options = {"momentum": training.momentum} if training.optimizer == "sgd" else {}
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[training.optimizer]
    optimizer = kind(model.parameters(), training.learning_rate, weight_decay=training.weight_decay, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, training.epochs * steps)
    for epoch in range(training.epochs):
        for batch in shuffled(own, SEEDS[number], epoch).tensor_split(steps):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
            if training.schedule == "cosine":
                schedule.step()
    return model.eval()(x).detach().numpy()


@cache
def trained_alone(training):
    return [one_at_a_time(mlp, *data(), number, training, nn.functional.cross_entropy) for number in range(MODELS)]


@pytest.mark.parametrize(
    "training",
    [
        Training(4, 8, "sgd", 0.1, weight_decay=1e-2, momentum=0.9),
        Training(4, 8, "sgd", 0.1, schedule="cosine"),
        Training(4, 8, "adam", 1e-2, weight_decay=1e-2),
        Training(4, 8, "adamw", 1e-2, weight_decay=1e-1, schedule="cosine"),
        Training(2, 1, "adam", 1e-2),
        Training(3, 1000, "adam", 1e-2),
    ],
)
@pytest.mark.parametrize(("at_once", "stack"), [(1, True), (4, True), (64, True), (4, False)])
def test_every_model_is_as_trained_alone(training, at_once, stack):
    inputs, targets = data()
    options = {"models_at_once": at_once, "stack": stack}
    found = dict(train_stacked(mlp, inputs, targets, MEMBERS, training, seeds=SEEDS, **options))
    assert sorted(found) == list(range(MODELS))
    for number, alone in enumerate(trained_alone(training)):
        np.testing.assert_allclose(found[number], alone, atol=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("stack", [True, False])
@pytest.mark.parametrize("make", [mlp, with_batch_norm])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("at_once", [2, 4])
def test_a_gpu_trains_the_same_models(stack, make, optimizer, at_once):
    inputs, targets = data((5,) if make is mlp else (2, 4, 4))
    training = Training(3, 8, optimizer, 1e-2, weight_decay=1e-2, schedule="cosine")
    options = {"seeds": SEEDS, "models_at_once": at_once, "stack": stack}
    here = dict(train_stacked(make, inputs, targets, MEMBERS, training, **options))
    there = dict(train_stacked(make, inputs, targets, MEMBERS, training, device="cuda", **options))
    for number in range(MODELS):
        np.testing.assert_allclose(there[number], here[number], atol=1e-6)  # learning rates are float32 there


@pytest.mark.parametrize(("at_once", "stack"), [(1, True), (4, True), (4, False)])
def test_the_trained_state_of_every_model_gives_its_outputs(at_once, stack):
    inputs, targets = data((2, 4, 4))
    states, found = {}, {}
    options = {"models_at_once": at_once, "stack": stack, "on_trained": states.__setitem__}
    given = (with_batch_norm, inputs, targets, MEMBERS, Training(2, 8, "sgd", 0.1, momentum=0.9))
    for number, outputs in train_stacked(*given, seeds=SEEDS, numbers=[1], **options):
        assert list(states)[-1] == number
        found[number] = outputs
    assert sorted(states) == sorted(found) == (list(range(at_once)) if at_once > 1 else [1])
    for number, state in states.items():
        model = with_batch_norm()
        model.load_state_dict(state)
        again = model.eval()(torch.from_numpy(inputs)).detach().numpy()
        np.testing.assert_allclose(again, found[number], atol=1e-12)
        assert all(value.untyped_storage().nbytes() == value.nbytes for value in state.values())


def test_batch_norm_is_each_models_own():
    inputs, targets = data((2, 4, 4))
    members = balanced_membership(MODELS, 36, seed=0)
    training = Training(3, 6, "adam", 1e-2)  # 18 records in batches of 6: no filling
    found = dict(train_stacked(with_batch_norm, inputs, targets, members, training, seeds=SEEDS, models_at_once=4))
    for number in range(MODELS):
        one = train_stacked(with_batch_norm, inputs, targets, members[[number]], training, seeds=[SEEDS[number]])
        np.testing.assert_allclose(found[number], next(iter(one))[1], atol=1e-9)
        loss = nn.functional.cross_entropy
        alone = one_at_a_time(with_batch_norm, inputs, targets, number, training, loss, members)
        np.testing.assert_allclose(found[number], alone, atol=1e-9)


def test_squared_loss_and_one_of_your_own():
    inputs, targets = data()
    values = targets[:, None].astype(float)

    def make():
        return nn.Linear(5, 1).double()

    def mean_square(f, y):
        return (f - y).square().mean()

    training = Training(4, 8, "sgd", 0.01, loss="squared")
    own = Training(4, 8, "sgd", 0.01, loss=lambda f, y: (f - y).square()[:, 0])
    flat = dict(train_stacked(make, inputs, values[:, 0], MEMBERS, training, seeds=SEEDS))
    for number, outputs in train_stacked(make, inputs, values, MEMBERS, own, seeds=SEEDS):
        np.testing.assert_allclose(
            outputs, one_at_a_time(make, inputs, values, number, training, mean_square), atol=1e-9
        )
        np.testing.assert_allclose(outputs, flat[number], atol=1e-12)


def test_a_group_with_a_missing_model_comes_out_whole_and_bit_for_bit():
    inputs, targets = data()
    training = Training(2, 8, "adam", 1e-2)
    options = {"seeds": SEEDS, "models_at_once": 2}
    before = torch.random.get_rng_state()
    whole = dict(train_stacked(mlp, inputs, targets, MEMBERS, training, **options))
    assert torch.equal(torch.random.get_rng_state(), before)
    part = dict(train_stacked(mlp, inputs, targets, MEMBERS, training, numbers=[3], **options))
    assert sorted(part) == [2, 3]
    for number in part:
        np.testing.assert_array_equal(part[number], whole[number])


@pytest.mark.parametrize("stack", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_later_group_in_the_memory_of_an_earlier_one_trains_as_it_does_alone(monkeypatch, stack, optimizer):
    engines, engine = [], stacked._Engine
    monkeypatch.setattr(stacked, "_Engine", lambda trainers: engines.append(1) or engine(trainers))
    augment = Augment(crop=False)
    training = Training(3, 8, optimizer, 0.1, momentum=0.9, schedule="one_cycle", augment=augment)
    members = MEMBERS[:5].copy()
    members[2, members[2].argmax()] = False  # one record less: smaller batches of the same width

    def make():
        return nn.Sequential(nn.Dropout(0.2), *with_batch_norm())

    def trained(numbers):
        kept = {number: [] for number in range(5)}
        options = {
            "numbers": numbers,
            "models_at_once": 2,
            "stack": stack,
            "on_epoch": lambda number, epoch, losses, evaluate: kept[number].extend((losses, evaluate())),
            "on_trained": lambda number, state: kept[number].extend(state.values()),
        }
        given = make, *data((2, 4, 4)), members, training
        for number, outputs in train_stacked(*given, seeds=SEEDS[:5], **options):
            kept[number].append(outputs)
        return kept

    whole = trained(None)
    assert len(engines) == 2  # one for two groups of two models, one for the last model
    for group in ([0, 1], [2, 3], [4]):
        alone = trained(group)
        for number in group:
            for found, expected in zip(whole[number], alone[number], strict=True):
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("at_once", [1, 3])
def test_dropout_differs_between_models_and_repeats_with_the_seed(at_once):
    members = np.repeat(MEMBERS[:1], 3, axis=0)

    def trained(seeds, share=0.5):
        def make():
            return nn.Sequential(nn.Dropout(share), nn.Linear(5, 3)).double()

        training = Training(5, 8, "sgd", 0.1)
        found = train_stacked(make, *data(), members, training, seeds=seeds, models_at_once=at_once)
        return [outputs for _, outputs in found]

    once = trained(SEEDS[:3])
    np.testing.assert_array_equal(once, trained(SEEDS[:3]))
    assert not np.allclose(once, trained(SEEDS[3:]))
    assert not np.allclose(once, trained(SEEDS[:3], share=0.0))


@pytest.mark.parametrize("at_once", [1, 64])
def test_frozen_parameters_stay(at_once):
    def make():
        model = mlp()
        model[0].requires_grad_(False)
        model[2].weight.requires_grad_(False)
        return model

    torch.manual_seed(SEEDS[0])
    first = make()(torch.from_numpy(data()[0])).detach().numpy()
    trained = train_stacked(make, *data(), MEMBERS, Training(4, 8, "adam", 0.1), seeds=SEEDS, models_at_once=at_once)
    moved = next(trained)[1] - first
    np.testing.assert_allclose(moved, np.broadcast_to(moved[0], moved.shape), atol=1e-12)  # the last bias alone
    assert abs(moved[0]).max() > 0.1


def test_bfloat16_products_train_about_the_same():
    inputs, targets = data()
    made = []
    for precision in ("float32", "bfloat16"):
        training = Training(4, 8, "sgd", 0.1, precision=precision)
        single = train_stacked(lambda: mlp().float(), inputs.astype("f4"), targets, MEMBERS, training, seeds=SEEDS)
        made.append(np.stack([outputs for _, outputs in single]))
    assert 0 < np.abs(made[1] - made[0]).max() < 0.05


class Counting(nn.Linear):
    """Says how many rows it was given when it does not train."""

    rows: ClassVar[list[int]] = []

    def forward(self, x):
        if not self.training:
            self.rows.append(x.shape[0])
        return super().forward(x)


@pytest.mark.parametrize("at_once", [1, MODELS])
def test_outputs_are_found_in_passes_of_a_few_batches(monkeypatch, at_once):
    def trained():
        Counting.rows.clear()
        options = {"seeds": SEEDS, "models_at_once": at_once}
        made = dict(train_stacked(lambda: Counting(5, 3).double(), *data(), MEMBERS, Training(1, 8), **options))
        return np.stack([made[number] for number in range(MODELS)]), max(Counting.rows)

    outputs, most = trained()
    assert most == 28  # four batches of 7
    monkeypatch.setattr(stacked, "EVALUATED_BATCHES", 100)
    at_a_time, most = trained()
    assert most == 41
    np.testing.assert_allclose(outputs, at_a_time, rtol=1e-12, atol=1e-14)


def test_batches_cover_the_members_once_an_epoch():
    members = [np.flatnonzero(row) for row in MEMBERS]
    batches = EpochBatches(members, 4, SEEDS)
    first, second = batches.epoch(), batches.epoch()
    assert first.shape == (MODELS, 4, 5)
    assert not torch.equal(first, second)
    torch.testing.assert_close(batches.weights.sum(-1), torch.ones(MODELS, 4, dtype=torch.float64))
    for number, own in enumerate(members):
        assert sorted(first[number][batches.weights[number] > 0].tolist()) == own.tolist()
        assert set(first[number].flatten().tolist()) <= set(own.tolist())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"inputs": np.full((41, 5), np.nan)}, "inputs: expected finite numbers"),
        ({"optimizer": "lion"}, "optimizer: expected a known name, got 'lion'"),
        ({"precision": "half"}, "precision: expected a known name, got 'half'"),
        ({"schedule": "cos"}, "schedule: expected a known name, got 'cos'; did you mean cosine"),
        ({"loss": lambda f, y: f.sum(1).mean()}, "loss: expected one number a record, got shape .*; return the l"),
        ({"loss": lambda f, y: f[:, :1]}, "loss: expected one number a record, got shape .*; return the l"),
    ],
)
def test_refusals(changed, words):
    inputs, targets = data()
    how = {name: value for name, value in changed.items() if hasattr(Training(1, 8), name)}
    given = {"make_model": mlp, "inputs": inputs, "targets": targets, "membership": MEMBERS, "seeds": SEEDS, **changed}
    given = {name: value for name, value in given.items() if name not in how}
    with pytest.raises(InputError, match=words):
        list(train_stacked(training=Training(**{"epochs": 1, "batch_size": 8, **how}), **given))
