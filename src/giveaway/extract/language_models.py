"""Read a language model: one pass over the documents that it was trained on, in evaluation mode, token by token."""

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from giveaway.checks import fail
from giveaway.extract.text_gradients import NUMBERS_AT_ONCE, Reading, TextCurvature, TextGradients, gradients_of
from giveaway.extract.token_rows import TokenBatch, TokenRows, checked_models
from giveaway.extract.torch_model import accepted, device_of, evaluation_mode, logits_of
from giveaway.records.texts import Texts
from giveaway.text import progress_of

COLUMNS = ("tokens", "log_likelihood", "expected", "spread", "best", "base", "base_best")


def from_causal_lm(
    model: nn.Module,
    dataset: Any,
    *,
    tokenizer: Any = None,
    base: nn.Module | None = None,
    batch_size: int = 8,
    max_length: int | None = None,
    ids: Any = None,
    groups: Any = None,
    continued: tuple[int, int] = (32, 32),
    curvature: TextCurvature | None = TextCurvature(),  # noqa: B008 (frozen)
    progress: bool = False,
) -> Texts:
    """Ask a language model about every token of its training documents.

    model : a causal or sequence-to-sequence model of `transformers`, with or without adapters, or any module that
        takes input_ids and returns logits (batch, tokens, vocabulary), as they are or under `.logits`.
    dataset : the documents in a fixed order: strings or dicts with `text` (and a tokenizer), dicts with `input_ids`, or
        a DataLoader that does not shuffle. As in `transformers`, labels of -100 are left out of the loss, and a mask of
        0 is padding, on either side. Packed rows tell documents apart by position_ids that begin again at 0, or by
        document_ids: numbers from 0 on, -1 for none; a document may go on in the next row.
    tokenizer : of the model. Beside input_ids it only turns them back into words.
    base : the model before it was fine-tuned. A model with adapters is its own: it is asked again without them.
    batch_size : rows that are padded and run together.
    max_length : tokens after which a document is cut; without it one that the model has no place for is refused.
    ids : a unique name a document. groups : the person each document belongs to.
    continued : tokens of a beginning, and tokens after it that the model must give back for the audit to call a text
        continued word for word. Checking it costs nothing: the model's first choices are known from the same pass.
    curvature : how leverage and newton of each document are had; None leaves them out.
    """
    plain, before = checked_models(model, base)
    rows = TokenRows(dataset, tokenizer, batch_size, max_length, plain)
    rows.check_names(ids, groups)
    gradients = None if curvature is None else gradients_of(plain, curvature, partial(_readings, plain, rows))
    parts = []
    watching = nullcontext() if gradients is None else gradients.watching()
    with progress_of(rows.total, enabled=progress, work="texts") as on_rows, watching:
        for batch in rows.batches():
            with torch.no_grad():
                parts.append(_ask(plain, before, batch, gradients))
            on_rows(len(batch.labels))
    if not parts:
        raise fail("dataset", "at least 2 documents", "none", "pass the documents that the model was trained on")
    document, *said = (torch.cat(columns).numpy() for columns in zip(*parts, strict=True))
    lengths = np.bincount(document, minlength=rows.documents)
    if empty := int((lengths == 0).sum()):
        got = f"{empty} of {len(lengths)} without one, first document {int(np.argmin(lengths))}"
        remedy = "leave out documents of one token, and those whose labels are all -100"
        raise fail("dataset", "documents with a token that the loss counts", got, remedy)
    order, starts = np.argsort(document, kind="stable"), np.concatenate([[0], np.cumsum(lengths)])
    values: Any = {name: column[order] for name, column in zip(COLUMNS, said, strict=False)}
    if "base" in values and np.array_equal(values["base"], values["log_likelihood"]):
        got = "the same log-likelihood of every token"
        raise fail("base", "a model that fine-tuning changed", got, "check which weights, or adapters, were loaded")
    if (contents := rows.contents) is None and tokenizer is not None:
        contents = tokenizer.batch_decode(np.split(values["tokens"], starts[1:-1]))
    vocabulary, kind = rows.vocabulary or int(values["tokens"].max()) + 1, type(plain).__name__
    named: Any = {"contents": contents, "words": _words(tokenizer, values["tokens"]), "ids": ids, "groups": groups}
    texts = Texts(starts, vocabulary=vocabulary, model=kind, continued=continued, **named, **values)
    if gradients is None:
        return texts
    unit = np.arange(texts.n) if texts.groups is None else np.unique(texts.groups, return_inverse=True)[1]
    return replace(texts, steps=gradients.columns(said[0], document, unit))


