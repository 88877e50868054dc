"""Read a language model: one pass over the documents that it was trained on, in evaluation mode, token by token."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from giveaway.checks import as_tensor, check_whole, fail
from giveaway.extract.language_model_checks import (
    check_dataset,
    check_floating,
    check_lengths,
    check_limit,
    check_names_of,
    check_tokens,
    checked_models,
    unknown_row,
)
from giveaway.extract.text_gradients import (
    HeadGradients,
    LayerGradients,
    TextCurvature,
    TextGradients,
    linear_layers,
    output_head,
)
from giveaway.extract.torch_model import accepted, device_of, evaluation_mode, logits_of
from giveaway.records.texts import Texts
from giveaway.text import progress_of

IGNORED = -100  # the label of a token that the loss leaves out
NUMBERS_AT_ONCE = 2**25  # logits that are brought to float32 together
PADDING = {"labels": IGNORED, "document_ids": -1}  # 0 for all else
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
    check_names_of(dataset, ids, groups)
    gradients = None if curvature is None else _gradients(plain, curvature, rows)
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
    contents = rows.contents
    if contents is None and tokenizer is not None:
        contents = tokenizer.batch_decode(np.split(values["tokens"], starts[1:-1]))
    vocabulary, kind = rows.vocabulary or int(values["tokens"].max()) + 1, type(plain).__name__
    named: Any = {"contents": contents, "words": _words(tokenizer, values["tokens"]), "ids": ids, "groups": groups}
    texts = Texts(starts, vocabulary=vocabulary, model=kind, continued=continued, **named, **values)
    if gradients is None:
        return texts
    unit = np.arange(texts.n) if texts.groups is None else np.unique(texts.groups, return_inverse=True)[1]
    return replace(texts, steps=gradients.columns(said[0], document, unit))


class TokenBatch(NamedTuple):
    """Rows of tokens: the model's keywords, the labels (b, L), and the number of each token's document (b, L)."""

    keywords: dict[str, torch.Tensor]
    labels: torch.Tensor
    documents: torch.Tensor


class TokenRows:
    """The rows of a dataset, tokenized and padded. After `batches`, `documents` is how many there were, and `contents`
    holds the strings, where the rows are strings."""

    def __init__(self, dataset: Any, tokenizer: Any, batch_size: int, max_length: int | None, model: nn.Module) -> None:
        check_dataset(dataset)
        self._dataset, self._tokenizer, self._places = dataset, tokenizer, _places(model)
        self._encoded = is_encoder_decoder(model)
        self._size = check_whole("batch_size", batch_size, remedy="give how many rows run together")
        self._cut = None if max_length is None else check_whole("max_length", max_length, 2)
        self.total = len(dataset.dataset) if isinstance(dataset, DataLoader) else len(dataset)  # type: ignore[arg-type]
        self.documents, self.read = 0, 0
        self.vocabulary, self._padding = _tokens_of(model), getattr(tokenizer, "pad_token_id", None)
        self.contents: list[str] | None = None

    def batches(self) -> Iterator[TokenBatch]:
        self.documents, self.read, self.contents = 0, 0, None
        for given in self._given():
            batch = {name: values for name, values in given.items() if isinstance(values, torch.Tensor)}
            if "input_ids" not in batch or batch["input_ids"].ndim != 2:
                got = "keys " + ", ".join(map(str, given))
                raise fail("dataset", "batches with input_ids (rows, tokens)", got, "collate the rows to tensors")
            yield self._split(batch)
        if self.read != self.total:
            got = f"{self.read} of {self.total}"
            raise fail("dataset", "every row, once", got, "leave out drop_last, and pass the whole training set")

    def _given(self) -> Iterator[Mapping[str, Any]]:
        """Yield batches: those of a loader, or rows of a dataset, tokenized and padded on the right."""
        if isinstance(self._dataset, DataLoader):
            for batch in self._dataset:
                if not isinstance(batch, Mapping):
                    remedy = "collate each batch to a dict with input_ids"
                    raise fail("dataset", "batches that are dicts", f"a {type(batch).__name__}", remedy)
                yield batch
            return
        for start in range(0, self.total, self._size):
            numbers = range(start, min(start + self._size, self.total))
            rows = [self._tokenized(self._dataset[number], number) for number in numbers]
            if other := next((n for n, row in zip(numbers, rows, strict=True) if row.keys() != rows[0].keys()), None):
                got = f"{', '.join(rows[other - start])} in row {other}"
                raise fail(
                    "dataset", f"the keys of row {start} in every row ({', '.join(rows[0])})", got, "add the rest"
                )
            yield {name: _padded(name, [row[name] for row in rows]) for name in rows[0]}

    def _tokenized(self, row: Any, number: int) -> dict[str, Any]:
        """Return the token numbers of a row, and what else of it the model or the loss takes."""
        text = row.get("text") if isinstance(row, Mapping) and "input_ids" not in row else row
        if isinstance(text, str):
            if self._tokenizer is None:
                raise fail("tokenizer", "the model's tokenizer beside strings", "none", "pass tokenizer=")
            self.contents = [] if self.contents is None else self.contents
            self.contents.append(text)
            row = dict(self._tokenizer(text))
            if self._cut is None:
                limit = getattr(self._tokenizer, "model_max_length", None)
                check_limit(len(row["input_ids"]), limit, "the most that the tokenizer allows", number)
        if not isinstance(row, Mapping) or "input_ids" not in row:
            raise unknown_row(row, number)
        known = ("input_ids", "attention_mask", "labels", "position_ids", "document_ids", "token_type_ids")
        tokens = {name: as_tensor(name, row[name]).long().reshape(-1) for name in known if row.get(name) is not None}
        check_lengths(tokens, number, self._encoded)
        if "position_ids" in tokens and "document_ids" not in tokens:
            mask = tokens.get("attention_mask", torch.ones_like(tokens["input_ids"]))
            tokens["document_ids"] = self._numbered(tokens["position_ids"], mask)
        if "document_ids" not in tokens:  # a mask would hide from the model where documents begin
            tokens.setdefault("attention_mask", torch.ones_like(tokens["input_ids"]))
        longest = len(tokens["input_ids"])
        if self._cut is not None and longest > self._cut:
            if self.contents is not None:
                self.contents[-1] = self._tokenizer.decode(tokens["input_ids"][: self._cut].tolist())
            return {name: values[: self._cut] for name, values in tokens.items()}
        check_limit(longest, self._places, "the places that the model has", number)
        return tokens

    def _split(self, batch: dict[str, torch.Tensor]) -> TokenBatch:
        tokens = batch["input_ids"]
        masked = any(name in batch for name in ("attention_mask", "labels", "position_ids", "document_ids"))
        check_tokens(tokens, self.vocabulary, masked, self._padding, self.read)
        mask = batch.get("attention_mask", torch.ones_like(tokens))
        labels = batch.pop("labels", tokens)
        documents = self._documents(batch, tokens, mask)
        if not self._encoded:  # where the mask is of the decoder's own tokens
            labels = torch.where((mask == 0) | (documents < 0), IGNORED, labels)
        self.read += len(tokens)
        self.documents = max(self.documents, int(documents.max()) + 1)
        if "position_ids" not in batch and bool((mask[:, 0] == 0).any()):
            batch["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)  # padding on the left takes no places
        return TokenBatch(batch, labels, documents)

    def _documents(self, batch: dict[str, torch.Tensor], tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the number of each token's document: as given, by the places that begin anew, or the row's."""
        if "document_ids" in batch:
            return batch.pop("document_ids")
        places = batch.get("position_ids")
        if places is None:
            return torch.where(mask != 0, torch.arange(self.read, self.read + len(tokens))[:, None], -1)
        return self._numbered(places, mask)

    def _numbered(self, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Number the documents of packed rows, which begin where the places begin at 0."""
        number = ((places == 0) & (mask != 0)).flatten().cumsum(0).reshape(places.shape) - 1 + self.documents
        self.documents = int(number.max()) + 1
        return torch.where(mask != 0, number, -1)


def _padded(name: str, rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=PADDING.get(name, 0))


def _ask(
    model: nn.Module, base: nn.Module | None, batch: TokenBatch, gradients: TextGradients | None
) -> list[torch.Tensor]:
    """Return document, token, and what the model and its base say, of every token of a batch that the loss counts."""
    encoded = is_encoder_decoder(model)
    documents, counted, where = _counted(batch, encoded)
    targets = batch.labels[counted]
    logits = _logits_at(model, batch, encoded, where)
    columns = [documents[counted], targets, *_statistics(logits, targets)]
    if not bool((there := torch.isfinite(columns[2]).cpu()).all()):
        remedy = "look at it, or load the model in float32 or bfloat16: float16 overflows"
        raise fail("model", "finite logits", f"others, first in document {int(columns[0][~there][0])}", remedy)
    if gradients is not None:
        gradients.see(logits, where)
    adapters = getattr(model, "disable_adapter", None) if base is None else None
    if base is not None or adapters is not None:
        with nullcontext() if adapters is None else adapters():
            before = _logits(base or model, batch, encoded)
        if (width := before.shape[2]) != logits.shape[1]:
            remedy = "resize its embeddings as the model's were, or leave base out"
            raise fail("base", f"the model's vocabulary of {logits.shape[1]:,}", f"{width:,}", remedy)
        columns += _statistics(before[where], targets)[::3]
    return [column.cpu() for column in columns]


def _counted(batch: TokenBatch, encoded: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return each place's document (b, L), which tokens the loss counts, and at which places they are predicted."""
    labels, documents = batch.labels, batch.documents
    if encoded:  # the labels are the decoder's own, a row a document
        counted = labels != IGNORED
        return documents.amax(1, keepdim=True).expand_as(labels), counted, counted
    counted = torch.zeros_like(labels, dtype=torch.bool)  # the first token of a document is predicted from none of it
    counted[:, 1:] = (labels[:, 1:] != IGNORED) & (documents[:, 1:] == documents[:, :-1])
    return documents, counted, counted.roll(-1, 1)


def _gradients(model: nn.Module, curvature: TextCurvature, rows: TokenRows) -> TextGradients:
    """Return what takes the gradients of texts; those through layers inside the model read the rows again."""
    if curvature.through == "head":
        head = output_head(model)
        check_floating([head])
        return HeadGradients(curvature, head)
    layers = linear_layers(model, curvature.through)
    check_floating(layers.values())
    encoded = is_encoder_decoder(model)

    def batches() -> Iterator[tuple[torch.Tensor, Callable[[], torch.Tensor], torch.Tensor]]:
        for batch in rows.batches():
            documents, counted, where = _counted(batch, encoded)
            yield documents, partial(_logits_at, model, batch, encoded, where), batch.labels[counted]

    return LayerGradients(curvature, layers, batches)


def _logits_at(model: nn.Module, batch: TokenBatch, encoded: bool, where: torch.Tensor) -> torch.Tensor:
    return _logits(model, batch, encoded)[where]


def _logits(model: nn.Module, batch: TokenBatch, encoded: bool) -> torch.Tensor:
    """Return the logits (b, L, V) of a batch; the model is left as it was."""
    device = device_of(model)
    keywords = dict(batch.keywords)
    if encoded:
        keywords["labels"] = batch.labels
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
        result = model(**keywords, **options)
    logits = logits_of(result)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 3 or logits.shape[:2] != batch.labels.shape:
        got = f"shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else f"a {type(logits).__name__}"
        remedy = "a classifier is read by from_torch; a base model needs its language-model head"
        raise fail("model", "logits (batch, tokens, vocabulary)", got, remedy)
    return logits


def _statistics(logits: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
    """Return log p of the targets, mean and standard deviation of log p, and whether the target is the most likely."""
    columns: list[list[torch.Tensor]] = [[], [], [], []]
    step = max(1, NUMBERS_AT_ONCE // logits.shape[1])
    for start in range(0, len(logits), step):
        logs = logits[start : start + step].float().log_softmax(1)
        target = targets[start : start + step].to(logs.device)
        chances = logs.exp()
        mean = (chances * logs).sum(1)
        spread = ((chances * logs.square()).sum(1) - mean.square()).clamp(min=0).sqrt()
        found = (logs.gather(1, target[:, None])[:, 0], mean, spread, logs.argmax(1) == target)
        for column, values in zip(columns, found, strict=True):
            column.append(values)
    empty = torch.empty(0, device=logits.device)
    return [torch.cat(column) if column else empty for column in columns]


def is_encoder_decoder(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _places(model: nn.Module) -> int | None:
    """Return how many tokens the model has places for, where it says so."""
    config = getattr(model, "config", None)
    return getattr(config, "max_position_embeddings", getattr(config, "n_positions", None))


def _tokens_of(model: nn.Module) -> int | None:
    """Return how many tokens the model can take, where it says so."""
    found = getattr(model, "get_input_embeddings", lambda: None)()
    return getattr(found, "num_embeddings", getattr(getattr(model, "config", None), "vocab_size", None))


def _words(tokenizer: Any, tokens: np.ndarray) -> list[str] | None:
    """Return how each token reads after another one, which tells its space; "" for those that are in no text."""
    if not hasattr(tokenizer, "batch_decode"):
        return None
    there, words = np.unique(tokens).tolist(), [""] * (int(tokens.max()) + 1)
    start, *pairs = tokenizer.batch_decode([there[:1], *([there[0], token] for token in there)])
    for token, pair in zip(there, pairs, strict=True):
        words[token] = pair[len(start) :] if pair.startswith(start) else pair
    return words
