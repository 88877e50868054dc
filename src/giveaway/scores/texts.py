"""Scores of a text that a language model was trained on, one function a column; high means more exposed.

All but the gaps are how hard the text is for the trained model, in the nats that a token costs: what is unusual is
remembered by itself. A gap is what training took away of that.
"""

import math
import zlib
from dataclasses import dataclass

import numpy as np

from giveaway.records.texts import Texts
from giveaway.scores.fusion import normal_scores, removed, share_of_its_own

HARDEST = 0.2  # of a text's tokens, over which min_k takes the mean


@dataclass(frozen=True, eq=False)
class TextViews:
    """The texts of a table's rows, and what the views say of them: `left_out` (T,) is the log-likelihood of each token
    as the other texts predict it, `roots` (n,) the trace's mean √loss; None for a view that is not there."""

    texts: Texts
    left_out: np.ndarray | None = None
    roots: np.ndarray | None = None


def loss(views: TextViews) -> np.ndarray:
    """The mean loss of the text's tokens."""
    return -views.texts.means(views.texts.log_likelihood)


def min_k(views: TextViews) -> np.ndarray:
    """The mean loss of the hardest fifth of the text's tokens (Min-K %)."""
    return _mean_of_largest(views.texts, -views.texts.log_likelihood)


def min_k_plus(views: TextViews) -> np.ndarray:
    """The same of losses relative to what the model itself expects there, in standard deviations (Min-K %++)."""
    texts = views.texts
    apart = texts.expected - texts.log_likelihood
    return _mean_of_largest(texts, apart / np.maximum(texts.spread, np.finfo(np.float32).eps))


def zlib_ratio(views: TextViews) -> np.ndarray:
    """The text's loss over the bytes that zlib needs for it."""
    texts = views.texts
    assert texts.contents is not None
    size = np.array([len(zlib.compress(text.encode("utf-8", "surrogatepass"))) for text in texts.contents])
    return -texts.sums(texts.log_likelihood) / size


def base_gap(views: TextViews) -> np.ndarray:
    """The mean loss of a token before fine-tuning minus the mean loss after."""
    texts = views.texts
    assert texts.base is not None
    return texts.means(texts.log_likelihood - texts.base)


def error_gap(views: TextViews) -> np.ndarray:
    """Where the model's first guess is wrong: what fine-tuning added to the probabilities of the text's tokens, as a
    share of all that it added or took away; ½ where it was never wrong (EZ-MIA)."""
    texts = views.texts
    assert texts.base is not None
    change = np.where(texts.best, 0.0, np.exp(texts.log_likelihood) - np.exp(texts.base))
    more, less = texts.sums(np.maximum(change, 0.0)), texts.sums(np.maximum(-change, 0.0))
    moved = more + less
    return np.where(moved > 0, more / np.where(moved > 0, moved, 1.0), 0.5)


def left_out(views: TextViews) -> np.ndarray:
    """The mean loss of a token as the other texts predict it minus the model's own, times √tokens: the mean of more
    tokens varies less between models."""
    assert views.left_out is not None
    texts = views.texts
    return texts.means(texts.log_likelihood - views.left_out) * np.sqrt(texts.lengths)


def leverage(views: TextViews) -> np.ndarray:
    """The share of the curvature that is the text's own, summed over directions."""
    return _step(views, "leverage")


def influence(views: TextViews) -> np.ndarray:
    """What the text's loss would gain without it by the curvature with it, over √tokens."""
    return _step(views, "influence") / np.sqrt(views.texts.lengths)


def newton(views: TextViews) -> np.ndarray:
    """What the text's loss would gain by a Newton step away from it, the curvature without it, over √tokens."""
    return _step(views, "newton") / np.sqrt(views.texts.lengths)


def trace(views: TextViews) -> np.ndarray:
    """The mean over epochs of √loss, as training saw the text."""
    assert views.roots is not None
    return views.roots


def weights(views: TextViews) -> dict[str, float]:
    """What each view counts in `fused`. A model that has learned its texts by heart has no gradients left to tell them
    apart: the Newton step counts 1 − M and the other views M, the share of the other texts' loss that the model took
    away; the trace of that as far as the finished model's loss does not repeat it."""
    texts, others = views.texts, views.left_out
    assert others is not None
    memorized, counts = 1.0, {}
    if texts.steps is not None:
        memorized = removed(-math.fsum(texts.log_likelihood), -math.fsum(others))
        counts["newton"] = 1.0 - memorized
    counts["left_out"] = memorized
    if views.roots is not None:
        counts["trace"] = memorized * share_of_its_own(views.roots, loss(views)) ** 2
    return counts


def fused(views: TextViews) -> np.ndarray:
    """The sum of the views' normal scores, each times what it counts."""
    known = {"newton": newton, "left_out": left_out, "trace": trace}
    return np.sum([count * normal_scores(known[name](views)) for name, count in weights(views).items()], axis=0)


def _step(views: TextViews, name: str) -> np.ndarray:
    assert views.texts.steps is not None
    return views.texts.steps[name]


def _mean_of_largest(texts: Texts, values: np.ndarray) -> np.ndarray:
    """Return the mean of each text's largest values, a fifth of them and at least one."""
    order = np.lexsort((-values, texts.document))
    place = np.arange(len(values)) - texts.starts[texts.document]
    count = np.maximum(1, np.round(HARDEST * texts.lengths)).astype(np.int64)
    return texts.sums(np.where(place < count[texts.document], values[order], 0.0)) / count
