"""The view of training: means and quartiles against plain loops, whose losses they are, and what goes to the page."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giveaway import Head, LossTrace
from giveaway.views.model import said_of
from giveaway.views.trace import SHOWN, TraceView, within_classes
from tests.conftest import made_arrays, refused

N, EPOCHS = 60, 7
IDS = [f"r{i * 7 % N:02d}" for i in range(N)]
PEOPLE = np.array([f"p{i * 7 % 23:02d}" for i in range(N)])
REMEDY = "give the trace of the training on these records, in the same order and with the same ids"


def head_of(kind: str = "classes", **options) -> Head:
    return Head(**made_arrays(kind) | {"features": None}, **options)


def losses_of(head: Head) -> np.ndarray:
    return said_of(head).losses


def recorded(head: Head, seed: int = 0, unseen: tuple[int, ...] = (3, 41)) -> np.ndarray:
    """Losses of a training that ended where the head is; some are missing, and two records never came up."""
    rng = np.random.default_rng(seed)
    losses = losses_of(head) * np.linspace(2.0, 1.0, EPOCHS)[:, None] * rng.uniform(0.5, 1.5, (EPOCHS, head.n))
    losses[rng.random(losses.shape) < 0.2] = np.nan
    losses[:, list(unseen)] = np.nan
    return losses


def viewed(head: Head, losses: np.ndarray, **identity) -> TraceView:
    return TraceView(LossTrace.from_losses(losses, **identity), head, losses_of(head))


def seen_in(losses: np.ndarray) -> list[list[float]]:
    """The losses that each record had, as they are stored."""
    stored = losses.astype(np.float16).astype(float)
    return [[loss for loss in column if not math.isnan(loss)] for column in stored.T]


# ------------------------------------------------------------------------------------------------ what a trace says


def test_means_and_quartile_ranges_by_loops():
    head = head_of()
    losses = recorded(head)
    view, each = viewed(head, losses), seen_in(losses)
    roots = [sum(math.sqrt(x) for x in own) / len(own) if own else None for own in each]
    ranges = [float(np.percentile(own, 75) - np.percentile(own, 25)) if own else None for own in each]
    assert (view.never_seen, each[3], each[41]) == (2, [], [])
    for found, expected in ((view.roots, roots), (view.iqr, ranges)):
        middle = np.median([value for value in expected if value is not None])
        np.testing.assert_allclose(found, [middle if value is None else value for value in expected], rtol=1e-12)


def test_a_person_has_the_sum_of_its_records():
    head = head_of(groups=PEOPLE)
    losses = recorded(head)
    records, people = viewed(replace(head, groups=None), losses), viewed(head, losses)
    for name in ("roots", "iqr"):
        expected = [getattr(records, name)[name_ == PEOPLE].sum() for name_ in np.unique(PEOPLE)]
        np.testing.assert_allclose(getattr(people, name), expected, rtol=1e-12)
    assert people.attributes() == {}
    report = people.report(np.arange(len(expected)))
    assert (report["rows"], report["losses"]) == ([], [])
    assert report["band"] == records.report(np.arange(N))["band"]


def test_the_epoch_in_which_a_record_was_half_learned_by_a_loop():
    head = head_of()
    losses = recorded(head)
    losses[:, 5] = 0.0
    stored = losses.astype(np.float16).astype(float)
    expected = []
    for column in stored.T:
        roots = [0.0 if math.isnan(loss) else math.sqrt(loss) for loss in column]
        behind = [number for number in range(1, EPOCHS + 1) if sum(roots[:number]) >= 0.5 * sum(roots)]
        expected.append(behind[0] if not np.isnan(column).all() else 0)
    found = viewed(head, losses).attributes()["learned_by"]
    assert found.tolist() == expected
    assert (found[3], found[5], found[41]) == (0, 1, 0)
    assert len(set(expected)) > 3


@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.floats(0.0, 0.9))
def test_any_trace_with_ids_gives_finite_columns(epochs, seed, missing):
    head, rng = head_of("squared", ids=IDS), np.random.default_rng(seed)
    losses = rng.exponential(size=(epochs, N)) ** 8
    losses[rng.random(losses.shape) < missing] = np.nan
    losses[0, 0] = 0.0
    view = viewed(head, losses, ids=IDS)
    assert np.isfinite(view.roots).all()
    assert (view.iqr >= 0).all()
    assert ((view.attributes()["learned_by"] > 0) == ~np.isnan(losses).all(0)).all()


# ------------------------------------------------------------------------------------------------ whose losses


def within(head: Head, seed: int = 3) -> np.ndarray:
    """Another order of the records, in which each keeps its class."""
    rng, classes, order = np.random.default_rng(seed), head.targets.numpy(), np.arange(head.n)
    for one in np.unique(classes):
        rows = np.flatnonzero(classes == one)
        order[rows] = rng.permutation(rows)
    return order


def test_ids_prove_whose_losses_these_are():
    head = head_of(ids=IDS)
    for identity in ({"ids": IDS}, {"ids": np.array(IDS), "targets": head.targets}):
        assert viewed(head, recorded(head), **identity).proof == "ids"
        assert viewed(head, recorded(head)[:, within(head)], **identity).proof == "ids"  # nothing else is asked


def test_other_ids_and_other_targets_are_refused():
    head = head_of(ids=IDS)
    losses, targets = recorded(head), head.targets.numpy()
    others = {"targets": np.append(targets[:-1], (targets[-1] + 1) % 5)}
    for name, other in (
        ("ids", {"ids": IDS[::-1]}),
        ("targets", {"targets": targets[::-1].copy()}),
        ("targets", others),
    ):
        words = f"trace: expected losses of the head's records, by their {name}, got other {name}; {REMEDY}"
        assert refused("by their", viewed, head, losses, **other) == words
    refused("got other targets", viewed, head, losses, ids=IDS, **others)
    refused("got other ids", viewed, head_of(), losses, ids=IDS)  # the head numbers its records


def test_records_of_one_class_are_told_apart_by_their_losses():
    head = head_of()
    losses = recorded(head)
    assert viewed(head, losses, targets=head.targets).proof == "targets and losses"
    message = refused("do not go with", viewed, head, losses[:, within(head)], targets=head.targets)
    begins = "trace: expected losses of the head's records, got losses of training that do not go with the model's own"
    assert message.startswith(f"{begins} (correlation ")
    assert message.endswith(f"; {REMEDY}; ids= in LossTrace settles it")


@pytest.mark.parametrize("kind", ["classes", "squared", "soft_labels", "multi_label"])
def test_without_an_identity_losses_alone_tell(kind):
    head = head_of(kind)
    losses = recorded(head)
    assert viewed(head, losses).proof == "losses"
    refused("do not go with", viewed, head, losses[:, np.random.default_rng(1).permutation(N)])
    refused("do not go with", viewed, head, losses[:, ::-1].copy())


def test_losses_that_follow_the_classes_alone_prove_nothing():
    """Records swapped within their classes: all that goes together is that classes are of different difficulty."""
    classes = np.repeat(np.arange(4), 15)
    base, rng = 10.0 * classes, np.random.default_rng(0)
    one, other = base + rng.normal(size=60), base + rng.normal(size=60)
    assert np.corrcoef(one, other)[0, 1] > 0.9
    assert abs(within_classes(one, other, classes)) < 0.3
    assert within_classes(one, one**3, classes) == pytest.approx(1.0)
    assert within_classes(one, -one, classes) == pytest.approx(-1.0)
    assert within_classes(one, np.ones(60), classes) == 0.0


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (
            LossTrace.from_losses(np.ones((2, N - 1))),
            f"losses of the head's 60 records, got losses of 59; {REMEDY}",
        ),
        (LossTrace(N), "at least one epoch, got none; end_epoch() ends one; train for some"),
        (
            LossTrace.from_losses(np.full((2, N), np.nan)),
            "losses of some records, got none in any epoch; check the rows given to trace.add",
        ),
    ],
)
def test_traces_that_say_nothing_of_the_records_are_refused(trace, words):
    head = head_of()
    assert refused("trace", TraceView, trace, head, losses_of(head)) == f"trace: expected {words}"


# ------------------------------------------------------------------------------------------------ for the page


def test_the_report_has_the_band_of_all_and_the_losses_of_the_first():
    head = head_of(ids=IDS)
    losses = recorded(head)
    losses[2] = np.nan  # an epoch in which nothing came up, or nothing finite
    stored, order = losses.astype(np.float16).astype(float), np.random.default_rng(2).permutation(N)
    report = viewed(head, losses, ids=IDS).report(order)
    assert {name: report[name] for name in ("epochs", "proof", "never_seen")} == {
        "epochs": EPOCHS,
        "proof": "ids",
        "never_seen": 2,
    }
    assert report["rows"] == order[:SHOWN].tolist()
    assert len(report["rows"]) == 10
    for epoch in range(EPOCHS):
        there = [loss for loss in stored[epoch] if not math.isnan(loss)]
        expected = [float(np.percentile(there, q)) for q in (10, 50, 90)] if there else [None] * 3
        assert report["band"][epoch] == pytest.approx(expected, abs=1e-6)
    for row, shown in zip(report["rows"], report["losses"], strict=True):
        assert shown == [None if math.isnan(loss) else pytest.approx(loss, abs=1e-6) for loss in stored[:, row]]
