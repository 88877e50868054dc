"""The kernel's columns of an audit: against refits in NumPy for every kind of head, and against the head itself."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import giveaway as ga
from giveaway import Head, audit
from giveaway.checks import InputError
from giveaway.gp.distinguishability import Process
from giveaway.gp.kernels import RBF, Linear
from giveaway.gp.nngp import KernelChoice
from giveaway.scores.catalogue import CATALOGUE
from giveaway.views.model import numbers_of, standardized, targets_of_head
from tests.conftest import KINDS, made_arrays, made_head, refused
from tests.gp.test_kernels import arc_cosine, on_sphere
from tests.gp.test_lood import brute_force, median_rbf
from tests.views.test_others import PEOPLE, N, records

LOOD = ["lood_kl", "lood_mean"]


def z_scores(x: np.ndarray) -> np.ndarray:
    spread = x.std(axis=0)
    return (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def plain_targets(kind: str) -> np.ndarray:
    """What the process is to explain, from the definition: (n, C) around 0."""
    arrays = made_arrays(kind)
    y, m = arrays["targets"], arrays["outputs"].shape[1]
    if kind.startswith("squared"):
        y = y.reshape(N, -1)
        centred = y - y.mean(axis=0)
        return centred / np.sqrt((centred**2).mean())
    if kind == "soft_labels":
        return y - 1.0 / m
    if kind in ("one_logit", "multi_label"):
        return y.reshape(N, -1) - 0.5
    return (y[:, None] == np.arange(m)) - 1.0 / m


def agree(found, expected: tuple[np.ndarray, np.ndarray], rtol: float = 1e-7) -> None:
    np.testing.assert_allclose(found["lood_kl"], expected[0], rtol=rtol, atol=1e-11)
    np.testing.assert_allclose(found["lood_mean"], expected[1], rtol=rtol, atol=1e-13)


# ------------------------------------------------------------------------------------------------ every kind of head


@pytest.mark.parametrize("kind", KINDS)
def test_by_record_it_is_the_table_of_standardized_columns(kind):
    x, y = z_scores(records()), plain_targets(kind)
    found = audit(replace(made_head(kind, l2=0.5), inputs=records()), scores=LOOD)
    agree(found, brute_force(median_rbf(x), y, 0.05))
    table = ga.lood("rbf", x, y, 0.05)
    agree(found, (table["lood_kl"], table["lood_mean"]), rtol=1e-9)
    assert (found.meta.kernel.name, found.meta.kernel.noise) == (table.meta.kernel.name, 0.05)
    assert found.meta.kernel.condition == pytest.approx(table.meta.kernel.condition, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_by_person_all_of_a_person_s_records_go(kind):
    x, y = z_scores(records()), plain_targets(kind)
    found = audit(replace(made_head(kind, groups=PEOPLE, l2=0.5), inputs=records()), kernel=Process(RBF(1.5), 0.2))
    names = sorted(set(PEOPLE.tolist()))
    assert (found.ids.tolist(), found.meta.unit) == (names, "person")
    K = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / (2 * 1.5**2))
    agree(found, brute_force(K, y, 0.2, [np.flatnonzero(name == PEOPLE) for name in names]))
    table = ga.lood(RBF(1.5), x, y, 0.2, groups=PEOPLE)
    agree(found, (table["lood_kl"], table["lood_mean"]), rtol=1e-9)


@pytest.mark.parametrize("by", ["record", "person"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_head_s_own_columns_do_not_change(kind, by):
    plain, more = (
        audit(made_head(kind, l2=0.5, groups=PEOPLE if by == "person" else None, inputs=inputs), kernel=process)
        for inputs, process in ((None, None), (records(), Process()))
    )
    assert more.columns == (*plain.columns, "left_out", "fused", *LOOD)
    told = {"others_say", "nearest", "target"} if by == "record" else {"carried_by", "carries"}
    assert plain.attributes.keys() <= more.attributes.keys() <= plain.attributes.keys() | told
    for name in (*plain.columns, *plain.attributes):
        np.testing.assert_array_equal(plain[name], more[name])
    ours = {"kernel", "options", "seconds", "view", "no_view", "fusion", "curvature"}
    assert {k: v for k, v in plain.meta.to_json().items() if k not in ours} == {
        k: v for k, v in more.meta.to_json().items() if k not in ours
    }
    # why it was chosen names the memory that was free
    one, other = ({k: v for k, v in table.meta.curvature.to_json().items() if k != "chosen"} for table in (plain, more))
    assert one == other
    assert plain.meta.kernel is None
    assert (plain.ranking(), more.ranking()) == ("newton", "fused")


def test_the_trained_model_has_no_say():
    head, x = made_head("squared", l2=0.5), records()
    other = Head(head.features * 2 + 1, head.outputs.flip(0), head.targets, "squared")
    tables = [audit(replace(h, inputs=x), scores=LOOD) for h in (head, other)]
    tables.append(audit(replace(head, inputs=x), scores=["loss", *LOOD], optimum="refit"))
    assert tables[0].columns == ("lood_kl", "lood_mean")
    assert tables[0].meta.curvature is None
    assert not np.allclose(audit(head, scores=["loss"])["loss"], tables[2]["loss"])
    for name in LOOD:
        for table in tables[1:]:
            np.testing.assert_array_equal(tables[0][name], table[name])


def test_classes_nobody_has_still_count_and_constant_targets_are_0():
    """Classes are the head's outputs, not the labels that happen to occur."""
    arrays = made_arrays("classes")
    arrays["targets"] = arrays["targets"] % 3
    found = audit(replace(Head(**arrays), inputs=records()), kernel="linear")
    x = z_scores(records())
    y = (arrays["targets"][:, None] == np.arange(5)) - 0.2
    agree(found, brute_force(x @ x.T, y, 0.05))
    constant = Head(**(made_arrays("squared") | {"targets": np.full((N, 1), 0.1)}))
    assert targets_of_head(constant).abs().max() == 0.0
    assert audit(replace(constant, inputs=records()), scores=LOOD)["lood_mean"].max() == 0.0


