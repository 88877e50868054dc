"""What the audit of a language model will take: the first rows are timed, the rest is in proportion."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from giveaway.auditing.cost import calibrate, human_bytes
from giveaway.auditing.texts import audit_texts
from giveaway.checks import free_memory
from giveaway.extract.language_model_checks import check_dataset, checked_models
from giveaway.extract.language_models import NUMBERS_AT_ONCE, from_causal_lm
from giveaway.extract.text_gradients import MOST_ON_CPU, TextCurvature, linear_layers, output_head
from giveaway.extract.torch_model import device_of
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
    model, base = checked_models(model, options.get("base"))
    check_dataset(dataset)
    loader = dataset if isinstance(dataset, DataLoader) else None
    every: Any = dataset if loader is None else loader.dataset
    rows, size = len(every), (options.get("batch_size") if loader is None else loader.batch_size) or 8
    timed = min(rows, max(TIMED, 2 * size))
    first: Any = Subset(every, range(timed))
    if loader is not None:
        first = DataLoader(first, batch_size=size, collate_fn=loader.collate_fn)
    place = device_of(model)
    on_gpu = place.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(place)
    began = perf_counter()
    texts = from_causal_lm(model, first, **options)
    audit_texts(texts, "default", None)
    seconds, share = perf_counter() - began, rows / timed
    logits = size * int(texts.lengths.max()) * texts.vocabulary
    weights = sum(p.nbytes for one in (model, base) if one is not None for p in one.parameters())
    at_work = weights + 8 * logits + 16 * min(logits, NUMBERS_AT_ONCE)
    held: float = torch.cuda.max_memory_allocated(place) if on_gpu else at_work
    tokens, curvature = round(len(texts.tokens) * share), options.get("curvature", TextCurvature())
    if curvature is not None:  # gradients of some parameters at a time, what the head was given, and their products
        head = curvature.through == "head"
        layers: list[Any] = [output_head(model)] if head else list(linear_layers(model, curvature.through).values())
        size, units = sum(layer.weight.numel() for layer in layers), round(texts.n * share)
        gradients, chosen = (1 + curvature.probes) * units, curvature.probes * min(units, curvature.documents)
        held += 3 * min(free_memory(place) // 6 if on_gpu else MOST_ON_CPU, 4 * gradients * size)
        held += 20 * gradients * chosen + (12 * tokens * layers[0].weight.shape[1] if head else 0)
        kind, times = (torch.bfloat16, 3) if on_gpu else (torch.float32, 1)
        operations = 2.0 * times * gradients * chosen * size
        seconds += operations / calibrate(place, kind, (TIMED, 1 << 16, TIMED)) / share
    return TextCost(rows, tokens, seconds * share, int(held), TOKEN_BYTES * tokens, timed)
