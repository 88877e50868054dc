"""Gradients of every text through the output head, or through adapters and other linear layers, for its Newton step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from giveaway.checks import check_choice, check_number, check_whole, fail, free_memory, nearest
from giveaway.linalg.gradient_steps import GradientProducts
from giveaway.linalg.precision import Precision

NUMBERS_AT_ONCE = 2**25  # probabilities that are held together
MOST_ON_CPU = 1_000_000_000  # bytes of gradients that are held together
AGREES = 0.02  # of the largest logit, by which the head's own may differ from the model's: both may be bfloat16
CONV1D = "Conv1D"  # the linear layer of GPT-2 in transformers, its weight transposed

Reading = tuple[torch.Tensor, Callable[[], torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class TextCurvature:
    """Through which parameters a text's leverage and Newton step go, and how the curvature is estimated.

    through : "head", the output layer, trained or not; "adapters", those of LoRA; or names and patterns of linear
        layers. optimizer : "adam" takes distances in parameters as Adam and its kin step, "sgd" all alike.
    probes : how many sets of labels the model draws for each text, an even number; their spread is the stated error.
    documents : how many texts (or people), drawn at random, stand for the curvature of all.
    damping : what is added to the curvature, in units of its mean trace over texts.
    """

    through: str | Sequence[str] = "head"
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


class TextGradients(ABC):
    """Gradients of each text's summed loss: of its own tokens, and of the labels that the model drew in their place."""

    def __init__(self, curvature: TextCurvature, layers: Collection[nn.Module]) -> None:
        weights: list[torch.Tensor] = [layer.weight for layer in layers]  # type: ignore[misc]
        if kinds := sorted({str(weight.dtype) for weight in weights if not weight.is_floating_point()}):
            got = f"{', '.join(kinds)}, as of a model in 8 or 4 bit"
            remedy = 'name its adapters, TextCurvature(through="adapters"), or load it in bfloat16'
            raise fail("curvature", "layers with floating-point weights", got, remedy)
        weight = weights[0]
        self.curvature, self.device = curvature, weight.device
        self.dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self._drawn: list[torch.Tensor] = []
        self._generator = torch.Generator(self.device).manual_seed(0)

    def watching(self) -> AbstractContextManager[Any]:
        """Look at the model inside, where that is needed."""
        return nullcontext()

    def see(self, logits: torch.Tensor, where: torch.Tensor) -> None:
        """Draw labels from the logits (t, V) of a batch's tokens, which stand at `where` (b, L)."""
        for some in logits.split(max(1, NUMBERS_AT_ONCE // logits.shape[1])):
            chances = some.float().softmax(1).to(self.device)
            self._drawn.append(torch.multinomial(chances, self.curvature.probes, True, generator=self._generator))

    def columns(self, tokens: np.ndarray, document: np.ndarray, unit_of: np.ndarray) -> dict[str, np.ndarray]:
        """Return leverage, influence, newton and newton_error of each unit, by the tokens (T,) in the order in which
        they were seen, their documents, and the unit of each document."""
        asked, units = self.curvature, int(unit_of.max()) + 1
        self._unit_of = torch.from_numpy(unit_of).to(self.device)
        labels = torch.cat([torch.from_numpy(tokens).to(self.device)[:, None], torch.cat(self._drawn)], 1)
        some = np.random.default_rng(0).permutation(units)[: asked.documents]
        chosen = torch.from_numpy(np.sort(some)).to(self.device)
        kind = "float64" if self.dtype == torch.float64 else "bf16x3" if self.device.type == "cuda" else "float32"
        adaptive = asked.optimizer == "adam"
        products = GradientProducts(units, chosen, asked.probes, Precision(kind), adaptive, asked.damping)
        rows = units * (1 + asked.probes) * self.dtype.itemsize
        most = free_memory(self.device) // 6
        at_once = max(1, (most if self.device.type == "cuda" else min(most, MOST_ON_CPU)) // rows)
        of_unit = self._unit_of[torch.from_numpy(document).to(self.device)]
        with torch.no_grad():
            for piece in self._pieces(labels, of_unit, units, at_once):
                products.add(piece)
            return {name: values.cpu().numpy() for name, values in products.columns().items()}

    @abstractmethod
    def _pieces(self, labels: torch.Tensor, unit: torch.Tensor, units: int, at_once: int) -> Iterator[torch.Tensor]:
        """Yield gradients (units, labels, parameters), `at_once` parameters at a time, in one order of parameters."""


class HeadGradients(TextGradients):
    """Through the output layer: a token's gradient is (p − its label) ⊗ what the layer was given."""

    def __init__(self, curvature: TextCurvature, head: nn.Linear) -> None:
        super().__init__(curvature, [head])
        self._head, self._given = head, torch.empty(0)
        self._inputs: list[torch.Tensor] = []

    def watching(self) -> AbstractContextManager[Any]:
        def keep(_module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
            self._given = arguments[0].detach()

        return self._head.register_forward_pre_hook(keep)

    def see(self, logits: torch.Tensor, where: torch.Tensor) -> None:
        super().see(logits, where)
        given = self._given[where.to(self._given.device)].to(self.device)
        if len(given) and not self._inputs:
            again = nn.functional.linear(given, self._head.weight, self._head.bias).float()
            apart = float((again - logits.to(self.device).float()).abs().max() / again.abs().max())
            if apart > AGREES:
                got = f"logits that differ from its outputs by {apart:.0%} of the largest"
                remedy = 'the model changes them: name layers, as TextCurvature(through="adapters"), or curvature=None'
                raise fail("curvature", "a head whose outputs are the logits", got, remedy)
        self._inputs += [given] if len(given) else []

    def _pieces(self, labels: torch.Tensor, unit: torch.Tensor, units: int, at_once: int) -> Iterator[torch.Tensor]:
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


class LayerGradients(TextGradients):
    """Through linear layers anywhere in the model: a text's gradient is Σ (what comes back) ⊗ (what the layer was
    given) over its places. `batches` are read again, each with the documents of its places (b, L), −1 for none, a
    function that gives the logits (t, V) of its tokens, and the tokens (t,)."""

    def __init__(
        self, curvature: TextCurvature, layers: Mapping[str, nn.Module], batches: Callable[[], Iterator[Reading]]
    ) -> None:
        super().__init__(curvature, layers.values())
        self._layers, self._batches = layers, batches

    def _pieces(self, labels: torch.Tensor, unit: torch.Tensor, units: int, at_once: int) -> Iterator[torch.Tensor]:
        groups: list[list[tuple[str, slice, int]]] = [[]]
        for name, layer in self._layers.items():
            weight: torch.Tensor = layer.weight  # type: ignore[assignment]
            height, width = weight.shape[::-1] if type(layer).__name__ == CONV1D else weight.shape
            width += layer.bias is not None
            step = max(1, at_once // width)  # outputs of a large layer at a time
            for first in range(0, height, step):
                some = slice(first, min(first + step, height))
                needed = width * (some.stop - first)
                if groups[-1] and sum(size for *_, size in groups[-1]) + needed > at_once:
                    groups.append([])
                groups[-1].append((name, some, needed))
        for group in groups:
            layers, sizes = {name: self._layers[name] for name, *_ in group}, [size for *_, size in group]
            room = torch.zeros(units, labels.shape[1], sum(sizes), device=self.device, dtype=self.dtype)
            parts = room.split(sizes, 2)
            first = 0
            for documents, logits_of, targets in self._batches():
                documents = documents.to(self.device)
                places = torch.where(documents < 0, -1, self._unit_of[documents.clamp_min(0)])
                with torch.enable_grad(), _recorded(layers) as (given, returned):
                    logs = logits_of().to(self.dtype).log_softmax(1)
                    own = labels[first : first + len(logs)].to(logs.device)
                    if not torch.equal(own[:, 0], targets.to(own.device)):
                        remedy = "leave out random crops and the like: every reading must give the same rows"
                        raise fail("dataset", "the same tokens at every reading", "others at the second", remedy)
                    losses = (-logs.gather(1, own).sum(0)).unbind()
                first += len(logs)
                for probe, loss in enumerate(losses):
                    back = torch.autograd.grad(loss, list(returned.values()), retain_graph=probe + 1 < len(losses))
                    outputs = dict(zip(returned, back, strict=True))
                    for part, (name, some, _) in zip(parts, group, strict=True):
                        _add_outer(part[:, probe], given[name], outputs[name][..., some], places)
            yield room


def gradients_of(model: nn.Module, curvature: TextCurvature, batches: Callable[[], Iterator[Reading]]) -> TextGradients:
    if curvature.through == "head":
        return HeadGradients(curvature, output_head(model))
    return LayerGradients(curvature, linear_layers(model, curvature.through), batches)


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


def linear_layers(model: nn.Module, through: str | Sequence[str]) -> dict[str, nn.Module]:
    """Return the linear layers that are named: "adapters", or names and patterns."""
    known = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) or type(layer).__name__ == CONV1D
    }
    patterns = ["*lora_*"] if through == "adapters" else [through] if isinstance(through, str) else list(through)
    chosen: dict[str, nn.Module] = {}
    for pattern in patterns:
        matched = {name: layer for name, layer in known.items() if fnmatchcase(name, pattern)}
        if not matched:
            expected = "adapters of LoRA in the model" if through == "adapters" else "names of linear layers"
            remedy = "name layers, or take the head" if through == "adapters" else nearest(pattern, list(known))
            raise fail("through", expected, repr(pattern) if through != "adapters" else "none", remedy)
        chosen |= matched
    return chosen


def output_head(model: nn.Module) -> nn.Linear:
    """Return the layer that makes the logits: as the model says, or its last linear layer."""
    named = getattr(model, "get_output_embeddings", None)
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    head = named() if callable(named) else linear[-1] if linear else None
    if not isinstance(head, nn.Linear):
        remedy = 'name layers, as TextCurvature(through="adapters"), or pass curvature=None (--config through=none); '
        remedy += "a classifier is read by from_torch"
        raise fail("curvature", "an output head that is an nn.Linear", "none", remedy)
    return head


@contextmanager
def _recorded(layers: Mapping[str, nn.Module]) -> Iterator[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]:
    """Record inside what layers are given, and zeros added to what they return, whose gradients are the outputs'."""
    given: dict[str, torch.Tensor] = {}
    returned: dict[str, torch.Tensor] = {}

    def record(name: str, layer: nn.Module, arguments: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        x = arguments[0].detach()
        if name in given or x.ndim != 3:
            got = f"{name} again" if name in given else f"{name} with inputs of shape {tuple(x.shape)}"
            raise fail("through", "layers that run once, on (rows, places, features)", got, "name other layers")
        given[name] = x if layer.bias is None else torch.cat([x, torch.ones_like(x[..., :1])], -1)
        returned[name] = torch.zeros_like(output, requires_grad=True)
        return output + returned[name]

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(partial(record, name)))
        yield given, returned
    if missing := [name for name in layers if name not in given]:
        remedy = "name the layers of the active adapter"
        raise fail("through", "layers that run", f"{missing[0]}, which does not", remedy)


def _add_outer(part: torch.Tensor, x: torch.Tensor, y: torch.Tensor, places: torch.Tensor) -> None:
    """Add Σ y ⊗ x over the places of each unit to part (units, outputs · inputs)."""
    x, y, places = x.to(part.device, part.dtype), y.to(part.device, part.dtype), places.to(part.device)
    unit = places.amax(1)
    if x.shape[:2] == places.shape and bool(((places >= 0) & (places != unit[:, None])).any()):  # packed rows
        flat = places.flatten()
        order = torch.argsort(flat, stable=True)[int((flat < 0).sum()) :]
        unit, lengths = torch.unique_consecutive(flat[order], return_counts=True)
        x, y = x.flatten(0, 1)[order], y.flatten(0, 1)[order]
        for which, at, there in padded_blocks(lengths, NUMBERS_AT_ONCE // max(x.shape[1], y.shape[1])):
            outer = (y[at] * there.unsqueeze(2)).mT @ x[at]
            part.index_add_(0, unit[which], outer.flatten(1))
        return
    there = unit >= 0
    part.index_add_(0, unit[there], (y.mT @ x).flatten(1)[there])
