"""GPT-2 and LoRA in plain torch, for several models at once.

Parameters are stacked: (models, …) in a dict, under the names that transformers gives them (after `transformer.`).
Parameters that all models share, such as those below LoRA, have a first axis of 1. Weights of projections are
(inputs, outputs), as in GPT-2's Conv1D. The output head is the embedding of the tokens.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

State = dict[str, torch.Tensor]
Given = Mapping[str, torch.Tensor]
EPSILON = 1e-5  # of layer norms
LORA_A, LORA_B = ".lora_A", ".lora_B"


@dataclass(frozen=True)
class Architecture:
    """A GPT-2; rank and scale (alpha / rank) are those of the adapters, where there are any."""

    vocabulary: int = 4096
    positions: int = 128
    width: int = 256
    layers: int = 6
    heads: int = 4
    rank: int = 8
    scale: float = 2.0

    def projections(self) -> dict[str, tuple[int, int]]:
        """Return inputs and outputs of each projection, by its name."""
        d = self.width
        sizes = {"attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d), "mlp.c_fc": (d, 4 * d), "mlp.c_proj": (4 * d, d)}
        return {f"h.{layer}.{name}": size for layer in range(self.layers) for name, size in sizes.items()}


def first_parameters(shape: Architecture, seed: int) -> State:
    """Draw a GPT-2 as it is before training: N(0, 0.02²), less where a projection adds to the residual stream."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int, deviation: float = 0.02) -> torch.Tensor:
        return deviation * torch.randn(size, generator=generator)

    state = {"wte.weight": normal(shape.vocabulary, shape.width), "wpe.weight": normal(shape.positions, shape.width)}
    for name, size in shape.projections().items():
        less = math.sqrt(2 * shape.layers) if name.endswith("c_proj") else 1.0
        state |= {f"{name}.weight": normal(*size, deviation=0.02 / less), f"{name}.bias": torch.zeros(size[1])}
    norms = [f"h.{layer}.ln_{place}" for layer in range(shape.layers) for place in (1, 2)]
    for name in (*norms, "ln_f"):
        state |= {f"{name}.weight": torch.ones(shape.width), f"{name}.bias": torch.zeros(shape.width)}
    return state


def first_adapters(shape: Architecture, adapted: tuple[str, ...], seed: int) -> State:
    """Draw adapters as peft does: A uniform with variance 1 / (3 inputs), B zero. `adapted` ends projections' names."""
    generator = torch.Generator().manual_seed(seed)
    state: State = {}
    for name, (inputs, outputs) in shape.projections().items():
        if name.endswith(adapted):
            uniform = 2 * torch.rand((shape.rank, inputs), generator=generator) - 1
            state |= {name + LORA_A: uniform / math.sqrt(inputs), name + LORA_B: torch.zeros(outputs, shape.rank)}
    return state


def stacked(states: list[State], device: torch.device | str = "cpu") -> State:
    """Return float32 parameters (models, …)."""
    return {name: torch.stack([state[name].float() for state in states]).to(device) for name in states[0]}


def token_losses(shape: Architecture, held: Given, tokens: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
    """Return −log p (models, documents, length − 1) of all tokens but the first, given those before them.

    `held` has the parameters and, where there are any, the adapters; tokens (models, documents, length) of integers.
    """
    inputs, targets = tokens[..., :-1], tokens[..., 1:]
    x = hidden_states(shape, held, inputs, dropout)
    logits = _multiplied(x.flatten(1, 2), held["wte.weight"].mT)
    losses = nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return losses.view(targets.shape)


def hidden_states(shape: Architecture, held: Given, tokens: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
    """Return what the output head is given, (models, documents, length, width)."""
    dropped = partial(nn.functional.dropout, p=dropout, training=dropout > 0)
    models, documents, length = tokens.shape
    d, embedding = shape.width, held["wte.weight"]
    first_row = torch.arange(len(embedding), device=tokens.device)[:, None, None] * embedding.shape[1]
    x = nn.functional.embedding(tokens + first_row, embedding.flatten(0, 1)) + held["wpe.weight"][:, None, :length]
    x = dropped(x.view(models, -1, d))
    for layer in range(shape.layers):
        name = f"h.{layer}"
        joint = _projected(shape, held, f"{name}.attn.c_attn", _normed(held, f"{name}.ln_1", x))
        query, key, value = joint.view(models * documents, length, 3, shape.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        mixed = mixed.transpose(1, 2).reshape(models, -1, d)
        x = x + dropped(_projected(shape, held, f"{name}.attn.c_proj", mixed))
        inner = _projected(shape, held, f"{name}.mlp.c_fc", _normed(held, f"{name}.ln_2", x))
        outer = _projected(shape, held, f"{name}.mlp.c_proj", nn.functional.gelu(inner, approximate="tanh"))
        x = x + dropped(outer)
    return _normed(held, "ln_f", x).view(models, documents, length, d)


def _normed(held: Given, name: str, x: torch.Tensor) -> torch.Tensor:
    weight, bias = (held[f"{name}.{part}"][:, None] for part in ("weight", "bias"))
    return torch.addcmul(bias, nn.functional.layer_norm(x, x.shape[-1:], eps=EPSILON), weight)


def _projected(shape: Architecture, held: Given, name: str, x: torch.Tensor) -> torch.Tensor:
    y = _multiplied(x, held[f"{name}.weight"])
    y = y + held[f"{name}.bias"][:, None].to(y.dtype)
    if name + LORA_A in held:
        low = _multiplied(x, held[name + LORA_A].mT)
        y = y + shape.scale * _multiplied(low, held[name + LORA_B].mT)
    return y


def _multiplied(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply (models, rows, inputs) by weights (models, inputs, outputs), or by those that all models share."""
    return torch.bmm(x, weight) if len(weight) == len(x) else x @ weight[0]
