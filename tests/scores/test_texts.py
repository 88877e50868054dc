"""Scores of texts against loops over documents and tokens."""

import zlib
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giveaway.records.texts import Texts
from giveaway.scores import texts as scores
from giveaway.scores.texts import TextViews
from tests.conftest import refused


def texts_of(lengths, seed=0, groups=None, vocabulary=7):
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    return Texts(
        np.concatenate([[0], np.cumsum(lengths)]),
        rng.integers(0, vocabulary, total),
        vocabulary,
        -rng.exponential(1.0, total),
        -rng.exponential(1.0, total),
        rng.uniform(0.1, 1.0, total),
        rng.random(total) < 0.4,
        base=-rng.exponential(2.0, total),
        contents=["word " * int(n) for n in lengths],
        groups=groups,
    )


def by_loops(texts, name, left_out):
    found = []
    for i in range(texts.n):
        which = range(texts.starts[i], texts.starts[i + 1])
        log_p = [float(texts.log_likelihood[t]) for t in which]
        base = [float(texts.base[t]) for t in which]
        hardest = max(1, round(0.2 * len(log_p)))
        if name == "loss":
            found.append(-sum(log_p) / len(log_p))
        elif name == "min_k":
            found.append(sum(sorted((-p for p in log_p), reverse=True)[:hardest]) / hardest)
        elif name == "min_k_plus":
            apart = [(texts.expected[t] - texts.log_likelihood[t]) / texts.spread[t] for t in which]
            found.append(sum(sorted(apart, reverse=True)[:hardest]) / hardest)
        elif name == "zlib_ratio":
            found.append(-sum(log_p) / len(zlib.compress(texts.contents[i].encode())))
        elif name == "base_gap":
            found.append(sum(p - b for p, b in zip(log_p, base, strict=True)) / len(log_p))
        elif name == "error_gap":
            up = down = 0.0
            for t, p, b in zip(which, log_p, base, strict=True):
                if not texts.best[t]:
                    change = np.exp(p) - np.exp(b)
                    up, down = up + max(change, 0.0), down + max(-change, 0.0)
            found.append(up / (up + down) if up + down > 0 else 0.5)
        else:
            found.append(sum(p - left_out[t] for t, p in zip(which, log_p, strict=True)) / len(log_p) ** 0.5)
    return np.array(found)


NAMES = ("loss", "min_k", "min_k_plus", "zlib_ratio", "base_gap", "error_gap", "left_out")


@pytest.mark.parametrize("name", NAMES)
@given(lengths=st.lists(st.integers(1, 12), min_size=2, max_size=6), seed=st.integers(0, 1000))
def test_every_score_is_its_loop(name, lengths, seed):
    texts = texts_of(lengths, seed)
    left_out = -np.random.default_rng(seed + 1).exponential(1.0, len(texts.tokens))
    score = getattr(scores, name)(TextViews(texts, left_out))
    np.testing.assert_allclose(score, by_loops(texts, name, left_out), rtol=1e-10)


@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_person_is_scored_as_all_of_their_documents(name):
    texts = texts_of([3, 5, 2, 4, 6], groups=["b", "a", "b", "a", "c"])
    people = texts.by_person()
    assert people.ids.tolist() == ["a", "b", "c"]
    assert people.lengths.tolist() == [9, 5, 6]
    which = np.concatenate([np.arange(3, 8), np.arange(10, 14)])  # of a, in order
    np.testing.assert_array_equal(people.log_likelihood[:9], texts.log_likelihood[which])
    alone = Texts(
        [0, 9, 15],
        *(
            np.concatenate([getattr(texts, one)[which], getattr(texts, one)[14:]])
            if one != "vocabulary"
            else texts.vocabulary
            for one in ("tokens", "vocabulary", "log_likelihood", "expected", "spread", "best", "base")
        ),
        contents=[people.contents[0], people.contents[2]],
    )
    of_people, of_two = getattr(scores, name)(TextViews(people)), getattr(scores, name)(TextViews(alone))
    np.testing.assert_allclose(of_people[[0, 2]], of_two)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("starts", [0, 3, 3, 8], "starts: expected where each of at least 2 documents begins and ends"),
        ("log_likelihood", np.zeros(3), "log_likelihood: expected 8 values, one a token, got shape"),
        ("base", np.full(8, -np.inf), "base: expected finite values, got others, first in document 0"),
        ("tokens", np.full(8, 9), "tokens: expected numbers from 0 to 6, got 9 to 9"),
        ("contents", ["a"], "contents: expected 2 strings, got 1"),
        ("ids", ["a", "a"], "ids"),
    ],
)
def test_texts_that_do_not_fit_are_refused(field, value, words):
    given = {one.name: getattr(texts_of([3, 5]), one.name) for one in fields(Texts)}
    refused(words, lambda: Texts(**{**given, field: value}))
