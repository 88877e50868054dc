import copy
import random
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from giveaway.checks import InputError
from giveaway.extract import from_torch

N = 23


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(5)


@pytest.fixture
def x(generator):
    return torch.randn(N, 6, generator=generator)


@pytest.fixture
def y():
    return torch.arange(N) % 3


@pytest.fixture
def model(generator):
    net = nn.Sequential(OrderedDict(body=nn.Linear(6, 5), act=nn.ReLU(), drop=nn.Dropout(0.5), fc=nn.Linear(5, 3)))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return net


class Wrapped(nn.Module):
    """A backbone whose forward is given by the test."""

    def __init__(self, net, forward):
        super().__init__()
        self.net = net
        self._forward = forward

    def forward(self, *args, **kwargs):
        return self._forward(self.net, *args, **kwargs)


def expected(model, x):
    with torch.no_grad():
        features = torch.relu(model.body(x))
        return features, model.fc(features)


def assert_is_head_of(head, model, x):
    features, outputs = expected(model, x)
    torch.testing.assert_close(head.features, features)
    torch.testing.assert_close(head.outputs, outputs)
    torch.testing.assert_close(head.weight, model.fc.weight.detach())


# What is read off


@pytest.mark.parametrize("form", ["loader", "dataset", "list"])
def test_features_outputs_and_parameters_in_dataset_order(model, x, y, form):
    records = TensorDataset(x, y)
    data = {"loader": DataLoader(records, batch_size=4), "dataset": records, "list": list(records)}[form]
    head = from_torch(model, data, l2=0.5, batch_size=5, groups=np.arange(N) // 2, sample_weight=torch.ones(N))
    assert_is_head_of(head, model, x)
    assert torch.equal(head.targets, y)
    assert (head.loss, head.l2, head.intercept, head.features.dtype) == ("cross_entropy", 0.5, True, torch.float32)
    assert head.groups[4] == 2


def test_a_head_without_bias_has_no_intercept(x, y):
    head = from_torch(nn.Linear(6, 3, bias=False), TensorDataset(x, y))
    assert not head.intercept
    torch.testing.assert_close(head.features, x)


def test_float_targets_are_regression_and_outputs_may_be_squeezed(model, x):
    squeezed = Wrapped(nn.Linear(6, 1), lambda net, x: net(x).squeeze(1).double())
    head = from_torch(squeezed, TensorDataset(x, x[:, 0] * 2), l2=1.0, penalize_intercept=False)
    assert (head.loss, head.m, head.penalize_intercept) == ("squared", 1, False)


def test_a_named_layer_gives_its_own_outputs(model, x, y):
    softmax = nn.Sequential(OrderedDict(net=model, out=nn.Softmax(dim=1)))
    assert_is_head_of(from_torch(softmax, TensorDataset(x, y), layer="net.fc"), model, x)
    inner = from_torch(model, TensorDataset(x, x[:, :5] * 2), layer="body", loss="squared")
    torch.testing.assert_close(inner.features, x)


def test_the_last_layer_is_the_last_to_run_not_the_last_defined(x, y):
    class Reversed(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)
            self.body = nn.Linear(6, 4)

        def forward(self, x):
            return self.head(input=self.body(x))

    net = Reversed()
    head = from_torch(net, TensorDataset(x, y))
    assert torch.equal(head.weight, net.head.weight.detach())
    torch.testing.assert_close(head.features, net.body(x).detach())


def test_later_operations_in_place_do_not_reach_what_was_kept(model, x, y):
    in_place = Wrapped(model, lambda net, x: net(x).sigmoid_())
    with pytest.raises(InputError, match="head is not linear"):
        from_torch(in_place, TensorDataset(x, y))
    assert_is_head_of(from_torch(in_place, TensorDataset(x, y), layer="net.fc"), model, x)


def test_compiled_and_parallel_wrappers_are_looked_through(model, x, y):
    compiled = torch.compile(model, backend="eager")
    head = from_torch(nn.DataParallel(compiled), TensorDataset(x, y), layer="fc")
    assert_is_head_of(head, model.cpu(), x)  # DataParallel moves its module to the GPU where there is one


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_features_keep_their_precision_but_bfloat16_becomes_float32(model, x, y, dtype):
    net = model.to(dtype)
    head = from_torch(net, TensorDataset(x.to(dtype), y))
    assert head.features.dtype == head.outputs.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    torch.testing.assert_close(head.features.to(dtype), expected(net, x.to(dtype))[0])


def test_autocast(model, x, y):
    head = from_torch(model, TensorDataset(x, y), autocast=torch.bfloat16)
    exact = from_torch(model, TensorDataset(x, y))
    assert head.features.dtype == torch.float32
    assert 0 < (head.features - exact.features).abs().max() < 0.1
    with pytest.raises(InputError, match=r"autocast: expected None, torch.bfloat16 or torch.float16, got torch.int8"):
        from_torch(model, TensorDataset(x, y), autocast=torch.int8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("autocast", [None, torch.float16])
def test_a_model_on_the_gpu(model, x, y, autocast):
    net = copy.deepcopy(model).cuda()
    state = torch.cuda.get_rng_state()
    head = from_torch(net, DataLoader(TensorDataset(x, y), batch_size=4), autocast=autocast)
    tolerance = 1e-5 if autocast is None else 3e-2
    torch.testing.assert_close(head.features.float(), expected(model, x)[0], atol=tolerance, rtol=tolerance)
    assert head.features.device.type == head.weight.device.type == "cpu"
    assert all(parameter.is_cuda for parameter in net.parameters())
    assert torch.equal(torch.cuda.get_rng_state(), state)


# Forms of batches and outputs


class Records(Dataset):
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return N

    def __getitem__(self, index):
        if not 0 <= index < N:
            raise IndexError
        return self.make(index)


@pytest.mark.parametrize("target", ["labels", "label", "targets", "target", "y"])
def test_dict_batches_go_to_the_model_by_keyword(model, x, y, target):
    data = Records(lambda i: {"pixels": x[i], target: y[i], "id": f"r{i}"})
    head = from_torch(Wrapped(model, lambda net, pixels: net(pixels)), data)
    assert_is_head_of(head, model, x)
    assert head.ids[7] == "r7"


def test_keys_name_the_parts_of_a_batch(model, x, y):
    data = Records(lambda i: {"image": x[i], "diagnosis": y[i], "patient": i + 50, "note": "text"})
    head = from_torch(model, data, input_key="image", target_key="diagnosis", id_key="patient")
    assert_is_head_of(head, model, x)
    assert head.ids.tolist() == list(range(50, 50 + N))
    head = from_torch(model, Records(lambda i: (i, y[i], "text", x[i])), target_key=1, id_key=0, input_key=-1)
    assert_is_head_of(head, model, x)


def test_two_dimensional_ids_are_inputs(model, x, y):
    data = Records(lambda i: {"ids": x[i], "y": y[i]})
    head = from_torch(Wrapped(model, lambda net, ids: net(ids)), data)
    assert_is_head_of(head, model, x)
    assert head.ids.tolist() == list(range(N))


@pytest.mark.parametrize(
    "inputs", [lambda x: (x[:2], x[2:]), lambda x: [x[:2], x[2:]], lambda x: {"left": x[:2], "right": x[2:]}]
)
def test_several_inputs_are_unpacked(model, x, y, inputs):
    joins = Wrapped(model, lambda net, left, right: net(torch.cat([left, right], dim=1)))
    assert_is_head_of(from_torch(joins, Records(lambda i: (inputs(x[i]), y[i]))), model, x)
    assert_is_head_of(from_torch(joins, Records(lambda i: (x[i, :2], x[i, 2:], y[i])), target_key=2), model, x)


@pytest.mark.parametrize(
    "pack",
    [lambda f: {"logits": f, "loss": 0}, lambda f: {"out": f}, lambda f: SimpleNamespace(logits=f), lambda f: (f, 1)],
)
def test_outputs_that_are_packed(model, x, y, pack):
    assert_is_head_of(from_torch(Wrapped(model, lambda net, x: pack(net(x))), TensorDataset(x, y)), model, x)


def test_batches_that_cannot_be_read(model, x, y):
    with pytest.raises(InputError, match=r"batches \(inputs, targets\), or .* with id_key=2, got a batch of 3 parts"):
        from_torch(model, TensorDataset(x, y, y))
    with pytest.raises(InputError, match="one of the keys labels, label, targets, target, y, got keys x, kind; name"):
        from_torch(model, Records(lambda i: {"x": x[i], "kind": y[i]}))
    with pytest.raises(InputError, match="got keys label, y; name the targets with target_key="):
        from_torch(model, Records(lambda i: {"x": x[i], "y": y[i], "label": y[i]}))
    with pytest.raises(InputError, match=r"target_key: expected a key of the batch, got 'knd'; did you mean kind\?"):
        from_torch(model, Records(lambda i: {"x": x[i], "kind": y[i]}), target_key="knd")
    with pytest.raises(InputError, match="id_key: expected a position in the batch, 0 to 1, got 5"):
        from_torch(model, TensorDataset(x, y), id_key=5)
    with pytest.raises(InputError, match=r"expected .* or dicts, got Tensor; return the targets as well"):
        from_torch(model, Records(lambda i: x[i]))
    with pytest.raises(InputError, match="one target a record, got a single target; give the DataLoader a batch_size"):
        from_torch(model, DataLoader(TensorDataset(x, y), batch_size=None))
    with pytest.raises(InputError, match="data: expected a DataLoader or a Dataset, got dict"):
        from_torch(model, {"x": x})
    with pytest.raises(InputError, match="data: expected at least 2 records, got 0"):
        from_torch(model, TensorDataset(x[:0], y[:0]))
    with pytest.raises(InputError, match=r"model: expected a torch.nn.Module, got str; for scikit-learn use from_skl"):
        from_torch("model", TensorDataset(x, y))
    with pytest.raises(InputError, match="cannot be compared between two passes"):
        from_torch(model, DataLoader(TensorDataset(x, y), collate_fn=lambda rows: (object(), torch.zeros(1))))
    uneven = DataLoader(
        TensorDataset(x, y), 4, collate_fn=lambda rows: (x[: len(rows)], torch.zeros(len(rows), len(rows)))
    )
    with pytest.raises(
        InputError, match=r"targets: expected rows of shape \(4,\) in every batch, got rows of shape \(3,"
    ):
        from_torch(model, uneven)


# Layers that are no head


def test_layer_names(model, x, y):
    with pytest.raises(
        InputError, match=r"layer: expected the name of an nn.Linear .*, got 'bdy'; did you mean body\?"
    ):
        from_torch(model, TensorDataset(x, y), layer="bdy")
    with pytest.raises(InputError, match=r"layer: expected an nn.Linear, got 'act', a ReLU; choose from body, fc"):
        from_torch(model, TensorDataset(x, y), layer="act")
    with pytest.raises(InputError, match=r"got 'fc'; the model has no nn.Linear"):
        from_torch(nn.Flatten(), TensorDataset(x, y), layer="fc")
    unused = Wrapped(nn.ModuleList([model, nn.Linear(2, 2)]), lambda nets, x: nets[0](x))
    with pytest.raises(InputError, match=r"a layer that runs, got 'net.1', which the forward leaves out"):
        from_torch(unused, TensorDataset(x, y), layer="net.1")


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: net(x).softmax(1),
        lambda net, x: net(x) * 2,
        lambda net, x: (net.fc(torch.relu(net.body(x))), net.fc(torch.relu(net.body(x))))[0] * 0,
        lambda net, x: {"a": net(x), "b": net(x)},
    ],
    ids=["softmax", "scaled", "zeroed", "two outputs"],
)
def test_what_follows_the_last_layer_is_refused(model, x, y, forward):
    words = "head is not linear|which runs 2 times in one forward pass"
    with pytest.raises(InputError, match=words):
        from_torch(Wrapped(model, forward), TensorDataset(x, y))


