"""Lazy rows: slices are those of an array, and a head of them is checked and read in a window of memory."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway import Head
from giveaway.checks import InputError
from giveaway.records import FileRows, HostRows, LinearRows
from giveaway.records import rows as row_module
from giveaway.records.rows import placed
from tests.conftest import refused
from tests.records.test_head import spoilt

SHARDS = st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 0)
TYPES = {
    np.float16: torch.float16,
    np.float32: torch.float32,
    np.float64: torch.float64,
    np.int32: torch.float64,
    np.uint16: torch.float64,
    np.dtype(">f4"): torch.float64,
}


def mapped(folder, arrays):
    """The same arrays as memory maps; NumPy cannot map an empty file."""
    maps = []
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", array)
        maps.append(np.load(folder / f"{number}.npy", mmap_mode="r") if array.size else array)
    return maps


@given(sizes=SHARDS, dtype=st.sampled_from(list(TYPES)), data=st.data())
def test_shards_read_as_one_array(tmp_path_factory, sizes, dtype, data):
    rng = np.random.default_rng(sum(sizes))
    arrays = [(100 * rng.random((size, 3))).astype(dtype) for size in sizes]
    rows = FileRows("features", mapped(tmp_path_factory.mktemp("shards"), arrays))
    whole = np.concatenate(arrays)
    n = len(whole)
    assert (rows.shape, rows.ndim, len(rows), rows.dtype) == ((n, 3), 2, n, TYPES[dtype])
    assert rows.nbytes == n * 3 * TYPES[dtype].itemsize
    start, stop = data.draw(st.integers(-n - 1, n + 1)), data.draw(st.integers(-n - 1, n + 1))
    numbers = data.draw(st.lists(st.integers(0, n - 1), max_size=9))
    for which, expected in ((slice(start, stop), whole[start:stop]), (torch.tensor(numbers).long(), whole[numbers])):
        found = rows[which]
        assert found.dtype == TYPES[dtype]
        np.testing.assert_array_equal(found.numpy(), expected.astype(found.numpy().dtype))
    np.testing.assert_array_equal(rows.whole().numpy(), whole)
    np.testing.assert_array_equal(rows[-1].numpy(), whole[-1])


def test_bits_of_bfloat16_become_float32(tmp_path):
    values = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    bits = values.view(torch.int16).numpy()
    rows = FileRows(
        "features", mapped(tmp_path, [bits[:4].view(row_module.BFLOAT16), bits[4:].view(row_module.BFLOAT16)])
    )
    assert (rows.dtype, rows.shape) == (torch.float32, (9, 4))
    assert torch.equal(rows[2:7], values[2:7].float())
    assert torch.equal(rows[torch.tensor([8, 0, 8])], values[[8, 0, 8]].float())
    assert torch.equal(rows[3:3], values[:0].float())


def test_what_was_read_is_no_view_of_the_file(tmp_path):
    array = np.arange(12.0).reshape(6, 2)
    (only,) = mapped(tmp_path, [array])
    rows = FileRows("features", [only])
    block = rows[0:3]
    assert not np.shares_memory(block.numpy(), only)
    block += 1
    np.testing.assert_array_equal(rows[0:3].numpy(), array[:3])


def test_changes_that_only_a_private_map_holds_are_kept(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    private = np.load(tmp_path / "x.npy", mmap_mode="c")
    private[1] = 7
    rows = FileRows("features", [private])
    for _ in range(2):
        np.testing.assert_array_equal(rows[0:4].numpy()[1], [7, 7])


@given(data=st.data(), bias=st.booleans(), lazy=st.booleans())
def test_linear_rows_are_the_product_of_what_they_are_made_of(data, bias, lazy):
    n, d, m = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    rng = np.random.default_rng(n + 10 * d + 100 * m)
    x, w = rng.normal(size=(n, d)).astype(np.float32), rng.normal(size=(m, d))
    b = rng.normal(size=m) if bias else None
    features = HostRows(torch.from_numpy(x), "cpu") if lazy else torch.from_numpy(x)
    rows = LinearRows(features, torch.from_numpy(w), None if b is None else torch.from_numpy(b))
    expected = np.array([[sum(x[i, k] * w[j, k] for k in range(d)) + (b[j] if bias else 0) for j in range(m)]
                         for i in range(n)])  # fmt: skip
    assert (rows.shape, rows.dtype) == ((n, m), torch.float64)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    numbers = data.draw(st.lists(st.integers(0, n - 1), max_size=5))
    np.testing.assert_allclose(rows[start:stop].numpy(), expected[start:stop], atol=1e-12)
    np.testing.assert_allclose(rows[torch.tensor(numbers).long()].numpy(), expected[numbers], atol=1e-12)


def test_linear_rows_know_what_they_come_from():
    x, w, b = torch.ones(4, 2), torch.eye(2), torch.zeros(2)
    rows = LinearRows(x, w)
    assert rows.comes_from(x.detach(), w, b)
    assert not rows.comes_from(x.clone(), w, None)
    assert not rows.comes_from(x, 2 * w, None)
    assert not rows.comes_from(x, w, b + 1)
    assert rows.over(2 * x)[0].tolist() == [2.0, 2.0]


def test_outputs_beyond_float64_are_refused_where_they_are_read():
    x = torch.ones(9, 2, dtype=torch.float64)
    x[6] = 1e308
    rows = LinearRows(x, torch.full((1, 2), 9.0))
    assert rows[0:6].isfinite().all()
    with pytest.raises(InputError, match=r"outputs: expected finite numbers, got NaN or infinity first in row 6 "):
        rows[5:8]
    with pytest.raises(InputError, match="first in row 6 "):
        rows[torch.tensor([1, 6])]


def test_host_rows_are_the_tensors_own():
    tensor = torch.randn(7, 3)
    rows = HostRows(tensor, "cpu")
    assert torch.equal(rows[2:5], tensor[2:5])
    assert torch.equal(rows[torch.tensor([6, 0])], tensor[[6, 0]])
    assert rows.to("cpu").tensor is tensor


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_rows_are_read_onto_a_gpu(tmp_path):
    x, w = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32), torch.ones(2, 3)
    files = FileRows("features", mapped(tmp_path, [x[:20], x[20:]])).to("cuda")
    for rows in (files, HostRows(torch.from_numpy(x), "cuda")):
        for which in (slice(15, 30), torch.tensor([40, 3]), torch.tensor([40, 3]).cuda()):
            assert rows[which].is_cuda
            np.testing.assert_array_equal(rows[which].cpu().numpy(), x[which.cpu() if hasattr(which, "cpu") else which])
        assert LinearRows(rows, w)[3:9].is_cuda


def test_what_cannot_be_asked():
    rows = HostRows(torch.zeros(5, 2), "cpu")
    for which in (slice(0, 5, 2), torch.tensor([True] * 5), torch.tensor([[1]]), torch.tensor([5]), torch.tensor([-1])):
        with pytest.raises(IndexError):
            rows[which]
    with pytest.raises(IndexError):
        rows[5]
    with pytest.raises(TypeError, match="read in slices"):
        np.asarray(rows)
    assert repr(rows) == "HostRows(5, 2) of float32 on cpu"


N, D, M = 30, 4, 3


@pytest.fixture
def arrays() -> dict:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(N, D)).astype(np.float32)
    weight, bias = rng.normal(size=(M, D)), rng.normal(size=M)
    outputs = features @ weight.T + bias
    return {"features": features, "outputs": outputs, "weight": weight, "bias": bias}


@pytest.fixture
def everything_is_large(monkeypatch):
    monkeypatch.setattr(row_module, "LARGE_BYTES", 1)


def on_disk(folder, array, name="array"):
    np.save(folder / f"{name}.npy", array)
    return np.load(folder / f"{name}.npy", mmap_mode="r")


def head_of(arrays, **changed) -> Head:
    return Head(**{"targets": np.arange(N) % M, "loss": "cross_entropy", "l2": 0.1} | arrays | changed)


class Counted(FileRows):
    """Counts how often each row is read."""

    def __init__(self, array):
        super().__init__("features", [array])
        self.reads = np.zeros(len(array), int)

    def _read(self, which):
        self.reads[which] += 1
        return super()._read(which)


@pytest.mark.usefixtures("everything_is_large")
def test_maps_given_directly_stay_in_their_files(tmp_path, arrays):
    maps = {name: on_disk(tmp_path, arrays[name], name) for name in ("features", "outputs")}
    head, held = head_of(arrays | maps), head_of(arrays)
    assert isinstance(head.features, FileRows)
    assert isinstance(head.outputs, FileRows)
    assert head.features.arrays[0] is maps["features"]
    assert repr(head) == repr(held)
    for which in (slice(3, 17), torch.tensor([29, 0, 7])):
        mine, theirs = head.window(which), held.window(which)
        assert torch.equal(mine.features, theirs.features)
        assert torch.equal(mine.outputs, theirs.outputs)
        assert torch.equal(mine.rows(), theirs.rows())


@pytest.mark.usefixtures("everything_is_large")
def test_one_output_in_a_flat_map(tmp_path, arrays):
    flat = on_disk(tmp_path, arrays["outputs"][:, 0])
    head = Head(arrays["features"], flat, np.arange(N) % 2, "cross_entropy")
    assert isinstance(head.outputs, FileRows)
    assert head.outputs.shape == (N, 1)


@pytest.mark.usefixtures("everything_is_large")
def test_results_of_arithmetic_on_maps_are_no_maps(tmp_path, arrays):
    head = head_of(arrays, features=on_disk(tmp_path, arrays["features"]) * 1)
    assert isinstance(head.features, torch.Tensor)


@pytest.mark.parametrize("with_weights", [True, False])
@pytest.mark.parametrize("name", ["features", "outputs"])
def test_what_is_not_finite_in_a_file_is_found(tmp_path, arrays, name, with_weights):
    spoilt_rows = FileRows(name, [on_disk(tmp_path, spoilt(arrays[name], (21, 1), np.nan))])
    changed = {name: spoilt_rows} | ({} if with_weights else {"weight": None, "bias": None})
    refused(rf"{name}: expected finite numbers, got NaN or infinity first in row 21 ", head_of, arrays, **changed)


def test_outputs_of_other_weights_in_a_file_are_found(tmp_path, arrays):
    wrong = FileRows("outputs", [on_disk(tmp_path, spoilt(arrays["outputs"], (9, 1), 40.0))])
    refused(r"outputs: expected features @ weight.T \+ bias, got a .* in row 9 ", head_of, arrays, outputs=wrong)
    other = LinearRows(torch.from_numpy(arrays["features"]), torch.from_numpy(2 * arrays["weight"]))
    refused(r"outputs: expected features @ weight.T \+ bias", head_of, arrays, outputs=other)


def test_probabilities_in_a_file_are_no_logits(tmp_path):
    rows = np.full((N, 2), 0.5)
    for values, words in ((rows, "expected logits, got probabilities"), (spoilt(rows, (8, 0), -np.inf), "in row 8")):
        stored = FileRows("outputs", [on_disk(tmp_path, values)])
        refused(words, Head, None, stored, np.arange(N) % 2, "cross_entropy")


def test_each_row_is_read_once_to_be_checked(tmp_path, arrays):
    weight, bias = torch.from_numpy(arrays["weight"]), torch.from_numpy(arrays["bias"])
    for made in (lambda rows: arrays["outputs"], lambda rows: LinearRows(rows, weight, bias)):
        rows = Counted(on_disk(tmp_path, arrays["features"]))
        head = head_of(arrays, features=rows, outputs=made(rows))
        assert rows.reads.tolist() == [1] * N
        head.window(slice(4, 9))
        assert rows.reads.sum() == N + 5
        head.to("cpu")
        assert rows.reads.sum() == N + 5


def test_other_names_read_nothing_and_are_checked(tmp_path, arrays):
    rows = Counted(on_disk(tmp_path, arrays["features"]))
    head = head_of(arrays, features=rows)
    before = rows.reads.sum()
    named = head.named(ids=[f"p{i}" for i in range(N)], groups=np.arange(N) // 2)
    assert rows.reads.sum() == before
    assert (named.ids[3], named.groups[3], head.ids[3], head.groups) == ("p3", 1, 3, None)
    assert head.named(groups=np.zeros(N, int)).ids is head.ids
    refused("ids: expected a different id for every record", head.named, ids=np.zeros(N, int))
    refused("groups: expected one name a record, 30 in all", head.named, groups=["x"])


def test_other_parameters_of_lazy_rows_stay_lazy(tmp_path, arrays):
    rows = Counted(on_disk(tmp_path, arrays["features"]))
    head = head_of(arrays, features=rows)
    theta = torch.randn(D + 1, M, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = rows.reads.sum()
    moved = head.with_parameters(theta)
    assert rows.reads.sum() == before
    expected = head_of(arrays).with_parameters(theta)
    torch.testing.assert_close(moved.window(slice(0, N)).outputs, expected.outputs, rtol=1e-12, atol=1e-12)
    assert torch.equal(moved.parameters(), expected.parameters())
    refused("theta: expected finite numbers", head.with_parameters, theta * torch.nan)


def test_lazy_rows_are_saved_as_if_they_were_held(tmp_path, arrays):
    parts = [on_disk(tmp_path, arrays["features"][:11], "a"), on_disk(tmp_path, arrays["features"][11:], "b")]
    lazy = FileRows("features", parts)
    weight, bias = torch.from_numpy(arrays["weight"]), torch.from_numpy(arrays["bias"])
    head_of(arrays, features=lazy, outputs=LinearRows(lazy, weight, bias)).save(tmp_path / "lazy.npz")
    head_of(arrays).save(tmp_path / "held.npz")
    with np.load(tmp_path / "lazy.npz") as mine, np.load(tmp_path / "held.npz") as theirs:
        assert mine.files == theirs.files
        for name in mine.files:
            assert mine[name].dtype == theirs[name].dtype
            if name != "options" and mine[name].dtype.kind == "f":
                np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-12)
    assert torch.equal(Head.load(tmp_path / "lazy.npz").features, torch.from_numpy(arrays["features"]))


# ------------------------------------------------------------------------------------------------ devices


def test_moving_to_the_cpu_holds_what_is_asked(tmp_path, arrays):
    lazy = FileRows("features", [on_disk(tmp_path, arrays["features"])])
    weight, bias = torch.from_numpy(arrays["weight"]), torch.from_numpy(arrays["bias"])
    head = head_of(arrays, features=lazy, outputs=LinearRows(lazy, weight, bias), sample_weight=np.ones(N))
    assert isinstance(head.to("cpu").features, FileRows)
    features, outputs = (placed(rows, torch.device("cpu"), float("inf")) for rows in (lazy, head.outputs))
    assert torch.equal(features, torch.from_numpy(arrays["features"]))
    np.testing.assert_allclose(outputs.numpy(), arrays["outputs"], rtol=1e-12)
    plain = head_of(arrays)
    assert plain.to("cpu").features is plain.features


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_moving_to_a_gpu(arrays, monkeypatch):
    head = head_of(arrays)
    for free, kind in ((2**30, torch.Tensor), (0, HostRows)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, free))
        moved = head.to("cuda")
        assert isinstance(moved.features, kind)
        window = moved.window(slice(2, 9))
        assert {window.features.device.type, window.outputs.device.type, window.targets.device.type} == {"cuda"}
        assert torch.equal(window.features.cpu(), head.features[2:9])
        assert torch.equal(moved.to("cpu").features, head.features)


def test_what_does_not_fit_is_sent_in_windows(arrays):
    # "meta" stands for a device of its own: tensors there have shapes and no contents
    head = head_of(arrays)
    sent = head.to("meta")
    assert [type(rows) for rows in (sent.features, sent.outputs)] == [HostRows, HostRows]
    assert sent.features[2:5].shape == (3, D)
    assert isinstance(placed(head.features, torch.device("meta"), head.features.nbytes), torch.Tensor)
    linear = LinearRows(head.features, head.weight, head.bias)
    lazy = head_of(arrays, features=head.features, outputs=linear).to("meta")
    assert isinstance(lazy.outputs, LinearRows)
    assert lazy.outputs.reads(lazy.features)


# ------------------------------------------------------------------------------------------------ memory

READS_A_FOLDER = """
import sys
import numpy as np
import giveaway as ga
from giveaway.extract import from_file

