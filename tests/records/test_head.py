"""Head: what it refuses and in which words, how it reads targets, saves and loads, and shares memory."""

import stat
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
import torch

from giveaway import Head, audit
from giveaway.checks import ROWS_PER_CHECK, InputError
from giveaway.records import infer_loss
from tests.conftest import KINDS, made_arrays, made_head, refused

N, D, M = 12, 4, 3


def made() -> dict:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(N, D))
    weight, bias = rng.normal(size=(M, D)), rng.normal(size=M)
    rows = {"features": features, "outputs": features @ weight.T + bias, "targets": np.arange(N) % M}
    return rows | {"loss": "cross_entropy", "weight": weight, "bias": bias}


@pytest.fixture
def arrays() -> dict:
    return made()


def spoilt(array: np.ndarray, where: tuple, value: float) -> np.ndarray:
    array = array.copy()
    array[where] = value
    return array


def bad(name: str, where: tuple, value: float) -> dict:
    return {name: spoilt(A[name], where, value)}


def first(count: int) -> dict:
    return {name: A[name][:count] for name in ("features", "outputs", "targets")}


def refusal(arrays: dict) -> str:
    return refused("; ", Head, **arrays)  # an error ends in what to do


A = made() | {"sample_weight": np.ones(N), "thirds": np.full((N, M), 1 / 3)}
BARE = {"weight": None, "bias": None}
ONE = BARE | {"outputs": A["outputs"][:, :1]}
REFUSED = {
    "features: expected finite numbers, got NaN or infinity first in row 5": bad("features", (5, 1), np.nan),
    "features: expected finite numbers, got NaN or infinity first in row 7": bad("features", (7, 0), -np.inf),
    "outputs: expected finite numbers": bad("outputs", (2, 0), np.nan),
    "weight: expected finite numbers": bad("weight", (0, 0), np.inf),
    "bias: expected finite numbers": bad("bias", (0,), np.inf),
    "features: expected at least 2 records, got 1": first(1),
    "features: expected at least 2 records, got 0": first(0),
    "features: expected an array of numbers, got dtype <U1": {"features": np.full((N, D), "x")},
    "features: expected shape (records, features), got shape (12,)": {"features": A["features"][:, 0]},
    "features: expected at least one feature, got 0 features": {"features": np.ones((N, 0)), "intercept": False},
    "outputs: expected shape (12, outputs), one row a record as in features, got shape (11, 3)": {
        "outputs": A["outputs"][:-1]
    },
    "weight: expected shape (3, 4), outputs by features, got shape (3, 3)": {"weight": A["weight"][:, 1:]},
    "bias: expected shape (3,), one number an output, got shape (2,)": {"bias": A["bias"][1:]},
    "bias: expected weight together with bias, got bias alone": {"weight": None},
    "bias: expected no bias where intercept=False, got a bias": {"intercept": False},
    "targets: expected 12 rows, one a record, got shape (11,)": {"targets": A["targets"][:-1]},
    "targets: expected 12 rows, one a record, got shape ()": {"targets": np.array(1)},
    "targets: expected class labels from 0 to 2, got another label in row 4": bad("targets", (4,), 3),
    "targets: expected class labels from 0 to 2, got another label in row 6": bad("targets", (6,), -1),
    "targets: expected integer class labels, got float64 labels; cast": {"targets": A["targets"].astype(float)},
    "targets: expected integer class labels, got float64 labels": ONE | {"targets": np.linspace(0, 1, N)},
    "targets: expected finite numbers": {"targets": np.full(N, np.nan)},
    "targets: expected at least two classes, got one class only; pass the whole": {"targets": np.ones(N, int)},
    "targets: expected at least two classes, got one class only;": {"targets": np.eye(M)[np.ones(N, int)]},
    "targets: expected at least two classes, got one class only": ONE
    | {"targets": np.zeros(N), "loss": "binary_cross_entropy"},
    "targets: expected probability rows that sum to 1, got a row off by 0.2": {"targets": np.full((N, M), 0.4)},
    "targets: expected labels between 0 and 1, got another value in row 8": {
        "targets": spoilt(A["thirds"], (8, 1), -0.1)
    },
    "targets: expected labels between 0 and 1, got another value in row 3": {
        "targets": spoilt(A["thirds"], (3, 2), 2),
        "loss": "binary_cross_entropy",
    },
    "targets: expected shape (12,) class indices or (12, 3) probabilities, got shape (12, 2)": {
        "targets": np.full((N, 2), 0.5)
    },
    "targets: expected shape (12, 3), one value an output, got shape (12, 2)": {
        "targets": np.zeros((N, 2)),
        "loss": "squared",
    },
    "l2: expected a finite number of at least 0, got inf": {"l2": np.inf},
    "l2: expected a finite number of at least 0, got -0.1": {"l2": -0.1},
    "l2: expected a finite number of at least 0, got nan": {"l2": np.nan},
    "l2: expected a finite number of at least 0, got 'some'": {"l2": "some"},
    "loss: expected a known name, got 'cross_entropie'; did you mean cross_entropy": {"loss": "cross_entropie"},
    "ids: expected a different id for every record, got 2 repeated ids, the first at row 2; make ids unique, and pass "
    "groups=": {"ids": np.array([0, 1, 2, 2, *range(4, N - 1), 4])},
    "ids: expected one name a record, 12 in all, got shape (11,)": {"ids": np.arange(N - 1)},
    "ids: expected integers or strings, got dtype float64": {"ids": np.linspace(0, 1, N)},
    "groups: expected one name a record, 12 in all, got shape (5,)": {"groups": ["x"] * 5},
    "groups: expected integers or strings, got dtype object": {"groups": np.array(["x", 1] * 6, dtype=object)},
    "sample_weight: expected non-negative weights, not all zero": bad("sample_weight", (0,), -1),
    "sample_weight: expected non-negative weights": {"sample_weight": np.zeros(N)},
    "sample_weight: expected finite numbers": bad("sample_weight", (3,), np.nan),
    "sample_weight: expected shape (12,), one weight a record, got shape (11,)": {"sample_weight": np.ones(N - 1)},
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused_with_these_words(arrays, words):
    assert refusal(arrays | REFUSED[words]).startswith(words)


def test_the_first_bad_row_is_found_in_later_blocks():
    features = np.zeros((ROWS_PER_CHECK + 100, 1), dtype=np.float32)
    features[[ROWS_PER_CHECK + 42, ROWS_PER_CHECK + 50]] = np.nan
    n = len(features)
    with pytest.raises(InputError, match=rf"first in row {ROWS_PER_CHECK + 42} \(2 such rows in its block of 100\)"):
        Head(features, np.zeros((n, 1)), np.arange(n) % 2, "cross_entropy")


def test_large_finite_features_are_not_taken_for_infinite():
    features = np.full((4, 2), 1e90)
    head = Head(features, np.zeros(4), [0, 1, 0, 1], "cross_entropy")
    assert torch.equal(head.features, torch.from_numpy(features))


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (lambda a: {"outputs": spoilt(a["outputs"], (9, 1), 40.0)}, 9),
        (lambda a: {"features": spoilt(a["features"], (3, 0), 40.0)}, 3),
    ],
    ids=["outputs", "features"],
)
def test_weights_and_features_that_disagree_with_outputs(arrays, change, row):
    message = refusal(arrays | change(arrays))
    assert message.startswith("outputs: expected features @ weight.T + bias, got a difference of")
    assert "before softmax" in message
    assert f"in row {row} " in message


