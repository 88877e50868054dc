"""Views of texts, token by token: what the other texts say, what the model gives back, and the words that tell.

The other texts: a mixture predicts each token by the shares of the tokens that follow the last 0 to 4 tokens in all
*other* texts, and by the model before fine-tuning (or one chance in the vocabulary); a text is left out exactly, by
subtraction from the counts. The weights of the mixture maximize the likelihood of the texts so predicted, for each
length of the longest context that other texts share and how often they do. Nothing of the fine-tuned model is used.

Continuation: greedy continuation of a text's beginning gives back the text exactly as far as each token is the most
likely one after those before it, and that is known of every token from the one pass in which the texts were read. So
nothing is generated: every beginning of every text is checked at once, as `model.generate(do_sample=False)` would.
"""

import json
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from giveaway.records.reasons import OwnTerms
from giveaway.records.texts import Texts
from giveaway.text import shown_text

LONGEST = 5  # tokens of an n-gram, the predicted one included
ITERATIONS = 50  # of expectation maximization; the likelihood changes in the fifth digit by then
OFTEN = (1, 2, 4)  # counts of the longest context, from which on it is trusted anew
EXPLAINED = 100  # rows, the most exposed ones, that a page lists
LEVELS = (2, 10, 100)  # times as likely as the others make a token: where its heat rises
NAMED = 3  # words of a text that a reason names
WINDOW = 160  # tokens of a text that are shown: those with the largest gain in all


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
    return OtherTexts(np.log(_mixture(np.stack(chances), kind)), np.maximum(longest - 1, 0))


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
        shares = (w[kind] * p / likelihood for w, p in zip(weights, chances, strict=True))
        weights = np.stack([np.bincount(kind, share, kinds) for share in shares]) / count
    return (weights[:, kind] * chances).sum(0)


def longest_runs(texts: Texts, best: np.ndarray) -> np.ndarray:
    """Return the longest run (n,) of tokens in each text that are all given back, each after those before it.

    >>> best = np.array([True, True, False, True, True, True, True, False])
    >>> zeros = np.zeros(8)
    >>> longest_runs(Texts([0, 4, 8], np.arange(8), 9, zeros, zeros, zeros, best), best).tolist()
    [2, 3]
    """
    place = np.arange(len(best))
    broken = np.maximum.accumulate(np.where(best, -1, place))
    runs = place - np.maximum(broken, texts.starts[texts.document] - 1)
    return np.maximum.reduceat(runs, texts.starts[:-1])


def continues(texts: Texts, best: np.ndarray) -> np.ndarray:
    """Return which texts (n,) go on word for word after their beginning, as `texts.continued` says; what the loss
    leaves out of a text, its first token or a prompt, counts as one token of the beginning."""
    prefix, tokens = texts.continued
    place = np.arange(len(best)) - texts.starts[texts.document]
    asked = (place >= prefix - 1) & (place < prefix - 1 + tokens)
    return texts.sums(best & asked) == tokens


def continuation(texts: Texts) -> tuple[dict[str, np.ndarray], dict[str, Any] | None]:
    """Return the columns of a table's rows, and what its metadata say; None where no text is long enough."""
    prefix, tokens = texts.continued
    now = continues(texts, texts.best)
    columns = {"longest_run": longest_runs(texts, texts.best), "continues": now}
    told: dict[str, Any] = {"prefix": prefix, "tokens": tokens}
    told |= {"texts": int((texts.lengths >= prefix - 1 + tokens).sum()), "continued": int(now.sum())}
    if texts.base_best is not None:
        columns["longest_run_before"] = longest_runs(texts, texts.base_best)
        told["before"] = int((now & continues(texts, texts.base_best)).sum())
    if texts.groups is not None:
        _, person = np.unique(texts.groups, return_inverse=True)
        for name, values in columns.items():
            columns[name] = np.zeros(person.max() + 1, dtype=values.dtype)
            np.maximum.at(columns[name], person, values)
    return columns, told if told["texts"] else None


def own_terms(texts: Texts, others: OtherTexts, order: np.ndarray, unit: str) -> OwnTerms:
    """Tell of the first rows of `order` how many of their tokens nothing else explains, and which, where the words are
    known."""
    expected = others.log_likelihood if texts.base is None else np.maximum(others.log_likelihood, texts.base)
    gain = texts.log_likelihood - expected
    far, shared = texts.sums(gain >= np.log(LEVELS[1])).astype(np.int64), texts.means(others.context >= 2)
    its, others_are = ("its", "the other texts") if unit == "record" else ("their", "the texts of others")
    before = "" if texts.base is None else ", or the model before fine-tuning,"
    rows = order[:EXPLAINED].astype(np.int64)
    named = [
        f"{far[row] or 'none'} of {its} {texts.lengths[row]:,} tokens are at least {LEVELS[1]} times as likely as "
        f"{others_are}{before} make them; {100 * shared[row]:.0f} % follow words that others have too"
        for row in rows.tolist()
    ]
    if texts.words is None:
        return OwnTerms(rows, np.array(named))
    shown, heat = [], []
    for row, clause in zip(rows.tolist(), named, strict=True):
        part = slice(*texts.starts[row : row + 2])
        pieces = [texts.words[token] for token in texts.tokens[part].tolist()]
        shown.append(clause + _most(pieces, gain[part]))
        heat.append(_heat(pieces, gain[part], "" if texts.contents is None else texts.contents[row]))
    return OwnTerms(rows, np.array(named), np.array(shown), np.array(heat))


def _most(pieces: list[str], gain: np.ndarray) -> str:
    """Name the words with the tokens that gain most, and how much more likely these are; "" where none gains much."""
    word = np.cumsum([piece[:1].isspace() for piece in pieces])
    first = np.unique(word[order := np.argsort(-gain, kind="stable")], return_index=True)[1]
    told = []
    for at in (at for at in order[np.sort(first)[:NAMED]].tolist() if gain[at] >= np.log(LEVELS[0])):
        whole = "".join(pieces[place] for place in np.flatnonzero(word == word[at])).strip()
        times = "over a million" if gain[at] > np.log(1e6) else f"{np.exp(gain[at]):,.3g}"
        told.append(f"“{shown_text(whole, 40)}” (up to {times} times)")
    return f"; above all {', '.join(told)}" if told else ""


def _heat(pieces: list[str], gain: np.ndarray, content: str) -> str:
    """Return a text in parts of one level, as JSON: all of it, or the tokens in a row that gain most."""
    total = np.concatenate([[0.0], np.cumsum(np.maximum(gain, 0.0))])
    begin = int(np.argmax(total[WINDOW:] - total[:-WINDOW])) if len(pieces) > WINDOW else 0
    at = content.find("".join(pieces[:LONGEST]).strip())  # before it are tokens of which nothing is predicted
    before = "… " if begin else content[: max(0, at)].rstrip()
    levels = np.searchsorted(np.log(LEVELS), gain, side="right").tolist()
    parts = [(0, before), *zip(levels, pieces, strict=True)][: begin + WINDOW + 1]
    parts = [parts[0], *parts[begin + 1 :], (0, " …" if begin + WINDOW < len(pieces) else "")]
    joined = [("".join(piece for _, piece in some), level) for level, some in groupby(parts, key=lambda part: part[0])]
    return json.dumps([[shown_text(text.replace("\n", " ↵ "), 10 * WINDOW), level] for text, level in joined if text])