def test_a_model_without_linear_layers_is_refused(x, y):
    words = r"a model whose head is not linear \(no nn.Linear ran\); return raw outputs \(no softmax\), name the layer"
    with pytest.raises(InputError, match=words):
        from_torch(nn.Sequential(nn.Unflatten(1, (6, 1)), nn.Conv1d(6, 3, 1), nn.Flatten()), TensorDataset(x, y))


def test_a_layer_that_runs_twice_is_refused(model, x, y):
    twice = Wrapped(nn.Linear(6, 6), lambda net, x: net(net(x)))
    for layer in (None, "net"):
        with pytest.raises(
            InputError, match="a linear layer that runs once a record, got layer 'net', which runs 2 times"
        ):
            from_torch(twice, TensorDataset(x, y), layer=layer)


@pytest.mark.parametrize("tie", ["parameter", "memory"])
def test_a_tied_weight_is_refused(tie):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            if tie == "parameter":
                self.out.weight = self.embedding.weight
            else:
                self.out.weight.data = self.embedding.weight.data

        def forward(self, tokens):
            return self.out(self.embedding(tokens).mean(1))

    tokens = torch.arange(N * 2).reshape(N, 2) % 7
    with pytest.raises(InputError, match=r"layer 'out', whose weight is tied to 'embedding.weight'; untie them"):
        from_torch(Tied(), TensorDataset(tokens, tokens[:, 0]))