def test_softmax_probabilities_in_place_of_logits_disagree_with_the_weights(arrays):
    logits = torch.from_numpy(arrays["outputs"])
    assert "features @ weight.T + bias" in refusal(arrays | {"outputs": torch.softmax(logits, 1)})
    words = "outputs: expected logits, got probabilities, rows that sum to 1; pass their logarithms: np.log("
    assert refusal(arrays | BARE | {"outputs": torch.softmax(logits, 1)}).startswith(words)
    told = Head(**arrays | BARE | {"outputs": torch.log_softmax(logits, 1)})  # logits but for a constant a record
    np.testing.assert_allclose(audit(told)["newton"], audit(Head(**arrays | BARE))["newton"], rtol=1e-9)


def test_half_precision_features_agree_with_outputs_of_full_precision(arrays):
    head = Head(**arrays | {"features": arrays["features"].astype(np.float16)})
    assert head.features.dtype == torch.float16


def test_no_error_names_an_id_or_a_value(arrays):
    secret = "patient-4711"
    ids = np.array([secret, secret, *(f"p{i}" for i in range(N - 2))])
    assert secret not in refusal(arrays | {"ids": ids})
    assert "4711" not in refusal(arrays | {"targets": spoilt(arrays["targets"], (4,), 4711)})
    assert "4711" not in refusal(arrays | {"targets": np.full((N, M), 4711.0)})


