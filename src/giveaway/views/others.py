"""The view of the other records: what they predict for each record, beside what the head did with it (docs/views.md).

It needs the records themselves (`Head.inputs`: images, a table, or texts) and costs one factorization of a kernel of
them; it returns left-out errors and leverages, from which `left_out`, `fused` and predicted attacks are made.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from giveaway.checks import InputError, as_tensor, fail
from giveaway.linalg.processes import ALONE, Processes
from giveaway.records import Head
from giveaway.records.reasons import OwnTerms
from giveaway.records.rows import Rows
from giveaway.scores.fusion import Views
from giveaway.scores.predicted import Prediction, calibrated_phi, predict_from_views
from giveaway.text import OnStage, quiet
from giveaway.views.images import image_features
from giveaway.views.left_out import (
    EXACT_UP_TO,
    LeftOutPrediction,
    RecordFeatures,
    fits_whole,
    left_out,
    left_out_smooth,
)
from giveaway.views.model import centred, has_one_class, phi_of, standardized, targets_of_head, value_spread
from giveaway.views.own_terms import own_terms
from giveaway.views.tables import table_features
from giveaway.views.text import DIMENSIONS, text_features

LEAST_MEMORIZED = 0.1  # of the left-out error, below which predictions rose where attacks fell: docs/views.md
HELD_BACK = (
    "No predicted_* column: the model hardly knows its records better than the other records tell (noise, early "
    "stopping), and no prediction of ours holds there; measure with giveaway validate."
)
NEIGHBOURS = 3
EXPLAINED = 100  # rows, the most exposed ones, whose nearest records are looked up
SAME = 1e-5  # of a feature's variance that a linear function of the inputs may leave: half precision leaves less
MOST_COLUMNS = 4_096  # of inputs that are tried for that
TRIED = 64  # of the head's features, at random, that are tried for it
TO_SPARE = 256  # rows at most beyond what a linear function could fit anyway


def features_of(inputs: Any, *, device: torch.device | str = "cpu") -> tuple[dict[str, Any], RecordFeatures]:
    """Choose features by what the records are; describe them, in words and numbers for the metadata, and make them.

    Images: (n, c, h, w), or (n, h, w) of uint8. Text: a list or array of str. Tables: (n, columns) or (n,) numbers, a
    DataFrame, or a matrix of objects or strings, some of whose columns may be categories.

    >>> described, features = features_of(["to be", "or not"])
    >>> described["view"], next(features()).shape
    ('text', torch.Size([2, 4096]))
    """
    if hasattr(inputs, "iloc") and inputs.ndim == 1:  # a column of a DataFrame
        inputs = np.asarray(inputs)
    rows = isinstance(inputs, Sequence) or (isinstance(inputs, np.ndarray) and inputs.ndim == 1)
    # judged by the first record: a list made an array would be as wide as its longest text
    if isinstance(inputs, str) or (rows and len(inputs) > 0 and isinstance(inputs[0], str)):
        return {"view": "text", "dimensions": DIMENSIONS}, text_features(inputs)
    array = inputs
    if not isinstance(inputs, torch.Tensor) and not hasattr(inputs, "iloc"):
        try:
            array = np.asarray(inputs)
        except ValueError as error:
            got = f"rows of different lengths ({str(error)[:60]} …)"
            raise fail("inputs", "one shape for all records", got, "pad or cut them to one length") from None
    got = f"shape {tuple(array.shape)}"
    if array.ndim and 0 in array.shape:
        raise fail("inputs", "at least one record, of one number at least", got, "give one row a record")
    if array.ndim == 4 or (array.ndim == 3 and str(array.dtype).endswith("uint8")):
        return image_features(array, device=device)
    if array.ndim in (1, 2):
        return table_features(array)
    remedy = "reshape it (images of one channel: inputs[:, None]), or supply features of your own"
    expected = "images (n, c, h, w), strings, or a table (n, columns)"
    raise fail("inputs", expected, f"{got} of {array.dtype}", remedy)


class OthersView:
    """Left-out predictions for a head's records from the inputs it holds; `compare` computes them, first of all.

    `errors` are then the squared ones of what the others predict for each record. Of several processes the first asks,
    and the others `assist` it, where the kernel is not factored whole.
    """

    def __init__(self, head: Head, processes: Processes = ALONE) -> None:
        self._head, self._processes = head, processes
        self._described, self.features = features_of(head.inputs, device=head.device)

    def compare(self, score: np.ndarray, inside: np.ndarray, on_stage: OnStage = quiet) -> Views:
        """Compare both views of every row; `inside` are the squared errors of what the model says of each record."""
        head, targets = self._head, targets_of_head(self._head)
        self._left_out = self._predicted(targets, inside.sum(), on_stage)
        outside = self.errors = self._left_out.error.square().sum(1).numpy()
        leverage = self._left_out.leverage.numpy()
        if head.groups is not None:
            _, person, counts = np.unique(head.groups, return_inverse=True, return_counts=True)
            inside, outside = np.bincount(person, inside), np.bincount(person, outside)
            leverage = np.bincount(person, leverage) / counts
        variation = float((targets - targets.mean(0)).square().sum())
        numbers = self.features.of if self.kind == "tabular" else None
        if self.kind == "images":
            numbers = as_tensor("inputs", head.inputs).flatten(1).__getitem__
        self._seen = Views(score, inside, outside, leverage, variation, not_learned(head, numbers))
        return self._seen

    def _predicted(self, targets: torch.Tensor, inside: float, on_stage: OnStage) -> LeftOutPrediction:
        """Predict every record from the others. A table has a smooth kernel unless the model memorizes (it took away
        more than half of the left-out error) and the kernel that memorizes too predicts left-out records better."""
        head, features = self._head, replace(self.features, on_stage=on_stage)
        self._shared = smooth = self._predicted_by_all(targets, on_stage)
        sharp = partial(left_out, features, targets, groups=head.groups, device=head.device)
        if self.kind != "tabular" or smooth is None:
            return smooth or sharp(standardize=self.kind == "images", exact=True)
        if self.features.n > EXACT_UP_TO or inside > 0.5 * float(smooth.error.square().sum()):
            return smooth
        return min(smooth, sharp(), key=lambda one: one.report["left_out_error"])

    def _predicted_by_all(self, targets: torch.Tensor, on_stage: OnStage = quiet) -> LeftOutPrediction | None:
        """Predict with what processes can share; None where the first factors the whole kernel of images or texts."""
        head, processes = self._head, self._processes
        features = replace(self.features, on_stage=on_stage, processes=processes)
        if self.kind == "tabular":
            return left_out_smooth(features, targets, groups=head.groups)
        fits = fits_whole(head.n, head.device, head.groups is not None)
        if processes.any(processes.first and fits):
            return None
        images = self.kind == "images"  # hashed texts have unit length
        return left_out(features, targets, groups=head.groups, standardize=images, device=head.device, exact=False)

    def assist(self, explained: bool) -> None:
        """Do this process's share of `compare` and, where the first rows are explained, of `attributes`."""
        shared = self._predicted_by_all(targets_of_head(self._head))
        if explained and self._processes.any(False) and shared is not None:
            n = self._head.n
            shared.nearest(torch.zeros(min(EXPLAINED, n)), min(NEIGHBOURS, n - 1))

    def attributes(self, order: np.ndarray) -> dict[str, np.ndarray]:
        """Return what the others predict for each record (one class or value), and who is nearest to the first rows."""
        head, prediction = self._head, self._left_out
        columns: dict[str, np.ndarray] = {}
        if has_one_class(head):
            scores = (targets_of_head(head).cpu() - prediction.error).numpy()
            columns["others_say"] = scores.argmax(1) if head.m > 1 else (scores[:, 0] > 0).astype(np.int64)
        elif head.loss == "squared" and head.m == 1:
            columns["target"] = head.targets.cpu().numpy()[:, 0]
            columns["others_say"] = columns["target"] - prediction.error[:, 0].numpy() * value_spread(head)
        rows = order[:EXPLAINED]
        self._processes.any(prediction is self._shared)  # the others then assist
        self._near = near = prediction.nearest(rows.copy(), min(NEIGHBOURS, head.n - 1)).numpy()
        names = np.full(head.n, "", dtype=object)
        for row, others in zip(rows, near, strict=True):
            names[row] = ", ".join(str(head.ids[other]) for other in others if other >= 0)
        columns["nearest"] = names.astype(str)
        return columns

    def own_terms(self, order: np.ndarray, classes: np.ndarray | None, said: np.ndarray | None) -> OwnTerms:
        """Return what sets the first rows apart, whose `attributes` were asked for; by what the classes are called."""
        rows = order[:EXPLAINED]
        clauses = own_terms(self._head, rows, self._near, self._described["view"], classes, said)
        return OwnTerms(rows, *(np.array(part, dtype=str) for part in zip(*clauses, strict=True)))

    def predict(self, exposure: np.ndarray, outputs: Rows) -> Prediction | None:
        """Predict attack success from both views; None for values, and where the head's own theory is exact."""
        head = self._head
        if self._seen.head_is_exact or not has_one_class(head):
            return None
        scores = (targets_of_head(head).cpu() - self._left_out.error).numpy()
        model = phi_of(outputs[: head.n], head.targets)
        return predict_from_views(model, calibrated_phi(scores, head.targets.cpu().numpy()), exposure)

    @property
    def kind(self) -> str:
        """What the records are: images, text or tabular."""
        return self._described["view"]

    @property
    def held_back(self) -> bool:
        """Whether the model hardly knows its records better than the others tell, by noise or early stopping: what
        sets it apart from them is then no memory, and nothing here, nor the head, predicts an attack."""
        return self._seen.memorized < LEAST_MEMORIZED and not self._seen.head_is_exact

    @property
    def report(self) -> dict[str, Any]:
        """What goes into the metadata."""
        return {
            **self._described,
            **self._left_out.report,
            "memorized": round(self._seen.memorized, 6),
            "held_by_memory": round(self._seen.held, 6),
            "head_weight": round(self._seen.head_weight, 6),
            "head_is_exact": self._seen.head_is_exact,
        }