def peak():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

def read(folder):
    total, mapped = 0.0, np.load(f"{folder}/features.npy", mmap_mode="r")
    labels = np.load(f"{folder}/targets.npy")
    for head in (from_file(folder)[0], ga.Head(mapped, np.zeros((len(mapped), 2)), labels, "cross_entropy")):
        for part in head.slices(2_048):
            window = head.window(part)
            total += float(window.features.sum()) + float(window.outputs.sum())
    return total

read(sys.argv[1])  # what the libraries take for themselves
before = peak()
read(sys.argv[2])
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_a_file_larger_than_what_is_held(tmp_path):
    d = 512
    for name, rows in (("small", 10_000), ("large", 100_000)):
        folder = tmp_path / name
        folder.mkdir()
        features = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (rows, d))
        for start in range(0, rows, 10_000):
            features[start : start + 10_000] = np.arange(start, start + 10_000)[:, None] % 7
        size = features.nbytes / 2**20
        np.save(folder / "targets.npy", np.arange(rows) % 2)
        np.save(folder / "weight.npy", np.eye(2, d))
        np.save(folder / "bias.npy", np.zeros(2))
    command = [sys.executable, "-c", READS_A_FOLDER, str(tmp_path / "small"), str(tmp_path / "large")]
    # freed blocks go back at once, so that what is measured is what is held
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert size > 190
    assert float(done.stdout) < 60, f"{done.stdout.strip()} MB more for a file of {size:.0f} MB"
