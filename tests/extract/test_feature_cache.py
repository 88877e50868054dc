"""The feature cache: the network runs once, what comes back is what it gave, and anything else is refused."""

import copy
import importlib
import json
import os
import stat
import textwrap

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from giveaway import audit
from giveaway.checks import InputError
from giveaway.cli.source import source_from
from giveaway.extract import Batches, Cached, InMemory, from_file, from_torch
from giveaway.extract.feature_cache import FeatureCache, RowWriters, SharedCache
from giveaway.extract.torch_head import from_torch_shared
from giveaway.extract.torch_model import model_digest
from giveaway.linalg.processes import Processes
from giveaway.records import FileRows, rows
from tests import forked
from tests.conftest import refused
from tests.extract.examples import N, Records, assert_is_head_of, named_stream, tried


@pytest.fixture
def large(monkeypatch):
    monkeypatch.setattr(rows, "LARGE_BYTES", 1)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("batch_size", [1, 4, 23, 50])
def test_the_network_runs_once_and_then_never(tmp_path, counted, x, y, batch_size):
    model, rows = counted
    records = TensorDataset(x, y)
    head = from_torch(model, DataLoader(records, batch_size=4), keep=Cached(tmp_path / "cache"), l2=0.5)
    assert sum(rows) == N + tried(N)
    plain = from_torch(model, DataLoader(records, batch_size=4), l2=0.5)
    rows.clear()
    again = from_torch(model, DataLoader(records, batch_size=batch_size), keep=Cached(tmp_path / "cache"), l2=0.5)
    assert rows == []
    for found in (head, again):
        assert isinstance(found.features, FileRows)
        assert isinstance(found.features.arrays[0], np.memmap)
        for name in ("features", "outputs", "targets", "weight", "bias"):
            mine, theirs = getattr(found, name)[0:N], getattr(plain, name)[0:N]
            assert torch.equal(mine, theirs)
            assert mine.dtype == theirs.dtype
        assert (found.loss, found.l2) == (plain.loss, plain.l2)
        assert torch.equal(found.inputs, plain.inputs)
    a, b = audit(plain, scores=["newton", "influence"]), audit(again, scores=["newton", "influence"])
    np.testing.assert_array_equal(a["newton"], b["newton"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_precision_is_the_models_and_bfloat16_becomes_float32(tmp_path, model, x, y, dtype):
    net = model.to(dtype)
    data = TensorDataset(x.to(dtype), y)
    plain, head = from_torch(net, data), from_torch(net, data, keep=Cached(tmp_path / "cache"))
    assert head.features.dtype == plain.features.dtype
    assert torch.equal(head.features[0:N], plain.features)
    assert torch.equal(head.outputs[0:N], plain.outputs)


def test_files_are_private_and_listed(tmp_path, model, x, y):
    folder = tmp_path / "new" / "cache"
    from_torch(model, TensorDataset(x, y), keep=Cached(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    marker = json.loads((folder / "cache.json").read_text())
    assert set(marker["files"]) == {f"{name}.npy" for name in ("features", "outputs", "targets", "weight", "bias")}
    assert (marker["rows"], marker["layer"]) == (N, "fc")
    assert {file.name for file in folder.iterdir()} == {*marker["files"], "cache.json"}


def test_a_cache_is_a_folder_of_arrays(tmp_path, model, x, y):
    head = from_torch(model, TensorDataset(x, y), keep=Cached(tmp_path / "cache"))
    assert_is_head_of(head, model, x)
    np.testing.assert_array_equal(head.features.numpy(), np.load(tmp_path / "cache" / "features.npy"))
    again, notes = from_file(tmp_path / "cache")
    assert torch.equal(again.features, head.features)
    assert torch.equal(again.weight, head.weight)
    assert notes == []


def refusal(*arguments, **options):
    return refused("; ", from_torch, *arguments, **options)


def test_other_contents_are_refused_with_the_difference(tmp_path, counted, x, y):
    model, rows = counted
    cache = tmp_path / "cache"
    from_torch(model, TensorDataset(x, y), keep=Cached(cache))
    rows.clear()
    words = "cache: expected features of the same model and data, got {}; choose another folder, or remove this one"
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.body.weight[0, 0] += 1e-6
    changed = x.clone()
    changed[3, 2] += 1e-6
    for data, net, options, difference in (
        (TensorDataset(x, y), other, {}, "the model or its weights differ"),
        (TensorDataset(changed, y), model, {}, "the records differ"),
        (TensorDataset(x, (y + 1) % 3), model, {}, "the records differ"),
        (TensorDataset(x.flip(0), y.flip(0)), model, {}, "the records differ"),
        (TensorDataset(x[:20], y[:20]), model, {}, "23 records then, 20 now"),
        (TensorDataset(x, y), model, {"layer": "body"}, "layer was None, is 'body'"),
        (TensorDataset(x[:9], y[:9]), other, {}, "the model or its weights differ; 23 records then, 9 now"),
    ):
        assert refusal(net, data, keep=Cached(cache), **options).startswith(words.format(difference))
    with torch.autocast("cpu", torch.bfloat16):
        half = refusal(model, TensorDataset(x, y), keep=Cached(cache))
    assert half.startswith(words.format("autocast was None, is 'bfloat16'"))
    assert rows == []
    from_torch(model, TensorDataset(x, y), keep=Cached(cache), layer="fc")
    assert rows == []


def test_the_digest_sees_weights_buffers_and_layers(model):
    def digest(change):
        net = copy.deepcopy(model)
        net.add_module("norm", nn.BatchNorm1d(3))
        net.register_buffer("hidden", torch.zeros(2), persistent=False)
        change(net)
        return model_digest(net)

    same = [lambda net: None, lambda net: net.eval(), lambda net: net.requires_grad_(False)]
    others = [
        lambda net: net.body.bias.data.add_(1e-5),
        lambda net: net.norm.running_mean.add_(1),
        lambda net: net.hidden.add_(1),
        lambda net: setattr(net, "act", nn.GELU()),
    ]
    assert len({digest(change) for change in same}) == 1
    assert len({digest(change) for change in [*same, *others]}) == 1 + len(others)


# ------------------------------------------------------------------------------------------------ ids


def test_shuffled_batches_with_ids_find_their_rows_again(tmp_path, counted, x, y):
    model, rows = counted
    named = Records(lambda i: {"inputs": x[i], "labels": y[i], "ids": f"scan-{i}"})
    people = {f"scan-{i}": i // 2 for i in range(N)}

    def head(seed):
        loader = DataLoader(named, 5, shuffle=True, generator=torch.Generator().manual_seed(seed))
        return from_torch(
            model, loader, batches=Batches(inputs="inputs"), keep=Cached(tmp_path / "cache"), groups=people
        )

    first, again = head(0), head(1)
    assert sum(rows) == N + tried(N)
    np.testing.assert_array_equal(first.ids, again.ids)
    for found in (first, again):
        order = [int(name.removeprefix("scan-")) for name in found.ids]
        assert order != sorted(order)
        assert torch.equal(found.inputs, x[order])
        assert torch.equal(found.targets, y[order])
        np.testing.assert_array_equal(found.groups, [row // 2 for row in order])
        torch.testing.assert_close(found.features[0:N], torch.relu(model.body(x[order])).detach())


def test_text_inputs_follow_their_ids(tmp_path, x, y):
    class Lengths(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(1, 3)

        def forward(self, texts):
            return self.fc(torch.tensor([[float(len(text))] for text in texts]))

    named = Records(lambda i: {"inputs": "x" * (i + 1), "labels": y[i], "ids": i})
    net = Lengths()
    for seed in (0, 1):
        loader = DataLoader(named, 5, shuffle=True, generator=torch.Generator().manual_seed(seed))
        head = from_torch(net, loader, batches=Batches(inputs="inputs"), keep=Cached(tmp_path / "cache"))
        assert [len(text) for text in head.inputs] == [row + 1 for row in head.ids]
        assert head.features.flatten().tolist() == [row + 1 for row in head.ids]


def test_rows_whose_number_is_not_known_beforehand(tmp_path, counted, x, y):
    model, rows = counted
    for _ in range(2):
        loader = DataLoader(named_stream(x, y), 6)
        assert_is_head_of(
            from_torch(model, loader, batches=Batches(inputs="x"), keep=Cached(tmp_path / "cache")), model, x
        )
    assert sum(rows) == N + tried(N)


# ------------------------------------------------------------------------------------------------ half caches


def flip(file):
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)


DAMAGES = {
    "cut features": lambda folder: os.truncate(folder / "features.npy", 200),
    "no outputs": lambda folder: (folder / "outputs.npy").unlink(),
    "a flipped bit": lambda folder: flip(folder / "features.npy"),
    "an empty file": lambda folder: (folder / "outputs.npy").write_bytes(b""),
    "files of a killed run": lambda folder: [
        *(file.unlink() for file in folder.iterdir()),
        (folder / ".giveaway-features.npy-12ab34cd.part").write_bytes(b"half"),
    ],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_half_caches_are_done_again(tmp_path, counted, x, y, damage):
    model, rows = counted
    folder = tmp_path / "cache"
    from_torch(model, TensorDataset(x, y), keep=Cached(folder))
    DAMAGES[damage](folder)
    rows.clear()
    assert torch.equal(from_torch(model, TensorDataset(x, y), keep=Cached(folder)).targets, y)
    assert sum(rows) == N + tried(N)
    assert not list(folder.glob(".*.part"))
    from_torch(model, TensorDataset(x, y), keep=Cached(folder))
    assert sum(rows) == N + tried(N)


def test_a_failing_run_leaves_nothing_behind(tmp_path, x, y):
    folder = tmp_path / "cache"

    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.calls = nn.Linear(6, 3), 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 7:  # the first batch is run once more, and four parts of it
                raise RuntimeError("out of luck")
            return self.fc(x)

    with pytest.raises(RuntimeError, match="out of luck"):
        from_torch(Fails(), TensorDataset(x, y), batches=Batches(4), keep=Cached(folder))
    assert not folder.exists()
    drawn = Records(lambda i: (torch.rand(6), y[i]))
    assert "differ between two passes" in refusal(nn.Linear(6, 3), drawn, keep=Cached(folder))
    assert not folder.exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("buffering", [0, -1])
def test_a_full_disk_is_said_in_one_line(tmp_path, model, x, y, monkeypatch, buffering):
    monkeypatch.setattr(RowWriters, "_header", lambda *_: None)
    plain = os.fdopen
    monkeypatch.setattr(
        os,
        "fdopen",
        lambda file, *mode: open("/dev/full", "r+b", buffering) if mode else plain(file),  # noqa: SIM115
    )
    words = "cache: expected room for the features, got No space left on device; choose a folder on a larger disk"
    assert refusal(model, TensorDataset(x, y), keep=Cached(tmp_path / "cache")).startswith(words)
    assert not (tmp_path / "cache").exists()


KILLED = """
import os, sys, torch
from torch.utils.data import TensorDataset
from giveaway.extract import Batches, Cached, from_torch
net = torch.nn.Linear(6, 3)
calls = []
def stop(*_):
    calls.append(1)
    if len(calls) == 8:  # in the second batch: the first is run six times in all
        os._exit(9)
net.register_forward_pre_hook(stop)
from_torch(net, TensorDataset(torch.rand(23, 6), torch.arange(23) % 3), batches=Batches(4), keep=Cached(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_killed_run_is_done_again(tmp_path, counted, x, y):
    folder, (model, rows) = tmp_path / "cache", counted
    done = forked.python("-c", KILLED, folder)
    assert done.returncode == 9, done.stderr
    left = {file.name for file in folder.iterdir()}
    assert len(left) == 4
    assert {name[:9] for name in left} == {".giveaway"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert FeatureCache(folder).parts()
    assert_is_head_of(from_torch(model, TensorDataset(x, y), keep=Cached(folder)), model, x)
    assert sum(rows) == N + tried(N)
    assert not list(folder.glob(".*.part"))


# ------------------------------------------------------------------------------------------------ folders


def test_folders_of_something_else_are_refused(tmp_path, model, x, y):
    (tmp_path / "thesis.txt").write_text("mine")
    words = "cache: expected a new, empty or earlier cache folder, got "
    assert refusal(model, TensorDataset(x, y), keep=Cached(tmp_path)).startswith(words)
    (tmp_path / "cache.json").write_text('{"kind": "of another program"}')
    assert refusal(model, TensorDataset(x, y), keep=Cached(tmp_path)).startswith(words)
    (tmp_path / "cache.json").write_text("{")
    assert refusal(model, TensorDataset(x, y), keep=Cached(tmp_path)).startswith(
        "cache: expected a readable cache.json"
    )
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_two_runs_do_not_share_a_folder(tmp_path, model, x, y):
    with FeatureCache(tmp_path / "cache").locked(new=True):
        words = refusal(model, TensorDataset(x, y), keep=Cached(tmp_path / "cache"))
        assert "in use by another run; wait for that run" in words


def test_removal_takes_what_the_cache_wrote_and_nothing_else(tmp_path, model, x, y):
    folder = tmp_path / "cache"
    from_torch(model, TensorDataset(x, y), keep=Cached(folder))
    assert FeatureCache(folder).marked
    (folder / "mine.npy").write_bytes(b"mine")
    (folder / ".giveaway-outputs.npy-00ff00ff.part").write_bytes(b"half")
    assert FeatureCache(folder).remove() == 6
    assert [file.name for file in folder.iterdir()] == ["mine.npy"]
    assert not FeatureCache(folder).marked
    refused(r"folder: expected a cache folder with cache.json, got .*; name", FeatureCache(folder).remove)
    from_torch(model, TensorDataset(x, y), keep=Cached(tmp_path / "other"))
    assert FeatureCache(tmp_path / "other").remove() == 6
    assert not (tmp_path / "other").exists()


def test_several_processes_share_a_cache(tmp_path, model, x, y, monkeypatch):
    monkeypatch.setattr(Processes, "barrier", lambda self: None)
    named = Records(lambda i: {"input": x[i], "y": y[i], "id": f"scan-{i}"})
    for data in (TensorDataset(x, y), named):
        cache = tmp_path / type(data).__name__
        with pytest.raises(FileNotFoundError):  # the second process has not written its share yet
            from_torch_shared(model, data, Processes(0, 2), keep=Cached(cache), l2=0.5)
        head = from_torch_shared(model, data, Processes(1, 2), keep=Cached(cache), l2=0.5)
        whole = from_torch(model, data, l2=0.5)
        for name in ("features", "outputs", "targets", "weight"):
            torch.testing.assert_close(getattr(head, name)[0:N], getattr(whole, name)[0:N])
        np.testing.assert_array_equal(head.ids, whole.ids)
        assert (head.loss, head.l2, head.inputs) == ("cross_entropy", 0.5, None)
        assert sorted(part.name for part in cache.iterdir()) == ["part-0-of-2", "part-1-of-2"]
        assert SharedCache(cache).remove() > 0
        assert not cache.exists()
    with pytest.raises(InputError, match="cache: expected a folder that all processes see, beside a model, got none"):
        from_torch_shared(model, named, Processes(0, 2), keep=InMemory())
    with pytest.raises(InputError, match="got a sampler RandomSampler; use shuffle=False and no sampler where several"):
        from_torch_shared(model, DataLoader(named, shuffle=True), Processes(0, 2), keep=Cached(tmp_path / "c"))


def test_the_command_line_names_a_cache(tmp_path, monkeypatch):
    code = """
    import torch
    from torch.utils.data import TensorDataset
    runs = []
    def net():
        torch.manual_seed(0)
        made = torch.nn.Linear(6, 3)
        made.register_forward_pre_hook(lambda *_: runs.append(1))
        return made
    def data():
        return TensorDataset(torch.arange(138.0).view(23, 6), torch.arange(23) % 3)
    """
    (tmp_path / "cachedmodel.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    named = {"model": "cachedmodel:net", "data": "cachedmodel:data"}
    runs = importlib.import_module("cachedmodel").runs
    for _ in range(2):
        source_from(named | {"cache": str(tmp_path / "cache")}, lambda words: None)
        assert len(runs) == 6  # the only batch is run again, and four parts of it
    with pytest.raises(InputError, match="cache: expected --model beside it, got --features; drop cache"):
        source_from({"features": "x.npz", "cache": "y"}, lambda words: None)