def view_of(head: Head, *, required: bool, processes: Processes = ALONE) -> tuple[OthersView | None, str | None]:
    """Make the view of the inputs that the head holds; None and why where there is none, an error if required."""
    if head.inputs is None:
        return None, "No fused score: the records themselves were not given (inputs)."
    try:
        return OthersView(head, processes), None
    except InputError as error:
        if required:
            raise
        return None, f"No fused score: the inputs that the model was given make no view ({error})."


def not_learned(head: Head, numbers: Callable[[Any], torch.Tensor] | None) -> bool:
    """Say whether the head's features were not learned, as declared or because they are a linear function of the
    inputs' numbers: then the head's view is exact."""
    if head.frozen:
        return True
    if numbers is None or not head.linear or head.features.shape[1] == 0:
        return False
    columns = numbers(slice(0, 1)).shape[1]
    if columns > MOST_COLUMNS or head.n < 2 * (columns + 1):
        return False
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(head.n, generator=generator)[: columns + 1 + min(columns + 1, TO_SPARE)]
    some = torch.randperm(head.features.shape[1], generator=generator)[:TRIED]
    device = head.device
    x = standardized(numbers(rows).to(device))
    z = centred(head.features[rows.to(device)][:, some.to(device)].to(torch.float64))
    basis = torch.linalg.qr(x)[0]
    rest = z - basis @ (basis.T @ z)
    return bool((rest.square().sum(0) <= SAME * z.square().sum(0)).all())
