"""Why a text ranks high: the words of which the model knows more than the other texts tell, or it knew before."""

import json
from itertools import groupby

import numpy as np

from giveaway.records.reasons import OwnTerms
from giveaway.records.texts import Texts
from giveaway.text import shown_text
from giveaway.views.ngrams import LONGEST, OtherTexts

EXPLAINED = 100  # rows, the most exposed ones, that a page lists
LEVELS = (2, 10, 100)  # times as likely as the others make a token: where its heat rises
NAMED = 3  # words of a text that a reason names
WINDOW = 160  # tokens of a text that are shown: those with the largest gain in all


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
        told.append(f"“{shown_text(whole, 40)}” (up to {_times(gain[at])} times)")
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


def _times(gain: float) -> str:
    return "over a million" if gain > np.log(1e6) else f"{np.exp(gain):,.3g}"