# ------------------------------------------------------------------------------------------------ inputs


@pytest.mark.parametrize("shape", [(1, 5, 6), (3, 5, 6), (5, 6, 3), (5, 6), (3, 4, 4)])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_images_meet_a_network_on_the_sphere_with_their_channels_first(shape, kind):
    images = np.random.default_rng(1).integers(0, 256, (N, *shape)).astype(np.uint8)
    first = images.transpose(0, 3, 1, 2) if shape == (5, 6, 3) else images[:, None] if len(shape) == 2 else images
    found = numbers_of(kind(images))
    np.testing.assert_array_equal(found.numpy(), first / 255.0)
    expected = brute_force(arc_cosine(on_sphere(first.reshape(N, -1) / 255.0), 3), plain_targets("classes"), 0.05)
    for inputs in (images, first / 255.0):
        table = audit(made_head("classes", inputs=inputs), scores=LOOD)
        agree(table, expected)
        assert table.meta.kernel.name.startswith("Sphere(kernel=NNGP(3, relu")


@given(constant=st.floats(-1e6, 1e6), n=st.integers(2, 70), scale=st.sampled_from([1e-9, 1.0, 1e9]))
def test_columns_have_mean_0_and_variance_1_and_constant_ones_are_0(constant, n, scale):
    x = scale * np.random.default_rng(0).normal(size=(n, 2)) + 3 * scale
    found = standardized(torch.from_numpy(np.c_[x, np.full(n, constant)])).numpy()
    np.testing.assert_allclose(found[:, :2].mean(0), 0.0, atol=1e-9)
    np.testing.assert_allclose((found[:, :2] ** 2).mean(0), 1.0, rtol=1e-9)
    np.testing.assert_allclose(found[:, :2], z_scores(x), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found[:, 2], 0.0)


# ------------------------------------------------------------------------------------------------ one curvature


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("l2", "noise"), [(0.8, 0.05), (20.0, 1.7)])
def test_a_bayesian_last_layer_tells_what_the_head_s_leverage_tells(outputs, l2, noise):
    """KL = ½(C(log(1−h) + h/(1−h)) + h‖e₋ᵢ‖²/σ²), with h and e from the audit of the ridge head itself."""
    rng = np.random.default_rng(2)
    features = rng.normal(size=(N, 4))
    features[:5] *= 4.0
    y = features @ rng.normal(size=(4, outputs)) + rng.standard_t(3, size=(N, outputs))
    y -= y.mean(axis=0)  # the process sees centred targets; with a penalized bias the head must see the same
    design = np.c_[features, np.ones(N)]
    theta = np.linalg.solve(design.T @ design + l2 / 2 * np.eye(5), design.T @ y)
    head = Head(features, design @ theta, y, "squared", l2=l2)
    # one row a record as (n, 1, d + 1): a matrix would be standardized, and the bias column lost
    names = ["leverage", "loo_gap", *LOOD]
    found = audit(replace(head, inputs=design[:, None]), kernel=Process(Linear(2 * noise / l2), noise), scores=names)
    h, scale = found["leverage"], np.sqrt((y**2).mean())
    left_out = (found["residual"] / scale / (1 - h)) ** 2
    expected = 0.5 * (outputs * (np.log(1 - h) + h / (1 - h)) + h * left_out / noise)
    assert h.max() > 0.5 if l2 < 1 else h.max() > 0.3
    np.testing.assert_allclose(found["lood_kl"], expected, rtol=1e-9)
    np.testing.assert_allclose(found["lood_mean"], 0.5 * h**2 * left_out, rtol=1e-9)
    # and the exact leave-one-out gap follows from the same two numbers
    gap = found["residual"] ** 2 * (2 * h - h**2) / (1 - h) ** 2
    np.testing.assert_allclose(found["loo_gap"], gap, rtol=1e-9)


