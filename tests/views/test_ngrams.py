"""What other texts predict: counts against loops over all other texts, and the mixture's likelihood at its maximum."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from giveaway.records.texts import Texts
from giveaway.views import tokens
from giveaway.views.tokens import predicted_by_others


def texts_of(documents, vocabulary=4, base=None):
    tokens = np.concatenate(documents)
    zeros = np.zeros(len(tokens))
    starts = np.concatenate([[0], np.cumsum([len(one) for one in documents])])
    return Texts(starts, tokens, vocabulary, zeros, zeros, zeros, zeros > 0, base)


def shares_by_loops(documents):
    """For every token, the share of each n-gram size among what follows its context in the other documents."""
    found = []
    for i, document in enumerate(documents):
        for t, token in enumerate(document):
            shares = []
            for size in range(1, 6):
                begun = ("start", *document[:t])
                context = () if size == 1 else begun[-(size - 1) :]
                short = size > 1 and len(begun) < size - 1
                times = followed = 0
                for j, other in enumerate(documents):
                    for s in range(len(other)):
                        before = ("start", *other[:s])
                        same = context == (() if size == 1 else before[-(size - 1) :])
                        if j != i and same and (not short or len(before) == len(begun)):
                            times, followed = times + 1, followed + (other[s] == token)
                shares.append((times, followed / times if times else 0.0))
            found.append(shares)
    return np.array(found)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=7), min_size=2, max_size=5))
def test_chances_come_from_the_other_texts_alone(documents):
    seen = {}

    def kept(chances, kind):
        seen["chances"] = chances
        return np.ones(chances.shape[1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "_mixture", kept)
        told = predicted_by_others(texts_of(documents))
    shares = shares_by_loops(documents)
    np.testing.assert_allclose(seen["chances"][1:].T, shares[:, :, 1], rtol=1e-12)
    longest = np.array([max([0] + [size for size in range(5) if token[size, 0] > 0]) for token in shares])
    np.testing.assert_array_equal(told.context, longest)


def test_the_weights_maximize_the_likelihood_of_left_out_texts():
    rng = np.random.default_rng(0)
    chances, kind = rng.random((3, 400)) * [[0.2], [1.0], [0.6]], np.repeat([0, 1], 200)
    total = np.log(tokens._mixture(chances, kind)).reshape(2, 200).sum(1)
    grid = np.linspace(0, 1, 201)
    first, second = (axis.ravel() for axis in np.meshgrid(grid, grid))
    inside = first + second <= 1
    weights = np.stack([first, second, 1 - first - second])[:, inside]
    for which in range(2):
        some = chances[:, which * 200 : which * 200 + 200]
        assert total[which] == pytest.approx(np.log(weights.T @ some + 1e-300).sum(1).max(), abs=1e-2)


def test_a_near_copy_makes_a_text_likely_and_its_own_words_do_not():
    rng = np.random.default_rng(1)
    documents = [rng.integers(0, 500, 30).tolist() for _ in range(40)]
    documents[7] = [*documents[3][:29], 1]  # a near copy
    documents[11] = [5, 6, 7] * 10  # repeats itself, and nobody else
    told = predicted_by_others(texts_of(documents, 500))
    each = np.split(told.log_likelihood, 40)
    assert each[3].mean() > -1.5
    assert each[7].mean() > -1.5
    assert max(each[i].mean() for i in range(40) if i not in (3, 7)) < -4
    assert each[11].mean() < -4


def test_the_base_model_is_one_of_the_voices():
    rng = np.random.default_rng(2)
    documents = [rng.integers(0, 50, 20).tolist() for _ in range(10)]
    known = predicted_by_others(texts_of(documents, 50, base=np.full(200, np.log(0.9)))).log_likelihood
    assert known.mean() == pytest.approx(np.log(0.9), abs=0.02)


def test_the_documents_of_a_person_begin_anew():
    """Every document begins with the same token: the others predict it at the start of each, also of people."""
    documents = [[3, *row] for row in np.random.default_rng(0).integers(0, 3, (60, 5)).tolist()]
    texts = replace(texts_of(documents), groups=np.repeat(np.arange(12), 5))
    people = texts.by_person()
    np.testing.assert_array_equal(people.begins, np.arange(60) * 6)
    said = np.exp(predicted_by_others(people).log_likelihood)
    np.testing.assert_allclose(said[people.begins], said[0], rtol=1e-12)
