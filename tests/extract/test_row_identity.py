"""Nobody is named wrongly: whatever a loader, a dataset or a model does to the order of records, it is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from giveaway.extract import Batches, Cached, from_torch, trace_of_checkpoints
from giveaway.extract.batches import RecordBatch
from giveaway.extract.reader import RecordReader
from giveaway.network import Network
from tests.conftest import refused

N, BATCH = 23, 5
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3
OTHER = "expected the record of its own position or id in every row, got the contents of another record in row {}"


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def sorting(rows):
    return default_collate(sorted(rows, key=lambda row: float(row[0][0])))


def backwards(rows):
    return default_collate(rows[::-1])


def doubling(rows):
    return default_collate([rows[0], *rows[:-1]])


def mixing(rows):
    x, y = default_collate(rows)
    return x.roll(1, 0), y


class Together(Dataset):
    """Gives several records at once in another order than one by one."""

    def __len__(self):
        return N

    def __getitem__(self, row):
        return X[row], Y[row]

    def __getitems__(self, rows):
        return [self[row] for row in rows[::-1]]


class Rolling(DataLoader):
    def __iter__(self):
        for x, y in super().__iter__():
            yield x.roll(1, 0), y.roll(1, 0)


RECORDS = TensorDataset(X, Y)
WRONG = {
    "a collate_fn that sorts": lambda: DataLoader(RECORDS, BATCH, collate_fn=sorting),
    "a collate_fn that turns": lambda: DataLoader(RECORDS, BATCH, collate_fn=backwards),
    "a collate_fn that repeats": lambda: DataLoader(RECORDS, BATCH, collate_fn=doubling),
    "a dataset's __getitems__": lambda: DataLoader(Together(), BATCH),
    "a loader of another class": lambda: Rolling(RECORDS, BATCH),
    "workers": lambda: DataLoader(RECORDS, BATCH, collate_fn=backwards, num_workers=2),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("kind", ["held", "cache", "network"])
def test_rows_that_are_other_records_are_refused(tmp_path, case, kind):
    loader, model = WRONG[case](), network()
    ways = {
        "held": lambda: from_torch(model, loader),
        "cache": lambda: from_torch(model, loader, keep=Cached(tmp_path / "cache")),
        "network": lambda: Network(model, loader, loss="cross_entropy"),
    }
    refused(OTHER.format(r"\d+") + "; let collate_fn, loader and dataset keep the order", ways[kind])


def test_a_trace_of_checkpoints_is_of_the_records_too(tmp_path):
    for number in (1, 2):
        torch.save(network().state_dict(), tmp_path / f"{number}.pt")
    loader = DataLoader(RECORDS, BATCH, collate_fn=sorting)
    refused(OTHER.format(0), trace_of_checkpoints, network(), str(tmp_path / "*.pt"), loader)


def test_inputs_of_one_record_under_the_target_of_another_are_refused():
    refused("that differ between two passes", from_torch, network(), DataLoader(RECORDS, BATCH, collate_fn=mixing))


@given(st.permutations(range(N)), st.integers(1, N))
def test_every_order_but_the_own_is_refused(order, batch):

    class Walks(DataLoader):
        def __iter__(self):
            for start in range(0, N, batch):
                rows = list(order[start : start + batch])
                yield X[rows], Y[rows]

    loader = Walks(RECORDS, batch)
    if order == sorted(order):
        assert torch.equal(from_torch(network(), loader).targets, Y)
    else:
        first = next(i for i in range(N) if order[i] != i)
        refused(OTHER.format(first), from_torch, network(), loader)


def test_ids_in_the_batches_allow_any_order_and_must_be_the_records_own():
    named = TensorDataset(X, Y, torch.arange(N) + 100)

    def sorted_with_ids(rows):
        return default_collate(sorted(rows, key=lambda row: float(row[0][0])))

    def ids_left_behind(rows):
        x, y, names = default_collate(rows)
        order = x[:, 0].argsort()
        return x[order], y[order], names

    head = from_torch(network(), DataLoader(named, BATCH, collate_fn=sorted_with_ids), batches=Batches(ids=2))
    assert (head.ids != np.arange(N) + 100).any()
    assert torch.equal(head.targets, Y[torch.from_numpy(head.ids - 100)])
    refused(
        OTHER.format(r"\d+"),
        from_torch,
        network(),
        DataLoader(named, BATCH, collate_fn=ids_left_behind),
        batches=Batches(ids=2),
    )

    def counted(rows):
        x, y, _ = default_collate(rows)
        return x, y, torch.arange(len(rows))

    words = "expected a different id for every record"
    refused(words, from_torch, network(), DataLoader(named, N, collate_fn=counted), batches=Batches(ids=2))


@pytest.mark.parametrize("wanted", ["ids", "groups", "sample_weight"])
def test_what_is_given_beside_a_subset_in_another_order_is_refused(wanted):
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3)).tolist()
    words = f"{wanted}: expected .*in the order of the rows, got one beside a Subset of all records in another order"
    values = np.arange(N, dtype=np.float64 if wanted == "sample_weight" else np.int64)
    refused(words, from_torch, network(), Subset(RECORDS, order), **{wanted: values})
    part = Subset(RECORDS, order[:9])  # as random_split gives it
    np.testing.assert_array_equal(getattr(from_torch(network(), part, **{wanted: values[:9]}), wanted), values[:9])


class Growing(Dataset):
    """Sequences of tokens of different lengths."""

    def __len__(self):
        return N

    def __getitem__(self, row):
        return {"tokens": torch.arange(1, 2 + row % 7) + row, "labels": int(Y[row])}


def padded(left: bool, order=slice(None)):
    def collate(rows):
        longest = max(len(row["tokens"]) for row in rows)
        tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
        for place, row in enumerate(rows[order]):
            count = len(row["tokens"])
            tokens[place, longest - count if left else 0 : longest if left else count] = row["tokens"]
        return {"tokens": tokens, "labels": torch.tensor([row["labels"] for row in rows])}

    return collate


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(60, 5, padding_idx=0), nn.Linear(5, 3)

    def forward(self, tokens):
        return self.head(self.embed(tokens).sum(1))


@pytest.mark.parametrize("left", [False, True])
def test_batches_padded_to_their_longest_record_are_compared_apart_from_the_padding(left):
    loader = DataLoader(Growing(), BATCH, collate_fn=padded(left))
    head = from_torch(Bag(), loader)
    assert torch.equal(head.targets, Y)
    assert head.rows_proved_by == "every record read by itself, apart from padding"
    turned = DataLoader(Growing(), BATCH, collate_fn=padded(left, slice(None, None, -1)))
    refused("got another record in row 0", from_torch, Bag(), turned)


@given(st.integers(1, 5), st.integers(0, 4), st.booleans(), st.data())
def test_padding_is_at_one_end_and_of_one_value(length, more, left, data):
    record = torch.tensor(data.draw(st.lists(st.integers(1, 9), min_size=length, max_size=length)))
    padding = torch.zeros(more, dtype=record.dtype)
    row = torch.cat([padding, record] if left else [record, padding])[None]
    batch, alone = (RecordBatch((values,), {}, torch.zeros(1)) for values in (row, record[None]))
    assert batch.holds(0, alone)
    changed = row.clone()
    changed[0, more if left else 0] += 10
    assert not RecordBatch((changed,), {}, torch.zeros(1)).holds(0, alone)
    if more > 1:
        uneven = row.clone()
        uneven[0, 0 if left else -1] += 10
        assert not RecordBatch((uneven,), {}, torch.zeros(1)).holds(0, alone)


def test_the_proof_is_told():
    class Named(IterableDataset):
        def __iter__(self):
            return ({"x": X[i], "y": Y[i], "id": i} for i in range(N))

    assert from_torch(network(), RECORDS).rows_proved_by == "every record read by itself"
    assert from_torch(network(), Named(), batches=Batches(inputs="x")).rows_proved_by == "two equal passes"
    reader = RecordReader(RECORDS, Batches(4))
    assert reader.proof is None


class Changes(nn.Module):
    """A network whose forward does something that it must not."""

    def __init__(self, what):
        super().__init__()
        self.body, self.head, self.what = network()[:2], nn.Linear(6, 3), what
        self.register_buffer("seen", torch.zeros(1))
        self.bare = nn.BatchNorm1d(6, track_running_stats=False)
        self.calls = 0

    def forward(self, x):
        h = self.body(x)
        self.calls += 1
        if self.what == "dropout":
            h = nn.functional.dropout(h, 0.5, training=True)
        elif self.what == "batch norm":
            h = self.bare(h)
        elif self.what == "sorts":
            h = h[h[:, 0].argsort()]
        elif self.what == "train":
            self.train()
        elif self.what == "parameter":
            self.head.weight.data.mul_(1.001)
        elif self.what == "gradient":
            self.head.weight.grad = torch.ones_like(self.head.weight)
        elif self.what == "hook":
            self.body.register_forward_hook(lambda *_: None)
        elif self.what == "buffer":
            self.seen += 1
            h = h * self.seen
        elif self.what == "raises" and self.calls > 3:
            self.head.weight.data.add_(1)
            raise RuntimeError("by the user")
        elif self.what == "input":
            x.mul_(0)
        return self.head(h)


REFUSED = {
    "dropout": "got other values on the same batch; turn off dropout and noise that are always on",
    "batch norm": "got other values in other company; use running statistics in batch norm",
    "sorts": "got other values in other company; .*keep each record's values in its own row",
    "train": "expected a forward in evaluation mode, got one that calls train",
    "parameter": "a model that its forward leaves as it was, got one that changed its parameters or buffers",
    "gradient": "got one that changed its gradients",
    "hook": "got one that changed its hooks",
    "buffer": "got other values on the same batch",
    "raises": "got one that changed its parameters or buffers",
}


@pytest.mark.parametrize("what", REFUSED)
def test_models_that_are_no_functions_are_refused(what):
    refused(REFUSED[what], from_torch, Changes(what), DataLoader(RECORDS, 8), layer="head")


def test_a_model_may_write_into_its_own_copy_of_the_input():
    data = TensorDataset(X.clone(), Y)
    head = from_torch(Changes("input"), DataLoader(data, 8))
    assert torch.equal(data.tensors[0], X)
    assert torch.equal(torch.as_tensor(head.inputs), X)


MIXINGS = {"reversed": lambda x: torch.arange(len(x)).flip(0), "sorted": lambda x: x[:, 0].argsort()}


@pytest.mark.parametrize("put_right", [False, True])
@pytest.mark.parametrize("mixing", MIXINGS)
def test_rows_mixed_inside_a_model_are_refused_although_the_first_batch_is_in_order(mixing, put_right):
    class Mixes(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

        def forward(self, x):
            order = MIXINGS[mixing](x)
            said = self.head(self.first(x[order]).relu())
            return said[order.argsort()] if put_right else said

    torch.manual_seed(0)
    x = torch.randn(9, 2)
    x[:3, 0] = torch.arange(3.0)
    data = DataLoader(TensorDataset(x, torch.arange(9) % 3), batch_size=3)
    refused("in other company", from_torch, Mixes(), data, layer="head")


def test_a_model_that_cannot_run_on_a_part_of_a_batch_is_refused_in_one_line():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))
    data = TensorDataset(torch.randn(2, 2), torch.tensor([0, 1]))
    refused("runs on a part of a batch, got ValueError on 1 of its 2 records", from_torch, model, data)
