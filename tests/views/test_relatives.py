"""The view of the relatives: losses and weights against naive loops, and what members tell about training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax
from scipy.stats import norm, rankdata
from sklearn.datasets import load_digits
from torch import nn

from giveaway import Head, audit
from giveaway.views.all_views import RelativesView
from giveaway.views.model import said_of
from tests.conftest import KINDS, made_arrays, made_head
from tests.oracles import kind_of, losses, target_matrix

N = 60
PEOPLE = np.array([f"p{i * 7 % 23:02d}" for i in range(N)])


def with_variants(kind: str, **options) -> Head:
    rng = np.random.default_rng(5)
    head = made_head(kind, **options)
    near, far = (head.outputs.numpy() + rng.normal(size=head.outputs.shape) * s for s in (0.5, 3.0))
    return replace(head, relatives={"near": near, "far": far.astype(np.float32)})


def naive(head: Head, outputs: torch.Tensor, targets: torch.Tensor | None = None) -> tuple[np.ndarray, float]:
    """Losses and the mean of squared errors, one record at a time."""
    y = (head.targets if targets is None else targets).numpy()
    kind, y = kind_of(head.loss, head.m), target_matrix(y, head.loss, head.m)
    f_all, error = outputs.double().numpy(), 0.0
    for f, target in zip(f_all, y, strict=True):
        said = f if head.loss == "squared" else expit(f) if kind != "softmax" else softmax(f)
        error += float(((said - target) ** 2).sum())
    return losses(f_all, y, kind), error / len(y)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_weights_and_their_mean_against_a_loop(kind):
    head = with_variants(kind)
    view = RelativesView(head)
    _, own = naive(head, head.outputs)
    weights, total = {}, np.zeros(N)
    for name, outputs in head.relatives.items():
        values, error = naive(head, outputs)
        np.testing.assert_allclose(view.losses[name], values, rtol=1e-9, atol=1e-14)
        weights[name] = min(1.0, max(0.0, 1.0 - own / error))
        assert view.weights[name] == pytest.approx(weights[name], abs=1e-12)
        total += weights[name] * norm.ppf((rankdata(values) - 0.5) / N)
        # the same error as the view of the other records knows it
        ratio = said_of(head).errors.square().sum() / said_of(head, outputs).errors.square().sum()
        assert weights[name] == pytest.approx(max(0.0, 1.0 - float(ratio)), abs=1e-9)
    assert 0 < weights["far"] < 1
    np.testing.assert_allclose(view.joined, total / sum(weights.values()), rtol=1e-9, atol=1e-14)
    assert view.weight == pytest.approx(sum(w * w for w in weights.values()) / sum(weights.values()))
    assert view.report["relatives"]["far"] == {
        "new": round(weights["far"], 6),
        "natural": 1.0,
        "weight": round(weights["far"], 6),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_variant_known_worse_than_records_never_seen_counts_less(kind):
    head = with_variants(kind)
    head = replace(head, held_out=(head.outputs[20:] + 0.1, head.targets[20:]))
    _, unseen = naive(head, *head.held_out)
    view, new = RelativesView(head), RelativesView(replace(head, held_out=None)).new
    for name, variant in head.relatives.items():
        natural = min(1.0, unseen / naive(head, variant)[1])
        assert view.natural[name] == pytest.approx(natural, rel=1e-9)
        assert view.weights[name] == pytest.approx(new[name] * natural, rel=1e-9)
    assert view.natural["far"] < 1.0
    # the others' left-out errors stand in for records held out, in the units of said_of
    far = said_of(head, head.relatives["far"]).errors.square().sum(1).mean()
    stands_in = RelativesView(replace(head, held_out=None), unseen_error=float(far) / 4)
    assert stands_in.natural["far"] == pytest.approx(0.25)
    assert RelativesView(head, unseen_error=0.0).natural == view.natural


@pytest.mark.parametrize("kind", ["classes", "squared_many", "multi_label"])
def test_a_person_has_the_sum_over_their_records(kind):
    head = with_variants(kind, groups=PEOPLE)
    records, people = RelativesView(replace(head, groups=None)), RelativesView(head)
    for row, name in enumerate(np.unique(PEOPLE)):
        own = np.flatnonzero(name == PEOPLE)
        assert people.losses["far"][row] == pytest.approx(records.losses["far"][own].sum())
    assert people.weights == records.weights


@given(st.sampled_from(sorted(KINDS)), st.integers(2, 30), st.randoms())
def test_order_and_number_of_records_change_nothing(kind, n, random):
    arrays = made_arrays(kind, n=max(n, 27))
    variant = arrays["outputs"] * 2.0 - 1.0
    order = list(range(len(variant)))
    random.shuffle(order)
    view = RelativesView(Head(**arrays, relatives=variant))
    rows = {name: arrays[name][order] for name in ("features", "outputs", "targets")}
    again = RelativesView(Head(**arrays | rows, relatives=variant[order]))
    assert again.weights == pytest.approx(view.weights, abs=1e-12)
    np.testing.assert_allclose(again.joined, view.joined[order], rtol=1e-12, atol=1e-15)


def test_a_variant_that_is_the_record_counts_nothing_and_its_loss_is_the_loss():
    head = made_head("classes")
    head = replace(head, relatives={"same": head.outputs, "better": 3.0 * head.outputs})
    view = RelativesView(head)
    assert view.weights["same"] == 0.0
    assert RelativesView(replace(head, relatives=head.outputs)).weight == 0.0
    np.testing.assert_allclose(view.losses["same"], audit(head)["loss"])
    alone = RelativesView(replace(head, relatives=head.outputs))
    np.testing.assert_array_equal(np.argsort(alone.joined), np.argsort(view.losses["same"]))


def test_variants_are_recognized_where_their_class_has_half_of_the_probability():
    head = made_head("classes")
    right = head.outputs.double().softmax(1)[torch.arange(head.n), head.targets].numpy() >= 0.5
    assert 0 < right.sum() < head.n
    head = replace(head, relatives=head.outputs)
    np.testing.assert_array_equal(RelativesView(head).attributes()["recognized"], right)
    people = RelativesView(replace(head, groups=np.arange(head.n) // 2))
    assert not people.attributes()
    assert not RelativesView(with_variants("squared_many")).attributes()


def test_variants_without_any_error_count_nothing():
    values = np.arange(12.0)[:, None]
    view = RelativesView(Head(values, values, values, "squared", relatives=values))
    assert view.weights == {"relatives": 0.0}
    assert not view.joined.any()


def trained_on(images: torch.Tensor, labels: torch.Tensor, *, flips: bool) -> nn.Module:
    """A small convolutional network that has learned its images by heart."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 10))
    for _ in range(100):
        seen = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(3), images) if flips else images
        slopes = torch.autograd.grad(nn.functional.cross_entropy(model(seen), labels), list(model.parameters()))
        with torch.no_grad():
            for value, slope in zip(model.parameters(), slopes, strict=True):
                value -= 0.3 * slope
    return model


@pytest.mark.parametrize(("flips", "low", "high"), [(False, 0.95, 1.0), (True, 0.0, 0.3)])
def test_members_tell_whether_training_used_the_mirror_and_others_whether_it_is_natural(flips, low, high):
    data = load_digits()
    images, labels = torch.from_numpy(data.images[:500, None] / 16).float(), torch.from_numpy(data.target[:500])
    model = trained_on(images[:300], labels[:300], flips=flips)
    with torch.no_grad():
        outputs, mirrored = model(images), model(images[:300].flip(3))
    held_out = (outputs[300:], labels[300:])
    head = Head(None, outputs[:300], labels[:300], "cross_entropy", relatives={"mirror": mirrored}, held_out=held_out)
    view = RelativesView(head)
    assert low <= view.new["mirror"] <= high
    # a mirrored digit is no digit, unless training made it one
    assert (view.natural["mirror"] > 0.9) is flips
    assert view.weights["mirror"] < 0.3
