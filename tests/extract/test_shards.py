"""Folders of arrays: whatever their form and wherever they are cut, the head is that of the whole arrays."""

import os
import zipfile
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from giveaway.checks import InputError
from giveaway.cli.source import source_from
from giveaway.extract import arrays as arrays_file
from giveaway.extract import from_file, shards, stored_arrays
from giveaway.records import FileRows, LinearRows, rows

N, D, M = 23, 4, 3
KINDS = ["npy", "npz", "safetensors"]


def made(dtype=np.float32):
    rng = np.random.default_rng(4)
    features = rng.normal(size=(N, D)).astype(dtype)
    weight, bias = rng.normal(size=(M, D)), rng.normal(size=M)
    return {
        "features": features,
        "outputs": features.astype(np.float64) @ weight.T + bias,
        "targets": np.arange(N) % M,
        "ids": np.arange(N) + 100,
        "groups": np.arange(N) // 2,
        "sample_weight": np.linspace(1, 2, N),
        "weight": weight,
        "bias": bias,
        "l2": np.array(0.25),
    }


def save(path, arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file({name: torch.as_tensor(np.ascontiguousarray(value)) for name, value in arrays.items()}, path)


def written(folder, arrays, kind, cuts=(0, 9, 9, 15, N), once="shard"):
    """A folder of shards cut at `cuts`; weight, bias and l2 in the last of them or in a file of their own."""
    folder.mkdir(exist_ok=True)
    single = {name: arrays[name] for name in ("weight", "bias", "l2") if name in arrays}
    rows = {name: value for name, value in arrays.items() if name not in single}
    if kind == "npy":
        for name, value in single.items():
            np.save(folder / f"{name}.npy", value)
        for name, value in rows.items():
            for number, (low, high) in enumerate(pairwise(cuts)):
                np.save(folder / f"{name}-{number:03d}.npy", value[low:high])
        return folder
    for number, (low, high) in enumerate(pairwise(cuts)):
        shard = {name: value[low:high] for name, value in rows.items()}
        last = number == len(cuts) - 2
        save(folder / f"part-{number:03d}.{kind}", shard | (single if last and once == "shard" else {}))
    if once == "head":
        save(folder / f"head.{kind}", single)
    return folder


def first_rows(arrays, count):
    return {name: value[:count] for name, value in arrays.items() if name not in ("weight", "bias", "l2")}


@pytest.fixture
def large(monkeypatch):
    """Everything counts as large."""
    for module in (rows, stored_arrays, shards, arrays_file):
        monkeypatch.setattr(module, "LARGE_BYTES", 1)


def assert_same(head, arrays):
    part = head.window(slice(0, N))
    np.testing.assert_array_equal(part.features.numpy(), arrays["features"])
    expected = arrays["features"].astype(np.float64) @ arrays["weight"].T + arrays["bias"]
    np.testing.assert_allclose(part.outputs.numpy(), expected, rtol=1e-12)
    np.testing.assert_array_equal(part.targets.numpy(), arrays["targets"])
    np.testing.assert_array_equal(head.ids, arrays["ids"])
    np.testing.assert_array_equal(head.groups, arrays["groups"])
    np.testing.assert_array_equal(part.weights.numpy(), arrays["sample_weight"])
    np.testing.assert_array_equal(head.weight.numpy(), arrays["weight"])
    assert head.l2 == 0.25


@pytest.mark.parametrize("once", ["shard", "head"])
@pytest.mark.parametrize("kind", KINDS)
def test_small_folders_are_read(tmp_path, kind, once):
    arrays = made()
    head, notes = from_file(written(tmp_path / "rows", arrays, kind, once=once))
    assert_same(head, arrays)
    assert isinstance(head.features, torch.Tensor)
    assert notes == []


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", KINDS)
def test_large_folders_are_mapped(tmp_path, kind):
    arrays = made()
    head, _ = from_file(written(tmp_path / "rows", arrays, kind))
    assert_same(head, arrays)
    assert isinstance(head.features, FileRows)
    assert isinstance(head.outputs, FileRows)
    assert all(isinstance(array, np.memmap) or len(array) == 0 for array in head.features.arrays)
    del arrays["outputs"]
    head, _ = from_file(written(tmp_path / "others", arrays, kind))
    assert_same(head, arrays)
    assert isinstance(head.outputs, LinearRows)


@pytest.mark.usefixtures("large")
@settings(max_examples=25)
@given(
    kind=st.sampled_from(KINDS),
    cuts=st.lists(st.integers(0, N), max_size=5),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    numbers=st.lists(st.integers(0, N - 1), min_size=1, max_size=8),
)
def test_any_cut_gives_the_same_rows(tmp_path_factory, kind, cuts, dtype, numbers):
    arrays = made(dtype)
    folder = written(tmp_path_factory.mktemp("cut") / "rows", arrays, kind, [0, *sorted(cuts), N])
    head, _ = from_file(folder)
    assert_same(head, arrays)
    assert head.features.dtype == torch.from_numpy(arrays["features"]).dtype
    np.testing.assert_array_equal(head.window(torch.tensor(numbers)).features.numpy(), arrays["features"][numbers])


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_single_files_are_mapped_where_they_are_large(tmp_path, suffix):
    arrays = made()
    save(tmp_path / f"head{suffix}", arrays)
    head, notes = from_file(tmp_path / f"head{suffix}")
    assert_same(head, arrays)
    assert isinstance(head.features, FileRows)
    assert isinstance(head.features.arrays[0], np.memmap)
    assert notes == []


@pytest.mark.usefixtures("large")
def test_order_of_columns_in_memory_does_not_matter(tmp_path):
    arrays = made()
    np.savez(tmp_path / "head.npz", **arrays | {"features": np.asfortranarray(arrays["features"])})
    assert_same(from_file(tmp_path / "head.npz")[0], arrays)


@pytest.mark.parametrize("lazy", [True, False])
def test_bfloat16_shards(tmp_path, lazy, request):
    if lazy:
        request.getfixturevalue("large")
    arrays = made()
    exact = torch.from_numpy(arrays["features"]).to(torch.bfloat16)
    folder = tmp_path / "rows"
    folder.mkdir()
    rest = {name: torch.from_numpy(arrays[name]) for name in ("weight", "bias")}
    targets = torch.from_numpy(arrays["targets"])
    save_file({"features": exact[:9].clone(), "targets": targets[:9].clone()} | rest, folder / "a.safetensors")
    save_file({"features": exact[9:].clone(), "targets": targets[9:].clone()}, folder / "b.safetensors")
    head, _ = from_file(folder)
    assert isinstance(head.features, FileRows) == lazy
    assert head.features.dtype == torch.float32
    assert torch.equal(head.features[0:N], exact.float())
    save_file({"features": exact, "targets": targets} | rest, tmp_path / "one.safetensors")
    assert torch.equal(from_file(tmp_path / "one.safetensors")[0].features[0:N], exact.float())


@pytest.mark.usefixtures("large")
def test_compressed_arrays_are_read_whole_and_noted(tmp_path):
    arrays = made()
    folder = tmp_path / "rows"
    folder.mkdir()
    np.savez_compressed(folder / "a.npz", **arrays)
    np.savez_compressed(tmp_path / "one.npz", **arrays)
    for path in (folder, tmp_path / "one.npz"):
        head, notes = from_file(path)
        assert_same(head, arrays)
        assert "features compressed, so read whole: numpy.savez would leave them on disk" in notes


def test_the_command_line_reads_a_folder(tmp_path):
    arrays, said = made(), []
    folder = written(tmp_path / "rows", arrays, "npz")
    np.savez(folder / "zz.npz", epoch=np.array(3))
    assert_same(source_from({"features": str(folder)}, said.append).head, arrays)
    assert said == ["note: ignored keys: epoch"]


def test_other_files_beside_the_arrays_are_left_alone(tmp_path):
    folder = written(tmp_path / "rows", made(), "npy")
    (folder / "README.md").write_text("about these arrays")
    np.save(folder / "epoch.npy", np.array(3))
    head, notes = from_file(folder)
    assert_same(head, made())
    assert notes == ["ignored keys: epoch"]


def test_inputs_beside_the_arrays_are_mapped(tmp_path):
    folder = written(tmp_path / "rows", made(), "npy")
    images = np.random.default_rng(0).integers(0, 256, (N, 6, 5, 3)).astype(np.uint8)
    np.save(folder / "inputs.npy", images)
    head, notes = from_file(folder)
    np.testing.assert_array_equal(head.inputs, images.transpose(0, 3, 1, 2))
    assert not head.inputs.flags.writeable  # the file's own pages
    assert notes == []


def refusal(path):
    with pytest.raises(InputError) as caught:
        from_file(path)
    message = str(caught.value)
    assert "\n" not in message
    assert "; " in message
    return message


def test_an_empty_folder(tmp_path):
    words = "file: expected a folder with .npy, .npz or .safetensors files, got none in"
    assert refusal(tmp_path).startswith(words)
    (tmp_path / "notes.txt").write_text("nothing")
    assert refusal(tmp_path).startswith(words)


def test_mixed_kinds(tmp_path):
    folder = written(tmp_path / "rows", made(), "npz")
    np.save(folder / "features.npy", made()["features"])
    assert refusal(folder).startswith("file: expected files of one kind in the folder, got .npy and .npz in rows; keep")


def test_a_head_file_of_the_other_kind_is_no_mixture(tmp_path):
    arrays = made()
    folder = written(tmp_path / "rows", arrays, "npz", once="none")
    save(folder / "head.safetensors", {name: arrays[name] for name in ("weight", "bias", "l2")})
    assert_same(from_file(folder)[0], arrays)


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_weights_in_two_shards(tmp_path, kind):
    arrays = made()
    folder = written(tmp_path / "rows", arrays, kind)
    save(folder / f"head.{kind}", {"weight": arrays["weight"]})
    words = f"weight: expected one weight for all shards, got one in head.{kind} and one in part-003.{kind}; keep it in"
    assert refusal(folder).startswith(words)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_with_other_columns(tmp_path, kind):
    arrays = made()
    folder = written(tmp_path / "rows", arrays, kind)
    if kind == "npy":
        np.save(folder / "features-001.npy", np.ones((0, D + 1)))
        last = "features-001.npy"
    else:
        save(folder / f"z.{kind}", first_rows(arrays, 2) | {"features": np.ones((2, D + 1), np.float32)})
        last = f"z.{kind}"
    words = r"features: expected rows of shape \(4,\) as in .*, got rows of shape \(5,\) in "
    with pytest.raises(InputError, match=words + last):
        from_file(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_in_another_precision(tmp_path, kind):
    arrays = made()
    folder = written(tmp_path / "rows", arrays, kind)
    if kind == "npy":
        np.save(folder / "features-001.npy", np.ones((0, D)))
    else:
        rows = first_rows(arrays, 2)
        save(folder / f"z.{kind}", rows | {"features": np.ones((2, D))})
    with pytest.raises(InputError, match=r"features: expected float32 as in .*, got float64 in .*one precision"):
        from_file(folder)


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_a_shard_without_some_array(tmp_path, kind):
    arrays = made()
    folder = written(tmp_path / "rows", arrays, kind)
    rows = first_rows(arrays, 2)
    del rows["targets"]
    save(folder / f"z.{kind}", rows)
    words = f"targets: expected the same arrays in every shard, got no targets in z.{kind}; write it there as well"
    assert refusal(folder) == words


@pytest.mark.parametrize("kind", KINDS)
def test_no_targets_at_all(tmp_path, kind):
    arrays = made()
    del arrays["targets"]
    folder = written(tmp_path / "rows", arrays, kind)
    assert refusal(folder).startswith(
        "targets: expected the keys features, targets, and weight with bias, or outputs in"
    )


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_rows_that_differ_between_arrays(tmp_path, kind):
    arrays = made()
    folder = written(tmp_path / "rows", arrays, kind)
    rows = first_rows(arrays, 3)
    save(folder / f"z.{kind}", rows | {"targets": arrays["targets"][:2]})
    words = f"targets: expected 3 rows in z.{kind}, as of features, got 2 rows; write one row a record in every array"
    assert refusal(folder) == words


def test_rows_that_differ_between_npy_files(tmp_path):
    folder = written(tmp_path / "rows", made(), "npy", [0, N])
    np.save(folder / "targets-000.npy", np.arange(N - 1) % M)
    assert refusal(folder).startswith("targets: expected 23 rows, one a record, got shape (22,)")


def test_one_array_in_two_forms(tmp_path):
    folder = written(tmp_path / "rows", made(), "npy")
    np.save(folder / "features.npy", made()["features"])
    assert refusal(folder).startswith("features: expected features.npy or features-*.npy, got features-000.npy and")
    folder = written(tmp_path / "weights", made(), "npy")
    np.save(folder / "weight-1.npy", made()["weight"])
    assert refusal(folder).startswith("weight: expected weight.npy, got weight-1.npy and weight.npy; keep one of them")


def test_pickled_arrays_in_a_folder_are_refused_unread(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    bombs = np.array([Bomb()] * N, dtype=object)
    for kind in ("npy", "npz"):
        folder = written(tmp_path / kind, made(), kind, [0, N])
        if kind == "npy":
            np.save(folder / "features-000.npy", bombs, allow_pickle=True)
        else:
            np.savez(folder / "part-000.npz", allow_pickle=True, **made() | {"features": bombs})
        assert refusal(folder).startswith("file: expected arrays that need no pickle, got ")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_shards_fail_in_one_line_whatever_the_damage(tmp_path, kind):
    folder = written(tmp_path / "rows", made(), kind, [0, N])
    path = folder / ("features-000.npy" if kind == "npy" else f"part-000.{kind}")
    whole = path.read_bytes()
    errors = []
    for size in (0, 5, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert f"expected a whole .{kind} file" in refusal(folder)
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            from_file(folder)  # a changed number may pass; anything but an InputError fails the test
        except InputError as error:
            errors.append(str(error))
    assert len(errors) > 10
    assert not any("\n" in error for error in errors)


@pytest.mark.usefixtures("large")
def test_members_that_lie_about_their_length(tmp_path):
    arrays = made()
    np.savez(tmp_path / "head.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "long.npz", "w") as archive, zipfile.ZipFile(tmp_path / "head.npz") as source:
        for name in source.namelist():
            archive.writestr(name, source.read(name) + (b"more" if name == "features.npy" else b""))
    assert refusal(tmp_path / "long.npz").startswith("file: expected a whole .npz file, got long.npz, truncated or not")


def test_a_type_that_is_not_known(tmp_path):
    tensors = {name: torch.as_tensor(value) for name, value in made().items()}
    tensors["features"] = tensors["features"].to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "head.safetensors")
    words = "features: expected numbers of a known type in head.safetensors, got type F8_E4M3; convert it to float32"
    assert refusal(tmp_path / "head.safetensors").startswith(words)
