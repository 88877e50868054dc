"""The loss of a text: the cross-entropies of its tokens, each of which the other losses know as a record."""

import torch

from giveaway.checks import fail
from giveaway.curvature.losses import Loss, Softmax
from giveaway.curvature.output_curvature import OutputCurvature

CERTAIN = 1e4  # the logit of a token that is left out, beside 0 of all others


class OfTokens(Loss):
    """The cross-entropies of a text's tokens, summed: outputs (..., s·V) of s positions, and targets (..., s), the
    tokens; negative ones are left out of the loss."""

    def __init__(self, positions: int, vocabulary: int) -> None:
        super().__init__(positions * vocabulary)
        self._each, self._shape = Softmax(vocabulary), (positions, vocabulary)
        self.degrees = positions * self._each.degrees

    @property
    def each(self) -> Loss:
        return self._each

    def grouped(self, f: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens that are left out pass for certain ones, of which nothing is lost, learned or seen."""
        known = y.clamp_min(0)
        certain = torch.zeros_like(f.unflatten(-1, self._shape)).scatter(-1, known.unsqueeze(-1), CERTAIN)
        f = torch.where((y >= 0).unsqueeze(-1), f.unflatten(-1, self._shape), certain)
        return f, known, torch.ones(f.shape[:-1], dtype=f.dtype, device=f.device)

    def value(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self._each.value(*self.grouped(f, y)[:2]).sum(-1)

    def gradient(self, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self._each.gradient(*self.grouped(f, y)[:2]).flatten(-2)

    def curvature(self, f: torch.Tensor, y: torch.Tensor | None = None) -> OutputCurvature:
        raise NotImplementedError("W couples the outputs of each position: `each` has it")

    def curve(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return self._each.curve(*self.grouped(f, y)[:2], u.unflatten(-1, self._shape)).flatten(-2)

    def root(self, f: torch.Tensor, y: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return self._each.root(*self.grouped(f, y)[:2], u.unflatten(-1, self._shape)).flatten(-2)

    def check_targets(self, y: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        places, vocabulary = self._shape
        if y.shape[1:] != (places,) or y.is_floating_point() or bool((y >= vocabulary).any()):
            expected = f"tokens (texts, {places}) below {vocabulary}, negative where one is left out"
            got = f"{y.dtype} of shape {tuple(y.shape)}, up to {y.max().item():g}"
            raise fail("targets", expected, got, "pad the texts to one length with -100")
        return y.to(torch.int64)

    def basis(self) -> torch.Tensor:
        return torch.block_diag(*[self._each.basis()] * self._shape[0])
