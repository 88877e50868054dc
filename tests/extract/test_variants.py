"""Relatives and records held out in from_torch: what the model is asked, in every way of keeping the rows."""

import importlib
import textwrap

import joblib
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.naive_bayes import GaussianNB
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from giveaway.cli.source import source_from
from giveaway.extract import Batches, Cached, from_file, from_torch
from giveaway.extract.batches import shifted
from giveaway.extract.torch_head import from_torch_shared
from giveaway.linalg.processes import Processes
from tests.conftest import refused
from tests.extract.examples import N, Records, tried


def pictures(channels: int = 3, height: int = 9, width: int = 20, n: int = N) -> torch.Tensor:
    return torch.rand(n, channels, height, width, generator=torch.Generator().manual_seed(1))


def network(channels: int = 3) -> nn.Module:
    torch.manual_seed(2)
    body = (nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(4 * 7 * 18, 3))


def said(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    was = model.training
    with torch.no_grad():
        outputs = model.eval()(images)
    model.train(was)
    return outputs


def moved(images: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """Every pixel looked up by itself, the border mirrored without repeating the outermost row."""

    def place(at: int, size: int) -> int:
        return -at if at < 0 else 2 * (size - 1) - at if at >= size else at

    height, width = images.shape[2:]
    out = torch.empty_like(images)
    for i in range(height):
        for j in range(width):
            out[:, :, i, j] = images[:, :, place(i - down, height), place(j - right, width)]
    return out


@given(st.integers(8, 40), st.integers(8, 40), st.sampled_from([-1, 0, 1]), st.sampled_from([-1, 0, 1]))
def test_a_shift_moves_whole_pixels_and_mirrors_the_border(height, width, down, right):
    images = (pictures(1, height, width, n=2) * 255).to(torch.uint8)
    steps = [max(1, round(0.06 * side)) for side in (height, width)]
    assert torch.equal(shifted(images, down, right), moved(images, down * steps[0], right * steps[1]))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_asked_about_mirrored_and_shifted(channels):
    model, x, y = network(channels).train(), pictures(channels), torch.arange(N) % 3
    before = {name: value.clone() for name, value in model.state_dict().items()}
    head = from_torch(model, DataLoader(TensorDataset(x, y), batch_size=5))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert list(head.relatives) == ["mirror", "shift"]
    torch.testing.assert_close(head.outputs, said(model, x))
    torch.testing.assert_close(head.relatives["mirror"], said(model, torch.from_numpy(x.numpy()[..., ::-1].copy())))
    both = [said(model, moved(x, way, way)) for way in (1, -1)]
    torch.testing.assert_close(head.relatives["shift"], (both[0] + both[1]) / 2)
    assert from_torch(model, TensorDataset(x, y), relatives=False).relatives is None


class Bytes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images.float().div_(255))


def test_bytes_autocast_and_models_that_write_into_their_inputs():
    x, y = (pictures() * 255).to(torch.uint8), torch.arange(N) % 3
    model = Bytes()
    with torch.autocast("cpu", torch.bfloat16):
        head = from_torch(model, TensorDataset(x, y))
        torch.testing.assert_close(head.relatives["mirror"], said(model, x.flip(3)).float())

    class Writing(Bytes):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.net(images.mul_(0.5))

    writing, images = Writing(), pictures()
    made = from_torch(writing, Records(lambda i: (images[i].clone(), y[i])), batches=Batches(4))
    torch.testing.assert_close(made.relatives["mirror"], said(writing, images.flip(3)))


@pytest.mark.parametrize(
    "x",
    [torch.rand(N, 6), torch.rand(N, 3, 6, 20), torch.rand(N, 4, 9, 20), torch.arange(N * 180).reshape(N, 1, 9, 20)],
)
def test_other_records_have_no_built_in_variants(x):
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(x[0].numel(), 3)

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return self.fc(given.flatten(1).float())

    data = TensorDataset(x, torch.arange(N) % 3)
    assert from_torch(Flat(), data).relatives is None
    refused(
        "^relatives: expected images .* as the model's one input, got other", from_torch, Flat(), data, relatives=True
    )


def test_functions_of_a_batch_make_variants_of_any_records(model, x, y):
    noisy = {"noisy": lambda batch: batch + 1, "other": lambda batch: batch.flip(1)}
    head = from_torch(model, TensorDataset(x, y), batches=Batches(4), relatives=noisy)
    torch.testing.assert_close(head.relatives["noisy"], said(model, x + 1))
    torch.testing.assert_close(head.relatives["other"], said(model, x.flip(1)))

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, texts: list[str], scale: torch.Tensor | None = None) -> torch.Tensor:
            counts = torch.tensor([[float(len(text)), float(text.count("a"))] for text in texts])
            return self.fc(counts if scale is None else counts * scale[:, None])

    texts, net = ["a cat", "a b c", "banana", "tree"], Words()
    records = [(text, label) for text, label in zip(texts, [0, 1, 0, 1], strict=True)]
    dropped = from_torch(net, records, relatives={"dropped": lambda batch: [text[1:] for text in batch]})
    torch.testing.assert_close(dropped.relatives["dropped"], said(net, [text[1:] for text in texts]))
    named = [{"texts": t, "scale": torch.tensor(float(i)), "labels": i % 2} for i, t in enumerate(texts)]
    doubled = {"doubled": lambda batch: batch | {"scale": 2 * batch["scale"]}}
    head = from_torch(net, named, relatives=doubled)
    torch.testing.assert_close(head.relatives["doubled"], net(texts, 2.0 * torch.arange(4)).detach())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, "^relatives: expected None, True, False or a dict of functions, got a int"),
        ({"a b": len}, "^relatives: expected functions by the variant's name, a plain word, got .* 'a b'"),
        ({"ab": 3}, "^relatives: expected functions by the variant's name, a plain word, got int 'ab'"),
        ({"half": lambda batch: batch[:2]}, r"^relatives\['half'\]: layer: expected one row of features a record"),
    ],
)
def test_what_cannot_make_variants(model, x, y, given, words):
    refused(words, from_torch, model, TensorDataset(x, y), relatives=given)