class TokenModel(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.pool = pool

    def forward(self, tokens):
        return self.pool(self.fc(tokens))


REDUCE = {"mean": lambda t: t.mean(1), "first": lambda t: t[:, 0], "last": lambda t: t[:, -1]}


@pytest.mark.parametrize("reduction", REDUCE)
@pytest.mark.parametrize("pooled", [True, False])
def test_tokens_are_reduced_as_named(generator, y, reduction, pooled):
    tokens = torch.randn(N, 4, 6, generator=generator)
    net = TokenModel(REDUCE[reduction] if pooled else nn.Identity())
    with pytest.raises(InputError, match=r"'last', since layer 'fc' sees \(batch, tokens, features\), got None"):
        from_torch(net, TensorDataset(tokens, y))
    head = from_torch(net, TensorDataset(tokens, y), reduction=reduction)
    torch.testing.assert_close(head.features, REDUCE[reduction](tokens))
    torch.testing.assert_close(head.outputs, REDUCE[reduction](net.fc(tokens)).detach())


def test_reductions_that_do_not_fit(generator, model, x, y):
    tokens = torch.randn(N, 4, 6, generator=generator)
    net = TokenModel(REDUCE["first"])
    with pytest.raises(InputError, match="reduction: expected a known name, got 'men'; did you mean mean"):
        from_torch(net, TensorDataset(tokens, y), reduction="men")
    with pytest.raises(InputError, match="head is not linear"):
        from_torch(net, TensorDataset(tokens, y), reduction="last")
    with pytest.raises(
        InputError, match=r"reduction: expected None, since layer 'fc' sees one row a record, got 'mean'"
    ):
        from_torch(model, TensorDataset(x, y), reduction="mean")
    with pytest.raises(InputError, match=r"reduction: expected 'mean' or 'first' or 'last', since layer 'fc' sees"):
        from_torch(net, TensorDataset(tokens, y), layer="fc")
    flat = Wrapped(nn.Linear(6, 3), lambda net, t: net(t.reshape(-1, 6)))
    with pytest.raises(
        InputError, match=r"one row of features a record in layer 'net', got shape \(92, 6\) for 23 targets"
    ):
        from_torch(flat, TensorDataset(tokens, y))


# The model is left as it was


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


def snapshot(model, loader):
    hooks = [
        (len(m._forward_hooks), len(m._forward_hooks_with_kwargs), len(m._forward_pre_hooks)) for m in model.modules()
    ]
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        "modes": [module.training for module in model.modules()],
        "hooks": hooks,
        "identity": {name: id(tensor) for name, tensor in tensors.items()},
        "values": {name: tensor.detach().clone().tolist() for name, tensor in tensors.items()},
        "flags": {name: (tensor.requires_grad, tensor.device) for name, tensor in tensors.items()},
        "grads": {name: None if t.grad is None else t.grad.tolist() for name, t in model.named_parameters()},
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "python": random.getstate(),
        "loader": loader.generator.get_state().tolist(),
        "grad mode": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("fails_at", [3, None])
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


# Row identity


class Backwards(Sampler):
    def __init__(self, n=N):
        self.n = n

    def __iter__(self):
        return iter(range(self.n - 1, -1, -1))

    def __len__(self):
        return self.n


SHUFFLED = {
    "RandomSampler": lambda data: DataLoader(data, batch_size=4, shuffle=True),
    "WeightedRandomSampler": lambda data: DataLoader(data, sampler=WeightedRandomSampler(torch.ones(N), N)),
    "SubsetRandomSampler": lambda data: DataLoader(data, sampler=SubsetRandomSampler(range(N))),
    "Backwards": lambda data: DataLoader(data, sampler=Backwards()),
    "list": lambda data: DataLoader(data, batch_sampler=[[1, 0], list(range(2, N))]),
}


@pytest.mark.parametrize("sampler", SHUFFLED)
def test_orders_that_are_not_the_datasets_are_refused(model, x, y, sampler):
    loader = SHUFFLED[sampler](TensorDataset(x, y))
    state = torch.get_rng_state()
    words = (
        rf"every record once, in dataset order, got a .*sampler {sampler}, and batches without ids; use shuffle=False"
    )
    with pytest.raises(InputError, match=words):
        from_torch(model, loader)
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
    assert_is_head_of(from_torch(model, DataLoader(TensorDataset(x, y), **options)), model, x)


def test_workers_that_may_overtake_each_other_are_refused(model, x, y):
    loader = DataLoader(TensorDataset(x, y), num_workers=1, in_order=False)
    with pytest.raises(InputError, match="got in_order=False with several workers, and batches without ids"):
        from_torch(model, loader)


@pytest.mark.parametrize("sampler", ["RandomSampler", "SubsetRandomSampler", "Backwards", "list"])
@pytest.mark.parametrize("named", [int, "r{}".format])
def test_with_ids_any_order_gives_the_same_records(model, x, y, sampler, named):
    data = Records(lambda i: (x[i], y[i], named(i)))
    head = from_torch(
        model,
        SHUFFLED[sampler](data),
        id_key=2,
        groups={named(i): i // 2 for i in range(N)},
        sample_weight={named(i): float(i) for i in range(N)},
    )
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
    replaced = DataLoader(
        data, sampler=WeightedRandomSampler(torch.ones(N), N, generator=torch.Generator().manual_seed(0))
    )
    with pytest.raises(
        InputError, match=r"ids in the batches: expected a different id for every record, got .* repeated"
    ):
        from_torch(model, replaced, id_key=2)
    for sampler in (RandomSampler(data, num_samples=N - 3), Backwards(N - 3)):
        with pytest.raises(
            InputError, match=r"got 20 rows for 23 records; use a sampler and collate_fn that give each"
        ):
            from_torch(model, DataLoader(data, sampler=sampler), id_key=2)
    with pytest.raises(InputError, match="ids in the batches or ids=, not both"):
        from_torch(model, data, id_key=2, ids=np.arange(N))


def test_ids_groups_and_weights_beside_the_data(model, x, y):
    names = [f"p{i}" for i in range(N)]
    head = from_torch(model, TensorDataset(x, y), ids=names, groups={name: name[:2] for name in names})
    assert head.ids.tolist() == names
    assert head.groups[12] == "p1"
    with pytest.raises(
        InputError, match="groups: expected a value for every id, got none for 3 of 23; add the missing"
    ):
        from_torch(model, TensorDataset(x, y), ids=names, groups={name: 0 for name in names[3:]})
    with pytest.raises(InputError, match="sample_weight: expected one value a record, got a dict without ids"):
        from_torch(model, TensorDataset(x, y), sample_weight={0: 1.0})
    shuffled = SHUFFLED["RandomSampler"](Records(lambda i: (x[i], y[i], i)))
    with pytest.raises(
        InputError, match="groups: expected a dict from id to value, got an array, with rows in the order"
    ):
        from_torch(model, shuffled, id_key=2, groups=np.arange(N))


def test_dropped_records_are_refused(model, x, y):
    words = "got drop_last=True, which leaves out 3 of 23; set drop_last=False"
    for data, id_key in ((TensorDataset(x, y), None), (TensorDataset(x, y, torch.arange(N)), 2)):
        with pytest.raises(InputError, match=words):
            from_torch(model, DataLoader(data, batch_size=5, drop_last=True), id_key=id_key)


@pytest.mark.parametrize(
    ("keep", "words"), [(1, "got 12 rows for 23 records"), (3, "got more than 23 rows for 23 rec")]
)
def test_a_collate_function_that_drops_or_repeats_is_refused(model, x, y, keep, words):
    def collate(rows):
        rows = (rows + rows)[:keep]
        return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])

    with pytest.raises(InputError, match=words):
        from_torch(model, DataLoader(TensorDataset(x, y), batch_size=2, collate_fn=collate))


