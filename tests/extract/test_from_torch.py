"""from_torch: batches of every form, the layer that is the head, and what cannot be one."""

import copy
from collections import OrderedDict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from giveaway import Head
from giveaway.checks import InputError
from giveaway.extract import Batches, from_torch
from tests.conftest import refused
from tests.extract.examples import N, Records, Wrapped, assert_is_head_of, expected


@pytest.mark.parametrize("form", ["loader", "dataset", "list", "pair", "arrays"])
def test_features_outputs_and_parameters_in_dataset_order(model, x, y, form):
    records = TensorDataset(x, y)
    data = {"loader": DataLoader(records, batch_size=4), "dataset": records, "list": list(records)} | {
        "pair": (x, y),
        "arrays": [x.numpy(), y.numpy()],
    }
    data = data[form]
    head = from_torch(model, data, l2=0.5, batches=Batches(5), groups=np.arange(N) // 2, sample_weight=torch.ones(N))
    assert_is_head_of(head, model, x)
    assert torch.equal(head.targets, y)
    assert (head.loss, head.l2, head.intercept, head.features.dtype) == ("cross_entropy", 0.5, True, torch.float32)
    assert head.groups[4] == 2


@pytest.mark.parametrize("frozen", [False, True])
def test_whether_the_layers_below_are_frozen_is_said_and_not_guessed(model, x, y, frozen):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert from_torch(model, TensorDataset(x, y), frozen=frozen).frozen is frozen


def test_heads_without_bias_and_of_one_squeezed_output(x, y):
    head = from_torch(nn.Linear(6, 3, bias=False), TensorDataset(x, y))
    assert not head.intercept
    torch.testing.assert_close(head.features, x)
    squeezed = Wrapped(nn.Linear(6, 1), lambda net, x: net(x).squeeze(1).double())
    head = from_torch(squeezed, TensorDataset(x, x[:, 0] * 2), l2=1.0, penalize_intercept=False)
    assert (head.loss, head.m, head.penalize_intercept) == ("squared", 1, False)


def test_a_named_layer_gives_its_own_outputs(model, x, y):
    softmax = nn.Sequential(OrderedDict(net=model, out=nn.Softmax(dim=1)))
    assert_is_head_of(from_torch(softmax, TensorDataset(x, y), layer="net.fc"), model, x)
    inner = from_torch(model, TensorDataset(x, x[:, :5] * 2), layer="body", loss="squared")
    torch.testing.assert_close(inner.features, x)
    words = "layer: expected a layer with an output for each class, got 'body' with 5, where the model has 3; name the"
    refused(words, from_torch, model, TensorDataset(x, y), layer="body")


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
    refused("head is not linear", from_torch, in_place, TensorDataset(x, y))
    assert_is_head_of(from_torch(in_place, TensorDataset(x, y), layer="net.fc"), model, x)


def test_compiled_and_parallel_wrappers_are_looked_through(model, x, y):
    compiled = torch.compile(model, backend="eager")
    head = from_torch(nn.DataParallel(compiled), TensorDataset(x, y), layer="fc")
    assert_is_head_of(head, model.cpu(), x)  # DataParallel moves its module to the GPU where there is one


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_features_keep_their_precision_but_bfloat16_becomes_float32(model, x, y, dtype, tmp_path):
    net = model.to(dtype)
    head = from_torch(net, TensorDataset(x.to(dtype), y))
    kept = torch.float32 if dtype == torch.bfloat16 else dtype
    assert {head.features.dtype, head.outputs.dtype, head.weight.dtype, head.bias.dtype} == {kept}
    torch.testing.assert_close(head.features.to(dtype), expected(net, x.to(dtype))[0])
    head.save(tmp_path / "head.npz")
    torch.testing.assert_close(Head.load(tmp_path / "head.npz").weight.to(dtype), net.fc.weight.detach())


def test_numbers_of_another_precision_are_refused(model, x, y):
    words = r"data: expected numbers as torch\.float32, like the model's, got torch\.float64; convert them"
    refused(words, from_torch, model, TensorDataset(x.double(), y))


def test_autocast(model, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        head = from_torch(model, TensorDataset(x, y))
    exact = from_torch(model, TensorDataset(x, y))
    assert head.features.dtype == torch.float32
    assert 0 < (head.features - exact.features).abs().max() < 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("autocast", [None, torch.float16])
def test_a_model_on_the_gpu(model, x, y, autocast):
    net = copy.deepcopy(model).cuda()
    state = torch.cuda.get_rng_state()
    with torch.autocast("cuda", autocast, enabled=autocast is not None):
        head = from_torch(net, DataLoader(TensorDataset(x, y), batch_size=4))
    tolerance = 1e-5 if autocast is None else 3e-2
    torch.testing.assert_close(head.features.float(), expected(model, x)[0], atol=tolerance, rtol=tolerance)
    assert head.features.device.type == head.weight.device.type == "cpu"
    assert all(parameter.is_cuda for parameter in net.parameters())
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_batch_sizes_that_cannot_be(model, x, y):
    records = TensorDataset(x, y)
    for size in (0, -1, 2.5):
        with pytest.raises(InputError, match=f"batches.size: expected a whole number of at least 1, got {size}; 256"):
            from_torch(model, records, batches=Batches(size))


@pytest.mark.parametrize("target", ["labels", "label", "targets", "target", "y"])
def test_dict_batches_go_to_the_model_by_keyword(model, x, y, target):
    data = Records(lambda i: {"pixels": x[i], target: y[i], "id": f"r{i}"})
    head = from_torch(Wrapped(model, lambda net, pixels: net(pixels)), data)
    assert_is_head_of(head, model, x)
    assert head.ids[7] == "r7"


def test_keys_name_the_parts_of_a_batch(model, x, y):
    data = Records(lambda i: {"image": x[i], "diagnosis": y[i], "patient": i + 50, "note": "text"})
    head = from_torch(model, data, batches=Batches(inputs="image", targets="diagnosis", ids="patient"))
    assert_is_head_of(head, model, x)
    assert head.ids.tolist() == list(range(50, 50 + N))
    head = from_torch(model, Records(lambda i: (i, y[i], "text", x[i])), batches=Batches(inputs=-1, targets=1, ids=0))
    assert_is_head_of(head, model, x)
    data = Records(lambda i: {"ids": x[i], "y": y[i]})  # of two dimensions: tokens, not names
    head = from_torch(Wrapped(model, lambda net, ids: net(ids)), data)
    assert_is_head_of(head, model, x)
    assert head.ids.tolist() == list(range(N))


@pytest.mark.parametrize(
    "inputs", [lambda x: (x[:2], x[2:]), lambda x: [x[:2], x[2:]], lambda x: {"left": x[:2], "right": x[2:]}]
)
def test_several_inputs_are_unpacked(model, x, y, inputs):
    joins = Wrapped(model, lambda net, left, right: net(torch.cat([left, right], dim=1)))
    assert_is_head_of(from_torch(joins, Records(lambda i: (inputs(x[i]), y[i]))), model, x)
    assert_is_head_of(
        from_torch(joins, Records(lambda i: (x[i, :2], x[i, 2:], y[i])), batches=Batches(targets=2)), model, x
    )


@pytest.mark.parametrize(
    "pack",
    [lambda f: {"logits": f, "loss": 0}, lambda f: {"out": f}, lambda f: SimpleNamespace(logits=f), lambda f: (f, 1)],
)
def test_outputs_that_are_packed(model, x, y, pack):
    assert_is_head_of(from_torch(Wrapped(model, lambda net, x: pack(net(x))), TensorDataset(x, y)), model, x)


def test_batches_that_cannot_be_read(model, x, y):
    words = r"batches \(inputs, targets\), .* with Batches\(ids=2\), got a batch of 3 parts"
    refused(words, from_torch, model, TensorDataset(x, y, y))
    with pytest.raises(InputError, match="one of the keys labels, label, targets, target, y, got keys x, kind; name"):
        from_torch(model, Records(lambda i: {"x": x[i], "kind": y[i]}))
    with pytest.raises(InputError, match="got keys label, y; name the targets: batches="):
        from_torch(model, Records(lambda i: {"x": x[i], "y": y[i], "label": y[i]}))
    with pytest.raises(InputError, match=r"targets: expected a key of the batch, got 'knd'; did you mean kind\?"):
        from_torch(model, Records(lambda i: {"x": x[i], "kind": y[i]}), batches=Batches(targets="knd"))
    refused(
        "batches.ids: expected a position in the batch, 0 to 1, got 5",
        from_torch,
        model,
        TensorDataset(x, y),
        batches=Batches(ids=5),
    )
    refused(r"expected .* or dicts, got Tensor; return the targets as well", from_torch, model, Records(lambda i: x[i]))
    with pytest.raises(InputError, match="one target a record, got a single target; give the DataLoader a batch_size"):
        from_torch(model, DataLoader(TensorDataset(x, y), batch_size=None))
    refused("data: expected a DataLoader or a Dataset, got dict", from_torch, model, {"x": x})
    refused("data: expected at least 2 records, got 0", from_torch, model, TensorDataset(x[:0], y[:0]))
    refused("features: expected at least 2 records, got 1", from_torch, model, TensorDataset(x[:1], y[:1]))
    with pytest.raises(InputError, match=r"model: expected a torch.nn.Module, got str; for scikit-learn use from_skl"):
        from_torch("model", TensorDataset(x, y))
    with pytest.raises(InputError, match="cannot be compared between two passes"):
        from_torch(model, DataLoader(TensorDataset(x, y), collate_fn=lambda rows: (object(), torch.zeros(1))))
    uneven = DataLoader(
        TensorDataset(x, y), 4, collate_fn=lambda rows: (x[: len(rows)], torch.zeros(len(rows), len(rows)))
    )
    words = r"targets: expected rows of shape \(4,\) and type float32 in every batch, got rows of shape \(3,"
    refused(words, from_torch, model, uneven)
    mixed = Records(lambda i: (x[i], 1 if i < 8 else 1.5))
    words = r"targets: expected rows .* type int64 in every batch, got rows .* type float64"
    refused(words, from_torch, model, mixed, batches=Batches(4))


def test_layer_names(model, x, y):
    words = r"layer: expected the name of an nn.Linear .*, got 'bdy'; did you mean body\?"
    refused(words, from_torch, model, TensorDataset(x, y), layer="bdy")
    with pytest.raises(InputError, match=r"layer: expected an nn.Linear, got 'act', a ReLU; choose from body, fc"):
        from_torch(model, TensorDataset(x, y), layer="act")
    refused(r"got 'fc'; the model has no nn.Linear", from_torch, nn.Flatten(), TensorDataset(x, y), layer="fc")
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
    refused(words, from_torch, Wrapped(model, forward), TensorDataset(x, y))


def test_a_model_without_linear_layers_is_refused(x, y):
    words = r"a model whose head is not linear \(no nn.Linear ran\); return raw outputs \(no softmax\), name the layer"
    words += r" with layer=, or build Head \(a black box: features=None\)$"
    with pytest.raises(InputError, match=words):
        from_torch(nn.Sequential(nn.Unflatten(1, (6, 1)), nn.Conv1d(6, 3, 1), nn.Flatten()), TensorDataset(x, y))


def test_a_layer_that_runs_twice_is_refused(model, x, y):
    twice = Wrapped(nn.Linear(6, 6), lambda net, x: net(net(x)))
    for layer in (None, "net"):
        with pytest.raises(InputError, match="a layer that runs once a record, got layer 'net', which runs 2 times"):
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


@pytest.mark.parametrize("token", [0, -1])
def test_the_token_is_taken_whose_outputs_the_model_returns(generator, y, token):
    tokens = torch.randn(N, 4, 6, generator=generator)
    net = TokenModel(lambda outputs: outputs[:, token])
    head = from_torch(net, TensorDataset(tokens, y))
    assert torch.equal(head.features, tokens[:, token])
    torch.testing.assert_close(head.outputs, net(tokens).detach())


def test_layers_that_see_tokens_are_refused(generator, y):
    data = TensorDataset(torch.randn(N, 4, 6, generator=generator), y)
    words = r"layer: expected one row of features a record in layer 'fc', got shape \(23, 4, 6\) for 23 targets; pool"
    refused(words, from_torch, TokenModel(nn.Identity()), data)
    averaging = TokenModel(lambda outputs: outputs.mean(1))
    refused("head is not linear", from_torch, averaging, data)
    refused(words, from_torch, averaging, data, layer="fc")
    flat = Wrapped(nn.Linear(6, 3), lambda net, t: net(t.reshape(-1, 6)))
    words = r"one row of features a record in layer 'net', got shape \(92, 6\) for 23 targets"
    refused(words, from_torch, flat, data)


def test_a_linear_layer_that_does_not_multiply_by_its_weight_is_refused(x, y):
    class Cosine(nn.Linear):
        def forward(self, x):
            return super().forward(nn.functional.normalize(x))

    words = r"outputs: expected features @ weight.T \+ bias, got a difference of .* in row \d+ where"
    refused(words, from_torch, Cosine(6, 3), TensorDataset(3 * x, y))


class RawDataset:
    """Stands in for datasets.Dataset: rows are dicts of plain values, columns are read by name."""

    def __init__(self, columns):
        self._columns, self.column_names = columns, list(columns)

    def __len__(self):
        return len(self._columns["label"])

    def __getitem__(self, key):
        if isinstance(key, str):
            return self._columns[key]
        return {name: values[key] for name, values in self._columns.items()}

    def __getitems__(self, rows):
        return [self[row] for row in rows]


class Decoder(nn.Module):
    """A head on every token; the outputs of the last token before the padding are returned."""

    def __init__(self):
        super().__init__()
        self.tokens, self.score = nn.Embedding(30, 8), nn.Linear(8, 3, bias=False)

    def forward(self, input_ids, attention_mask):
        logits = self.score(self.tokens(input_ids).cumsum(dim=1))
        return SimpleNamespace(logits=logits[torch.arange(len(logits)), attention_mask.sum(dim=1) - 1])


@pytest.fixture
def raw(generator, y):
    """Token numbers and masks of texts padded on the right, as lists."""
    tokens = torch.randint(0, 30, (N, 6), generator=generator)
    mask = (torch.arange(6) < 2 + torch.arange(N).unsqueeze(1) % 5).int()
    columns = {"sentence": [f"text {row}" for row in range(N)], "input_ids": tokens.tolist()}
    return columns | {"attention_mask": mask.tolist(), "label": y.tolist()}


def test_raw_datasets_and_decoders_with_padding_on_the_right(raw, y):
    net = Decoder()
    head = from_torch(net, RawDataset(raw), batches=Batches(5))
    last = [
        net.tokens(torch.tensor(ids[: sum(mask)])).sum(dim=0)
        for ids, mask in zip(raw["input_ids"], raw["attention_mask"], strict=True)
    ]
    torch.testing.assert_close(head.features, torch.stack(last).detach())
    torch.testing.assert_close(head.outputs, net.score(torch.stack(last)).detach())
    assert torch.equal(head.targets, y)
    numbered = RawDataset(raw | {"idx": list(range(100, 100 + N))})
    words = r"inputs that the model's forward takes, got others \(idx\); remove .* Batches\(ids='idx'\)"
    refused(words, from_torch, net, numbered)
    assert from_torch(net, numbered, batches=Batches(ids="idx")).ids[0] == 100
    ragged = [ids[: sum(mask)] for ids, mask in zip(raw["input_ids"], raw["attention_mask"], strict=True)]
    refused("several lengths; pad to a fixed length", from_torch, net, RawDataset(raw | {"input_ids": ragged}))
    refused(r"got shapes .*; align the rows", from_torch, net, (torch.zeros(4, 2), torch.zeros(3)))
