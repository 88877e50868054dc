"""The rule by which `fused` joins all views: against the rule written out in plain Python, by hand, and its limits."""

import math
from dataclasses import fields, replace
from statistics import NormalDist, pstdev

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from giveaway.scores.catalogue import CATALOGUE
from giveaway.scores.fusion import Views, fused, left_out, normal_scores

A, B = NormalDist().inv_cdf(7 / 8), NormalDist().inv_cdf(5 / 8)  # normal scores of four are −A, −B, B, A
ROOT = math.sqrt((A * A + B * B) / 2)  # and their standard deviation
UP, ZIGZAG = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 4.0, 1.0, 3.0])  # uncorrelated


def made(**given: object) -> Views:
    """Views of four records of which the model tells nothing but what is given."""
    known = {"head": UP, "error_with": np.ones(4), "error_without": None, "leverage": None, "variation": 20.0}
    known |= {"head_is_exact": False, "loss": UP, "records": 4}
    return Views(**known | given)


OTHERS = {"error_without": np.array([2.0, 6.0, 4.0, 4.0]), "leverage": np.full(4, 0.5)}  # M = ¾, G = 12/20


# ------------------------------------------------------------------------------------------------ by hand


@pytest.mark.parametrize(
    ("given", "weights"),
    [
        ({}, {"head": 1.0}),
        (OTHERS, {"left_out": 1.0, "head": 0.4 * 0.625}),
        # 8 held out against 4: M = ½, G = 4/20, U = (16 − 8)/20
        ({**OTHERS, "held_out_error": 2.0}, {"left_out": 0.5 * 0.6, "head": 0.64 * 0.5}),
        # the kernel knows the records better than the model does: U = 0; M = 0.8, G = 0.8
        ({**OTHERS, "held_out_error": 5.0}, {"left_out": 0.8, "head": 0.04 * 0.68}),
        # no better on records held out than on its own is no memory
        ({**OTHERS, "held_out_error": 1.0}, {"left_out": 0.0, "head": 1.0}),
        ({"held_out_error": 2.0}, {"head": 0.64 * 0.5}),
        ({"held_out_error": 2.0, "records": 2}, {"head": 1.0}),  # the mean is over records, not rows
        ({"bag": ZIGZAG}, {"out_of_bag": 1.0}),
        ({**OTHERS, "bag": ZIGZAG}, {"left_out": 1.0, "out_of_bag": 1.0}),
        ({**OTHERS, "bag": ZIGZAG, "held_out_error": 2.0}, {"left_out": 0.3, "out_of_bag": 1.0}),
        ({"variants": ZIGZAG, "variants_weight": 0.3}, {"head": 1.0, "relatives": 0.3}),
        ({**OTHERS, "variants": ZIGZAG, "variants_weight": 0.3}, {"left_out": 1.0, "head": 0.25, "relatives": 0.3}),
        # a trace that says what the loss says counts nothing, one of its own everything
        ({"roots": UP}, {"head": 1 / ROOT, "trace": 0.0}),
        ({"roots": ZIGZAG}, {"head": 0.0, "trace": 1.0}),
        ({"roots": -UP + 5}, {"head": 0.0, "trace": 1.0}),  # the opposite is no repetition
        ({**OTHERS, "roots": ZIGZAG, "bag": UP, "held_out_error": 2.0}, {"left_out": 0, "out_of_bag": 0, "trace": 1}),
    ],
)
def test_weights_worked_out_by_hand(given, weights):
    views = made(**given)
    assert views.weights == pytest.approx(weights, abs=1e-7)
    assert list(views.weights) == list(weights)