def test_the_bayesian_last_layer_of_people():
    """Leaving a person out: ½(C Σ(log(1−λ) + λ/(1−λ)) + e₋ᵀ H e₋/σ²), H the person's block of the head's hat matrix."""
    rng = np.random.default_rng(3)
    l2, noise = 0.7, 0.3
    features = rng.normal(size=(N, 4))
    y = features[:, :1] + rng.normal(size=(N, 1))
    y = (y - y.mean()) / y.std()
    design = np.c_[features, np.ones(N)]
    hat = design @ np.linalg.solve(design.T @ design + l2 / 2 * np.eye(5), design.T)
    head = Head(features, hat @ y, y, "squared", l2=l2, groups=PEOPLE)
    names = ["leverage", "lood_kl"]
    found = audit(replace(head, inputs=design[:, None]), kernel=Process(Linear(2 * noise / l2), noise), scores=names)
    for place, name in enumerate(found.ids):
        own = np.flatnonzero(name == PEOPLE)
        block = hat[np.ix_(own, own)]
        eigen = np.linalg.eigvalsh(block)
        left_out = np.linalg.solve(np.eye(len(own)) - block, (y - hat @ y)[own, 0])
        expected = 0.5 * ((np.log(1 - eigen) + eigen / (1 - eigen)).sum() + left_out @ block @ left_out / noise)
        assert found["lood_kl"][place] == pytest.approx(expected, rel=1e-9)
        assert found["leverage"][place] == pytest.approx(np.trace(block), rel=1e-9)


# ------------------------------------------------------------------------------------------------ refusals


def test_the_kernel_is_not_factored_unless_it_is_asked_for():
    def never(*_):
        raise AssertionError("the kernel was evaluated")

    table = audit(replace(made_head("classes"), inputs=records()), kernel=never, scores=["newton"])
    assert table.columns == ("newton",)
    assert table.meta.kernel is None


@pytest.mark.parametrize("name", [name for name, score in CATALOGUE.items() if score.source in ("others", "process")])
def test_asking_for_the_kernel_s_columns_takes_inputs(name):
    words = (
        f"^scores: expected inputs beside a score that looks at the records, got {name} alone; pass inputs to the head$"
    )
    refused(words, audit, made_head("classes"), scores=["newton", name])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inputs": records()[:-1]}, "inputs: expected 60 rows, one a record, got 59 rows; align them"),
        ({"inputs": records()[:, 0]}, "inputs: expected the head's 60 records, (n, …), got shape (60,); align them"),
        ({"inputs": records().astype(str)}, "inputs: expected images or a matrix of numbers, got dtype <U"),
        (
            {"inputs": ["a word"] * N},
            "inputs: expected images or a matrix of numbers, got strings; embed them, and pass the vectors",
        ),
        (
            {"inputs": np.array([["a", 1.0]] * N, dtype=object)},
            "inputs: expected images or a matrix of numbers, got a ndarray of dtype object; encode its columns",
        ),
        (
            {"inputs": np.where(np.arange(3 * N).reshape(N, 3) == 22, np.nan, records())},
            "inputs: expected finite numbers, got NaN or infinity first in row 7 (1 such rows",
        ),
        (
            {"inputs": np.where(np.arange(3 * N).reshape(N, 3) == 22, np.inf, records())},
            "inputs: expected finite numbers, got NaN or infinity first in row 7 (1 such rows",
        ),
        ({"inputs": records(), "kernel": "conv_nngp"}, "X: expected images"),
        (
            {"inputs": records(), "kernel": KernelChoice("rbf", depth=2)},
            "depth: expected one of the kernels nngp, conv_nngp, got rbf",
        ),
    ],
)
def test_what_is_refused(options, words):
    rest = {name: value for name, value in options.items() if name != "inputs"}
    with pytest.raises(InputError) as error:
        audit(replace(made_head("classes"), inputs=options["inputs"]), **rest, scores=LOOD)
    assert str(error.value).startswith(words)


@pytest.mark.parametrize("given", [{"kernel": "rbf"}, {"kernel": Process(noise=0.1)}])
def test_a_kernel_without_inputs_is_refused(given):
    refused("inputs: expected inputs beside kernel, got none; pass the", audit, made_head("classes"), **given)
