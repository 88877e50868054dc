"""Lazy rows: every slice and every list of rows is what an array of all of them would give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from giveaway.checks import InputError
from giveaway.records import FileRows, HostRows, LinearRows
from giveaway.records.rows import map_of

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
    rows = FileRows("features", mapped(tmp_path, [bits[:4], bits[4:]]), bfloat16=True)
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
    assert map_of(private) is not None
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
