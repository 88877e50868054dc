"""What the audit of a language model will take: the first rows are timed, the rest is in proportion."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from giveaway.auditing.cost import human_bytes
from giveaway.auditing.texts import audit_texts
from giveaway.extract.language_models import NUMBERS_AT_ONCE, from_causal_lm
from giveaway.extract.text_gradients import MOST_ON_CPU, output_head
from giveaway.text import human_seconds

TIMED = 32  # rows
TOKEN_BYTES = 400  # of a token while the other texts predict it; measured with 10⁶ of them
NOTE = "an estimate: rows of other lengths than these take more or less"


@dataclass(frozen=True)
class TextCost:
    """Rows, about how many tokens they have, seconds, and the most bytes on the model's device and beside it."""

    rows: int
    tokens: int
    seconds: float
    model_bytes: int
    text_bytes: int
    timed: int

    def lines(self) -> list[str]:
        time = f"about {human_seconds(float(f'{self.seconds:.2g}'))}".replace("about under", "under")
        size = f"{self.rows:,} rows, about {float(f'{self.tokens:.2g}'):,.0f} tokens"
        memory = f"{human_bytes(self.model_bytes)} for the model at work, {human_bytes(self.text_bytes)} for the texts"
        return [f"audit: {size}; {time}, {memory}; the first {self.timed} rows were timed here", NOTE]


def price_texts(model: Any, dataset: Any, **options: Any) -> TextCost:
    """Read and audit the first rows, and say what all will take."""
    loader = dataset if isinstance(dataset, DataLoader) else None
    every: Any = dataset if loader is None else loader.dataset
    rows, size = len(every), (options.get("batch_size") if loader is None else loader.batch_size) or 8
    timed = min(rows, max(TIMED, 2 * size))
    first: Any = Subset(every, range(timed))
    if loader is not None:
        first = DataLoader(first, batch_size=size, collate_fn=loader.collate_fn)
    on_gpu = next(model.parameters(), torch.empty(0)).is_cuda
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    began = perf_counter()
    texts = from_causal_lm(model, first, **options)
    audit_texts(texts, "default", None)
    seconds = perf_counter() - began
    share = rows / timed
    if on_gpu:
        held = torch.cuda.max_memory_allocated()
    else:
        models = [one for one in (model, options.get("base")) if one is not None]
        weights = sum(p.nbytes for one in models for p in one.parameters())
        logits = size * int(texts.lengths.max()) * texts.vocabulary
        held = weights + 8 * logits + 16 * min(logits, NUMBERS_AT_ONCE)
    tokens = round(len(texts.tokens) * share)
    if options.get("curvature") is not None:  # what the head was given stays, and gradients of some parameters
        head = output_head(model)
        held += tokens * head.in_features * head.weight.itemsize
        held += min(MOST_ON_CPU, 12 * round(texts.n * share) * head.weight.numel())
    return TextCost(rows, tokens, seconds * share, int(held), TOKEN_BYTES * tokens, timed)
