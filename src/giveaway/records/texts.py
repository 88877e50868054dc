"""Texts: what a language model says of every token of the documents it was trained on."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch

from giveaway.checks import check_names, check_whole, fail

OF_TOKENS = ("tokens", "log_likelihood", "expected", "spread", "best")
OF_BASE = ("base", "base_best")


@dataclass(frozen=True, eq=False, repr=False)
class Texts:
    """The tokens that a language model was trained to predict, one document after the other.

    starts : (n + 1,) document i has the tokens starts[i] to starts[i + 1].
    tokens : (T,) numbers in the vocabulary. vocabulary : how many there are.
    log_likelihood : (T,) log p of each token, given all before it in its document.
    expected, spread : (T,) mean and standard deviation of log p over the model's own prediction for that place.
    best : (T,) whether the token is the one that the model finds most likely.
    base, base_best : (T,) log p, and whether it is the most likely, by the model before it was fine-tuned; or None.
    contents : the documents as strings, or None. words : how each number of the vocabulary reads, or None.
    ids : a unique name a document (numbers by default). groups : the person each document belongs to.
    model : what kind of model it is, such as GPT2LMHeadModel.
    steps : leverage, influence, newton and newton_error of each document, or of each person where there are groups.
    begins : of people, the tokens that begin one of their documents.
    continued : of how many tokens a beginning has, and how many must follow word for word for a text to be continued.
    """

    starts: np.ndarray
    tokens: np.ndarray
    vocabulary: int
    log_likelihood: np.ndarray
    expected: np.ndarray
    spread: np.ndarray
    best: np.ndarray
    base: np.ndarray | None = None
    contents: list[str] | None = None
    ids: np.ndarray = None  # type: ignore[assignment]
    groups: np.ndarray | None = None
    model: str | None = None
    base_best: np.ndarray | None = None
    words: list[str] | None = None
    steps: Mapping[str, np.ndarray] | None = None
    begins: np.ndarray | None = None
    continued: tuple[int, int] = (32, 32)
    loss: ClassVar[str] = "tokens"

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        starts = np.asarray(self.starts)
        if starts.ndim != 1 or len(starts) < 3 or starts[0] != 0 or not (np.diff(starts) > 0).all():
            expected = "where each of at least 2 documents begins and ends, from 0, each with a token"
            remedy = "leave out documents of which nothing is predicted"
            raise fail("starts", expected, f"{starts.size} numbers", remedy)
        set_field("starts", starts.astype(np.int64))
        for name in self._of_tokens:
            if (values := np.asarray(getattr(self, name))).shape != (starts[-1],):
                got = f"shape {values.shape}"
                raise fail(name, f"{starts[-1]} values, one a token", got, "give one of every token that is predicted")
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                row = int(np.searchsorted(starts, np.flatnonzero(~np.isfinite(values))[0], side="right")) - 1
                remedy = "look at that document: a token of probability 0, or a model that overflows in half precision"
                raise fail(name, "finite values", f"others, first in document {row}", remedy)
            set_field(name, values)
        check_whole("vocabulary", self.vocabulary, 2)
        for count in self.continued:
            check_whole("continued", count, remedy="give the tokens of a beginning, and those that must follow it")
        if self.tokens.min() < 0 or self.tokens.max() >= self.vocabulary:
            got = f"{int(self.tokens.min())} to {int(self.tokens.max())}"
            raise fail("tokens", f"numbers from 0 to {self.vocabulary - 1}", got, "give the model's own vocabulary")
        set_field("ids", np.arange(self.n) if self.ids is None else check_names("ids", self.ids, self.n, unique=True))
        if self.groups is not None:
            set_field("groups", check_names("groups", self.groups, self.n, unique=False))
        units = self.n if self.groups is None else len(np.unique(self.groups))
        for name, values in (self.steps or {}).items():
            if np.shape(values) != (units,):
                got, remedy = f"shape {np.shape(values)}", "texts().by_record() drops those of people"
                raise fail("steps", f"{units} values of {name}, one a document or person", got, remedy)
        if self.contents is not None and len(self.contents) != self.n:
            raise fail("contents", f"{self.n} strings", f"{len(self.contents)}", "give one a document, in their order")

    @property
    def n(self) -> int:
        """Documents."""
        return len(self.starts) - 1

    @property
    def _of_tokens(self) -> list[str]:
        return [*OF_TOKENS, *(name for name in OF_BASE if getattr(self, name) is not None)]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each document (n,)."""
        return np.diff(self.starts)

    @cached_property
    def document(self) -> np.ndarray:
        """The document of each token (T,)."""
        return np.repeat(np.arange(self.n), self.lengths)

    @property
    def targets(self) -> torch.Tensor:
        """What a trace knows the documents by, beside their ids: how many tokens each has."""
        return torch.from_numpy(self.lengths.astype(np.float64))

    def by_person(self) -> "Texts":
        """Return one text a person, in the order of np.unique(groups): all of that person's documents."""
        if self.groups is None:
            return self
        people, person = np.unique(self.groups, return_inverse=True)
        order = np.argsort(person[self.document], kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(person, self.lengths))]).astype(np.int64)
        of_tokens: dict[str, Any] = {name: getattr(self, name)[order] for name in self._of_tokens}
        contents: Any = None
        if self.contents is not None:
            contents = [""] * len(people)
            for text, owner in zip(self.contents, person, strict=True):
                contents[owner] += text + "\n"
        begins = np.flatnonzero(np.diff(self.document[order], prepend=-1))
        return replace(self, starts=starts, contents=contents, ids=people, groups=None, begins=begins, **of_tokens)

    def by_record(self) -> "Texts":
        """Return the same documents without their people, and without the steps of people."""
        return self if self.groups is None else replace(self, groups=None, steps=None)

    def renamed(self, ids: np.ndarray, groups: np.ndarray | None) -> "Texts":
        """Return the same documents and people under other names; what is of people goes in the order of the new."""
        steps = self.steps
        if steps is not None and groups is not None:
            order = np.argsort(groups[np.unique(self.groups, return_index=True)[1]])  # type: ignore[call-overload]
            steps = {name: values[order] for name, values in steps.items()}
        return replace(self, ids=ids, groups=groups, steps=steps)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sums (n,) over each document of values (T,)."""
        return np.add.reduceat(values, self.starts[:-1], dtype=np.float64)

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the means (n,) over each document of values (T,)."""
        return self.sums(values) / self.lengths

    def __repr__(self) -> str:
        kind = "" if self.model is None else f", model={self.model!r}"
        before = "" if self.base is None else ", base"
        return f"Texts(n={self.n}, tokens={len(self.tokens)}, vocabulary={self.vocabulary}{before}{kind})"