def test_a_cache_keeps_relatives_and_records_held_out(tmp_path):
    model, x, y = network(), pictures(), torch.arange(N) % 3
    runs = []
    model.register_forward_pre_hook(lambda _, inputs: runs.append(len(inputs[0])))
    data, other = TensorDataset(x, y), TensorDataset(pictures(n=9) + 1, torch.arange(9) % 3)
    plain = from_torch(model, data, held_out=other)
    runs.clear()
    heads = [from_torch(model, data, batches=Batches(b), keep=Cached(tmp_path / "c"), held_out=other) for b in (7, 4)]
    assert sum(runs) == 4 * N + 9 + tried(N)
    for head in (*heads, from_file(tmp_path / "c")[0]):
        for name, rows in plain.relatives.items():
            torch.testing.assert_close(head.relatives[name], rows)
        torch.testing.assert_close(head.held_out[0], plain.held_out[0])
        assert torch.equal(head.held_out[1], plain.held_out[1])
    # what is not wanted now is left out, what is lacking is refused
    less = from_torch(model, data, keep=Cached(tmp_path / "c"), relatives=False)
    assert less.relatives is less.held_out is None
    from_torch(model, data, keep=Cached(tmp_path / "d"), relatives=False)
    words = r"got it has no outputs on variants \(mirror, shift\); choose another folder"
    refused(words, from_torch, model, data, keep=Cached(tmp_path / "d"))
    refused(
        "the records held out differ",
        from_torch,
        model,
        data,
        keep=Cached(tmp_path / "d"),
        relatives=False,
        held_out=other,
    )
    changed = TensorDataset(pictures(n=9) + 2, torch.arange(9) % 3)
    refused("the records held out differ", from_torch, model, data, keep=Cached(tmp_path / "c"), held_out=changed)


