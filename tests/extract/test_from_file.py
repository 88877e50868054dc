"""from_file: whatever the form of a file or folder and wherever it is cut, the head is that of the whole arrays."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from giveaway import Head
from giveaway.checks import ROWS_PER_CHECK
from giveaway.cli.source import source_from
from giveaway.extract import from_file, user_files
from giveaway.records import FileRows, LinearRows
from giveaway.records import rows as rows_module
from tests.conftest import refused
from tests.extract.stored import FILES, FOLDERS, ONCE, M, N, linear, made, plain, refusal, save, written

ALL = [*FILES, *FOLDERS]
NO_FEATURES = "no features: a black box, of which only outputs and inputs can be scored"


@pytest.fixture
def large(monkeypatch):
    """Everything counts as large."""
    for module in (rows_module, user_files):
        monkeypatch.setattr(module, "LARGE_BYTES", 1)


def assert_same(head, arrays):
    part = head.window(slice(0, N))
    np.testing.assert_array_equal(part.features.numpy(), arrays["features"])
    np.testing.assert_allclose(part.outputs.numpy(), linear(arrays), rtol=1e-12)
    np.testing.assert_array_equal(part.targets.numpy(), arrays["targets"])
    np.testing.assert_array_equal(part.weights.numpy(), arrays["sample_weight"])
    np.testing.assert_array_equal(head.parameters().numpy(), np.vstack([arrays["weight"].T, arrays["bias"]]))
    np.testing.assert_array_equal(head.ids, arrays["ids"])
    np.testing.assert_array_equal(head.groups, arrays["groups"])
    assert (head.loss, head.l2, head.intercept) == ("cross_entropy", 0.25, True)


@pytest.mark.parametrize("outputs", [True, False])
@pytest.mark.parametrize("form", ALL)
def test_small_arrays_are_held(tmp_path, form, outputs):
    arrays = made()
    stored = arrays | {"outputs": linear(arrays)} if outputs else arrays
    head, notes = from_file(written(tmp_path, stored, form))
    assert_same(head, arrays)
    assert isinstance(head.features, torch.Tensor)
    assert isinstance(head.outputs, torch.Tensor)
    assert (head.features.dtype, head.outputs.dtype, notes) == (torch.float32, torch.float64, [])


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("form", ALL)
def test_large_arrays_are_mapped(tmp_path, form):
    arrays = made()
    head, notes = from_file(written(tmp_path, arrays | {"outputs": linear(arrays)}, form))
    assert_same(head, arrays)
    assert isinstance(head.outputs, FileRows)
    assert all(isinstance(array, np.memmap) or len(array) == 0 for array in head.features.arrays)
    assert notes == []
    (tmp_path / "others").mkdir()
    head, _ = from_file(written(tmp_path / "others", arrays, form))
    assert_same(head, arrays)
    assert isinstance(head.outputs, LinearRows)


@pytest.mark.usefixtures("large")
@settings(max_examples=15)
@given(
    form=st.sampled_from(FOLDERS),
    cuts=st.lists(st.integers(0, N), max_size=5),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    numbers=st.lists(st.integers(0, N - 1), min_size=1, max_size=8),
)
def test_any_cut_gives_the_same_rows(tmp_path_factory, form, cuts, dtype, numbers):
    arrays = made(dtype)
    head, _ = from_file(written(tmp_path_factory.mktemp("cut"), arrays, form, [0, *sorted(cuts), N]))
    assert_same(head, arrays)
    assert head.features.dtype == torch.from_numpy(arrays["features"]).dtype
    np.testing.assert_array_equal(head.window(torch.tensor(numbers)).features.numpy(), arrays["features"][numbers])


@pytest.mark.parametrize("form", FOLDERS[1:])
def test_weights_in_a_file_of_their_own(tmp_path, form):
    assert_same(from_file(written(tmp_path, made(), form, once="head"))[0], made())


def test_a_head_file_of_the_other_kind_is_no_mixture(tmp_path):
    folder = written(tmp_path, made(), "npz folder", once="none")
    save(folder / "head.safetensors", {name: made()[name] for name in ONCE})
    assert_same(from_file(folder)[0], made())


@pytest.mark.usefixtures("large")
def test_order_of_columns_in_memory_does_not_matter(tmp_path):
    arrays = made()
    np.savez(tmp_path / "head.npz", **arrays | {"features": np.asfortranarray(arrays["features"])})
    assert_same(from_file(tmp_path / "head.npz")[0], arrays)


@pytest.mark.parametrize("lazy", [True, False])
def test_bfloat16_becomes_float32_and_float16_stays(tmp_path, lazy, request):
    if lazy:
        request.getfixturevalue("large")
    exact = torch.from_numpy(made()["features"]).to(torch.bfloat16)
    rest = {name: torch.from_numpy(made()[name]) for name in ("weight", "bias")}
    targets, folder = torch.from_numpy(made()["targets"]), tmp_path / "rows"
    folder.mkdir()
    save_file({"features": exact[:9].clone(), "targets": targets[:9].clone()} | rest, folder / "a.safetensors")
    save_file({"features": exact[9:].clone(), "targets": targets[9:].clone()}, folder / "b.safetensors")
    save_file({"features": exact, "targets": targets} | rest, tmp_path / "one.safetensors")
    for path in (folder, tmp_path / "one.safetensors"):
        head, _ = from_file(path)
        assert isinstance(head.features, FileRows) == lazy
        assert head.features.dtype == torch.float32
        assert torch.equal(head.features[0:N], exact.float())
    head, _ = from_file(written(tmp_path, made(np.float16), "safetensors"))
    assert head.features.dtype == torch.float16


@pytest.mark.usefixtures("large")
def test_compressed_arrays_are_read_whole_and_noted(tmp_path):
    (tmp_path / "rows").mkdir()
    for file, path in ((tmp_path / "rows" / "a.npz", tmp_path / "rows"), (tmp_path / "one.npz", tmp_path / "one.npz")):
        np.savez_compressed(file, **made())
        head, notes = from_file(path)
        assert_same(head, made())
        assert "features compressed, so read whole: numpy.savez would leave them on disk" in notes


def test_more_rows_than_one_block(tmp_path):
    n = 2 * ROWS_PER_CHECK + 5
    features = np.random.default_rng(0).normal(size=(n, 2))
    stored = {"features": features, "targets": np.arange(n) % 2, "weight": np.eye(2), "bias": np.ones(2)}
    np.testing.assert_allclose(from_file(written(tmp_path, stored))[0].outputs.numpy(), features + 1)


# ------------------------------------------------------------------------------------------------ which keys


@pytest.mark.parametrize("form", FILES)
def test_outputs_alone_are_enough(tmp_path, form):
    stored = {"outputs": linear(made())} | plain(weight=None, bias=None)
    head, notes = from_file(written(tmp_path, stored, form))
    np.testing.assert_array_equal(head.outputs.numpy(), stored["outputs"])
    assert head.weight is None
    assert head.intercept
    assert notes == []


@pytest.mark.parametrize("form", FILES)
def test_other_keys_are_noted(tmp_path, form):
    others = {"index": np.arange(N), "epoch": np.array(3)}
    assert from_file(written(tmp_path, made() | others, form))[1] == ["ignored keys: epoch, index"]
    many = {f"key{i:02d}": np.zeros(1) for i in range(40)}
    _, notes = from_file(written(tmp_path, made() | many, form))
    assert notes == ["ignored keys: " + ", ".join(list(many)[:12]) + ", …"]


def test_ignored_keys_and_files_are_not_read(tmp_path):
    np.savez(tmp_path / "head.npz", allow_pickle=True, **made(), notebook=np.array([{}], dtype=object))
    assert from_file(tmp_path / "head.npz")[1] == ["ignored keys: notebook"]
    folder = written(tmp_path, made(), "npy folder")
    (folder / "README.md").write_text("about these arrays")
    np.save(folder / "epoch.npy", np.array(3))
    assert from_file(folder)[1] == ["ignored keys: epoch"]


def test_string_ids(tmp_path):
    names = np.array([f"p{i}" for i in range(N)])
    head, _ = from_file(written(tmp_path, made() | {"ids": names, "groups": names}))
    np.testing.assert_array_equal(head.ids, names)


def test_weights_without_bias_are_a_head_without_intercept(tmp_path):
    path = written(tmp_path, plain(bias=None))
    head, notes = from_file(path)
    assert not head.intercept
    assert notes == ["no bias in the file: the head is taken to have no intercept"]
    np.testing.assert_allclose(head.outputs.numpy(), linear(plain(bias=None)), rtol=1e-12)
    assert from_file(path, intercept=True)[0].intercept


def test_one_output_may_be_given_flat(tmp_path):
    arrays = plain()
    stored = plain(weight=arrays["weight"][0], bias=np.array(0.5), targets=np.arange(N) % 2)
    head, _ = from_file(written(tmp_path, stored))
    np.testing.assert_allclose(head.outputs.numpy()[:, 0], arrays["features"] @ arrays["weight"][0] + 0.5, rtol=1e-5)


def test_what_save_wrote_comes_back_with_its_options(tmp_path):
    arrays, path = plain(), tmp_path / "head.npz"
    layer = {"weight": arrays["weight"], "bias": arrays["bias"], "ids": [f"p{i}" for i in range(N)]}
    options = {"l2": 0.3, "penalize_intercept": False, "frozen": True}
    targets = np.eye(M)[arrays["targets"]]
    head = Head(arrays["features"], linear(arrays), targets, "binary_cross_entropy", **layer, **options)
    head.save(path)
    again, notes = from_file(path)
    assert notes == []
    assert (again.loss, again.l2, again.penalize_intercept) == ("binary_cross_entropy", 0.3, False)
    assert again.frozen
    np.testing.assert_array_equal(again.ids, head.ids)
    assert torch.equal(again.outputs, head.outputs)
    other, notes = from_file(path, l2=0.7, loss="squared", penalize_intercept=True)
    assert (other.l2, other.loss, other.penalize_intercept) == (0.7, "squared", True)
    assert not from_file(path, frozen=False)[0].frozen
    assert "l2=0.7 as given, not the 0.3 of the file" in notes
    assert "loss=squared as given, not the binary_cross_entropy of the file" in notes


def test_the_command_line_reads_files_and_folders(tmp_path):
    said = []
    folder = written(tmp_path, made(), "npz folder")
    np.savez(folder / "zz.npz", epoch=np.array(3))
    assert_same(source_from({"features": str(folder)}, said.append)[0], made())
    path = written(tmp_path, {"outputs": linear(made()), "targets": made()["targets"]})
    assert not source_from({"features": str(path)}, said.append)[0].linear
    assert said == ["note: ignored keys: epoch", f"note: {NO_FEATURES}"]
    refused("l2: expected no l2 for a black box", source_from, {"features": str(path), "l2": 0.1}, said.append)


# ------------------------------------------------------------------------------------------------ black boxes, inputs


@pytest.mark.parametrize("form", FILES)
def test_outputs_without_features_are_a_black_box(tmp_path, form):
    stored = {"outputs": linear(made()), "targets": made()["targets"], "ids": made()["ids"]}
    path = written(tmp_path, stored, form)
    head, notes = from_file(path)
    assert notes == [NO_FEATURES]
    assert repr(head) == "Head(n=23, black box, m=3, loss='cross_entropy')"
    np.testing.assert_array_equal(head.outputs.numpy(), stored["outputs"])
    np.testing.assert_array_equal(head.ids, stored["ids"])
    assert from_file(path, intercept=True)[0].linear is False
    assert refusal(path, l2=0.5).startswith("l2: expected no l2 for a black box (features=None), got 0.5; drop l2=")


def test_a_saved_black_box_comes_back(tmp_path):
    head = Head(None, linear(made()), np.eye(M)[made()["targets"]], "squared", inputs=[f"t{i}" for i in range(N)])
    head.save(tmp_path / "head.npz")
    again, notes = from_file(tmp_path / "head.npz")
    assert notes == [NO_FEATURES]
    assert repr(again) == repr(head) == "Head(n=23, black box, m=3, loss='squared', inputs=text)"
    assert again.inputs == head.inputs


IMAGES = np.random.default_rng(0).integers(0, 256, (N, 6, 5, 3)).astype(np.uint8)


@pytest.mark.parametrize("form", FILES)
def test_inputs_in_the_file_are_the_records(tmp_path, form):
    head, notes = from_file(written(tmp_path, plain(inputs=IMAGES), form))
    assert notes == []
    assert head.inputs.dtype == np.uint8
    np.testing.assert_array_equal(head.inputs, IMAGES.transpose(0, 3, 1, 2))
    words = "inputs: expected 23 rows, one a record, got 5 rows; align them with the"
    assert refusal(written(tmp_path, plain(inputs=IMAGES[:5]), form)).startswith(words)


def test_inputs_beside_the_arrays_are_mapped(tmp_path):
    folder = written(tmp_path, made(), "npy folder")
    np.save(folder / "inputs.npy", IMAGES)
    head, notes = from_file(folder)
    np.testing.assert_array_equal(head.inputs, IMAGES.transpose(0, 3, 1, 2))
    assert not head.inputs.flags.writeable  # the file's own pages
    assert notes == []


def test_inputs_that_save_wrote_are_not_turned(tmp_path):
    arrays = plain()
    head = Head(arrays["features"], linear(arrays), arrays["targets"], "cross_entropy", inputs=IMAGES)
    head.save(tmp_path / "h.npz")
    np.testing.assert_array_equal(from_file(tmp_path / "h.npz")[0].inputs, IMAGES)


def test_text_inputs_in_the_file(tmp_path):
    texts = [f"record {i}" for i in range(N)]
    assert from_file(written(tmp_path, plain(inputs=np.array(texts))))[0].inputs == texts
    words = "inputs: expected images, numbers or strings, got dtype |S9; convert"
    assert refusal(written(tmp_path, plain(inputs=np.array(texts).astype("S9")))).startswith(words)