# ------------------------------------------------------------------------------------------------ targets


INFERRED = [
    ([0, 1, 2], 3, "cross_entropy"),
    ([[0], [1], [2]], 3, "cross_entropy"),
    ([0, 1, 1], 1, "cross_entropy"),
    ([True, False, True], 1, "cross_entropy"),
    ([[0.2, 0.8], [1.0, 0.0], [0.5, 0.5]], 2, "cross_entropy"),
    ([0.5, 1.0, 2.0], 1, "squared"),
    ([[0.5], [1.0], [2.0]], 1, "squared"),
    ([[0.2, 0.9], [3.0, 0.0], [0.5, 0.5]], 2, "squared"),
]


@pytest.mark.parametrize(("targets", "outputs", "loss"), INFERRED)
def test_loss_is_inferred_from_the_targets(targets, outputs, loss):
    assert infer_loss(targets, np.zeros((3, outputs))) == loss


@pytest.mark.parametrize(
    ("targets", "outputs"),
    [([0.0, 1.0, 1.0], 1), ([0, 1, 5], 1), ([[0, 1], [1, 1], [0, 0]], 2), ([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], 2)],
)
def test_ambiguous_targets_are_refused_with_the_choices(targets, outputs):
    refused("loss='squared', 'cross_entropy' or 'binary_cross_entropy'", infer_loss, targets, np.zeros((3, outputs)))


def test_float_labels_for_several_outputs_are_not_taken_for_values():
    with pytest.raises(InputError, match="expected integer class labels, got float32 labels; cast them to int"):
        infer_loss(np.array([0, 1, 2], dtype=np.float32), np.zeros((3, 3)))


@pytest.mark.parametrize("kind", KINDS)
def test_targets_keep_their_values_in_one_form_a_loss(kind):
    arrays = made_arrays(kind)
    head = Head(**arrays)
    indices = head.loss == "cross_entropy" and np.ndim(arrays["targets"]) == 1
    assert head.targets.dtype == (torch.int64 if indices else torch.float64)
    expected = arrays["targets"] if indices else np.reshape(arrays["targets"], (head.n, head.m))
    np.testing.assert_allclose(head.targets.numpy(), expected, rtol=1e-15)


def test_probability_rows_are_brought_to_sum_one(arrays):
    rows = np.random.default_rng(1).dirichlet(np.ones(M), N)
    head = Head(**arrays | {"targets": (rows * (1 + 5e-5)).astype(np.float32)})
    np.testing.assert_allclose(head.targets.sum(1).numpy(), 1.0, rtol=1e-15)
    np.testing.assert_allclose(head.targets.numpy(), rows, rtol=1e-6)


# ------------------------------------------------------------------------------------------------ memory, saving


def test_frozen(arrays):
    head = Head(**arrays)
    with pytest.raises(FrozenInstanceError):
        head.l2 = 3.0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_memory_maps_stay_memory_maps(tmp_path, arrays, dtype):
    np.save(tmp_path / "features.npy", arrays["features"].astype(dtype))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    head = Head(**arrays | {"features": mapped})
    assert head.features.data_ptr() == mapped.ctypes.data
    np.testing.assert_array_equal(head.window(slice(0, N)).rows()[:, :D].numpy(), mapped.astype(np.float64))


def test_torch_and_numpy_arrays_are_not_copied(arrays):
    tensor = torch.from_numpy(arrays["features"])
    assert Head(**arrays).features.data_ptr() == Head(**arrays | {"features": tensor}).features.data_ptr()


@pytest.mark.parametrize(
    "given",
    [
        lambda x: x[:, ::-1],
        lambda x: x.astype(">f8"),
        lambda x: x.astype(np.longdouble),
        lambda x: torch.from_numpy(x).requires_grad_(),
        lambda x: x.tolist(),
    ],
    ids=["backwards", "big-endian", "long double", "with gradient", "lists"],
)
def test_features_of_any_storage(arrays, given):
    features = given(arrays["features"])
    head = Head(features, arrays["outputs"], arrays["targets"], "cross_entropy")
    expected = features.detach().numpy() if isinstance(features, torch.Tensor) else np.asarray(features, dtype=float)
    np.testing.assert_array_equal(head.features.numpy(), expected)
    assert not head.features.requires_grad


