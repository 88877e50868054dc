"""The view of the other texts: how likely they make each token of a text, by what follows the same words in them.

A mixture predicts each token: the shares of the tokens that follow the last 0 to 4 tokens in all *other* texts, and the
model before fine-tuning (or one chance in the vocabulary). Taking a text out of the counts is a subtraction, so that
every text is left out exactly. The weights of the mixture maximize the likelihood of the texts so predicted, for each
length of the longest context that other texts share and how often they do. Nothing of the fine-tuned model is used.
"""

from typing import NamedTuple

import numpy as np

from giveaway.records.texts import Texts

LONGEST = 5  # tokens of an n-gram, the predicted one included
ITERATIONS = 50  # of expectation maximization; the likelihood changes in the fifth digit by then
OFTEN = (1, 2, 4)  # counts of the longest context, from which on it is trusted anew


class OtherTexts(NamedTuple):
    """What the other texts say of each token (T,): its log-likelihood, and the length of the longest context of it that
    some other text has."""

    log_likelihood: np.ndarray
    context: np.ndarray


def predicted_by_others(texts: Texts) -> OtherTexts:
    """Predict every token from the other texts.

    >>> import numpy as np
    >>> ones = np.zeros(8)
    >>> texts = Texts([0, 4, 8], [1, 2, 3, 4, 1, 2, 3, 0], 5, ones, ones, ones, ones > 0)
    >>> np.exp(predicted_by_others(texts).log_likelihood).round(1).tolist()
    [0.8, 0.8, 0.8, 0.1, 0.8, 0.8, 0.8, 0.1]
    """
    floor = np.full(len(texts.tokens), 1.0 / texts.vocabulary)
    if texts.base is not None:
        floor = np.exp(texts.base.astype(np.float64)).clip(np.finfo(np.float64).tiny)
    chances = [floor]
    longest, often = np.zeros(len(floor), dtype=np.int64), np.zeros(len(floor), dtype=np.int64)
    first = np.zeros(len(floor), dtype=bool)
    first[texts.starts[:-1] if texts.begins is None else texts.begins] = True
    gram = np.zeros(len(floor), dtype=np.int64)
    for size in range(1, LONGEST + 1):
        context = np.zeros_like(gram) if size == 1 else np.where(first, 0, np.roll(gram, 1) + 1)
        gram = np.unique(context * texts.vocabulary + texts.tokens, return_inverse=True)[1]
        times, followed = _in_others(context, texts), _in_others(gram, texts)
        there = times > 0
        chances.append(np.where(there, followed / np.maximum(times, 1), 0.0))
        longest[there], often[there] = size, times[there]
    kind = longest * (len(OFTEN) + 1) + np.searchsorted(OFTEN, often, side="right")
    likelihood = _mixture(np.stack(chances), kind)
    return OtherTexts(np.log(likelihood), np.maximum(longest - 1, 0))


def _in_others(value: np.ndarray, texts: Texts) -> np.ndarray:
    """Return how often the value at each token is found in other texts."""
    of_text = np.unique(value * texts.n + texts.document, return_inverse=True, return_counts=True)
    return np.bincount(value)[value] - of_text[2][of_text[1]]


def _mixture(chances: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Return the likelihoods (T,) of a mixture of `chances` (components, T), its weights fitted for each kind."""
    _, kind = np.unique(kind, return_inverse=True)
    kinds = int(kind.max()) + 1
    count = np.bincount(kind, minlength=kinds)
    weights = np.full((len(chances), kinds), 1.0 / len(chances))
    for _ in range(ITERATIONS):
        likelihood = (weights[:, kind] * chances).sum(0)
        weights = np.stack(
            [np.bincount(kind, w[kind] * p / likelihood, kinds) / count for w, p in zip(weights, chances, strict=True)]
        )
    return (weights[:, kind] * chances).sum(0)