@pytest.mark.parametrize(
    ("inside", "outside", "leverage", "taken", "weight"),
    [
        # M = 1: leverage does not count, the head's view counts as much as the other
        ([0.0, 0.0, 0.0], [4.0, 1.0, 2.0], [0.1, 0.9, 0.5], [4.0, 1.0, 2.0], 1.0),
        # M = 0: the left-out error counts by its leverage
        ([4.0, 1.0, 2.0], [4.0, 1.0, 2.0], [0.1, 0.9, 0.5], [0.4, 0.9, 1.0], 1.0),
        # M = ¾: leverage to the power ¼, the head by 9/16 + 1/16
        ([1.0, 0.0, 1.0], [4.0, 3.0, 1.0], [1 / 16, 1.0, 1 / 81], [2.0, 3.0, 1 / 3], 0.625),
    ],
)
def test_what_a_record_takes_away_by_how_much_is_memorized(inside, outside, leverage, taken, weight):
    known = {"error_with": inside, "error_without": outside, "leverage": leverage, "head": [1.0, 3.0, 2.0]}
    both = made(**{name: np.array(values) for name, values in known.items()}, variation=math.inf)
    np.testing.assert_allclose(left_out(both), taken, rtol=1e-14)
    np.testing.assert_allclose(fused(both), np.array(normal(taken)) + weight * np.array(normal(both.head)), rtol=1e-12)
    assert both.head_weight == weight


def test_a_trace_that_half_repeats_the_loss():
    """Two neighbours swapped at either end: r = 2AB/(A² + B²)."""
    r = 2 * A * B / (A * A + B * B)
    s = math.sqrt(1 - r * r)
    views = made(roots=np.array([2.0, 1.0, 4.0, 3.0]))
    assert views.share_of_its_own == pytest.approx(s, rel=1e-12)
    assert views.weights == pytest.approx({"head": (1 - s) ** 2 / ROOT, "trace": s**2}, rel=1e-12)
    expected = (1 - s) ** 2 / ROOT * np.array([-A, -B, B, A]) + s**2 * np.array([-B, -A, A, B])
    np.testing.assert_allclose(fused(views), expected, rtol=1e-12)


def test_all_other_views_together_have_unit_variance_beside_a_trace():
    """left_out ranks 1 4 2 3 and the head 1 2 3 4: what they say together is brought to variance 1."""
    without = {"error_without": np.array([2.0, 5.0, 4.0, 4.5]), "leverage": np.full(4, 0.5), "variation": 46.0}
    views = made(**without, roots=np.array([2.0, 1.0, 4.0, 3.0]))
    m, g = 1 - 4 / 15.5, 11.5 / 46.0
    head = (1 - g) * (m**2 + (1 - m) ** 2)
    together = np.array([-A, A, -B, B]) + head * np.array([-A, -B, B, A])
    s = views.share_of_its_own
    rest = (1 - s) ** 2 / pstdev(together.tolist())
    assert views.weights == pytest.approx({"left_out": rest, "head": rest * head, "trace": s**2}, rel=1e-12)


def test_a_trace_counts_as_what_a_record_takes_away_where_a_leverage_is_known():
    """M = ½: roots 1, 2, 3 squared, times the roots of the leverages, are 1, 0.4, 0.9."""
    three = {name: np.ones(3) for name in ("head", "error_with", "loss")}
    others = {"error_without": np.full(3, 2.0), "leverage": np.array([1.0, 0.01, 0.01]), "variation": math.inf}
    views = made(**three, **others, roots=np.array([1.0, 2.0, 3.0]), records=3)
    assert views.weights["trace"] == 1.0  # a constant loss repeats nothing
    assert np.argsort(fused(views)).tolist() == [1, 2, 0]
    alone = replace(views, error_without=None, leverage=None)
    assert np.argsort(fused(alone)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("variation", "order"), [(math.inf, [1, 2, 0]), (3.0, [0, 1, 2])])
def test_a_trace_takes_the_kernel_s_leverage_as_far_as_the_kernel_predicts_what_the_model_does(variation, order):
    """M = ½. Where U = 0 too, roots 1, 4, 9 are taken 1, 0.01, 0.01 times; where U = 1/2, 1, 0.32 and 0.32 times: the
    kernel errs by 6 in all and the model by 4.5 on records held out, of 3."""
    three = {name: np.ones(3) for name in ("head", "error_with", "loss")}
    others = {"error_without": np.full(3, 2.0), "leverage": np.array([1.0, 1e-4, 1e-4]), "variation": variation}
    views = made(**three, **others, roots=np.array([1.0, 2.0, 3.0]), records=3, held_out_error=1.5)
    assert np.argsort(fused(views)).tolist() == order


