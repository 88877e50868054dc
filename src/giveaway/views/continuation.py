"""The view of someone who asks a language model to go on: how much of a text it gives back word for word.

Greedy continuation of a text's beginning gives back the text exactly as far as each token is the most likely one after
those before it, and that is known of every token from the one pass in which the texts were read. So nothing is
generated: every beginning of every text is checked at once, as `model.generate(do_sample=False)` would from each.
"""

from typing import Any

import numpy as np

from giveaway.records.texts import Texts


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
        columns = {name: _largest(values, person) for name, values in columns.items()}
    return columns, told if told["texts"] else None


def _largest(values: np.ndarray, person: np.ndarray) -> np.ndarray:
    found = np.zeros(person.max() + 1, dtype=values.dtype)
    np.maximum.at(found, person, values)
    return found
