"""Variants of the records that a model is asked about beside them: built in for images, for other records the user's.

A variant of an image is its mirror image, or the image moved by whole pixels, so that nothing is blurred.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from giveaway.checks import errors_about, fail
from giveaway.extract.batches import RecordBatch, model_inputs

CHANNELS = (1, 3)
LEAST_SIDE = 8
SHIFT = 0.06  # of a side, and at least a pixel

Change = Callable[[Any], Any]


def mirrored(images: torch.Tensor) -> torch.Tensor:
    return images.flip(-1)


def shifted(images: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """Return images (n, c, h, w) moved by whole steps of 6 % of their sides; the border is mirrored.

    >>> shifted(torch.arange(9.0).reshape(1, 1, 1, 9), 0, 1)[0, 0, 0].tolist()
    [1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    for axis, way in ((2, down), (3, right)):
        last = images.shape[axis] - 1
        source = torch.arange(last + 1, device=images.device) - way * max(1, round(SHIFT * (last + 1)))
        images = images.index_select(axis, (last - (last - source.abs()).abs()).clamp_min(0))
    return images


OF_IMAGES: dict[str, tuple[Change, ...]] = {
    "mirror": (mirrored,),
    "shift": (partial(shifted, down=1, right=1), partial(shifted, down=-1, right=-1)),
}


class Variants:
    """The variants that the first batch decides on. `given` is None (of images those built in), True (the same, and
    other inputs are refused), False, or a dict from names to functions of what the model is called with."""

    def __init__(self, given: Any) -> None:
        self._changes: dict[str, tuple[Change, ...]] | None = None if given is None or given is True else {}
        self._required = given is True
        if isinstance(given, Mapping):
            for name, change in given.items():
                if not isinstance(name, str) or not name.isidentifier() or not callable(change):
                    expected, got = "functions by the variant's name, a plain word", f"{type(change).__name__} {name!r}"
                    raise fail("relatives", expected, got, "pass {'dropped': function of a batch of inputs}")
            self._changes = {name: (change,) for name, change in given.items()}
        elif given is not None and not isinstance(given, bool):
            got = f"a {type(given).__name__}"
            raise fail("relatives", "None, True, False or a dict of functions", got, "leave it out, or pass a dict")

    def choose(self, batch: RecordBatch) -> dict[str, tuple[Change, ...]]:
        """Return the variants by name, which are chosen by the first batch."""
        if self._changes is None:
            value: Any = batch.inputs[0] if len(batch.inputs) == 1 else None
            images = isinstance(value, torch.Tensor) and value.ndim == 4 and value.layout == torch.strided
            images = images and (value.is_floating_point() or value.dtype == torch.uint8)
            images = images and value.shape[1] in CHANNELS and min(value.shape[2:]) >= LEAST_SIDE
            if self._required and not images:
                expected = "images (n, c, h, w) of 1 or 3 channels, 8 pixels or more a side, as the model's one input"
                raise fail("relatives", expected, "other inputs", "pass a dict from names to functions of a batch")
            self._changes = OF_IMAGES if images else {}
        return self._changes

    def outputs(
        self, batch: RecordBatch, run: Callable[[RecordBatch], torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Run the model on the variants of a batch; yield the mean of the outputs (logarithms, up to constants)."""
        alone = len(batch.arguments) == 1 and not batch.keywords
        inputs = batch.arguments[0] if alone else batch.keywords or batch.arguments
        for name, changes in self.choose(batch).items():
            with errors_about(f"relatives[{name!r}]: "):
                said = [run(RecordBatch(*model_inputs(change(inputs)), batch.targets)) for change in changes]
            yield name, torch.stack(said).mean(0, dtype=torch.float64).to(said[0].dtype)