@pytest.mark.parametrize("n", [3, 5, 9, 60])
def test_views_that_contradict_each_other_everywhere_say_nothing_beside_a_trace(n):
    """Their sum is 0 but for roundings, which no unit variance may blow up."""
    up = np.arange(n) * 1.0
    views = made(head=up, loss=up, error_with=0 * up, error_without=up, leverage=np.ones(n), bag=-up, roots=up)
    assert views.weights == pytest.approx({"left_out": 1.0, "out_of_bag": 1.0, "trace": 0.0}, abs=1e-7)
    np.testing.assert_allclose(fused(views), 0.0, atol=1e-6)


@pytest.mark.parametrize(
    "more", [{}, {"roots": ZIGZAG}, {**OTHERS, "bag": ZIGZAG, "variants": ZIGZAG, "variants_weight": 1.0}]
)
def test_beside_an_exact_head_nothing_counts(more):
    views = made(head_is_exact=True, **more)
    assert views.weights == {"head": 1.0}
    np.testing.assert_allclose(fused(views), [-A, -B, B, A], rtol=1e-12)


def test_columns_are_the_views_as_they_are():
    parts = {name: np.arange(4.0) + k for k, name in enumerate(("roots", "iqr", "variants", "bag"))}
    views = made(**parts)
    for column, name in (("trace", "roots"), ("lt_iqr", "iqr"), ("relatives", "variants"), ("out_of_bag", "bag")):
        assert CATALOGUE[column].function(views) is parts[name]


# ------------------------------------------------------------------------------------------------ the rule in words


def normal(values) -> list[float]:
    inverse, n = NormalDist().inv_cdf, len(values)
    ranks = [sum(o < v for o in values) + (sum(o == v for o in values) + 1) / 2 for v in values]
    return [inverse((rank - 0.5) / n) for rank in ranks]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40))
@example([5.0, 1.0, 5.0, 5.0, 0.0])
@example([3.0] * 7)
def test_normal_scores_are_those_of_counting(values):
    np.testing.assert_allclose(normal_scores(np.array(values)), normal(values), rtol=1e-9, atol=1e-12)


def clipped(value: float) -> float:
    return min(1.0, max(0.0, value))


def by_the_rule(v: Views) -> tuple[dict[str, float], list[float]]:
    """The rule as the documentation says it, row by row: what each view counts, and the sum."""
    seen, rows, u = sum(v.error_with), range(len(v.head)), 0.0
    columns, counts = {"head": list(v.head)}, {"head": 1.0}
    if v.error_without is not None:
        outside = sum(v.error_without)
        m = clipped(1 - seen / outside) if outside else 0.0
        g = clipped((outside - seen) / v.variation)
        counts = {"left_out": 1.0, "head": (1 - g) * (m**2 + (1 - m) ** 2)}
        columns["left_out"] = [v.error_without[i] * v.leverage[i] ** (1 - m) for i in rows]
    if v.held_out_error is not None:
        never_seen = v.held_out_error * v.records
        own = clipped(1 - seen / never_seen) if never_seen else 0.0
        g = clipped((never_seen - seen) / v.variation)
        counts["head"] = (1 - g) ** 2 * (own**2 + (1 - own) ** 2)
        if v.error_without is not None:
            u = clipped((outside - never_seen) / v.variation)
            counts["left_out"] = own * (1 - u)
    if v.bag is not None:
        del counts["head"]
        counts["out_of_bag"], columns["out_of_bag"] = 1.0, list(v.bag)
    if v.variants is not None:
        counts["relatives"], columns["relatives"] = v.variants_weight, list(v.variants)
    if v.head_is_exact:
        counts = {"head": 1.0}
    elif v.roots is not None:
        a, b = normal(v.roots), normal(v.loss)
        norm = math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))
        r = sum(x * y for x, y in zip(a, b, strict=True)) / norm if norm else 0.0
        s = math.sqrt(1 - min(max(r, 0.0), 1.0) ** 2)
        scores = {name: normal(columns[name]) for name in counts}
        spread = pstdev([sum(counts[name] * scores[name][i] for name in counts) for i in rows])
        spread = spread if spread > 1e-9 else 1.0
        counts = {name: (1 - s) ** 2 * count / spread for name, count in counts.items()}
        counts["trace"], columns["trace"] = s**2, list(v.roots)
        if v.error_without is not None:
            columns["trace"] = [v.roots[i] ** 2 * v.leverage[i] ** ((1 - m) * (1 - u) ** 2) for i in rows]
    scores = {name: normal(columns[name]) for name in counts}
    return counts, [sum(counts[name] * scores[name][i] for name in counts) for i in rows]


