"""One GPT of benchmarks.language_models.gpt as a module of linear layers, with adapters where it has any."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from benchmarks.language_models.gpt import EPSILON, LORA_A, LORA_B, Architecture, Given


class Projection(nn.Module):
    """A linear layer, and beside it the low-rank one of an adapter."""

    def __init__(self, inputs: int, outputs: int, rank: int, scale: float) -> None:
        super().__init__()
        self.full, self.scale = nn.Linear(inputs, outputs), scale
        self.lora_A = nn.Linear(inputs, rank, bias=False) if rank else None
        self.lora_B = nn.Linear(rank, outputs, bias=False) if rank else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.lora_A is None or self.lora_B is None:
            return self.full(x)
        return self.full(x) + self.scale * self.lora_B(self.lora_A(x))


class ModuleGPT(nn.Module):
    """Token numbers (b, L) in, logits (b, L, vocabulary) out. `adapted` ends the names of projections with adapters."""

    def __init__(self, shape: Architecture, adapted: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.shape, d = shape, shape.width
        self.wte, self.wpe = nn.Embedding(shape.vocabulary, d), nn.Embedding(shape.positions, d)
        sizes = shape.projections()
        self.names = list(sizes)
        self.projections = nn.ModuleList(
            Projection(*size, shape.rank if name.endswith(adapted or "\0") else 0, shape.scale)
            for name, size in sizes.items()
        )
        self.norms = nn.ModuleList(nn.LayerNorm(d, eps=EPSILON) for _ in range(2 * shape.layers + 1))
        self.head = nn.Linear(d, shape.vocabulary, bias=False)

    @classmethod
    def of(cls, shape: Architecture, state: Given) -> ModuleGPT:
        """Take over the parameters of a GPT that is given by their names."""
        adapted = tuple({name.removesuffix(LORA_A).split(".", 2)[2] for name in state if name.endswith(LORA_A)})
        model = cls(shape, adapted)
        with torch.no_grad():
            for own, name in ((model.wte, "wte"), (model.wpe, "wpe"), (model.head, "wte")):
                own.weight.copy_(state[f"{name}.weight"])
            for name, own in zip(model.names, model.projections, strict=True):
                own.full.weight.copy_(state[f"{name}.weight"].T)
                own.full.bias.copy_(state[f"{name}.bias"])
                if own.lora_A is not None:
                    own.lora_A.weight.copy_(state[name + LORA_A])
                    own.lora_B.weight.copy_(state[name + LORA_B])
            places = [f"h.{layer}.ln_{place}" for layer in range(shape.layers) for place in (1, 2)]
            for name, own in zip((*places, "ln_f"), model.norms, strict=True):
                own.weight.copy_(state[f"{name}.weight"])
                own.bias.copy_(state[f"{name}.bias"])
        return model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        given = input_ids[:, : self.shape.positions]  # the last token of the longest rows is only predicted
        rows, length = given.shape
        x = self.wte(given) + self.wpe.weight[:length]
        for layer in range(self.shape.layers):
            joint, mixed, inner, outer = self.projections[4 * layer : 4 * layer + 4]
            of_heads = joint(self.norms[2 * layer](x)).view(rows, length, 3, self.shape.heads, -1)
            query, key, value = of_heads.permute(2, 0, 3, 1, 4)
            seen = scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + mixed(seen.transpose(1, 2).reshape(rows, length, -1))
            x = x + outer(gelu(inner(self.norms[2 * layer + 1](x)), approximate="tanh"))
        return self.head(nn.functional.pad(self.norms[-1](x), (0, 0, 0, input_ids.shape[1] - length)))
