"""What users of language models get wrong, each told in one line and before the work where it can be seen there."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from giveaway.checks import check_names, fail
from giveaway.extract.reader import why_order_is_unknown
from giveaway.extract.torch_model import unwrapped

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


def check_names_of(dataset: Any, ids: Any, groups: Any) -> None:
    """Refuse ids and groups that cannot fit, as far as the first row tells how many documents there are."""
    packed = isinstance(dataset, DataLoader) or not len(dataset)
    if not packed and isinstance(dataset[0], Mapping):
        packed = any(dataset[0].get(name) is not None for name in ("position_ids", "document_ids"))
    for name, given in (("ids", ids), ("groups", groups)):
        if given is not None:
            check_names(name, given, len(given) if packed else len(dataset), unique=name == "ids")


def unknown_row(row: Any, number: int) -> Exception:
    """Return the error for a row that holds neither a text nor tokens, with what its keys suggest."""
    keys = list(map(str, row)) if isinstance(row, Mapping) else []
    remedy = "rename the column that holds the texts to text"
    if not isinstance(row, Mapping) or any(key in CHATS for key in keys):
        remedy = "conversations: tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True) first"
    elif {"prompt", "completion"} <= {*keys}:
        remedy = "tokenize prompt and completion as one row, with labels of -100 for the prompt"
    got = "keys " + ", ".join(keys) if isinstance(row, Mapping) else f"a {type(row).__name__}"
    return fail("dataset", f"a string, or a dict with text or input_ids, in row {number}", got, remedy)


def check_lengths(tokens: Mapping[str, torch.Tensor], number: int, encoded: bool) -> None:
    """Refuse columns of a row that are not as long as its tokens; labels of an encoder's rows are the decoder's own."""
    length = len(tokens["input_ids"])
    for name, values in tokens.items():
        if len(values) != length and not (encoded and name == "labels"):
            remedy = "give one a token: labels are the tokens again, -100 where the loss leaves them out"
            raise fail("dataset", f"{name} as long as input_ids in row {number}", f"{len(values)} of {length}", remedy)


def check_tokens(tokens: torch.Tensor, vocabulary: int | None, masked: bool, padding: int | None, row: int) -> None:
    """Refuse tokens that the model does not have, and padding that no mask tells from text."""
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or (vocabulary is not None and high >= vocabulary):
        expected = "tokens from 0 on" if vocabulary is None else f"tokens from 0 to {vocabulary - 1}"
        got = f"{low} to {high} from row {row} on"
        raise fail("dataset", expected, got, "take the tokenizer that belongs to this model")
    ends = tokens[:, -1] == tokens[:, -2] if tokens.shape[1] > 1 else torch.zeros(0, dtype=torch.bool)
    if not masked and padding is not None and bool((ends & (tokens[:, -1] == padding)).any()):
        got = f"rows from {row} on that end in token {padding} again and again"
        raise fail("dataset", "an attention_mask, or labels of -100, beside padded rows", got, "collate it too")


def check_limit(length: int, limit: int | None, of: str, number: int) -> None:
    """Refuse a row that the model or its tokenizer would cut in silence."""
    if limit is not None and length > limit:
        remedy = "cut them with max_length=, as training did, or split them into documents"
        raise fail("dataset", f"at most {limit} tokens a row, {of}", f"{length} in row {number}", remedy)


def check_floating(layers: Iterable[Any]) -> None:
    """Refuse layers that hold whole numbers, whose gradients there are none of."""
    kinds = sorted({str(layer.weight.dtype) for layer in layers if not layer.weight.is_floating_point()})
    if kinds:
        got = f"{', '.join(kinds)}, as of a model in 8 or 4 bit"
        remedy = 'name its adapters, TextCurvature(through="adapters"), or load it in bfloat16'
        raise fail("curvature", "layers with floating-point weights", got, remedy)