class Stream(IterableDataset):
    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return iter(self.make())


def test_streams_need_ids(model, x, y):
    with pytest.raises(
        InputError, match="got an IterableDataset, whose records have no position, and batches without ids"
    ):
        from_torch(model, Stream(lambda: zip(x, y, strict=True)))
    head = from_torch(model, Stream(lambda: zip(x, y, range(N), strict=True)), id_key=2, batch_size=4)
    assert_is_head_of(head, model, x)
    twice = DataLoader(Stream(lambda: zip(x, y, range(N), strict=True)), num_workers=2)
    with pytest.raises(InputError, match="got 23 repeated ids"):
        from_torch(model, twice, id_key=2)


def test_a_stream_that_can_be_read_only_once_is_refused(model, x, y):
    once = zip(x, y, range(N), strict=True)
    with pytest.raises(
        InputError, match="got 0 rows in a second pass after 23 in the first; pass a dataset that can be"
    ):
        from_torch(model, Stream(lambda: once), id_key=2)


def numpy_noise(x):
    return x + np.random.default_rng().normal(scale=1e-6)


AUGMENT = {
    "torch": lambda x: x + 1e-6 * torch.randn(6),
    "python": lambda x: x * random.random(),
    "numpy": numpy_noise,
    "flip": lambda x: x.flip(0) if torch.rand(()) < 0.5 else x,
}


