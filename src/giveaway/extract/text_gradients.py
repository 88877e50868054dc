"""Gradients of every text through the output head, for its Newton step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from giveaway.checks import check_choice, check_number, check_whole, fail, free_memory
from giveaway.linalg.gradient_steps import GradientProducts
from giveaway.linalg.precision import Precision

NUMBERS_AT_ONCE = 2**25  # probabilities that are held together
MOST_ON_CPU = 1_000_000_000  # bytes of gradients that are held together
AGREES = 0.02  # of the largest logit, by which the head's own may differ from the model's: both may be bfloat16


@dataclass(frozen=True)
class TextCurvature:
    """How the curvature is estimated through which a text's leverage and Newton step go: that of the output layer,
    trained or not.

    optimizer : "adam" takes distances in parameters as Adam and its kin step, "sgd" all alike.
    probes : how many sets of labels the model draws for each text, an even number; their spread is the stated error.
    documents : how many texts (or people), drawn at random, stand for the curvature of all.
    damping : what is added to the curvature, in units of its mean trace over texts.
    """

    optimizer: str = "adam"
    probes: int = 2
    documents: int = 1024
    damping: float = 1.0

    def __post_init__(self) -> None:
        check_choice("optimizer", self.optimizer, ("adam", "sgd"))
        if check_whole("probes", self.probes, 2) % 2:
            raise fail("probes", "an even number", str(self.probes), "its halves tell the error")
        check_whole("documents", self.documents, 2)
        check_number("damping", self.damping, minimum=1e-6, remedy="1 is the mean trace of a text's curvature")


class HeadGradients:
    """Gradients of each text's summed loss through the output layer: of its own tokens, and of labels that the model
    drew in their place. A token's gradient is (p − its label) ⊗ what the layer was given."""

    def __init__(self, curvature: TextCurvature, head: nn.Linear) -> None:
        self.curvature, self.device = curvature, head.weight.device
        self.dtype = torch.float64 if head.weight.dtype == torch.float64 else torch.float32
        self._head, self._given = head, torch.empty(0)
        self._inputs: list[torch.Tensor] = []
        self._drawn: list[torch.Tensor] = []
        self._generator = torch.Generator(self.device).manual_seed(0)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep what the layer is given inside."""

        def keep(_module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
            self._given = arguments[0].detach()

        handle = self._head.register_forward_pre_hook(keep)
        try:
            yield
        finally:
            handle.remove()

    def see(self, logits: torch.Tensor, where: torch.Tensor) -> None:
        """Draw labels from the logits (t, V) of a batch's tokens, which stand at `where` (b, L)."""
        for some in logits.split(max(1, NUMBERS_AT_ONCE // logits.shape[1])):
            chances = some.float().softmax(1).to(self.device)
            self._drawn.append(torch.multinomial(chances, self.curvature.probes, True, generator=self._generator))
        given = self._given[where.to(self._given.device)].to(self.device)
        if len(given) and not self._inputs:
            again = nn.functional.linear(given, self._head.weight, self._head.bias).float()
            apart = float((again - logits.to(self.device).float()).abs().max() / again.abs().max())
            if apart > AGREES:
                got = f"logits that differ from its outputs by {apart:.0%} of the largest"
                remedy = "the model changes them: pass curvature=None (--config through=none)"
                raise fail("curvature", "a head whose outputs are the logits", got, remedy)
        self._inputs += [given] if len(given) else []

    def columns(self, tokens: np.ndarray, document: np.ndarray, unit_of: np.ndarray) -> dict[str, np.ndarray]:
        """Return leverage, influence, newton and newton_error of each unit, by the tokens (T,) in the order in which
        they were seen, their documents, and the unit of each document."""
        asked, units = self.curvature, int(unit_of.max()) + 1
        of_unit = torch.from_numpy(unit_of[document]).to(self.device)
        labels = torch.cat([torch.from_numpy(tokens).to(self.device)[:, None], torch.cat(self._drawn)], 1)
        some = np.random.default_rng(0).permutation(units)[: asked.documents]
        chosen = torch.from_numpy(np.sort(some)).to(self.device)
        kind = "float64" if self.dtype == torch.float64 else "bf16x3" if self.device.type == "cuda" else "float32"
        adaptive = asked.optimizer == "adam"
        products = GradientProducts(units, chosen, asked.probes, Precision(kind), adaptive, asked.damping)
        rows = units * (1 + asked.probes) * self.dtype.itemsize
        most = free_memory(self.device) // 6
        at_once = max(1, (most if self.device.type == "cuda" else min(most, MOST_ON_CPU)) // rows)
        with torch.no_grad():
            for piece in self._pieces(labels, of_unit, units, at_once):
                products.add(piece)
            return {name: values.cpu().numpy() for name, values in products.columns().items()}

    def _pieces(self, labels: torch.Tensor, unit: torch.Tensor, units: int, at_once: int) -> Iterator[torch.Tensor]:
        """Yield gradients (units, labels, parameters), `at_once` parameters at a time."""
        order = torch.argsort(unit, stable=True)
        labels, unit, x = labels[order], unit[order], torch.cat(self._inputs)[order].to(self.dtype)
        weight = self._head.weight.detach().to(self.dtype)
        if self._head.bias is not None:
            x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
            weight = torch.cat([weight, self._head.bias.detach().to(self.dtype)[:, None]], 1)
        width, step = x.shape[1], max(1, NUMBERS_AT_ONCE // len(weight))
        normalizer = torch.cat([torch.logsumexp(some @ weight.T, 1) for some in x.split(step)])
        words = max(1, at_once // width)
        blocks = list(padded_blocks(torch.bincount(unit, minlength=units), NUMBERS_AT_ONCE // max(words, width)))
        for first in range(0, len(weight), words):
            some = weight[first : first + words]
            piece = torch.empty(units, labels.shape[1], len(some), width, dtype=self.dtype, device=self.device)
            for which, places, there in blocks:
                given = x[places] * there.unsqueeze(2)
                chances = (given @ some.T - normalizer[places].unsqueeze(2)).exp_() * there.unsqueeze(2)
                piece[which] = (chances.mT @ given).unsqueeze(1)
            token, probe = ((labels >= first) & (labels < first + len(some))).nonzero(as_tuple=True)
            place = (unit[token] * labels.shape[1] + probe) * len(some) + labels[token, probe] - first
            piece.view(-1, width).index_add_(0, place, x[token], alpha=-1)
            yield piece.flatten(2)


def padded_blocks(lengths: torch.Tensor, most: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield blocks of units whose tokens lie one after the other, units of like lengths together: their numbers (k,),
    the places of their tokens (k, longest), and which of those are there; at most `most` places a block."""
    starts = torch.cumsum(lengths, 0) - lengths
    order = torch.argsort(lengths, descending=True)
    first = 0
    while first < len(order):
        longest = int(lengths[order[first]])
        which = order[first : first + max(1, most // max(longest, 1))]
        steps = torch.arange(longest, device=lengths.device)
        there = steps < lengths[which].unsqueeze(1)
        yield which, (starts[which].unsqueeze(1) + steps) * there, there
        first += len(which)


def output_head(model: nn.Module) -> nn.Linear:
    """Return the layer that makes the logits, as the model says, or its last linear layer; refuse one of integers."""
    named = getattr(model, "get_output_embeddings", None)
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    head = named() if callable(named) else linear[-1] if linear else None
    if not isinstance(head, nn.Linear):
        remedy = "pass curvature=None (--config through=none); a classifier is read by from_torch"
        raise fail("curvature", "an output head that is an nn.Linear", "none", remedy)
    if not head.weight.is_floating_point():
        got, remedy = f"{head.weight.dtype}, as of a model in 8 or 4 bit", "load it in bfloat16, or pass curvature=None"
        raise fail("curvature", "a head with floating-point weights", got, remedy)
    return head