def test_rows_and_parameters_put_the_bias_last(arrays):
    head = Head(**arrays)
    np.testing.assert_allclose(head.window(slice(0, N)).rows() @ head.parameters(), head.outputs, rtol=1e-12)
    np.testing.assert_array_equal(head.window(torch.tensor([3, 1])).rows()[:, -1].numpy(), [1.0, 1.0])
    np.testing.assert_array_equal(head.parameters()[-1].numpy(), arrays["bias"])
    refused(r"weight: expected the head's weights \(m, d\) and bias \(m\), got none", made_head("classes").parameters)


def test_other_parameters_change_outputs_only(arrays):
    head = Head(**arrays, l2=0.5, ids=np.arange(N) + 3, groups=np.arange(N) // 2)
    theta = torch.randn(D + 1, M, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    moved = head.with_parameters(theta)
    np.testing.assert_allclose(moved.outputs.numpy(), arrays["features"] @ theta[:-1].numpy() + theta[-1].numpy())
    np.testing.assert_array_equal(moved.parameters().numpy(), theta.numpy())
    np.testing.assert_array_equal(moved.groups, head.groups)
    assert moved.features.data_ptr() == head.features.data_ptr()
    assert moved.l2 == 0.5


@pytest.mark.parametrize(
    ("changed", "got"),
    [({"frozen": "yes"}, "'yes'"), ({"features": None, "weight": None, "bias": None, "frozen": True}, "a black box")],
)
def test_frozen_is_of_a_linear_head(arrays, changed, got):
    refused(rf"frozen: expected True or False, got .*{got}.*; say frozen=True only of", Head, **arrays | changed)


STORED = {
    "everything": {
        "l2": 0.25,
        "penalize_intercept": False,
        "frozen": True,
        "ids": np.array([f"récord {i}" for i in range(N)]),
        "groups": np.array([f"=person {i // 3}" for i in range(N)]),
        "sample_weight": np.linspace(0, 1, N),
    },
    "integer names": {"ids": np.arange(N)[::-1].copy(), "groups": np.arange(N) % 5},
    "no intercept": {"intercept": False, "weight": None, "bias": None},
    "outputs alone": {"weight": None, "bias": None},
}


@pytest.mark.parametrize("case", STORED)
def test_what_is_saved_comes_back_without_pickle(tmp_path, arrays, case):
    head = Head(**arrays | STORED[case])
    path = tmp_path / "head.npz"
    head.save(path)
    again = Head.load(path)
    for field in fields(Head):
        old, new = getattr(head, field.name), getattr(again, field.name)
        if isinstance(old, torch.Tensor):
            assert torch.equal(old, new)
            assert old.dtype == new.dtype
        elif isinstance(old, np.ndarray):
            np.testing.assert_array_equal(old, new)
            assert old.dtype == new.dtype
        else:
            assert old == new
    with np.load(path, allow_pickle=False) as stored:
        assert all(stored[key].dtype.kind in "fiuU" for key in stored.files)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_bfloat16_features_are_saved_as_float32(tmp_path, arrays):
    features = torch.from_numpy(arrays["features"]).to(torch.bfloat16)
    Head(**arrays | {"features": features}).save(tmp_path / "head.npz")
    again = Head.load(tmp_path / "head.npz")
    assert again.features.dtype == torch.float32
    assert torch.equal(again.features, features.float())


def test_files_that_are_no_saved_head(tmp_path, arrays):
    path = tmp_path / "head.npz"
    refused(r"path: expected a file that exists, got .*head.npz; check the path", Head.load, path)
    Head(**arrays).save(path)
    whole = path.read_bytes()
    for size in (0, 30, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:size])
        refused("got head.npz, truncated or not of that format", Head.load, path)
    np.savez(path, features=arrays["features"])
    refused(r"got another \.npz; read other files with giveaway\.extract\.from_file", Head.load, path)
    np.savez(path, options=np.array([{}], dtype=object))
    refused("expected arrays that need no pickle, got head.npz", Head.load, path)


def test_a_place_that_cannot_be_written(tmp_path, arrays):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"out: expected a place that can be written, got .*file/head\.npz \("):
        Head(**arrays).save(tmp_path / "file" / "head.npz")


def test_repr_has_counts_and_no_names(arrays):
    text = repr(Head(**arrays, l2=0.5, groups=np.array(["ann", "bob", "eve"] * 4)))
    assert text == "Head(n=12, d=4, m=3, loss='cross_entropy', l2=0.5, people=3)"
