"""The order in which models see their records, each model's from its own seed, the same on every device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from giveaway.linalg.probes import mixed


class EpochBatches:
    """The batches of several models: record numbers and weights, (models, width) a step.

    Every model takes the same number of steps. Rows that fill a batch up to the width have weight 0 (batch norm sees
    them, and they are records of the model's own), the others 1 / size of the batch. An epoch's order is that of a hash
    of (seed, epoch, place), in whole numbers: no device rounds it and no model depends on its neighbours.
    """

    def __init__(
        self, members: Sequence[np.ndarray], steps: int, seeds: Sequence[int], device: torch.device | str = "cpu"
    ) -> None:
        self.steps = steps
        self.width = math.ceil(max(len(own) for own in members) / steps)
        sizes = torch.tensor([len(own) for own in members])
        longest = int(sizes.max())
        self._members = torch.zeros(len(members), longest, dtype=torch.long)
        for row, own in zip(self._members, members, strict=True):
            row[: len(own)] = torch.from_numpy(own)
        self._absent = torch.arange(longest) >= sizes[:, None]
        self._seeds = torch.tensor(seeds, dtype=torch.long)[:, None]
        self._places, self.weights = _cut(sizes, steps, self.width)
        self._epoch = 0
        for name in ("_members", "_absent", "_seeds", "_places", "weights"):
            setattr(self, name, getattr(self, name).to(device))

    def epoch(self) -> torch.Tensor:
        """(models, steps, width) record numbers of the next epoch."""
        keys = epoch_keys(self._seeds, self._epoch, self._members.shape[1])
        self._epoch += 1
        shuffled = self._members.gather(1, keys.masked_fill_(self._absent, torch.iinfo(torch.long).max).argsort(1))
        return shuffled.gather(1, self._places.flatten(1)).view(self._places.shape)


def epoch_keys(seeds: torch.Tensor, epoch: int, places: int) -> torch.Tensor:
    """(models, places) numbers of 63 bits for seeds (models, 1): three rounds of mixing, one for each thing hashed.

    >>> epoch_keys(torch.tensor([[7]]), 0, 2).tolist()
    [[2017972797774257528, 1846129603375045472]]
    """
    of_epoch = mixed(mixed(seeds) + epoch)
    return mixed(of_epoch + torch.arange(places, device=seeds.device)) & torch.iinfo(torch.long).max


def _cut(sizes: torch.Tensor, steps: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places in a shuffled row and weights, (models, steps, width), of batches whose sizes differ by at most one."""
    short, longer = (sizes // steps)[:, None], (sizes % steps)[:, None]
    step = torch.arange(steps)
    first = step * short + torch.minimum(step, longer)
    own = short + (step < longer)
    column = torch.arange(width)
    inside = column < own[..., None]
    places = first[..., None] + torch.where(inside, column, 0)
    return places, inside.double() / own[..., None]
