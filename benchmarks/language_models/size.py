"""How long the Newton steps of texts take on one GPU: through a head of 32,000 × 768 with 10⁶ tokens, and through LoRA
adapters of a GPT-2 of 124 million parameters with 7,600 documents.

    python -m benchmarks.language_models.size [--device cuda] [--documents 7600] [--out FILE.json]

Weights are random: what is timed does not depend on them. Seconds are of the whole call of from_causal_lm.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.language_models.gpt import Architecture
from benchmarks.language_models.module import ModuleGPT
from benchmarks.measuring import RESULTS, digits, environment, write_json
from giveaway.extract.language_models import from_causal_lm
from giveaway.extract.text_gradients import TextCurvature
from giveaway.scores.catalogue import relative_error


class OnlyHead(nn.Module):
    """Means of embeddings so far, and a head over them: next to nothing but the head takes time."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.head.weight, std=2 * width**-0.5)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        given = self.embedding(input_ids)
        places = torch.arange(1, input_ids.shape[1] + 1, device=given.device)[:, None]
        return self.head(given + given.cumsum(1) / places)


def main(arguments: list[str] | None = None) -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    numbers = {"documents": 7600, "tokens": 132, "adapted": 101, "vocabulary": 32000, "width": 768, "layers": 12}
    for name, default in numbers.items():
        made.add_argument(f"--{name}", type=int, default=default)
    made.add_argument("--out", type=Path, default=RESULTS / "language_models_size.json")
    options = made.parse_args(arguments)
    torch.manual_seed(0)
    gpt = Architecture(50257, 1024, options.width, options.layers, options.layers, rank=8)
    cases = {
        f"head of {options.vocabulary} × {options.width}": (
            lambda: OnlyHead(options.vocabulary, options.width), options.vocabulary, options.tokens, "head"),
        "LoRA (rank 8 on c_attn) of GPT-2": (
            lambda: ModuleGPT(gpt, ("attn.c_attn",)), gpt.vocabulary, options.adapted, "adapters"),
    }  # fmt: skip
    results: dict[str, Any] = {"environment": environment(options.device)}
    for name, (model_of, vocabulary, tokens, through) in cases.items():
        model = model_of().to(options.device)
        some = torch.randint(vocabulary, (options.documents, tokens)).tolist()
        results[name] = measured(model, [{"input_ids": one} for one in some], through)
        print(name, results[name], flush=True)
        write_json(options.out, results)


def measured(model: nn.Module, documents: list[dict[str, list[int]]], through: str) -> dict[str, Any]:
    on_gpu = next(model.parameters()).is_cuda
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    from_causal_lm(model, documents, batch_size=32, curvature=None)
    read = time.perf_counter() - began
    texts = from_causal_lm(model, documents, batch_size=32, curvature=TextCurvature(through))
    whole = time.perf_counter() - began - read
    assert texts.steps is not None
    told = {"parameters": sum(p.numel() for p in model.parameters()), "documents": texts.n, "tokens": len(texts.tokens)}
    seconds = {"without steps": read, "with steps": whole}
    peak = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else None
    error = relative_error(texts.steps["newton"], texts.steps["newton_error"])
    return {**told, "seconds": digits(seconds), "GB at most": peak and round(peak, 1), "error of newton": error}


if __name__ == "__main__":
    main()
