from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from giveaway.attacks.membership import balanced_membership, model_seed
from giveaway.attacks.stacked import EpochBatches, Training, train_stacked
from giveaway.checks import InputError

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


def one_at_a_time(make_model, inputs, targets, number, training, loss):
    """The same batches, written out with torch's own modules and optimizers."""
    x, y = torch.from_numpy(inputs), torch.from_numpy(targets)
    torch.manual_seed(SEEDS[number])
    model = make_model()
    generator = torch.Generator().manual_seed(SEEDS[number])
    own = torch.from_numpy(np.flatnonzero(MEMBERS[number]))
    steps = min(math.ceil(19 / training.batch_size), 18)
    options = {"momentum": training.momentum} if training.optimizer == "sgd" else {}
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[training.optimizer]
    optimizer = kind(model.parameters(), training.learning_rate, weight_decay=training.weight_decay, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, training.epochs * steps)
    for _ in range(training.epochs):
        for batch in own[torch.randperm(len(own), generator=generator)].tensor_split(steps):
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            optimizer.step()
            if training.schedule == "cosine":
                schedule.step()
    return model.eval()(x).detach().numpy()


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
@pytest.mark.parametrize("at_once", [1, 4, 64])
def test_every_model_is_as_trained_alone(training, at_once):
    inputs, targets = data()
    found = dict(train_stacked(mlp, inputs, targets, MEMBERS, training, seeds=SEEDS, models_at_once=at_once))
    assert sorted(found) == list(range(MODELS))
    for number in range(MODELS):
        alone = one_at_a_time(mlp, inputs, targets, number, training, nn.functional.cross_entropy)
        np.testing.assert_allclose(found[number], alone, atol=1e-9)


def test_batch_norm_is_each_models_own():
    inputs, targets = data((2, 4, 4))
    members = balanced_membership(MODELS, 36, seed=0)
    training = Training(3, 6, "adam", 1e-2)  # 18 records in batches of 6: no filling
    found = dict(train_stacked(with_batch_norm, inputs, targets, members, training, seeds=SEEDS, models_at_once=4))
    for number in range(MODELS):
        one = train_stacked(with_batch_norm, inputs, targets, members[[number]], training, seeds=[SEEDS[number]])
        np.testing.assert_allclose(found[number], next(iter(one))[1], atol=1e-9)
        torch.manual_seed(SEEDS[number])
        model, generator = with_batch_norm(), torch.Generator().manual_seed(SEEDS[number])
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        own = torch.from_numpy(np.flatnonzero(members[number]))
        for _ in range(3):
            for batch in own[torch.randperm(18, generator=generator)].split(6):
                optimizer.zero_grad()
                outputs = model(torch.from_numpy(inputs)[batch])
                nn.functional.cross_entropy(outputs, torch.from_numpy(targets)[batch]).backward()
                optimizer.step()
        np.testing.assert_allclose(found[number], model.eval()(torch.from_numpy(inputs)).detach(), atol=1e-9)


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
    whole = dict(train_stacked(mlp, inputs, targets, MEMBERS, training, **options))
    part = dict(train_stacked(mlp, inputs, targets, MEMBERS, training, numbers=[3], **options))
    assert sorted(part) == [2, 3]
    for number in part:
        np.testing.assert_array_equal(part[number], whole[number])


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


def test_the_global_random_state_is_left_alone():
    inputs, targets = data()
    before = torch.random.get_rng_state()
    list(train_stacked(mlp, inputs, targets, MEMBERS, Training(1, 8), seeds=SEEDS))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    ("make_training", "words"),
    [
        (lambda: Training(1, 8, "lion"), "optimizer: expected a known name, got 'lion'"),
        (lambda: Training(0, 8), "epochs: expected a finite number of at least 1, got 0"),
        (lambda: Training(1, 8, momentum=0.9), "momentum: expected 0 unless the optimizer is sgd, got 0.9"),
        (lambda: Training(1, 8, schedule="cos"), "schedule: expected a known name, got 'cos'; did you mean cosine"),
    ],
)
def test_training_refusals(make_training, words):
    with pytest.raises(InputError, match=words):
        make_training()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"make_model": lambda: nn.Sequential(nn.Linear(5, 3), nn.Dropout())}, "make_model: expected a model without"),
        ({"targets": np.zeros(3, dtype=int)}, "inputs: expected at least 37 rows, as many as targets, got 41 with 3"),
        ({"seeds": SEEDS[:2]}, "seeds: expected one a model, 6 in all, got 2"),
        ({"membership": np.zeros((6, RECORDS))}, "membership: expected .* got shape .* a model without records"),
        ({"models_at_once": 0}, "models_at_once: expected at least 1, got 0"),
        ({"inputs": np.full((41, 5), np.nan)}, "inputs: expected finite numbers"),
    ],
)
def test_refusals(changed, words):
    inputs, targets = data()
    given = {"make_model": mlp, "inputs": inputs, "targets": targets, "membership": MEMBERS, "seeds": SEEDS, **changed}
    with pytest.raises(InputError, match=words):
        list(train_stacked(training=Training(1, 8), **given))
