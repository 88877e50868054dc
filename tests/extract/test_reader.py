"""Row i is record i, for from_torch and for Network, and the model is left as it was; or an error says why not."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from giveaway.checks import InputError
from giveaway.extract import Batches, from_torch
from giveaway.extract.model_records import inputs_of_head
from giveaway.network import Network
from tests.conftest import refused
from tests.extract.examples import N, Records, Stream, Wrapped, assert_is_head_of, expected, snapshot


class Backwards(Sampler):
    def __init__(self, n=N):
        self.n = n

    def __iter__(self):
        return iter(range(self.n - 1, -1, -1))

    def __len__(self):
        return self.n


def network_of(model, data):
    return Network(model, data, loss="cross_entropy")


every_reader = pytest.mark.parametrize("read", [from_torch, network_of])
SHUFFLED = {
    "RandomSampler": lambda data: DataLoader(data, batch_size=4, shuffle=True),
    "WeightedRandomSampler": lambda data: DataLoader(data, sampler=WeightedRandomSampler(torch.ones(N), N)),
    "SubsetRandomSampler": lambda data: DataLoader(data, sampler=SubsetRandomSampler(range(N))),
    "Backwards": lambda data: DataLoader(data, sampler=Backwards()),
    "list": lambda data: DataLoader(data, batch_sampler=[[1, 0], list(range(2, N))]),
}


@every_reader
@pytest.mark.parametrize("sampler", SHUFFLED)
def test_orders_that_are_not_the_datasets_are_refused(model, x, y, sampler, read):
    loader = SHUFFLED[sampler](TensorDataset(x, y))
    state = torch.get_rng_state()
    without = ", and batches without ids" if read is from_torch else ""
    words = rf"every record once, in dataset order, got a .*sampler {sampler}{without}; use shuffle=False and no"
    refused(words, read, model, loader)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": range(N)},
        {"batch_sampler": [[0, 1, 2], list(range(3, N))]},
        {"batch_sampler": BatchSampler(SequentialSampler(range(N)), 4, False)},
        {"batch_size": 1, "drop_last": True},
        {"batch_size": 4, "num_workers": 1},
    ],
)
def test_orders_that_are_plainly_the_datasets_are_taken(model, x, y, options):
    loader = DataLoader(TensorDataset(x, y), **options)
    assert_is_head_of(from_torch(model, loader), model, x)
    records = network_of(model, loader).records
    assert torch.equal(records.arguments[0], x)
    assert torch.equal(records.targets, y)


@every_reader
def test_workers_that_may_overtake_each_other_are_refused(model, x, y, read):
    loader = DataLoader(TensorDataset(x, y), num_workers=1, in_order=False)
    refused("got in_order=False with several workers", read, model, loader)


def test_a_network_has_no_ids_to_sort_by(model, x, y):
    named = Records(lambda i: {"input": x[i], "y": y[i], "id": i})
    state = torch.get_rng_state()
    assert torch.equal(network_of(model, named).records.keywords["input"], x)
    assert torch.equal(torch.get_rng_state(), state)
    words = "got a sampler RandomSampler; use shuffle=False and no sampler"
    refused(words, network_of, model, DataLoader(named, shuffle=True))


@pytest.mark.parametrize("sampler", ["RandomSampler", "SubsetRandomSampler", "Backwards", "list"])
@pytest.mark.parametrize("named", [int, "r{}".format])
def test_with_ids_any_order_gives_the_same_records(model, x, y, sampler, named):
    data = Records(lambda i: (x[i], y[i], named(i)))
    groups, weights = {named(i): i // 2 for i in range(N)}, {named(i): float(i) for i in range(N)}
    head = from_torch(model, SHUFFLED[sampler](data), batches=Batches(ids=2), groups=groups, sample_weight=weights)
    features, outputs = expected(model, x)
    row_of = {name: row for row, name in enumerate(head.ids.tolist())}
    rows = [row_of[named(i)] for i in range(N)]
    assert sorted(rows) == list(range(N)) != rows
    torch.testing.assert_close(head.features[rows], features)
    torch.testing.assert_close(head.outputs[rows], outputs)
    assert torch.equal(head.targets[rows], y)
    assert head.groups[rows].tolist() == [i // 2 for i in range(N)]
    assert head.sample_weight[rows].tolist() == list(range(N))


def test_ids_must_come_once_each(model, x, y):
    data = Records(lambda i: (x[i], y[i], i))
    replacing = WeightedRandomSampler(torch.ones(N), N, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match=r"ids in the batches: expected a different id for every record, got .* repe"):
        from_torch(model, DataLoader(data, sampler=replacing), batches=Batches(ids=2))
    for sampler in (RandomSampler(data, num_samples=N - 3), Backwards(N - 3)):
        with pytest.raises(InputError, match=r"got 20 rows for 23 records; use a sampler and collate_fn that give"):
            from_torch(model, DataLoader(data, sampler=sampler), batches=Batches(ids=2))
    refused("ids in the batches or ids=, not both", from_torch, model, data, batches=Batches(ids=2), ids=np.arange(N))


def test_ids_groups_and_weights_beside_the_data(model, x, y):
    names = [f"p{i}" for i in range(N)]
    head = from_torch(model, TensorDataset(x, y), ids=names, groups={name: name[:2] for name in names})
    assert head.ids.tolist() == names
    assert head.groups[12] == "p1"
    with pytest.raises(InputError, match="groups: expected a value for every id, got none for 3 of 23; add the miss"):
        from_torch(model, TensorDataset(x, y), ids=names, groups={name: 0 for name in names[3:]})
    with pytest.raises(InputError, match="sample_weight: expected one value a record, got a dict without ids"):
        from_torch(model, TensorDataset(x, y), sample_weight={0: 1.0})
    shuffled = SHUFFLED["RandomSampler"](Records(lambda i: (x[i], y[i], i)))
    with pytest.raises(InputError, match="groups: expected a dict from id to value, got an array, with rows in the"):
        from_torch(model, shuffled, batches=Batches(ids=2), groups=np.arange(N))


def test_dropped_records_are_refused(model, x, y):
    words = "got drop_last=True, which leaves out 3 of 23; set drop_last=False"
    for data, id_key in ((TensorDataset(x, y), None), (TensorDataset(x, y, torch.arange(N)), 2)):
        refused(words, from_torch, model, DataLoader(data, batch_size=5, drop_last=True), batches=Batches(ids=id_key))
    refused(words, network_of, model, DataLoader(TensorDataset(x, y), batch_size=5, drop_last=True))


@every_reader
@pytest.mark.parametrize(("keep", "words"), [(1, "got 12 rows for 23 rec"), (3, "got more than 23 rows for 23 rec")])
def test_a_collate_function_that_drops_or_repeats_is_refused(model, x, y, keep, words, read):
    def collate(rows):
        rows = (rows + rows)[:keep]
        return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])

    refused(words, read, model, DataLoader(TensorDataset(x, y), batch_size=2, collate_fn=collate))


def test_streams_need_ids(model, x, y):
    for read in (from_torch, network_of):
        with pytest.raises(InputError, match="got an IterableDataset, whose records have no position"):
            read(model, Stream(lambda: zip(x, y, strict=True)))
    head = from_torch(model, Stream(lambda: zip(x, y, range(N), strict=True)), batches=Batches(4, ids=2))
    assert_is_head_of(head, model, x)
    twice = DataLoader(Stream(lambda: zip(x, y, range(N), strict=True)), num_workers=2)
    refused("got 23 repeated ids", from_torch, model, twice, batches=Batches(ids=2))


def test_a_stream_that_can_be_read_only_once_is_refused(model, x, y):
    once = zip(x, y, range(N), strict=True)
    with pytest.raises(InputError, match="got 0 rows in a second pass after 23 in the first; pass a dataset that can"):
        from_torch(model, Stream(lambda: once), batches=Batches(ids=2))


def numpy_noise(x):
    return x + np.random.default_rng().normal(scale=1e-6)


AUGMENT = {
    "torch": lambda x: x + 1e-6 * torch.randn(6),
    "python": lambda x: x * random.random(),
    "numpy": numpy_noise,
    "flip": lambda x: x.flip(0) if torch.rand(()) < 0.5 else x,
}


@every_reader
@pytest.mark.parametrize("augment", AUGMENT)
@pytest.mark.parametrize("workers", [0, 1])
def test_random_augmentation_is_refused(model, x, y, augment, workers, read):
    data = Records(lambda i: (AUGMENT[augment](x[i]).float(), y[i]))
    words = r"same inputs and targets in every pass, got \d+ of 23 that differ between two passes, .* random augme"
    refused(words, read, model, DataLoader(data, batch_size=4, num_workers=workers))


@every_reader
def test_one_changed_bit_one_changed_target_or_one_changed_id_is_refused(model, x, y, read):
    reads = {"count": 0}

    def second_pass(i):
        reads["count"] += i == 0
        return reads["count"] > 1 and i == 17

    cases = {
        "input": lambda i: (torch.nextafter(x[i], x[i] + second_pass(i)), y[i]),
        "target": lambda i: (x[i], (y[i] + second_pass(i)) % 3),
    }
    for make in cases.values():
        reads["count"] = 0
        with pytest.raises(InputError, match="got 1 of 23 that differ between two passes, the first in row 17"):
            read(model, DataLoader(Records(make), batch_size=4))
    reads["count"] = 0
    with pytest.raises(InputError, match="the same ids in every pass, got others in another pass"):
        from_torch(model, Records(lambda i: (x[i], y[i], i + 100 * second_pass(i))), batches=Batches(ids=2))


@pytest.mark.parametrize(
    "extra",
    [lambda i: f"text {i}", lambda i: torch.tensor(i % 2 == 0), lambda i: torch.zeros(0), lambda i: torch.eye(3) * i],
    ids=["text", "bool", "empty", "matrix"],
)
def test_inputs_of_every_kind_can_be_compared(model, x, y, extra):
    ignoring = Wrapped(model, lambda net, image, extra: net(image))
    data = Records(lambda i: {"image": x[i], "extra": extra(i), "y": y[i]})
    assert_is_head_of(from_torch(ignoring, data, batches=Batches(4)), model, x)


def test_text_that_changes_is_seen(model, x, y):
    ignoring = Wrapped(model, lambda net, image, text: net(image))
    data = Records(lambda i: {"image": x[i], "text": str(random.random()), "y": y[i]})
    refused("got 23 of 23 that differ", from_torch, ignoring, data)


class Fragile(nn.Module):
    """Mixed modes, a buffer that every forward moves, dropout that draws though in eval mode, and a failing batch."""

    def __init__(self, fails_at):
        super().__init__()
        self.body, self.norm, self.fc = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scratch", torch.ones(2))
        self.fails_at = fails_at

    def forward(self, x):
        assert not self.training
        assert not self.norm.training
        assert not torch.is_grad_enabled()
        self.calls += 1
        self.scratch = self.scratch + 1
        if self.calls == self.fails_at:
            raise RuntimeError("out of luck")
        torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002
        return self.fc(self.norm(self.body(x)))


@pytest.mark.parametrize("fails_at", [7, None])  # 7 is the second batch: the first runs again, and in four parts
def test_everything_is_put_back_also_when_the_forward_raises(x, y, fails_at):
    net = Fragile(fails_at).train()
    net.norm.eval()
    net.body.weight.requires_grad_(False)
    net.fc.weight.grad = torch.full_like(net.fc.weight, 2.0)
    net.fc.register_forward_hook(lambda *_: None)
    loader = DataLoader(TensorDataset(x, y), batch_size=5, generator=torch.Generator().manual_seed(1))
    before = snapshot(net, loader)
    if fails_at:
        with pytest.raises(RuntimeError, match="out of luck"):
            from_torch(net, loader)
    else:
        from_torch(net, loader)
    assert snapshot(net, loader) == before


def test_the_head_does_not_share_memory_with_the_model(x, y):
    net = nn.Linear(6, 3)
    head = from_torch(net, TensorDataset(x, y))
    kept = head.weight.clone(), head.features.clone()
    with torch.no_grad():
        net.weight.zero_()
        x.zero_()
    assert torch.equal(head.weight, kept[0])
    assert torch.equal(head.features, kept[1])


def test_the_model_s_arguments_in_dataset_order(x, y):
    data = TensorDataset(x, y)
    (found,) = inputs_of_head(data, from_torch(nn.Linear(6, 3), data), batches=Batches(5))
    assert torch.equal(found, x)
    data = [((x[row], 2 * x[row]), y[row]) for row in range(N)]
    first, second = inputs_of_head(data, from_torch(Wrapped(nn.Linear(6, 3), lambda net, a, b: net(a + b)), data))
    assert torch.equal(first, x)
    assert torch.equal(second, 2 * x)


def test_keywords_in_the_order_of_the_head_s_ids(x, y):
    named = Records(lambda row: {"a": x[row], "b": 2 * x[row], "y": y[row], "id": f"record {row}"})
    loader = DataLoader(named, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(1))
    head = from_torch(Wrapped(nn.Linear(6, 3), lambda net, a, b: net(a + b)), loader)
    loader.generator.manual_seed(2)  # another order
    found = inputs_of_head(loader, head)
    numbers = [int(name.removeprefix("record ")) for name in head.ids.tolist()]
    assert numbers != sorted(numbers)
    assert list(found) == ["a", "b"]
    assert torch.equal(found["a"], x[numbers])
    assert torch.equal(found["b"], 2 * x[numbers])


def test_data_that_are_not_the_head_s_are_refused(x, y, monkeypatch):
    data = [{"input": x[row], "y": y[row], "id": row} for row in range(N)]
    head = from_torch(nn.Linear(6, 3), data, batches=Batches(1))
    renamed = [record | {"id": record["id"] + 100} for record in data]
    more = data[:11] + [record | {"mask": record["input"]} for record in data[11:]]
    for others, words in {
        "shorter": (data[:-1], "expected 23 records in every pass, got 22 in another; pass a dataset that can be read"),
        "renamed": (renamed, "expected the same ids in every pass, got others in another pass; fix each record's id"),
        "more": (more, r"the same inputs in every batch, each with a row a record, got inputs of shape \(1, 6\)"),
    }.values():
        refused(f"^data: .*{words}", inputs_of_head, others, head, batches=Batches(1))
    targets = [{"labels": y[row]} for row in range(N)]
    words = "data: expected inputs beside the targets, got targets alone; yield what the model takes too"
    refused(words, inputs_of_head, targets, head, batches=Batches(1))
    monkeypatch.setattr("giveaway.checks.available_memory", lambda: 100)
    refused(r"data: expected records that are kept within the 0\.0 GB of free memory", inputs_of_head, data, head)