def _ask(
    model: nn.Module, base: nn.Module | None, batch: TokenBatch, gradients: TextGradients | None
) -> list[torch.Tensor]:
    """Return document, token, and what the model and its base say, of every token of a batch that the loss counts."""
    targets, logits = batch.labels[batch.counted], _logits(model, batch)
    columns = [batch.documents[batch.counted], targets, *_statistics(logits, targets)]
    if not bool((there := torch.isfinite(columns[2]).cpu()).all()):
        remedy = "look at it, or load the model in float32 or bfloat16: float16 overflows"
        raise fail("model", "finite logits", f"others, first in document {int(columns[0][~there][0])}", remedy)
    if gradients is not None:
        gradients.see(logits, batch.where)
    adapters = getattr(model, "disable_adapter", None) if base is None else None
    if base is not None or adapters is not None:
        with nullcontext() if adapters is None else adapters():
            before = _logits(base or model, batch)
        if (width := before.shape[1]) != logits.shape[1]:
            remedy = "resize its embeddings as the model's were, or leave base out"
            raise fail("base", f"the model's vocabulary of {logits.shape[1]:,}", f"{width:,}", remedy)
        columns += _statistics(before, targets)[::3]
    return [column.cpu() for column in columns]


def _readings(model: nn.Module, rows: TokenRows) -> Iterator[Reading]:
    """Yield the batches again for gradients through layers inside the model."""
    for batch in rows.batches():
        yield batch.documents, partial(_logits, model, batch), batch.labels[batch.counted]


def _logits(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    """Return the logits (t, V) of the tokens of a batch that the loss counts; the model is left as it was."""
    device = device_of(model)
    keywords = dict(batch.keywords)
    known = inspect.signature(model.forward).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in known.values()):
        if "attention_mask" not in known and bool((keywords.get("attention_mask", torch.ones(1, 1))[:, 0] == 0).any()):
            remedy = "pad on the right, or let forward take attention_mask"
            raise fail("dataset", "no padding on the left for a model without a mask", "some", remedy)
        for name in {"attention_mask", "position_ids"} - set(known):
            keywords.pop(name, None)
    keywords = {name: values.to(device) for name, values in accepted(model, keywords).items()}
    # with a cache, models of transformers do not see by the places where a packed document begins
    options = {"use_cache": False} if hasattr(getattr(model, "config", None), "use_cache") else {}
    with evaluation_mode(model):
        logits = logits_of(model(**keywords, **options))
    if not isinstance(logits, torch.Tensor) or logits.ndim != 3 or logits.shape[:2] != batch.labels.shape:
        got = f"shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        remedy = "a classifier is read by from_torch; a base model needs its language-model head"
        raise fail("model", "logits (batch, tokens, vocabulary)", got, remedy)
    return logits[batch.where]


def _statistics(logits: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
    """Return log p of the targets, mean and standard deviation of log p, and whether the target is the most likely."""
    step = max(1, NUMBERS_AT_ONCE // logits.shape[1])
    parts = []
    for some, target in zip(logits.split(step), targets.to(logits.device).split(step), strict=True):
        logs = some.float().log_softmax(1)
        chances = logs.exp()
        mean = (chances * logs).sum(1)
        spread = ((chances * logs.square()).sum(1) - mean.square()).clamp(min=0).sqrt()
        parts.append((logs.gather(1, target[:, None])[:, 0], mean, spread, logs.argmax(1) == target))
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def _words(tokenizer: Any, tokens: np.ndarray) -> list[str] | None:
    """Return how each token reads after another one, which tells its space; "" for those that are in no text."""
    if not hasattr(tokenizer, "batch_decode"):
        return None
    there, words = np.unique(tokens).tolist(), [""] * (int(tokens.max()) + 1)
    start, *pairs = tokenizer.batch_decode([there[:1], *([there[0], token] for token in there)])
    for token, pair in zip(there, pairs, strict=True):
        words[token] = pair[len(start) :] if pair.startswith(start) else pair
    return words
