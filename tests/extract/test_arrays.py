import os
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from giveaway import Head
from giveaway.checks import ROWS_PER_CHECK, InputError
from giveaway.cli.source import source_from
from giveaway.extract import from_file

N, D, M = 12, 4, 3


@pytest.fixture
def arrays():
    rng = np.random.default_rng(2)
    return {
        "features": rng.normal(size=(N, D)).astype(np.float32),
        "targets": np.arange(N) % M,
        "weight": rng.normal(size=(M, D)),
        "bias": rng.normal(size=M),
    }


def linear(arrays):
    return arrays["features"].astype(np.float64) @ arrays["weight"].T + arrays.get("bias", 0)


def written(folder, arrays, suffix=".npz"):
    path = folder / f"head{suffix}"
    if suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file({name: torch.as_tensor(value) for name, value in arrays.items()}, path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_outputs_come_from_the_weights(tmp_path, arrays, suffix):
    head, notes = from_file(written(tmp_path, arrays, suffix))
    np.testing.assert_allclose(head.outputs.numpy(), linear(arrays), rtol=1e-12)
    np.testing.assert_array_equal(head.features.numpy(), arrays["features"])
    np.testing.assert_array_equal(head.parameters().numpy(), np.vstack([arrays["weight"].T, arrays["bias"]]))
    assert (head.features.dtype, head.outputs.dtype) == (torch.float32, torch.float64)
    assert (head.loss, head.l2, head.intercept, notes) == ("cross_entropy", 0.0, True, [])


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_outputs_alone_are_enough(tmp_path, arrays, suffix):
    stored = {"features": arrays["features"], "targets": arrays["targets"], "outputs": linear(arrays)}
    head, notes = from_file(written(tmp_path, stored, suffix))
    np.testing.assert_array_equal(head.outputs.numpy(), stored["outputs"])
    assert head.weight is None
    assert head.intercept
    assert notes == []


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_optional_keys_are_read_and_others_are_noted(tmp_path, arrays, suffix):
    extra = {
        "ids": np.arange(N) + 7,
        "groups": np.arange(N) // 2,
        "sample_weight": np.linspace(1, 2, N),
        "l2": np.array(0.25),
        "index": np.arange(N),
        "epoch": np.array(3),
    }
    head, notes = from_file(written(tmp_path, arrays | extra, suffix))
    assert notes == ["ignored keys: epoch, index"]
    assert head.l2 == 0.25
    np.testing.assert_array_equal(head.ids, extra["ids"])
    np.testing.assert_array_equal(head.groups, extra["groups"])
    np.testing.assert_array_equal(head.sample_weight.numpy(), extra["sample_weight"])


def test_ignored_keys_are_not_read(tmp_path, arrays):
    path = tmp_path / "head.npz"
    np.savez(path, allow_pickle=True, **arrays, notebook=np.array([{}], dtype=object))
    assert from_file(path)[1] == ["ignored keys: notebook"]


def test_many_ignored_keys_are_not_all_listed(tmp_path, arrays):
    _, notes = from_file(written(tmp_path, arrays | {f"key{i:02d}": np.zeros(1) for i in range(40)}))
    assert notes == ["ignored keys: " + ", ".join(f"key{i:02d}" for i in range(12)) + ", …"]


def test_string_ids(tmp_path, arrays):
    names = np.array([f"p{i}" for i in range(N)])
    head, _ = from_file(written(tmp_path, arrays | {"ids": names, "groups": names}))
    np.testing.assert_array_equal(head.ids, names)


def test_weights_without_bias_are_a_head_without_intercept(tmp_path, arrays):
    del arrays["bias"]
    head, notes = from_file(written(tmp_path, arrays))
    assert not head.intercept
    assert notes == ["no bias in the file: the head is taken to have no intercept"]
    np.testing.assert_allclose(head.outputs.numpy(), linear(arrays), rtol=1e-12)
    assert from_file(written(tmp_path, arrays), intercept=True)[0].intercept


def test_one_output_may_be_given_flat(tmp_path, arrays):
    stored = arrays | {"weight": arrays["weight"][0], "bias": np.array(0.5), "targets": np.arange(N) % 2}
    head, _ = from_file(written(tmp_path, stored))
    np.testing.assert_allclose(head.outputs.numpy()[:, 0], arrays["features"] @ arrays["weight"][0] + 0.5, rtol=1e-5)


def test_more_rows_than_one_block(tmp_path):
    rng = np.random.default_rng(0)
    n = 2 * ROWS_PER_CHECK + 5
    stored = {"features": rng.normal(size=(n, 2)), "targets": np.arange(n) % 2, "weight": np.eye(2), "bias": np.ones(2)}
    head, _ = from_file(written(tmp_path, stored))
    np.testing.assert_allclose(head.outputs.numpy(), stored["features"] + 1)


def test_bfloat16_becomes_float32_and_float16_stays(tmp_path, arrays):
    features = torch.as_tensor(arrays["features"])
    for dtype, kept in ((torch.bfloat16, torch.float32), (torch.float16, torch.float16)):
        head, _ = from_file(written(tmp_path, arrays | {"features": features.to(dtype)}, ".safetensors"))
        assert head.features.dtype == kept
        assert torch.equal(head.features, features.to(dtype).to(kept))


def test_what_save_wrote_comes_back_with_its_options(tmp_path, arrays):
    head = Head(
        arrays["features"],
        linear(arrays),
        np.eye(M)[arrays["targets"]],
        "binary_cross_entropy",
        l2=0.3,
        penalize_intercept=False,
        frozen=True,
        weight=arrays["weight"],
        bias=arrays["bias"],
        ids=[f"p{i}" for i in range(N)],
    )
    head.save(tmp_path / "head.npz")
    again, notes = from_file(tmp_path / "head.npz")
    assert notes == []
    assert (again.loss, again.l2, again.penalize_intercept) == ("binary_cross_entropy", 0.3, False)
    assert again.frozen
    np.testing.assert_array_equal(again.ids, head.ids)
    assert torch.equal(again.outputs, head.outputs)
    other, notes = from_file(tmp_path / "head.npz", l2=0.7, loss="squared", penalize_intercept=True)
    assert (other.l2, other.loss, other.penalize_intercept) == (0.7, "squared", True)
    assert not from_file(tmp_path / "head.npz", frozen=False)[0].frozen
    assert "l2=0.7 as given, not the 0.3 of the file" in notes
    assert "loss=squared as given, not the binary_cross_entropy of the file" in notes


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_missing_keys_are_named(tmp_path, arrays, suffix):
    for key in ("features", "targets"):
        rest = {name: value for name, value in arrays.items() if name != key} | {"junk": np.arange(2)}
        with pytest.raises(
            InputError, match=rf"{key}: expected the keys features, .* got keys .*junk.*; add the array {key}"
        ):
            from_file(written(tmp_path, rest, suffix))
    with pytest.raises(InputError, match=r"features: expected the keys .*, got keys junk; add the array features"):
        from_file(written(tmp_path, {"junk": np.arange(2)}, suffix))
    del arrays["weight"]
    with pytest.raises(InputError, match="got keys bias, features, targets; add outputs or weight"):
        from_file(written(tmp_path, arrays, suffix))


def test_a_bias_without_weights_is_refused(tmp_path, arrays):
    stored = arrays | {"outputs": linear(arrays)}
    del stored["weight"]
    with pytest.raises(InputError, match="bias: expected weight together with bias, got bias alone"):
        from_file(written(tmp_path, stored))


def test_arrays_that_do_not_fit(tmp_path, arrays):
    with pytest.raises(
        InputError, match=r"weight: expected shape \(outputs, 4\), a column a feature, got shape \(3, 2\)"
    ):
        from_file(written(tmp_path, arrays | {"weight": np.ones((3, 2))}))
    with pytest.raises(InputError, match=r"bias: expected shape \(3,\), one number an output, got shape \(2,\)"):
        from_file(written(tmp_path, arrays | {"bias": np.ones(2)}))
    with pytest.raises(InputError, match=r"features: expected shape \(records, features\), got shape \(12,\)"):
        from_file(written(tmp_path, arrays | {"features": np.ones(N)}))
    with pytest.raises(InputError, match=r"outputs: expected features @ weight.T \+ bias, got a difference"):
        from_file(written(tmp_path, arrays | {"outputs": linear(arrays)[::-1]}))
    with pytest.raises(InputError, match="l2: expected one number, got shape"):
        from_file(written(tmp_path, arrays | {"l2": np.ones(2)}))
    with pytest.raises(InputError, match="l2: expected a finite number of at least 0, got -1"):
        from_file(written(tmp_path, arrays), l2=-1)
    with pytest.raises(InputError, match="features: expected an array of numbers, got dtype <U1"):
        from_file(written(tmp_path, arrays | {"features": np.full((N, D), "a")}))
    with pytest.raises(InputError, match="features: expected finite numbers, got NaN"):
        from_file(written(tmp_path, arrays | {"features": np.full((N, D), np.nan)}))
    with pytest.raises(InputError, match=r"options: expected what Head.save writes in head.npz, got another text"):
        from_file(written(tmp_path, arrays | {"options": np.array("{}")}))


def test_pickled_arrays_are_refused_unread(tmp_path, arrays):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "exploded"),)

    targets = np.array([Bomb()] * N, dtype=object)
    np.savez(tmp_path / "head.npz", allow_pickle=True, **arrays | {"targets": targets})
    with pytest.raises(
        InputError, match=r"file: expected arrays that need no pickle, got head.npz, which needs it; save"
    ):
        from_file(tmp_path / "head.npz")
    (tmp_path / "raw.npz").write_bytes(b"\x80\x04N.")
    with pytest.raises(InputError, match=r"file: expected a whole .npz file, got raw.npz"):
        from_file(tmp_path / "raw.npz")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_truncated_files_are_refused_wherever_they_end(tmp_path, arrays, suffix):
    whole = written(tmp_path, arrays, suffix).read_bytes()
    cut = tmp_path / f"cut{suffix}"
    for size in (0, 3, 50, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        with pytest.raises(
            InputError, match=rf"file: expected a whole {suffix} file, got cut{suffix}, truncated or not"
        ):
            from_file(cut)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_damaged_files_fail_in_one_line_whatever_the_damage(tmp_path, arrays, suffix):
    path = written(tmp_path, arrays, suffix)
    whole = path.read_bytes()
    errors = []
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            from_file(path)  # a changed number may pass, anything else but an InputError fails the test
        except InputError as error:
            errors.append(str(error))
    assert len(errors) > 100
    assert not any("\n" in error or "pickle" in error for error in errors)


def test_a_damaged_member_is_refused(tmp_path, arrays):
    path = tmp_path / "head.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in arrays:
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00 not a header")
    with pytest.raises(InputError, match=r"file: expected a whole .npz file, got head.npz, truncated or not of that"):
        from_file(path)


def test_files_that_are_something_else(tmp_path, arrays):
    with pytest.raises(InputError, match=r"file: expected an .npz or .safetensors file, got head.csv; save the arrays"):
        from_file(tmp_path / "head.csv")
    with pytest.raises(InputError, match=r"file: expected a file that exists, got .*absent.npz; check the path"):
        from_file(tmp_path / "absent.npz")
    with (tmp_path / "single.npz").open("wb") as stream:
        np.save(stream, arrays["features"])
    with pytest.raises(InputError, match=r"file: expected a whole .npz file, got single.npz"):
        from_file(tmp_path / "single.npz")


@pytest.mark.parametrize("l2", [float("nan"), float("inf"), -1.0])
def test_a_penalty_that_is_no_number(tmp_path, l2):
    np.savez(tmp_path / "head.npz", features=np.eye(3), outputs=np.eye(3), targets=np.arange(3))
    with pytest.raises(ValueError, match="l2: expected a finite number of at least 0"):
        from_file(tmp_path / "head.npz", l2=l2)


# ------------------------------------------------------------------------------------------------ black boxes, inputs

NO_FEATURES = "no features: a black box, of which only outputs and inputs can be scored"


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_outputs_without_features_are_a_black_box(tmp_path, arrays, suffix):
    stored = {"outputs": linear(arrays), "targets": arrays["targets"], "ids": np.arange(N) + 7}
    path = written(tmp_path, stored, suffix)
    head, notes = from_file(path)
    assert notes == [NO_FEATURES]
    assert repr(head) == "Head(n=12, black box, m=3, loss='cross_entropy')"
    np.testing.assert_array_equal(head.outputs.numpy(), stored["outputs"])
    np.testing.assert_array_equal(head.ids, stored["ids"])
    assert from_file(path, intercept=True)[0].linear is False
    with pytest.raises(InputError, match=r"l2: expected no l2 for a black box \(features=None\), got 0.5; drop l2="):
        from_file(path, l2=0.5)


def test_the_command_line_reads_a_black_box(tmp_path, arrays):
    path = written(tmp_path, {"outputs": linear(arrays), "targets": arrays["targets"]})
    said = []
    head = source_from({"features": str(path)}, said.append).head
    assert not head.linear
    assert said == [f"note: {NO_FEATURES}"]
    with pytest.raises(InputError, match="l2: expected no l2 for a black box"):
        source_from({"features": str(path), "l2": 0.1}, said.append)


def test_a_file_of_a_black_box_without_what_it_needs(tmp_path, arrays):
    probabilities = np.full((N, M), 1 / M)
    with pytest.raises(InputError, match=r"outputs: expected logits, got probabilities, .*; pass their logarithms"):
        from_file(written(tmp_path, {"outputs": probabilities, "targets": arrays["targets"]}))
    with pytest.raises(InputError, match=r"targets: expected the keys .*, got keys outputs; add the array targets"):
        from_file(written(tmp_path, {"outputs": probabilities}))
    for key in ("weight", "bias"):
        stored = {"outputs": linear(arrays), "targets": arrays["targets"], key: arrays[key]}
        with pytest.raises(InputError, match=r"features: expected the keys .*; add the array features"):
            from_file(written(tmp_path, stored))


def test_a_saved_black_box_comes_back(tmp_path, arrays):
    head = Head(None, linear(arrays), np.eye(M)[arrays["targets"]], "squared", inputs=[f"t{i}" for i in range(N)])
    head.save(tmp_path / "head.npz")
    again, notes = from_file(tmp_path / "head.npz")
    assert notes == [NO_FEATURES]
    assert repr(again) == repr(head) == "Head(n=12, black box, m=3, loss='squared', inputs=text)"
    assert again.inputs == head.inputs


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_inputs_in_the_file_are_the_records(tmp_path, arrays, suffix):
    images = np.random.default_rng(0).integers(0, 256, (N, 6, 5, 3)).astype(np.uint8)
    head, notes = from_file(written(tmp_path, arrays | {"inputs": images}, suffix))
    assert notes == []
    assert head.inputs.dtype == np.uint8
    np.testing.assert_array_equal(head.inputs, images.transpose(0, 3, 1, 2))
    with pytest.raises(InputError, match="inputs: expected 12 rows, one a record, got 5 rows; align them with the"):
        from_file(written(tmp_path, arrays | {"inputs": images[:5]}, suffix))


def test_inputs_that_save_wrote_are_not_turned(tmp_path, arrays):
    images = np.arange(N * 6 * 5 * 3, dtype=np.uint8).reshape(N, 6, 5, 3)
    Head(arrays["features"], linear(arrays), arrays["targets"], "cross_entropy", inputs=images).save(tmp_path / "h.npz")
    np.testing.assert_array_equal(from_file(tmp_path / "h.npz")[0].inputs, images)


def test_text_inputs_in_the_file(tmp_path, arrays):
    texts = [f"record {i}" for i in range(N)]
    assert from_file(written(tmp_path, arrays | {"inputs": np.array(texts)}))[0].inputs == texts
    with pytest.raises(InputError, match=r"inputs: expected images, numbers or strings, got dtype \|S8; convert"):
        from_file(written(tmp_path, arrays | {"inputs": np.array(texts).astype("S8")}))