@pytest.mark.parametrize("augment", AUGMENT)
@pytest.mark.parametrize("workers", [0, 1])
def test_random_augmentation_is_refused(model, x, y, augment, workers):
    data = Records(lambda i: (AUGMENT[augment](x[i]).float(), y[i]))
    words = (
        r"same inputs and targets in every pass, got \d+ of 23 that differ between two passes, .* random augmentation"
    )
    with pytest.raises(InputError, match=words):
        from_torch(model, DataLoader(data, batch_size=4, num_workers=workers))


def test_one_changed_bit_one_changed_target_or_one_changed_id_is_refused(model, x, y):
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
            from_torch(model, DataLoader(Records(make), batch_size=4))
    reads["count"] = 0
    with pytest.raises(InputError, match="the same ids in every pass, got others in a second pass"):
        from_torch(model, Records(lambda i: (x[i], y[i], i + 100 * second_pass(i))), id_key=2)


@pytest.mark.parametrize(
    "extra",
    [lambda i: f"text {i}", lambda i: torch.tensor(i % 2 == 0), lambda i: torch.zeros(0), lambda i: torch.eye(3) * i],
    ids=["text", "bool", "empty", "matrix"],
)
def test_inputs_of_every_kind_can_be_compared(model, x, y, extra):
    ignoring = Wrapped(model, lambda net, image, extra: net(image))
    data = Records(lambda i: {"image": x[i], "extra": extra(i), "y": y[i]})
    assert_is_head_of(from_torch(ignoring, data, batch_size=4), model, x)


def test_text_that_changes_is_seen(model, x, y):
    ignoring = Wrapped(model, lambda net, image, text: net(image))
    data = Records(lambda i: {"image": x[i], "text": str(random.random()), "y": y[i]})
    with pytest.raises(InputError, match="got 23 of 23 that differ"):
        from_torch(ignoring, data)
