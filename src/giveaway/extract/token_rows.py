"""The rows of tokens that a language model is asked about; what users get wrong with them is told in one line."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from giveaway.checks import as_tensor, check_names, check_whole, fail
from giveaway.extract.reader import why_order_is_unknown
from giveaway.extract.torch_model import unwrapped

IGNORED = -100  # the label of a token that the loss leaves out
PADDING = {"labels": IGNORED, "document_ids": -1}  # 0 for all else
CHATS = ("messages", "conversations", "conversation", "chat")
LOAD = "load it whole, with torch.float32 or torch.bfloat16, and a device_map that fits"


def checked_models(model: Any, base: Any) -> tuple[nn.Module, nn.Module | None]:
    """Return the modules to ask; refuse names and pipelines, and weights that are not in memory."""
    if base is not None and base is model:
        raise fail("base", "the model before it was fine-tuned", "the model itself", "load it again from where it was")
    return _in_memory("model", model), None if base is None else _in_memory("base", base)


def _in_memory(argument: str, model: Any) -> nn.Module:
    if not isinstance(model, nn.Module):
        remedy = "pass what AutoModelForCausalLM.from_pretrained returns, not its name or a pipeline"
        raise fail(argument, "a language model, a torch.nn.Module", f"a {type(model).__name__}", remedy)
    if missing := sum(parameter.is_meta for parameter in model.parameters()):
        got = f"{missing} parameters on the meta device, as of a model that is offloaded"
        raise fail(argument, "weights in memory", got, LOAD)
    return unwrapped(model)


def check_dataset(dataset: Any) -> None:
    """Refuse what has no fixed order, and a collator that cannot pad."""
    remedy = "pass a list or a dataset with a length, whose order stays"
    if isinstance(dataset, Mapping):
        remedy = "name a split, as dataset['train']"
    if isinstance(dataset, str | bytes | Mapping | IterableDataset) or not hasattr(dataset, "__len__"):
        raise fail("dataset", "documents in a fixed order", f"a {type(dataset).__name__}", remedy)
    if not isinstance(dataset, DataLoader):
        return
    if (unknown := why_order_is_unknown(dataset)) is not None:
        raise fail("dataset", "a loader whose order is known", unknown, "say shuffle=False, or pass its dataset")
    collator = getattr(dataset.collate_fn, "tokenizer", None)
    if collator is not None and getattr(collator, "pad_token", "") is None:
        remedy = "tokenizer.pad_token = tokenizer.eos_token, or pass the dataset itself"
        raise fail("dataset", "a collator whose tokenizer has a pad token", "none", remedy)


class TokenBatch(NamedTuple):
    """Rows of tokens: the model's keywords, the labels (b, L), the number of each token's document (b, L), which tokens
    the loss counts, and at which places they are predicted."""

    keywords: dict[str, torch.Tensor]
    labels: torch.Tensor
    documents: torch.Tensor
    counted: torch.Tensor
    where: torch.Tensor


class TokenRows:
    """The rows of a dataset, tokenized and padded. After `batches`, `documents` is how many there were, and `contents`
    holds the strings, where the rows are strings."""

    def __init__(self, dataset: Any, tokenizer: Any, batch_size: int, max_length: int | None, model: nn.Module) -> None:
        check_dataset(dataset)
        self._dataset, self._tokenizer = dataset, tokenizer
        self._encoded, config = is_encoder_decoder(model), getattr(model, "config", None)
        # how many tokens the model has places for, and how many it knows, where it says so
        self._places = getattr(config, "max_position_embeddings", getattr(config, "n_positions", None))
        embeddings = getattr(model, "get_input_embeddings", lambda: None)()
        self.vocabulary = getattr(embeddings, "num_embeddings", getattr(config, "vocab_size", None))
        self._size = check_whole("batch_size", batch_size, remedy="give how many rows run together")
        self._cut = None if max_length is None else check_whole("max_length", max_length, 2)
        self.total = len(dataset.dataset) if isinstance(dataset, DataLoader) else len(dataset)  # type: ignore[arg-type]
        self._padding = getattr(tokenizer, "pad_token_id", None)
        self.contents: list[str] | None = None

    def check_names(self, ids: Any, groups: Any) -> None:
        """Refuse ids and groups that cannot fit, as far as the first row tells how many documents there are."""
        packed = isinstance(self._dataset, DataLoader) or not len(self._dataset)
        if not packed and isinstance(self._dataset[0], Mapping):
            packed = any(self._dataset[0].get(name) is not None for name in ("position_ids", "document_ids"))
        for name, given in (("ids", ids), ("groups", groups)):
            if given is not None:
                check_names(name, given, len(given) if packed else self.total, unique=name == "ids")

    def batches(self) -> Iterator[TokenBatch]:
        self.documents, self.read, self.contents = 0, 0, None
        for given in self._dataset if isinstance(self._dataset, DataLoader) else self._padded():
            if not isinstance(given, Mapping):
                remedy = "collate each batch to a dict with input_ids"
                raise fail("dataset", "batches that are dicts", f"a {type(given).__name__}", remedy)
            batch = {name: values for name, values in given.items() if isinstance(values, torch.Tensor)}
            if "input_ids" not in batch or batch["input_ids"].ndim != 2:
                got = "keys " + ", ".join(map(str, given))
                raise fail("dataset", "batches with input_ids (rows, tokens)", got, "collate the rows to tensors")
            yield self._split(batch)
        if self.read != self.total:
            got = f"{self.read} of {self.total}"
            raise fail("dataset", "every row, once", got, "leave out drop_last, and pass the whole training set")

    def _padded(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield batches of a dataset's rows, tokenized and padded on the right."""
        for start in range(0, self.total, self._size):
            numbers = range(start, min(start + self._size, self.total))
            rows = [self._tokenized(self._dataset[number], number) for number in numbers]
            if other := next((n for n, row in zip(numbers, rows, strict=True) if row.keys() != rows[0].keys()), None):
                got = f"{', '.join(rows[other - start])} in row {other}"
                expected = f"the keys of row {start} in every row ({', '.join(rows[0])})"
                raise fail("dataset", expected, got, "add the rest")
            pad = nn.utils.rnn.pad_sequence
            yield {name: pad([row[name] for row in rows], True, PADDING.get(name, 0)) for name in rows[0]}

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
                _check_limit(len(row["input_ids"]), limit, "the most that the tokenizer allows", number)
        if not isinstance(row, Mapping) or "input_ids" not in row:
            raise _unknown_row(row, number)
        known = ("input_ids", "attention_mask", "labels", "position_ids", "document_ids", "token_type_ids")
        tokens = {name: as_tensor(name, row[name]).long().reshape(-1) for name in known if row.get(name) is not None}
        longest = len(tokens["input_ids"])
        for name, values in tokens.items():
            if len(values) != longest and not (self._encoded and name == "labels"):  # which are the decoder's own
                got, remedy = f"{len(values)} of {longest}", "give one a token: labels are the tokens again, "
                remedy += "-100 where the loss leaves them out"
                raise fail("dataset", f"{name} as long as input_ids in row {number}", got, remedy)
        if "position_ids" in tokens and "document_ids" not in tokens:
            mask = tokens.get("attention_mask", torch.ones_like(tokens["input_ids"]))
            tokens["document_ids"] = self._numbered(tokens["position_ids"], mask)
        if "document_ids" not in tokens:  # a mask would hide from the model where documents begin
            tokens.setdefault("attention_mask", torch.ones_like(tokens["input_ids"]))
        if self._cut is not None and longest > self._cut:
            if self.contents is not None:
                self.contents[-1] = self._tokenizer.decode(tokens["input_ids"][: self._cut].tolist())
            return {name: values[: self._cut] for name, values in tokens.items()}
        _check_limit(longest, self._places, "the places that the model has", number)
        return tokens

    def _split(self, batch: dict[str, torch.Tensor]) -> TokenBatch:
        tokens = batch["input_ids"]
        masked = any(name in batch for name in ("attention_mask", "labels", "position_ids", "document_ids"))
        self._check_tokens(tokens, masked)
        mask = batch.get("attention_mask", torch.ones_like(tokens))
        labels = batch.pop("labels", tokens)
        if "document_ids" in batch:
            documents = batch.pop("document_ids")
        elif "position_ids" in batch:
            documents = self._numbered(batch["position_ids"], mask)
        else:
            documents = torch.where(mask != 0, torch.arange(self.read, self.read + len(tokens))[:, None], -1)
        if not self._encoded:  # where the mask is of the decoder's own tokens
            labels = torch.where((mask == 0) | (documents < 0), IGNORED, labels)
        self.read += len(tokens)
        self.documents = max(self.documents, int(documents.max()) + 1)
        if "position_ids" not in batch and bool((mask[:, 0] == 0).any()):
            batch["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)  # padding on the left takes no places
        if self._encoded:  # the labels are the decoder's own, a row a document
            counted, documents = labels != IGNORED, documents.amax(1, keepdim=True).expand_as(labels)
            return TokenBatch(batch | {"labels": labels}, labels, documents, counted, counted)
        counted = torch.zeros_like(labels, dtype=torch.bool)  # a document's first token is predicted from none of it
        counted[:, 1:] = (labels[:, 1:] != IGNORED) & (documents[:, 1:] == documents[:, :-1])
        return TokenBatch(batch, labels, documents, counted, counted.roll(-1, 1))

    def _numbered(self, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Number the documents of packed rows, which begin where the places begin at 0."""
        number = ((places == 0) & (mask != 0)).flatten().cumsum(0).reshape(places.shape) - 1 + self.documents
        self.documents = int(number.max()) + 1
        return torch.where(mask != 0, number, -1)

    def _check_tokens(self, tokens: torch.Tensor, masked: bool) -> None:
        """Refuse tokens that the model does not have, and padding that no mask tells from text."""
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or (self.vocabulary is not None and high >= self.vocabulary):
            expected = "tokens from 0 " + ("on" if self.vocabulary is None else f"to {self.vocabulary - 1}")
            got = f"{low} to {high} from row {self.read} on"
            raise fail("dataset", expected, got, "take the tokenizer that belongs to this model")
        if masked or self._padding is None or tokens.shape[1] < 2:
            return
        if bool(((tokens[:, -2:] == self._padding).all(1)).any()):
            got = f"rows from {self.read} on that end in token {self._padding} again and again"
            raise fail("dataset", "an attention_mask, or labels of -100, beside padded rows", got, "collate it too")


def _unknown_row(row: Any, number: int) -> Exception:
    """Return the error for a row that holds neither a text nor tokens, with what its keys suggest."""
    keys = list(map(str, row)) if isinstance(row, Mapping) else []
    remedy = "rename the column that holds the texts to text"
    if not isinstance(row, Mapping) or any(key in CHATS for key in keys):
        remedy = "conversations: tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True) first"
    elif {"prompt", "completion"} <= {*keys}:
        remedy = "tokenize prompt and completion as one row, with labels of -100 for the prompt"
    got = "keys " + ", ".join(keys) if isinstance(row, Mapping) else f"a {type(row).__name__}"
    return fail("dataset", f"a string, or a dict with text or input_ids, in row {number}", got, remedy)


def _check_limit(length: int, limit: int | None, of: str, number: int) -> None:
    """Refuse a row that the model or its tokenizer would cut in silence."""
    if limit is not None and length > limit:
        remedy = "cut them with max_length=, as training did, or split them into documents"
        raise fail("dataset", f"at most {limit} tokens a row, {of}", f"{length} in row {number}", remedy)


def is_encoder_decoder(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