def test_shares_of_processes_are_joined(tmp_path, monkeypatch):
    monkeypatch.setattr(Processes, "barrier", lambda self: None)
    model, data = network(), TensorDataset(pictures(), torch.arange(N) % 3)
    other = TensorDataset(pictures(n=9) + 1, torch.arange(9) % 3)
    with pytest.raises(FileNotFoundError):  # the second process has not written its share yet
        from_torch_shared(model, data, Processes(0, 2), keep=Cached(tmp_path / "c"), held_out=other)
    head = from_torch_shared(model, data, Processes(1, 2), keep=Cached(tmp_path / "c"), held_out=other)
    whole = from_torch(model, data, held_out=other)
    for name, rows in whole.relatives.items():
        torch.testing.assert_close(head.relatives[name][0:N], rows)
    torch.testing.assert_close(head.held_out[0], whole.held_out[0])


def test_records_held_out_are_read_as_the_others_are(model, x, y):
    data = Records(lambda i: {"given": x[i], "y": y[i]})
    batches = [{"given": x[:4] + 1, "y": y[:4]}, {"given": x[4:9] + 1, "y": y[4:9]}]
    head = from_torch(model, data, batches=Batches(inputs="given"), held_out=DataLoader(batches, batch_size=None))
    torch.testing.assert_close(head.held_out[0], said(model, x[:9] + 1))
    assert torch.equal(head.held_out[1], y[:9])
    data = TensorDataset(x, y)
    same = "^held_out: expected records that the model was not trained on, got 3 records, all of which are in data"
    refused(same, from_torch, model, data, held_out=TensorDataset(x[2:5], y[2:5]))
    refused("^held_out data: expected a DataLoader or a Dataset", from_torch, model, data, held_out=x)
    shuffled = DataLoader(TensorDataset(x + 1, y), shuffle=True)
    refused("^held_out data: expected every record once", from_torch, model, data, held_out=shuffled)
    refused("^held_out targets: expected class labels", from_torch, model, data, held_out=TensorDataset(x + 1, y + 5))


def test_the_command_line_names_records_held_out_and_turns_relatives_off(tmp_path, monkeypatch):
    code = """
    import torch
    from torch.utils.data import TensorDataset
    def net():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    def data(n=23):
        return TensorDataset(torch.arange(64.0 * n).view(n, 1, 8, 8) / (64 * n), torch.arange(n) % 3)
    def other():
        return data(11)
    """
    (tmp_path / "pictured.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    named, said = {"model": "pictured:net", "data": "pictured:data"}, []
    head, _ = source_from(named | {"held_out": "pictured:other"}, said.append)
    assert repr(head).endswith("relatives=mirror+shift, held_out=11)")
    assert "Running your code: pictured:other" in said
    assert source_from(named | {"relatives": False}, said.append)[0].relatives is None
    words = "^relatives: expected --model beside it, got --features; drop relatives"
    refused(words, source_from, {"features": "x.npz", "relatives": False}, said.append)


def test_the_command_line_names_records_held_out_of_an_estimator(tmp_path, monkeypatch):
    code = """
    from sklearn.datasets import load_iris
    def data():
        x, y = load_iris(return_X_y=True)
        return x[::2], y[::2]
    def other():
        x, y = load_iris(return_X_y=True)
        return x[1::2], y[1::2]
    """
    (tmp_path / "flowers.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    made = importlib.import_module("flowers")
    joblib.dump(GaussianNB().fit(*made.data()), tmp_path / "model.joblib")
    named = {"estimator": str(tmp_path / "model.joblib"), "allow_pickle": True, "data": "flowers:data"}
    said = []
    head, _ = source_from(named | {"held_out": "flowers:other"}, said.append)
    assert said == ["Running your code: flowers:data", "Running your code: flowers:other"]
    assert head.held_out[1].tolist() == made.other()[1].tolist()
    words = "^held_out: expected --model or --estimator beside it|^held_out: expected --estimator or --model beside it"
    refused(words, source_from, {"features": "x.npz", "held_out": "flowers:other"}, said.append)
