"""DP-SGD in plain torch against Opacus (gradients, accountant) and against a loop over records."""

import warnings

import numpy as np
import pytest
import torch
from benchmarks.dp_sgd import ORDERS, DPTraining, clipped_sums, epsilon_of, noise_for, train_dp
from torch import nn
from torch.func import stack_module_state


@pytest.fixture(scope="module")
def opacus():
    return pytest.importorskip("opacus")  # a second to import: by the process that needs it


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(2, 11, 5, generator=generator)
    return x, torch.randint(3, (2, 11), generator=generator), torch.rand(2, 11, generator=generator)


def test_clipped_sums_are_those_of_a_loop_over_records(batch):
    x, y, weight = batch
    torch.manual_seed(1)
    models = [network(), network()]
    sums, losses = clipped_sums(models[0], stack_module_state(models)[0], x, y, weight, clip=2.5)
    for place, model in enumerate(models):
        total = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
        norms = []
        for record in range(11):
            model.zero_grad()
            loss = nn.functional.cross_entropy(model(x[place, record][None]), y[place, record][None])
            loss.backward()
            norm = torch.cat([value.grad.flatten() for value in model.parameters()]).norm()
            norms.append(float(norm))
            for name, value in model.named_parameters():
                total[name] += weight[place, record] * value.grad * min(1.0, 2.5 / float(norm))
            torch.testing.assert_close(losses[place, record], loss.detach())
        assert min(norms) < 2.5 < max(norms)  # some are clipped, some are not
        for name, value in total.items():
            torch.testing.assert_close(sums[name][place], value, rtol=1e-5, atol=1e-6)


def test_clipped_sums_are_those_of_opacus(opacus, batch):
    x, y, _ = batch
    torch.manual_seed(2)
    model = network()
    sums, _ = clipped_sums(model, stack_module_state([model])[0], x[:1], y[:1], torch.ones(1, 11), clip=0.5)
    data = torch.utils.data.TensorDataset(x[0], y[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, optimizer, _ = opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            data_loader=torch.utils.data.DataLoader(data, batch_size=11),
            noise_multiplier=0.0,
            max_grad_norm=0.5,
            poisson_sampling=False,
        )
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[0]), y[0]).backward()
        optimizer.step()
    for name, value in model.named_parameters():
        torch.testing.assert_close(sums[name][0] / 11, before[name] - value.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("noise", "rate", "steps"), [(0.7, 0.1, 100), (1.3, 0.02, 2000), (4.0, 0.5, 40), (2.0, 1.0, 3)]
)
def test_epsilon_is_that_of_opacus(opacus, noise, rate, steps):
    accountant = opacus.accountants.RDPAccountant()
    accountant.history = [(noise, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = accountant.get_epsilon(1e-4, alphas=[int(order) for order in ORDERS])
    assert epsilon_of(noise, rate, steps, 1e-4) == pytest.approx(expected, rel=1e-6)


def test_noise_for_is_the_least_that_keeps_epsilon():
    noise = noise_for(3.0, 0.1, 200, 1e-4)
    assert epsilon_of(noise, 0.1, 200, 1e-4) <= 3.0 < epsilon_of(noise / 1.002, 0.1, 200, 1e-4)


def test_training_learns_and_noise_keeps_it_from_learning():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (np.eye(5)[y] * 3 + rng.normal(size=(60, 5))).astype(np.float32)
    members = np.tile(np.arange(60) < 40, (4, 1))
    members[1::2] = members[::2, ::-1]
    told = {}

    def record(number, losses):
        told.setdefault(number, []).append(losses)

    def accuracy(noise):
        plan = DPTraining(steps=60, rate=0.25, noise=noise)
        made = dict(train_dp(network, x, y, members, plan, seeds=range(4), models_at_once=3, on_losses=record))
        assert sorted(made) == [0, 1, 2, 3]
        return np.mean([(outputs.argmax(1) == y).mean() for outputs in made.values()])

    assert accuracy(0.0) > 0.85
    assert len(told[3]) == 15
    assert np.isnan(told[1][-1][~members[1]]).all()
    assert np.isfinite(told[1][-1][members[1]]).mean() > 0.9
    assert accuracy(50.0) < 0.7


def test_a_record_counts_for_its_share_of_the_clip():
    rng = np.random.default_rng(0)
    x, y, all_of_them = rng.normal(size=(20, 5)).astype(np.float32), np.arange(20) % 3, np.ones((2, 20), bool)
    plan, shares, other = DPTraining(6, 0.5, 0.3), np.ones(20), y.copy()
    other[7] = 1 - other[7]

    def outputs(labels, shares):
        return np.stack(
            [out for _, out in train_dp(network, x, labels, all_of_them, plan, seeds=[1, 2], shares=shares)]
        )

    apart = np.abs(outputs(other, shares) - outputs(y, shares)).max()
    shares[7] = 0.1
    nearer = np.abs(outputs(other, shares) - outputs(y, shares)).max()
    assert 0 < nearer < apart
    shares[7] = 0.0
    np.testing.assert_array_equal(outputs(other, shares), outputs(y, shares))
    np.testing.assert_array_equal(outputs(y, None), outputs(y, np.ones(20)))


def test_a_batch_is_a_poisson_sample():
    sizes = []
    x, y, all_of_them = np.zeros((200, 5), np.float32), np.zeros(200, int), np.ones((50, 200), bool)

    def record(number, losses):
        sizes.append(np.isfinite(losses).sum())

    for seed in range(6):
        list(train_dp(network, x, y, all_of_them, DPTraining(1, 0.7, 0.0), seeds=[seed] * 50, on_losses=record))
    assert np.mean(sizes) == pytest.approx(140, abs=1.5)  # 4 standard errors
    assert np.var(sizes) == pytest.approx(42, rel=0.33)
