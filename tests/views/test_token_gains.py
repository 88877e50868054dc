"""Why a text ranks high: counts and words against a loop, and the parts of a text with their heat."""

import json
from dataclasses import replace

import numpy as np
import pytest

from giveaway.views.tokens import WINDOW, OtherTexts, own_terms, predicted_by_others
from tests.scores.test_texts import texts_of

WORDS = ["", " the", " cat", " sat", "Kow", "alski", " 12", "-", "<b>"]


def texts_with(gains, vocabulary=9):
    """One text of these gains over what the others say, and another of none."""
    texts = replace(texts_of([len(gains), 4], vocabulary=vocabulary), base=None, base_best=None, words=WORDS)
    said = np.full(len(texts.tokens), -9.0)
    said[: len(gains)] += np.log(gains)
    return replace(texts, log_likelihood=said), OtherTexts(np.full(len(said), -9.0), np.zeros(len(said), dtype=int))


def test_counts_and_words_are_those_of_a_loop():
    texts = replace(texts_of([6, 9, 14, 30], vocabulary=9), words=WORDS)
    others = predicted_by_others(texts)
    terms = own_terms(texts, others, np.array([2, 0, 3]), "record")
    assert terms.rows.tolist() == [2, 0, 3]
    for row, clause in zip(terms.rows, terms.named, strict=True):
        places = range(texts.starts[row], texts.starts[row + 1])
        known = [np.exp(texts.log_likelihood[t]) for t in places]
        expected = [max(np.exp(others.log_likelihood[t]), np.exp(texts.base[t])) for t in places]
        far = sum(now >= 10 * then for now, then in zip(known, expected, strict=True))
        assert clause.startswith(
            f"{far} of its {len(places)} tokens are at least 10 times as likely as the other texts, or"
        )
    assert own_terms(replace(texts, words=None), others, np.arange(4), "record").heat is None
    assert "of their" in own_terms(texts, others, np.arange(4), "person").named[0]


def test_heat_has_a_level_for_each_token_and_words_are_whole():
    texts, others = texts_with([1, 2.5, 1, 50, 900, 1])
    texts = replace(
        texts, tokens=np.array([1, 2, 3, 4, 5, 8, 1, 1, 1, 1]), contents=["A dog & the cat satKowalski<b>", "x"]
    )
    terms = own_terms(texts, others, np.array([0]), "record")
    parts = json.loads(terms.heat[0])
    assert parts == [["A dog & the", 0], [" cat", 1], [" sat", 0], ["Kow", 2], ["alski", 3], ["<b>", 0]]
    assert terms.words(np.array([0, 1])) == [[tuple(part) for part in parts], []]
    assert "; above all “satKowalski<b>” (up to 900 times), “cat” (up to 2.5 times)" in terms.shown[0]
    assert "Kow" not in terms.named[0]
    assert terms.withheld().heat is None


@pytest.mark.parametrize("place", [0, 250, 499])
def test_of_a_long_text_the_part_is_shown_that_gains_most(place):
    gains = np.ones(500)
    gains[place] = 1e9
    terms = own_terms(*texts_with(gains.tolist()), np.array([0]), "record")
    parts = json.loads(terms.heat[0])
    assert [level for _, level in parts].count(3) == 1
    assert parts[0][0].startswith("… ") == (place > WINDOW)
    assert parts[-1][0].endswith(" …") == (place < 499)
    assert "over a million times" in terms.shown[0]