FEW, SHARES = st.integers(0, 12).map(lambda k: k / 4), st.sampled_from([0.25, 1.0])


@st.composite
def views(draw, values=FEW, leverage=SHARES) -> Views:
    """Any views of one to nine rows; by default of few values, so that many are equal."""
    n = draw(st.integers(1, 9))
    column = st.lists(values, min_size=n, max_size=n).map(np.array)
    known = {name: draw(column) for name in ("head", "error_with", "loss")}
    if draw(st.booleans()):
        known |= {"error_without": draw(column)}
        known |= {"leverage": draw(st.lists(leverage, min_size=n, max_size=n).map(np.array))}
    for name in ("roots", "variants", "bag"):
        if draw(st.booleans()):
            known[name] = draw(column)
    weight = draw(st.sampled_from([0.0, 0.25, 1.0]))
    held_out = draw(st.none() | values)
    variation = draw(st.sampled_from([0.5, 8.0, 64.0]))
    known |= {"variants_weight": weight, "held_out_error": held_out, "variation": variation, "records": n}
    return made(**known, head_is_exact=draw(st.integers(0, 9)) == 0)


@given(views())
def test_weights_and_fused_are_those_of_the_rule(v):
    counts, expected = by_the_rule(v)
    assert v.weights == pytest.approx(counts, rel=1e-6, abs=2e-7)  # s near 0 is the root of a difference of roundings
    np.testing.assert_allclose(fused(v), expected, atol=1e-6)


@given(views(st.floats(0.0, 1e100), st.floats(0.0, 1.0)), st.sampled_from([0.0, 1e-300, 1.0, math.inf]))
def test_numbers_of_any_size_stay_finite(v, variation):
    v = replace(v, variation=variation)
    assert np.isfinite(fused(v)).all()
    assert all(0.0 <= weight < math.inf for weight in v.weights.values())


@given(views(leverage=st.just(0.25)), st.data())
def test_more_in_one_view_is_never_less_exposed(v, data):
    """What each view counts being held: it depends on all rows, and moves with any of them."""
    columns = {"head": "head", "left_out": "error_without", "relatives": "variants", "out_of_bag": "bag"}
    column = data.draw(st.sampled_from([name for name in v.weights]))
    field = (columns | {"trace": "roots"})[column]
    row = data.draw(st.integers(0, len(v.head) - 1))
    raised = getattr(v, field).copy()
    raised[row] += data.draw(st.integers(1, 12)) / 4
    moved = replace(v, **{field: raised}).scores[column]
    change = v.weights[column] * (moved - v.scores[column])
    assert change[row] >= -1e-12
    others = np.delete(change, row)
    assert (others <= 1e-12).all()  # and nobody else gains by it


@given(views(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(v, random):
    order = random.sample(range(len(v.head)), len(v.head))
    columns = {one.name: getattr(v, one.name) for one in fields(v)}
    moved = replace(v, **{name: held[order] for name, held in columns.items() if isinstance(held, np.ndarray)})
    np.testing.assert_allclose(fused(moved), fused(v)[order], atol=1e-6)


@given(views())
def test_equal_rows_are_equally_exposed(v):
    columns = {one.name: getattr(v, one.name) for one in fields(v)}
    twice = {name: np.concatenate([held, held[:1]]) for name, held in columns.items() if isinstance(held, np.ndarray)}
    found = fused(replace(v, **twice))
    assert found[0] == found[-1]
